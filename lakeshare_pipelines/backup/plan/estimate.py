"""What a plan takes: objects, bytes, requests, US dollars and minutes; and the bounds that refuse it."""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import GIB, Backup
from lakeshare_pipelines.backup.records import CopyRecord, Estimate, ListingRecord, Point
from lakeshare_pipelines.backup.rows import LANES
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.errors import BackupError

PART_BYTES = 64 * 1024**2
"""Size of a part, where the source's own parts are not known yet; never more than 10,000 parts."""
MOST_PARTS = 10_000
AROUND_PARTS = 3
"""Requests around the parts: HEAD, CreateMultipartUpload, CompleteMultipartUpload."""

MILLION = 1_000_000
S3_COPY_S = 0.05
"""How long one copy request of a small object takes, where nothing was measured yet."""
S3_COPIES_A_S = 3_500
"""Copies that S3 takes a second below one prefix."""
S3_BYTES_A_S = 40 * 1024**2
"""Bytes a second of one request that copies inside a store."""
LOCAL_FILES_A_S = 500
LOCAL_BYTES_A_S = 150 * 1024**2
"""Of copies through this host, from or to a folder or between two endpoints."""
MEASURED_OBJECTS = 1_000
"""An earlier copy of so many objects tells more than the figures above."""


@dataclass
class Tally:
    """Sums over the rows of a plan, batch by batch."""

    copy_limit_bytes: int
    objects: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)
    part_requests: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows of schema PLAN."""
        sums = pa.table({"lane": rows["lane"], "size": rows["size_bytes"]}).group_by("lane")
        for one in sums.aggregate([("size", "sum"), ("lane", "count")]).to_pylist():
            self.objects[one["lane"]] += one["lane_count"]
            self.size_bytes[one["lane"]] += one["size_sum"] or 0
        copied = rows.filter(pc.not_equal(rows["lane"], "held"))
        sizes = copied["size_bytes"]
        sizes = sizes.filter(pc.greater(sizes, self.copy_limit_bytes))
        parts = pc.ceil(pc.divide(pc.cast(sizes, pa.float64()), PART_BYTES))
        parts = pc.min_element_wise(parts, MOST_PARTS)
        self.part_requests += int(pc.sum(parts).as_py() or 0) + AROUND_PARTS * len(parts) - len(parts)

    @property
    def copied(self) -> int:
        """Objects to copy."""
        return self.objects.total() - self.objects["held"]

    @property
    def copied_bytes(self) -> int:
        """Their bytes."""
        return self.size_bytes.total() - self.size_bytes["held"]

    @property
    def requests(self) -> int:
        """A copy each, parts of large ones, and a request to thaw each archived one."""
        return self.copied + self.part_requests + self.objects["archived"]


def estimated(
    backup: Backup, tally: Tally, listing: ListingRecord, jobs: int, previous: Point | None
) -> Estimate:
    """The estimate of a plan; `jobs` is how many stored prefixes there are, each a Batch Operations job."""
    return Estimate(
        objects=tally.copied,
        size_bytes=tally.copied_bytes,
        held_objects=tally.objects["held"],
        held_bytes=tally.size_bytes["held"],
        requests=tally.requests,
        usd=round(_usd(backup, tally, listing, jobs), 4),
        minutes=round(_minutes(backup, tally, None if previous is None else previous.copied), 2),
        by_lane={lane: tally.objects[lane] for lane in LANES if tally.objects[lane]},
    )


def require_within_bounds(backup: Backup, day: str, estimate: Estimate) -> None:
    """Refuse a plan that is beyond what the backup allows.

    Raises:
        BackupError: it names each bound with what the plan takes.
    """
    takes = {
        "objects": estimate.objects,
        "bytes": estimate.size_bytes,
        "usd": estimate.usd,
        "minutes": estimate.minutes,
    }
    beyond = [
        f"{takes[name]:,} {name} where {most:,} are allowed"
        for name, most in backup.bounds
        if most is not None and takes[name] > most
    ]
    if beyond:
        raise BackupError(
            f"backup {backup.name}, point {day}",
            f"its plan takes {', '.join(beyond)}; nothing was copied",
            f"Look at it with `lakeshare backup plan {backup.name} --day {day}`, then raise `bounds`, or back up less.",
        )


def usd_a_month(backup: Backup, estimate: Estimate) -> float:
    """What keeping the new copies costs a month."""
    is_paid = backup.target.kind != FOLDER
    return estimate.size_bytes / GIB * backup.prices.per_gib_month if is_paid else 0.0


def _usd(backup: Backup, tally: Tally, listing: ListingRecord, jobs: int) -> float:
    if backup.source.kind == backup.target.kind == FOLDER:
        return 0.0
    prices, usd = backup.prices, 0.0
    if backup.target.kind != FOLDER:
        usd += tally.requests / MILLION * prices.per_million_copies
    usd += tally.copied_bytes / GIB * prices.per_gib_transferred
    usd += tally.size_bytes["archived"] / GIB * prices.per_gib_thawed
    if listing.kind == "s3_inventory":
        usd += listing.rows / MILLION * prices.per_million_listed
    if backup.engine == "aws_batch" and tally.copied:
        usd += tally.copied / MILLION * prices.per_million_tasks + jobs * prices.per_job
    return usd


def _minutes(backup: Backup, tally: Tally, before: CopyRecord | None) -> float:
    """The slower of the two: requests, and bytes. Thawing takes hours by itself and is not in it."""
    if before is not None and before.succeeded >= MEASURED_OBJECTS and before.seconds > 0:
        requests_a_s = before.succeeded / before.seconds
        bytes_a_s = max(before.size_bytes / before.seconds, 1.0)
    elif _is_inside_one_store(backup):
        requests_a_s = min(backup.in_flight / S3_COPY_S, S3_COPIES_A_S)
        bytes_a_s = float(backup.in_flight * S3_BYTES_A_S)
    else:
        requests_a_s, bytes_a_s = float(LOCAL_FILES_A_S), float(LOCAL_BYTES_A_S)
    return max(tally.requests / requests_a_s, tally.copied_bytes / bytes_a_s) / 60


def _is_inside_one_store(backup: Backup) -> bool:
    return (
        backup.source.kind == backup.target.kind != FOLDER
        and backup.source.endpoint == backup.target.endpoint
    )
