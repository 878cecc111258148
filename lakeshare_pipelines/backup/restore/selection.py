"""What of a point is to be restored: the table, its version, and the copies that it needs."""

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from lakeshare_pipelines.backup.model import GOOD_STATUSES, POINT_COPIES, FoundTable, Point, TableProof
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError

RestoreMode = Literal["in_place", "elsewhere", "mount"]


@dataclass(frozen=True)
class RestoreRequest:
    """One table of a point, and where it shall be.

    `table` is its name in the lake (`flights.departures`), or the key of its root. `version` is a Delta version or
    the id of an Iceberg snapshot; by default the one that the point proved. `to` is the table's new root; None: the
    original place.
    """

    table: str
    day: str | None = None
    version: int | None = None
    to: StoreAddress | None = None


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class RestorePlan(_Record):
    """What a restore of one table will do, told before it does anything."""

    table: FoundTable
    day: str
    version: int
    """Delta version, or Iceberg's snapshot id."""
    place: str
    """Location of the table's root afterwards."""
    way: RestoreMode
    objects: int
    size_bytes: int
    there: int
    """Objects that are at their place already, and stay untouched."""
    archived: int
    requests: int
    usd: float
    minutes: float
    steps: tuple[str, ...]
    """Sentences: what will happen, in order."""


class RestoreRecord(_Record):
    """What a restore did."""

    day: str
    table: FoundTable
    version: int
    location: str
    """What opens: the table's root, or Iceberg's metadata.json."""
    rows: int | None
    """As an independent reader counted; None where it cannot."""
    files: int
    opened_by: str
    objects: int
    """How many were copied; others were there."""
    size_bytes: int
    started_at: dt.datetime
    seconds: float
    registered_as: str | None = None
    """The table's name in the lake, when main or a live log shows the restored state again."""
    publication: int | None = None
    """The number under which recipients read it; None where it is not published."""
    notes: tuple[str, ...] = ()
    """Sentences for people: what is left to them."""


LOG = "/_delta_log/"
TABLE_FILE = r"(^|/)(_delta_log/|metadata/[^/]*metadata\.json)"
"""What makes files a table: it comes when they are there."""
COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
# Commits, checksums and checkpoints of every kind begin with their version (Delta PROTOCOL.md, "Delta Log Entries").
VERSION_FILE = re.compile(r"(\d{20})\.(json|crc|checkpoint\..+)")
METADATA_JSON = re.compile(r"v(\d+)(\.gz)?\.metadata\.json(\.gz)?")


@dataclass(frozen=True)
class SelectedTable:
    """A table of a point at one version, with the rows (schema HELD) of all copies that belong to it."""

    point: Point
    proof: TableProof
    version: int
    rows: pa.Table
    copies: StoreAddress

    @property
    def table(self) -> FoundTable:
        """The table, as the listing showed it."""
        return self.proof.table


def select_table(points: Points, request: RestoreRequest) -> SelectedTable:
    """The table that is wished for.

    Raises:
        BackupError: there is no such point, table or version, or the point does not hold it whole.
    """
    point = get_point(points, request.day)
    proof = get_proof(point, request.table)
    subject = f"point {point.day}, table {proof.table.root}"
    # An older state, or a small one, is restored where it is asked for by its version; a damaged one never.
    is_asked_for = request.version is not None and proof.version is not None
    if proof.status not in GOOD_STATUSES and not (is_asked_for and not _is_damaged(point, proof)):
        why = "; ".join(proof.reasons) or "it was not proved to open"
        raise BackupError(subject, f"it is {proof.status}: {why}", "Restore it from another point.")
    version = _version(subject, proof, request.version)
    rows = read_table_copies(points, point, proof.table)
    cut = (
        _make_delta_filter(proof.table.root, version)
        if proof.table.format == "delta"
        else _make_iceberg_filter(proof)
    )
    is_selected = pa.array([cut(key) for key in rows["key"].to_pylist()], pa.bool_())
    return SelectedTable(point, proof, version, rows.filter(is_selected), points.backup.target_of(point.day))


def get_point(
    points: Points, day: str | None, report_message: Callable[[str], None] = lambda sentence: None
) -> Point:
    """The point of a day; by default the newest that is fully verified, else the newest with fallbacks.

    `say` gets a sentence about why it was chosen.

    Raises:
        BackupError: there is none.
    """
    if day is not None:
        return points.get(day)
    readable, damaged = points.readable()
    fully = [point for point in readable if point.status == "verified"]
    point = next(reversed(fully or [point for point in readable if point.status in GOOD_STATUSES]), None)
    if point is not None:
        newer = [f"{other.day} is {other.status}" for other in readable if other.day > point.day]
        unreadable = [error.subject.rpartition("point ")[2] for error in damaged]
        newer += [f"{other} is damaged" for other in unreadable if other > point.day]
        why = (
            "the newest that is fully verified"
            if fully
            else "none is fully verified, the newest with fallbacks"
        )
        passed_over = f" Passed over: {'; '.join(sorted(newer))}." if newer else ""
        report_message(f"Point {point.day} is taken: {why}.{passed_over}")
    if point is None:
        raise BackupError(
            f"backup {points.backup.name}",
            "it has no verified point",
            "Make one with `lakeshare backup run`.",
        )
    return point


def _is_damaged(point: Point, proof: TableProof) -> bool:
    return point.damage is not None and proof.table.root in point.damage.tables


def get_proof(point: Point, name: str) -> TableProof:
    """What a point proved of a table, told by its root's key or by its name in the lake.

    Raises:
        BackupError: it holds no such table, or several of that name.
    """
    proofs = {proof.table.root: proof for proof in point.verification.tables}
    if name.strip("/") in proofs:
        return proofs[name.strip("/")]
    # Delta tables of the lake are in a folder of their name, Iceberg's in one with an id behind it.
    path = re.escape(name.replace(".", "/"))
    found = [proof for root, proof in proofs.items() if re.search(rf"(^|/){path}(_[0-9a-f-]{{36}})?$", root)]
    if len(found) == 1:
        return found[0]
    those = ", ".join(proof.table.root for proof in found) if found else ", ".join(sorted(proofs)) or "none"
    several = "it holds several such tables" if found else "it holds no such table"
    raise BackupError(
        f"point {point.day}, table {name}", f"{several}: {those}", "Name one of them by its root."
    )


def read_table_copies(points: Points, point: Point, table: FoundTable) -> pa.Table:
    """Rows of schema HELD of all that a point holds of a table.

    A table may have files below the root of another one that is inside of it: these are told of by the nearer root.
    """
    found = []
    for batch in points.read_copies(point):
        inside = pc.and_(
            pc.starts_with(batch.column("key"), f"{table.root}/"),
            pc.invert(pc.match_substring_regex(batch.column("key"), TABLE_FILE)),
        )
        own = pc.fill_null(pc.equal(batch.column("table_root"), table.root), False)
        found.append(
            batch.filter(pc.or_(own, pc.and_(inside, pc.equal(batch.column("bucket"), table.bucket))))
        )
    return pa.Table.from_batches([one.cast(POINT_COPIES) for one in found], POINT_COPIES)


def _version(subject: str, proof: TableProof, wanted: int | None) -> int:
    if proof.table.format == "iceberg":
        newest = proof.snapshot_id
        if newest is None:
            raise BackupError(
                subject, "it has no snapshot", "A table without rows is made anew, not restored."
            )
        return newest if wanted is None else wanted
    if proof.version is None:
        raise BackupError(subject, "the point does not tell its version", "Restore it from another point.")
    oldest = proof.version if proof.oldest_version is None else proof.oldest_version
    if wanted is not None and not oldest <= wanted <= proof.version:
        raise BackupError(
            subject,
            f"version {wanted} is not in it",
            f"It holds versions {oldest} to {proof.version}; others may be in other points.",
        )
    return proof.version if wanted is None else wanted


def _make_delta_filter(root: str, version: int) -> Callable[[str], bool]:
    """Whether a key of a Delta table belongs to it at a version, or to time travel below it."""
    log = f"{root}{LOG}".lstrip("/")

    def belongs(key: str) -> bool:
        if not key.startswith(log):
            return True
        name = key.removeprefix(log)
        match = COMPACTED.fullmatch(name) or VERSION_FILE.fullmatch(name)
        return int(match[1]) <= version if match else name.startswith("_sidecars/")

    return belongs


def _make_iceberg_filter(proof: TableProof) -> Callable[[str], bool]:
    """Whether a key belongs to a table at the metadata that was proved: catalogs of folders take the newest one."""
    proved = METADATA_JSON.fullmatch((proof.metadata_key or "").rpartition("/")[2])

    def belongs(key: str) -> bool:
        match = METADATA_JSON.fullmatch(key.rpartition("/")[2])
        return match is None or proved is None or int(match[1]) <= int(proved[1])

    return belongs
