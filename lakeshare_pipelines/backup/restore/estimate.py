"""What a restore will do and take, told before it does anything: objects, bytes, requests, US dollars, minutes."""

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import GIB
from lakeshare_pipelines.backup.plan.estimate import (
    LOCAL_BYTES_A_S,
    LOCAL_FILES_A_S,
    MILLION,
    S3_BYTES_A_S,
    S3_COPIES_A_S,
    S3_COPY_S,
)
from lakeshare_pipelines.backup.restore.copied import archived, stored_objects
from lakeshare_pipelines.backup.restore.delta import log_names, newest_commit, require_no_hole
from lakeshare_pipelines.backup.restore.elsewhere import brought, new_places, require_free
from lakeshare_pipelines.backup.restore.lake_table import APART
from lakeshare_pipelines.backup.restore.placed import Placed, placed
from lakeshare_pipelines.backup.restore.records import RestorePlan, Way
from lakeshare_pipelines.backup.restore.work import Work


def plan_of(work: Work, *, in_place: bool) -> RestorePlan:
    """The plan of a restore; nothing is written.

    Raises:
        BackupError: a copy is missing or damaged, or the place cannot take the table.
    """
    if in_place:
        at = placed(work.choice, work.to, work.root, lambda bucket, key: (bucket, key))
        steps, rows = _in_place(work, at), at.missing if not at.differing else work.choice.rows
    else:
        at = placed(brought(work), work.to, work.root, new_places(work))
        require_free(work, at)
        steps, rows = _elsewhere(work, at), at.missing
    return told_of(work, rows, at.there, steps, "in_place" if in_place else "elsewhere")


def told_of(work: Work, rows: pa.Table, there: int, steps: list[str], way: Way) -> RestorePlan:
    """The plan of a restore that brings these rows and goes these steps.

    Raises:
        BackupError: a copy is missing or damaged.
    """
    thawed = archived(stored_objects(work.choice, rows))
    size_bytes = int(pc.sum(rows["size_bytes"]).as_py() or 0)
    requests = rows.num_rows + len(thawed)
    if thawed:
        steps = [f"{len(thawed):,} archived copies are asked for first, which takes hours.", *steps]
    return RestorePlan(
        table=work.choice.table,
        day=work.choice.point.day,
        version=work.choice.version,
        place=work.place,
        way=way,
        objects=rows.num_rows,
        size_bytes=size_bytes,
        there=there,
        archived=len(thawed),
        requests=requests,
        usd=round(_usd(work, requests, size_bytes, sum(one.size_bytes or 0 for one in thawed)), 6),
        minutes=round(_minutes(work, rows, size_bytes), 2),
        steps=tuple(steps),
    )


def _in_place(work: Work, at: Placed) -> list[str]:
    """The steps of in_place.py, in the same order."""
    version, table = work.choice.version, work.choice.table
    if at.differing:
        steps = [
            f"{len(at.differing):,} keys are taken by something else, as {at.differing[0]}: nothing is put there.",
            f"The table's {work.choice.rows.num_rows:,} objects go to {work.place}{APART}{work.choice.point.day}.",
        ]
        pointer = "A commit lets the live table have those files, and no others."
    else:
        steps = [f"{at.missing.num_rows:,} missing objects are put back; {at.there:,} are there and stay."]
        pointer = _delta_pointer(work) if table.format == "delta" else ""
    if table.format == "iceberg":
        pointer = (
            f"Nessie's main shows snapshot {version} again, where a name of the lake belongs to the table."
        )
    return [
        *steps,
        "The table is opened and its rows counted.",
        pointer,
        "Recipients read the newest publication again, or a new number where it showed another state.",
    ]


def _delta_pointer(work: Work) -> str:
    names = log_names(work.store, work.root)
    newest, version = newest_commit(names), work.choice.version
    require_no_hole(work.place, names, version)
    if newest is None or newest <= version:
        return f"The log ends at version {version}, as it did."
    return f"The log went on to version {newest}: a commit shows version {version} again."


def _elsewhere(work: Work, at: Placed) -> list[str]:
    steps = [f"{at.missing.num_rows:,} objects are copied to {work.place}; {at.there:,} are there already."]
    if work.choice.table.format == "iceberg":
        steps.append("Metadata, manifests and deletes are written anew for that place.")
    return [*steps, "The table is opened and its rows counted. Nothing is registered."]


def _usd(work: Work, requests: int, size_bytes: int, thawed_bytes: int) -> float:
    prices, kinds = work.backup.prices, (work.choice.copies.kind, work.to.kind)
    if kinds == ("folder", "folder"):
        return 0.0
    usd = requests / MILLION * prices.per_million_copies if work.to.kind == "s3" else 0.0
    return usd + size_bytes / GIB * prices.per_gib_transferred + thawed_bytes / GIB * prices.per_gib_thawed


def _minutes(work: Work, rows: pa.Table, size_bytes: int) -> float:
    """The slower of the two: requests, and bytes; thawing is not in it."""
    copies, to = work.choice.copies, work.to
    if copies.kind == to.kind == "s3" and copies.endpoint == to.endpoint:
        in_flight = work.backup.in_flight
        by_requests = rows.num_rows / min(S3_COPIES_A_S, in_flight / S3_COPY_S)
        return float(max(by_requests, size_bytes / (S3_BYTES_A_S * in_flight)) / 60)
    return float(max(rows.num_rows / LOCAL_FILES_A_S, size_bytes / LOCAL_BYTES_A_S) / 60)
