"""Which job copies which row, and the manifests: plain CSV of our own with URL-encoded keys.

A job has one source bucket, one stored prefix, and version ids in all of its rows or in none (S3 Batch Operations,
"Specifying a manifest"). Inventories are no manifests of ours: null versions and deletion markers fail there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.rows import PLAN

BATCH_LANES = ("small", "archived")
ROWS_A_JOB = 1_000_000
"""So that a job's manifest and report fit into memory; a job's own price is then 4 % of its copies'."""
NULL_VERSION = "null"
"""How a manifest names the null version; an empty version id fails its task."""

ROWS = pa.schema(
    [PLAN.field(name) for name in ("bucket", "key", "version_id", "size_bytes", "stored_key")]
    + [pa.field("asked_version", pa.string()), pa.field("asked_key", pa.string(), nullable=False)]
)
"""The rows of a job; `asked_key` and `asked_version` are what its manifest says."""


@dataclass(frozen=True)
class JobKind:
    """What all rows of a job share; `stored_prefix` has no slash at its end and may be empty."""

    bucket: str
    stored_prefix: str
    has_versions: bool


@dataclass
class JobRows:
    """Rows on their way into one job."""

    kind: JobKind
    table: pa.Table

    @property
    def size_bytes(self) -> int:
        """Of all objects."""
        return int(pc.sum(self.table["size_bytes"]).as_py() or 0)

    def manifest(self) -> bytes:
        """The CSV: bucket, key and, in a job with versions, version id; no header."""
        names = ["bucket", "asked_key"] + (["asked_version"] if self.kind.has_versions else [])
        lines = pc.binary_join_element_wise(*(self.table[name] for name in names), ",")
        return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


def is_for_batch(lane: str, key: str, stored_key: str) -> bool:
    """Whether a job can copy a row: small enough, and to a place that a job can name."""
    return lane in BATCH_LANES and stored_prefix_of(key, stored_key) is not None


def stored_prefix_of(key: str, stored_key: str) -> str | None:
    """The TargetKeyPrefix that brings a key to its stored key: empty for none; None where there is no such prefix."""
    if stored_key == key:
        return ""
    prefix = stored_key.removesuffix(f"/{key}")
    return prefix if prefix and prefix != stored_key else None


def jobs_of(batches: Iterable[pa.RecordBatch], rows_a_job: int = ROWS_A_JOB) -> Iterator[JobRows]:
    """The rows of a plan that jobs copy, in the same jobs every time."""
    open_jobs: dict[JobKind, _Filling] = {}
    for batch in batches:
        columns = [batch[name].to_pylist() for name in (*COPIED, "is_latest", "lane")]
        for bucket, key, version_id, size_bytes, stored_key, is_latest, lane in zip(*columns, strict=True):
            if not is_for_batch(lane, key, stored_key):
                continue
            version = version_id if version_id or is_latest else NULL_VERSION
            kind = JobKind(bucket, stored_prefix_of(key, stored_key) or "", version is not None)
            filling = open_jobs.setdefault(kind, _Filling())
            filling.rows.append(
                (bucket, key, version_id, size_bytes, stored_key, version, quote(key, safe="/"))
            )
            if len(filling.rows) >= rows_a_job:
                yield JobRows(kind, filling.emptied())
    for kind, filling in open_jobs.items():
        if filling.rows:
            yield JobRows(kind, filling.emptied())


COPIED = ("bucket", "key", "version_id", "size_bytes", "stored_key")


@dataclass
class _Filling:
    rows: list[tuple[str, str, str | None, int | None, str, str | None, str]] = field(default_factory=list)

    def emptied(self) -> pa.Table:
        columns = list(zip(*self.rows, strict=True))
        self.rows = []
        arrays = [pa.array(column, ROWS.field(number).type) for number, column in enumerate(columns)]
        return pa.Table.from_arrays(arrays, schema=ROWS)
