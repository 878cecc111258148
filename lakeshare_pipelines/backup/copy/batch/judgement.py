"""What the report of a job proves of each of its rows; its state proves nothing, Complete may mean nothing copied.

Reports name keys as the manifest did or decoded; AWS does not say which, so each report as a whole shows it.
"""

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.copy.batch.jobs import BatchJob
from lakeshare_pipelines.backup.rows import DONE

NOT_REPORTED = "NotReported"
"""Error code of rows that a report does not tell of."""
OF_THE_OBJECT = {"NoSuchKey", "NoSuchVersion", "PreconditionFailed", "InvalidObjectState", NOT_REPORTED}
"""Failures that say nothing of the target or the role: the object went, changed, or is archived."""
FEW = 10
"""So many failures, and nothing copied at all, are no accident of some objects."""

SHOWN = 3


def judged(rows: pa.Table, told: pa.Table) -> pa.Table:
    """A job's rows (schema ROWS) with what its report tells (columns of DONE, keys as it spells them): schema DONE."""
    index = _places(rows, told)
    found = {name: told[name].take(index) for name in TOLD}
    is_missing = pc.is_null(found["status"])
    missing = {
        "status": "failed",
        "error_code": NOT_REPORTED,
        "message": "the job's report does not tell of it",
    }
    columns = {
        name: pc.if_else(is_missing, missing[name], column) if name in missing else column
        for name, column in found.items()
    }
    for name in DONE.names:
        if name in rows.column_names:
            columns[name] = rows[name]
    return pa.table([columns[name] for name in DONE.names], schema=DONE)


TOLD = tuple(
    name for name in DONE.names if name not in {"bucket", "key", "version_id", "stored_key", "size_bytes"}
)


def _places(rows: pa.Table, told: pa.Table) -> pa.ChunkedArray:
    """For each row its place in the report, null where there is none."""
    names = _ids(told, "key", "version_id").combine_chunks()
    ways = [
        pc.index_in(_ids(rows, "asked_key", "asked_version"), value_set=names),
        pc.index_in(_ids(rows, "key", "asked_version"), value_set=names),
    ]
    return min(ways, key=lambda way: way.null_count)


def _ids(table: pa.Table, key: str, version: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(table[key], pc.fill_null(table[version], ""), "\0")


def failures(done: pa.Table) -> Counter[str]:
    """How often each error code is among the rows."""
    codes = done.filter(pc.field("status") == "failed")["error_code"]
    return Counter(pc.fill_null(codes, "unknown").to_pylist())


def why_broken(job: BatchJob, failed: Mapping[str, int], succeeded: int) -> str | None:
    """Why a job that has ended is not to be accepted; None where its rows, failed ones too, are a result.

    That it is Complete is not asked: a job that copied nothing for reasons that are not its objects' was refused.
    """
    most = ", ".join(f"{count} {code}" for code, count in Counter(failed).most_common(SHOWN))
    said = "; ".join([*job.reasons, *([most] if most else [])])
    if job.status != "Complete":
        return f"job {job.job_id} is {job.status}: {said or 'the service gave no reason'}"
    refused = sum(count for code, count in failed.items() if code not in OF_THE_OBJECT)
    if succeeded == 0 and refused >= FEW:
        return f"job {job.job_id} is Complete but copied nothing: {most}"
    return None
