"""What each step of a backup says of itself: small records, kept as JSON in the workspace and in the point."""

import datetime as dt
from typing import Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["verified", "verified_with_fallback", "degraded", "failed"]
GOOD: tuple[Status, ...] = ("verified", "verified_with_fallback")
"""Only these count: for retention, for drills, for the age of a backup."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class ListingRecord(_Record):
    """Provenance of a normalised listing: rows of schema LISTING in the workspace's folder `listing`."""

    kind: str
    location: str
    scan_started_at: dt.datetime
    scan_ended_at: dt.datetime | None = None
    manifest_md5: str | None = None
    has_versions: bool = False
    rows: int
    size_bytes: int
    is_late: bool = False
    """No report came in time, and the generator listed instead, or a later report was taken."""
    warnings: tuple[str, ...] = ()
    """Sentences for people: reports that were passed over, objects of a manifest that are not there, …"""


class FoundTable(_Record):
    """A table that a listing shows: the key of its root has no slash at its end."""

    bucket: str
    root: str
    format: Literal["delta", "iceberg"]
    stored_root: str
    """Key of the root in the target."""


class Estimate(_Record):
    """What a plan will take, told before anything is copied."""

    objects: int
    size_bytes: int
    held_objects: int
    held_bytes: int
    requests: int
    usd: float
    minutes: float
    by_lane: dict[str, int]
    """Objects of each lane (backup/rows.py, LANES)."""


class PlanRecord(_Record):
    """A plan: rows of schema PLAN in the workspace's folder `plan`."""

    day: str
    as_of: dt.datetime
    previous: str | None
    """The day of the point that `held` rows come from."""
    tables: tuple[FoundTable, ...]
    estimate: Estimate
    left_out: dict[str, int]
    """Objects that are not copied, by reason: "delete marker", "after as_of", "mutable", "own backup"."""
    warnings: tuple[str, ...] = ()
    """Sentences for people: a vacuum that is shorter than the lag, locations outside the source, …"""


class CopyRecord(_Record):
    """What an engine did: rows of schema DONE in the workspace's folder `done`, one for each row to copy."""

    engine: str
    succeeded: int
    failed: int
    size_bytes: int
    seconds: float
    reports: tuple[str, ...]
    """Locations of reports in AWS's layout (their manifest.json)."""
    capabilities: dict[str, bool] = {}
    """What the stores were found to support, as the engine probed them."""


class TableProof(_Record):
    """What is proved of one table in a point."""

    table: FoundTable
    status: Status
    version: int | None = None
    """Delta version, or Iceberg's last sequence number, that the copy opens at: v*."""
    wanted_version: int | None = None
    """The newest one before as_of; another than `version` where a fallback was needed."""
    snapshot_id: int | None = None
    """Iceberg's snapshot."""
    metadata_key: str | None = None
    """Iceberg: key of the source's metadata.json that is restored."""
    oldest_version: int | None = None
    """The oldest version that still opens from the copy."""
    committed_at: dt.datetime | None = None
    files: int = 0
    size_bytes: int = 0
    rows: int | None = None
    """Of the table at `version`, as its independent reader counted."""
    level: int = 0
    """The highest level that everything the table needs has reached: 4 where a reader read all of its data files and
    every copy was compared with its digest within `scrub.within_days`, else the lowest level of its copies."""
    compared_at: dt.datetime | None = None
    """The copy that was compared longest ago was compared then, when it was made or since."""
    opened_by: str | None = None
    """Name and version of the independent reader."""
    mount: str | None = None
    """Location at which the copy opens as it is; for Iceberg that of a metadata.json."""
    mount_digest: str | None = None
    """Of the metadata that was written for an Iceberg mount (Points.mount_digest)."""
    missing: tuple[str, ...] = ()
    """Keys (the first hundred) that the table needs and that are nowhere."""
    missing_count: int = 0
    healed: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Sentences: why it is not `verified`, and what to do."""


class Verification(_Record):
    """What is proved of a day's copies: rows of schema HELD in the workspace's folder `held`."""

    status: Status
    tables: tuple[TableProof, ...]
    objects: int
    size_bytes: int
    accounted_for: bool
    """L0: every planned object is reported, as succeeded or as failed."""
    failed_objects: int
    """Objects of no table that could not be copied; those of tables are in their proofs."""
    reasons: tuple[str, ...] = ()


class CatalogRecord(_Record):
    """The dump of the catalog that a point carries."""

    key: str
    """Key of its manifest in the store of the records."""
    nessie_hash: str | None
    tables: int
    publications: int
    shares: int
    grants: int


class DamagedCopy(_Record):
    """A copy that a point holds and that is not what was backed up."""

    key: str
    stored_key: str
    table_root: str | None
    problem: str


class Damage(_Record):
    """What was found damaged of a point's copies after the point was written, and could not be repaired."""

    found_at: dt.datetime
    count: int
    copies: tuple[DamagedCopy, ...]
    """The first hundred."""
    tables: tuple[str, ...]
    """Roots of all tables that hold damaged copies."""
    record: str | None = None
    """Why the point cannot tell which copies it holds, where that is so: then all tables are lost with it."""


class Point(_Record):
    """One backup point: what is backed up of one moment, and what was proved of it."""

    backup: str
    day: str
    as_of: dt.datetime
    made_at: dt.datetime
    layout: Literal["incremental", "dated"]
    status: Status
    target: str
    """URL of the store the copies are in."""
    listing: ListingRecord
    plan: PlanRecord
    copied: CopyRecord
    verification: Verification
    catalog: CatalogRecord | None = None
    retention_class: Literal["daily", "weekly", "monthly", "yearly"] = "daily"
    locked_until: dt.datetime | None = None
    held_digests: dict[str, str] = {}
    """SHA-256 of each file of the rows that the point holds; points of earlier releases have none."""
    digest: str | None = None
    """SHA-256 of this record without this field; points of earlier releases have none."""
    damage: Damage | None = None
    """Not in the record itself: what was found since it was written."""
    status_when_made: Status | None = None
    """Not in the record itself: `status` before damage was found."""

    def downgraded(self, damage: Damage | None) -> "Point":
        """The point as it is after this damage: tables with damaged copies, and the point, are degraded."""
        if damage is None or not damage.count:
            return self
        tables = tuple(_downgraded(proof, damage) for proof in self.verification.tables)
        lost = [one for one in damage.copies if one.table_root is None]
        reasons = tuple(f"{one.key}: {one.problem}." for one in lost)
        if damage.record is not None:
            reasons = (*reasons, f"{damage.record}.")
        verification = self.verification.model_copy(
            update={
                "status": "degraded",
                "tables": tables,
                "reasons": (*self.verification.reasons, *reasons),
            }
        )
        return self.model_copy(
            update={
                "status": "degraded",
                "status_when_made": self.status,
                "verification": verification,
                "damage": damage,
            }
        )


def _downgraded(proof: TableProof, damage: Damage) -> TableProof:
    if proof.table.root not in damage.tables:
        return proof
    if damage.record is not None:
        reason = f"The point cannot tell which copies it holds: {damage.record}."
        return proof.model_copy(
            update={"status": "degraded", "level": 0, "reasons": (*proof.reasons, reason)}
        )
    mine = [one for one in damage.copies if one.table_root == proof.table.root]
    named = f", the first is {mine[0].key}: {mine[0].problem}" if mine else ""
    reason = f"{len(mine) or 'Some'} of its copies were found damaged on {damage.found_at:%Y-%m-%d %H:%M} UTC{named}."
    return proof.model_copy(update={"status": "degraded", "level": 0, "reasons": (*proof.reasons, reason)})
