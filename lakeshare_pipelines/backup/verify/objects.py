"""Levels L0 to L3: what was reported of each object, what the target lists of it, and whether it is the same content.

Which of them a table needs is none of this module's.
"""

import base64
import datetime as dt
import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.rows import DONE, HELD, PLAN
from lakeshare_pipelines.backup.stores import BackupStore, Head, Listed, StoreAddress
from lakeshare_pipelines.errors import ObjectMissing

READERS = 16
CHUNK_BYTES = 1 << 20
REPORTED, PRESENT, SAME_ETAG, SAME_CHECKSUM = 0, 1, 2, 3
SHA256 = "sha256:"
MISSING = "it is not in the target"
RESIZED = "it has another size in the target"
CHANGED = "it was changed in the target since it was copied"
DIFFERS = "it has other content in the target"
DAMAGE = (MISSING, RESIZED, CHANGED, DIFFERS)
"""What can be wrong with a copy that was whole once."""

OBJECTS = pa.schema(
    [
        *HELD,
        # How tables spell the place of the original: StoreAddress.location.
        pa.field("location", pa.string(), nullable=False),
        # Copied (or held from an earlier point), there with its size, and not found to be of other content.
        pa.field("is_whole", pa.bool_(), nullable=False),
        # Why it is not, for people; null where it is.
        pa.field("problem", pa.string()),
        # When its content was last compared with what was backed up.
        pa.field("compared_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""Rows of a plan with what is known of their copies."""

Row = dict[str, Any]  # a row of an Arrow table, by column
_TOLD = ("stored_etag", "stored_version_id", "checksum")


def reported_objects(
    plan: Iterable[pa.RecordBatch], done: Iterable[pa.RecordBatch], held: Iterable[pa.RecordBatch]
) -> tuple[pa.Table, bool]:
    """The plan's rows with what engines and the earlier point say of them, and L0: whether all are accounted for.

    `held` is what the point holds that the plan's lane `held` comes from.
    """
    planned = pa.Table.from_batches(list(plan), PLAN)
    is_held = pc.equal(planned["lane"], "held")
    fresh = _with_reports(planned.filter(pc.invert(is_held)), pa.Table.from_batches(list(done), DONE))
    kept = _as_before(planned.filter(is_held), pa.Table.from_batches(list(held), HELD))
    rows = pa.concat_tables([fresh, kept], promote_options="default").combine_chunks()
    unaccounted = pc.any(pc.is_null(rows["status"]), min_count=0).as_py()
    return rows, not unaccounted and rows.num_rows == planned.num_rows


def prefixes_of(objects: pa.Table) -> list[str]:
    """The prefixes that copies are stored below: what stands before the original key."""
    lengths = pc.subtract(pc.utf8_length(objects["stored_key"]), pc.utf8_length(objects["key"]))
    found: set[str] = set()
    for length in pc.unique(lengths).to_pylist():
        of_length = objects["stored_key"].filter(pc.equal(lengths, length))
        found.update(pc.unique(pc.utf8_slice_codeunits(of_length, 0, length)).to_pylist())
    # What is below another prefix would be listed twice.
    return sorted(one for one in found if not any(one != other and one.startswith(other) for other in found))


def listed_copies(store: BackupStore, prefixes: Sequence[str]) -> pa.Table:
    """What the target lists below these prefixes: `stored_key`, `listed_size`, `listed_etag`."""
    return _listed(one for prefix in prefixes for one in store.list(prefix))


def looked_up(store: BackupStore, keys: Sequence[str]) -> pa.Table:
    """The same of a few single objects."""
    with ThreadPoolExecutor(READERS) as pool:
        return _listed(head for head in pool.map(store.head, keys) if head is not None)


def _listed(found: Iterable[Listed | Head]) -> pa.Table:
    keys, sizes, etags = list[str](), list[int | None](), list[str | None]()
    for one in found:
        keys.append(one.key)
        sizes.append(one.size_bytes)
        etags.append(one.etag)
    columns = (pa.array(keys, pa.string()), pa.array(sizes, pa.int64()), pa.array(etags, pa.string()))
    return pa.table(dict(zip(("stored_key", "listed_size", "listed_etag"), columns, strict=True)))


def judged(reported: pa.Table, listed: pa.Table, source: StoreAddress, store: BackupStore) -> pa.Table:
    """Rows of schema OBJECTS: each object's level, and what is wrong with its copy.

    Content is read only where something new can be learnt of it: what an earlier point proved stays proved as long as
    the target lists the same ETag.
    """
    rows = reported.join(listed, "stored_key", join_type="left outer").combine_chunks()
    problem, level = _by_listing(rows)
    rows = rows.set_column(rows.column_names.index("level"), "level", level)
    rows = rows.append_column("problem", problem)
    unclear = _unclear(rows, source, store.address)
    places = pc.indices_nonzero(unclear).to_pylist()
    with ThreadPoolExecutor(READERS) as pool:
        said = pool.map(lambda row: _content(store, row), rows.take(pa.array(places, pa.int64())).to_pylist())
        found = dict(zip(places, said, strict=True))
    if found:
        levels, problems = level.to_pylist(), problem.to_pylist()
        for place, (one_level, one_problem) in found.items():
            levels[place], problems[place] = one_level, one_problem
        level, problem = pa.array(levels, pa.int8()), pa.array(problems, pa.string())
    return _objects(rows, level, problem, source)


def _with_reports(fresh: pa.Table, done: pa.Table) -> pa.Table:
    said = done.select(["bucket", "key", "status", "error_code", "message", *_TOLD])
    joined = fresh.join(said, ["bucket", "key"], join_type="left outer").combine_chunks()
    count = joined.num_rows
    return joined.append_column("level", pa.array([REPORTED] * count, pa.int8())).append_column(
        "is_healed", pa.array([False] * count, pa.bool_())
    )


def _as_before(kept: pa.Table, earlier: pa.Table) -> pa.Table:
    said = earlier.select(["bucket", "key", *_TOLD, "level", "is_healed"])
    joined = kept.join(said, ["bucket", "key"], join_type="left outer").combine_chunks()
    # Where the earlier point does not have it after all, nothing is reported of it.
    status = pc.if_else(pc.is_valid(joined["level"]), "held", pa.scalar(None, pa.string()))
    return joined.append_column("status", status)


def _by_listing(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Problem and level of each row as the listing of the target tells, column-wise: there may be millions."""
    nothing = pa.scalar(None, pa.string())
    said = pc.binary_join_element_wise(
        pc.fill_null(rows["error_code"], "failed"), pc.fill_null(rows["message"], "no reason was told"), ": "
    )
    is_changed = pc.and_(
        pc.equal(rows["status"], "held"),
        pc.fill_null(pc.not_equal(rows["listed_etag"], rows["stored_etag"]), False),
    )
    problem = pc.case_when(
        pc.make_struct(
            pc.is_null(rows["status"]),
            pc.fill_null(pc.equal(rows["status"], "failed"), False),
            pc.is_null(rows["listed_size"]),
            pc.fill_null(pc.not_equal(rows["listed_size"], rows["size_bytes"]), False),
            pc.fill_null(is_changed, False),
        ),
        "nothing is reported of it",
        said,
        MISSING,
        RESIZED,
        CHANGED,
        nothing,
    )
    same_etag = pc.fill_null(pc.equal(rows["listed_etag"], rows["etag"]), False)
    fresh = pc.if_else(same_etag, pa.scalar(SAME_ETAG, pa.int8()), pa.scalar(PRESENT, pa.int8()))
    before = pc.fill_null(rows["level"], pa.scalar(REPORTED, pa.int8()))
    level = pc.if_else(pc.equal(rows["status"], "held"), pc.max_element_wise(before, fresh), fresh)
    level = pc.if_else(pc.is_null(problem), level, pa.scalar(REPORTED, pa.int8()))
    return _array(problem), _array(pc.cast(level, pa.int8()))


def _unclear(rows: pa.Table, source: StoreAddress, target: StoreAddress) -> pa.Array:
    """Which copies' content has to be looked at: it can be compared, and was not yet."""
    has_sum = pc.fill_null(pc.starts_with(rows["checksum"], SHA256), False)
    fine, succeeded = pc.is_null(rows["problem"]), pc.fill_null(pc.equal(rows["status"], "succeeded"), False)
    changed = pc.fill_null(pc.equal(rows["problem"], CHANGED), False)
    unclear = pc.and_(has_sum, pc.or_(changed, pc.and_(fine, succeeded)))
    if source.kind == "s3" and target.kind == "s3":
        # An ETag of one part without a KMS key is the content's MD5: two of them must not differ.
        plain = pc.invert(
            pc.or_(
                pc.match_substring(pc.binary_join_element_wise(rows["etag"], rows["listed_etag"], ""), "-"),
                pc.match_substring(pc.fill_null(rows["encryption"], ""), "KMS"),
            )
        )
        differs = pc.and_(pc.fill_null(plain, False), pc.equal(rows["level"], PRESENT))
        unclear = pc.or_(unclear, pc.and_(fine, differs))
    return _array(unclear)


def _content(store: BackupStore, row: Row) -> tuple[int, str | None]:
    """Level and problem of one object, from its content or what the target says of that."""
    wanted = (
        (row["checksum"] or "").removeprefix(SHA256) if (row["checksum"] or "").startswith(SHA256) else None
    )
    if store.address.kind == "folder":
        try:
            found = _sha256(store, row["stored_key"])
        except ObjectMissing:
            return REPORTED, MISSING
        return (SAME_CHECKSUM, None) if found == wanted else (REPORTED, DIFFERS)
    head = store.head(row["stored_key"], row["stored_version_id"])
    if head is None:
        return REPORTED, MISSING
    told = head.checksums.get("sha256")
    if wanted is not None and told is not None:
        same = base64.b64decode(told).hex() == wanted
        return (SAME_CHECKSUM, None) if same else (REPORTED, DIFFERS)
    if row["status"] == "held":
        return REPORTED, row["problem"]
    if wanted is not None or "KMS" in (head.encryption or "").upper():
        return row["level"], None
    return REPORTED, "it has another ETag in the target, and so other content"


def _sha256(store: BackupStore, key: str) -> str:
    digest = hashlib.sha256()
    with store.open(key) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _objects(rows: pa.Table, level: pa.Array, problem: pa.Array, source: StoreAddress) -> pa.Table:
    is_whole = pc.is_null(problem)
    found = {
        "level": level,
        "problem": problem,
        "is_whole": is_whole,
        "is_healed": pc.fill_null(rows["is_healed"], False),
        # Those held from earlier points are looked at by verify/readings.py.
        "compared_at": pa.array([dt.datetime.now(dt.UTC)] * rows.num_rows, OBJECTS.field("compared_at").type),
        "location": pc.binary_join_element_wise(
            rows["bucket"]
            if source.kind == "folder"
            else pc.binary_join_element_wise("s3://", rows["bucket"], ""),
            rows["key"],
            "/",
        ),
        # What the next point compares with: listed by the target itself, not told by whoever copied.
        "stored_etag": rows["listed_etag"],
    }
    return pa.table(
        {name: found.get(name, rows[name] if name in rows.column_names else None) for name in OBJECTS.names}
    ).cast(OBJECTS)


def _array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
