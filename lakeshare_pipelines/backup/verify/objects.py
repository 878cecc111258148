"""Levels L0 to L3: what was reported of each object, what the target lists of it, and whether it is the same content.

Which of them a table needs is none of this module's.
"""

import base64
import binascii
import datetime as dt
import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import (
    COPY_RESULTS,
    PLAN,
    POINT_COPIES,
    Damage,
    DamagedCopy,
    FoundTable,
    Point,
    TableProof,
)
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, get_point_time
from lakeshare_pipelines.backup.stores import BackupStore, ListedObject, ObjectHead, StoreAddress
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        *POINT_COPIES,
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
_REPORTED_COLUMNS = ("stored_etag", "stored_version_id", "checksum")


def join_reports(
    plan: Iterable[pa.RecordBatch], done: Iterable[pa.RecordBatch], earlier: Iterable[pa.RecordBatch]
) -> tuple[pa.Table, bool]:
    """The plan's rows with what engines and the earlier point say of them, and L0: whether all are accounted for.

    `held` is what the point holds that the plan's lane `held` comes from.
    """
    planned = pa.Table.from_batches(list(plan), PLAN)
    is_held = pc.equal(planned["lane"], "held")
    fresh = _join_fresh(planned.filter(pc.invert(is_held)), pa.Table.from_batches(list(done), COPY_RESULTS))
    held_objects = _join_held(planned.filter(is_held), pa.Table.from_batches(list(earlier), POINT_COPIES))
    rows = pa.concat_tables([fresh, held_objects], promote_options="default").combine_chunks()
    unaccounted = pc.any(pc.is_null(rows["status"]), min_count=0).as_py()
    return rows, not unaccounted and rows.num_rows == planned.num_rows


def list_prefixes(objects: pa.Table) -> list[str]:
    """The prefixes that copies are stored below: what stands before the original key."""
    lengths = pc.subtract(pc.utf8_length(objects["stored_key"]), pc.utf8_length(objects["key"]))
    found: set[str] = set()
    for length in pc.unique(lengths).to_pylist():
        of_length = objects["stored_key"].filter(pc.equal(lengths, length))
        found.update(pc.unique(pc.utf8_slice_codeunits(of_length, 0, length)).to_pylist())
    # What is below another prefix would be listed twice.
    return sorted(one for one in found if not any(one != other and one.startswith(other) for other in found))


def list_copies(store: BackupStore, prefixes: Sequence[str]) -> pa.Table:
    """What the target lists below these prefixes: `stored_key`, `listed_size`, `listed_etag`."""
    return _make_listed_table(one for prefix in prefixes for one in store.list(prefix))


def head_copies(store: BackupStore, keys: Sequence[str]) -> pa.Table:
    """The same of a few single objects."""
    with ThreadPoolExecutor(READERS) as pool:
        return _make_listed_table(head for head in pool.map(store.head, keys) if head is not None)


def _make_listed_table(found: Iterable[ListedObject | ObjectHead]) -> pa.Table:
    keys, sizes, etags = list[str](), list[int | None](), list[str | None]()
    for one in found:
        keys.append(one.key)
        sizes.append(one.size_bytes)
        etags.append(one.etag)
    columns = (pa.array(keys, pa.string()), pa.array(sizes, pa.int64()), pa.array(etags, pa.string()))
    return pa.table(dict(zip(("stored_key", "listed_size", "listed_etag"), columns, strict=True)))


def judge_objects(reported: pa.Table, listed: pa.Table, source: StoreAddress, store: BackupStore) -> pa.Table:
    """Rows of schema OBJECTS: each object's level, and what is wrong with its copy.

    Content is read only where something new can be learnt of it: what an earlier point proved stays proved as long as
    the target lists the same ETag.
    """
    rows = reported.join(listed, "stored_key", join_type="left outer").combine_chunks()
    problem, level = _judge_by_listing(rows)
    rows = rows.set_column(rows.column_names.index("level"), "level", level)
    rows = rows.append_column("problem", problem)
    unclear = _select_unclear(rows, source, store.address)
    places = pc.indices_nonzero(unclear).to_pylist()
    with ThreadPoolExecutor(READERS) as pool:
        results = pool.map(
            lambda row: _judge_content(store, row), rows.take(pa.array(places, pa.int64())).to_pylist()
        )
        found = dict(zip(places, results, strict=True))
    if found:
        levels, problems = level.to_pylist(), problem.to_pylist()
        for place, (one_level, one_problem) in found.items():
            levels[place], problems[place] = one_level, one_problem
        level, problem = pa.array(levels, pa.int8()), pa.array(problems, pa.string())
    return _objects(rows, level, problem, source)


def _join_fresh(fresh: pa.Table, done: pa.Table) -> pa.Table:
    results = done.select(["bucket", "key", "status", "error_code", "message", *_REPORTED_COLUMNS])
    joined = fresh.join(results, ["bucket", "key"], join_type="left outer").combine_chunks()
    count = joined.num_rows
    return joined.append_column("level", pa.array([REPORTED] * count, pa.int8())).append_column(
        "is_healed", pa.array([False] * count, pa.bool_())
    )


def _join_held(held_objects: pa.Table, earlier: pa.Table) -> pa.Table:
    results = earlier.select(["bucket", "key", *_REPORTED_COLUMNS, "level", "is_healed"])
    joined = held_objects.join(results, ["bucket", "key"], join_type="left outer").combine_chunks()
    # Where the earlier point does not have it after all, nothing is reported of it.
    status = pc.if_else(pc.is_valid(joined["level"]), "held", pa.scalar(None, pa.string()))
    return joined.append_column("status", status)


def _judge_by_listing(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Problem and level of each row as the listing of the target tells, column-wise: there may be millions."""
    nothing = pa.scalar(None, pa.string())
    etag = pc.binary_join_element_wise(
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
        etag,
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


def _select_unclear(rows: pa.Table, source: StoreAddress, target: StoreAddress) -> pa.Array:
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


def _judge_content(store: BackupStore, row: Row) -> tuple[int, str | None]:
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
    checksum = head.checksums.get("sha256")
    if wanted is not None and checksum is not None:
        same = base64.b64decode(checksum).hex() == wanted
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


_log = logging.getLogger(__name__)

CONTENT_READERS = 8
MD5_HEX = 32
SHOWN = 100
NO_MD5 = {"EXPRESS_ONEZONE"}
"""Storage classes whose ETags are no MD5."""

READ = pa.schema(
    [
        # URL of the store that the copy is in.
        pa.field("place", pa.string(), nullable=False),
        pa.field("stored_key", pa.string(), nullable=False),
        pa.field("stored_version_id", pa.string()),
        # Of the copy that was read: another one is another copy.
        pa.field("stored_etag", pa.string()),
        # Of the content that was read: what is compared with where nothing was known when the copy was made.
        pa.field("sha256", pa.string()),
        pa.field("read_at", pa.timestamp("us", tz="UTC"), nullable=False),
        # Why it is not what was backed up, for people; null where it is.
        pa.field("problem", pa.string()),
    ]
)
"""What was found when a copy was read again."""


@dataclass(frozen=True)
class CopyReading:
    """What reading a copy gave: `problem` is None where it is what was backed up."""

    problem: str | None
    sha256: str | None = None
    size_bytes: int = 0


def read_copy(store: BackupStore, row: Row, known_sha256: str | None = None) -> CopyReading:
    """Read a copy (a row of schema HELD) to its end and compare it with what is known of its content.

    That is the SHA-256 that was taken when it was copied; the MD5 that its ETag is; checksums that the store keeps;
    or `known_sha256`, of the first time it was read again.

    Raises:
        BackupError: the store does not answer, or refuses.
    """
    sha256, md5, crc32, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0, 0
    try:
        with store.open(row["stored_key"], row["stored_version_id"]) as file:
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
                md5.update(chunk)
                crc32, size = binascii.crc32(chunk, crc32), size + len(chunk)
    except ObjectMissing:
        return CopyReading(MISSING)
    except OSError as error:
        # A sector that cannot be read shows up here, not when the file is opened.
        return CopyReading(f"the disk cannot read it: {error.strerror or error}")
    digests = {"sha256": sha256.hexdigest(), "md5": md5.hexdigest(), "crc32": f"{crc32:08x}"}
    problem = None
    if size != row["size_bytes"]:
        problem = f"it has {size} bytes in the target, {row['size_bytes']} were backed up"
    else:
        for algorithm, expected in _list_expected(store, row, known_sha256):
            if digests.get(algorithm) != expected:
                problem = f"{DIFFERS}: its {algorithm} is not what was backed up"
                break
    return CopyReading(problem, digests["sha256"], size)


def _list_expected(store: BackupStore, row: Row, known_sha256: str | None) -> Iterator[tuple[str, str]]:
    """Algorithm and digest, in hexadecimal, of everything that is known of a copy's content."""
    checksum = row["checksum"] or ""
    if checksum.startswith(SHA256):
        yield "sha256", checksum.removeprefix(SHA256)
        return
    if known_sha256 is not None:
        yield "sha256", known_sha256
        return
    if store.address.kind == "folder":
        return
    head = store.head(row["stored_key"], row["stored_version_id"])
    if head is None:
        return
    if _is_md5(head, row["stored_etag"]):
        yield "md5", row["stored_etag"]
    elif row["stored_etag"] not in (None, head.etag):
        yield "ETag", str(row["stored_etag"])
    for algorithm in ("sha256", "crc32"):
        # A checksum of checksums of parts has their number behind it.
        if (stated := head.checksums.get(algorithm)) is not None and "-" not in stated:
            yield algorithm, base64.b64decode(stated).hex()


def _is_md5(head: ObjectHead, etag: str | None) -> bool:
    is_hex = etag is not None and len(etag) == MD5_HEX and all(digit in "0123456789abcdef" for digit in etag)
    return is_hex and head.storage_class not in NO_MD5 and (head.encryption or "AES256") == "AES256"


class ReadingStore:
    """The readings of a backup's copies; for one writer at a time, where two write at once no row is lost."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self._prefix = f"{points.backup.records.prefix}{OWN_PREFIX}{points.backup.name}/readings/"

    def load(self) -> pa.Table:
        """The newest reading of each copy: rows of schema READ. A file that cannot be read is passed over."""
        return _select_newest([rows for _, rows in self._files()])

    def of_place(self, place: str) -> dict[tuple[str, str | None, str | None], Row]:
        """The newest readings of the copies in one store, by stored key, version and ETag."""
        rows = self.load()
        mine = rows.filter(pc.equal(rows["place"], place)).to_pylist()
        return {(row["stored_key"], row["stored_version_id"], row["stored_etag"]): row for row in mine}

    def add(self, rows: Sequence[Row]) -> None:
        """Remember readings: all that are known go into one new file, and the files before it away."""
        if not rows:
            return
        before = self._files()
        merged = _select_newest([*(table for _, table in before), pa.Table.from_pylist(list(rows), READ)])
        file = io.BytesIO()
        pq.write_table(merged, file, compression="zstd")
        name = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H%M%S.%fZ}.parquet"
        self.points.store.put(f"{self._prefix}{name}", file.getvalue())
        for key, _ in before:
            self.points.store.delete(key)

    def _files(self) -> list[tuple[str, pa.Table]]:
        found = []
        for one in self.points.store.list(self._prefix):
            try:
                found.append((one.key, pq.read_table(io.BytesIO(self.points.store.read(one.key))).cast(READ)))
            except ObjectMissing:
                continue  # Another writer replaced it since it was listed.
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                # What it said is lost, so that the copies it told of count as not read since they were made.
                _log.warning("%s cannot be read and is removed: %s", one.key, error)
                found.append((one.key, READ.empty_table()))
        return found


def _select_newest(tables: Sequence[pa.Table]) -> pa.Table:
    rows = pa.concat_tables([READ.empty_table(), *tables]).sort_by([("read_at", "descending")])
    names = ["place", "stored_key", "stored_version_id"]
    keys = pc.binary_join_element_wise(
        *(pc.fill_null(rows[name], "") for name in names), "\0"
    ).combine_chunks()
    first = pa.table({"key": keys, "at": pa.array(range(rows.num_rows), pa.int64())}).group_by("key")
    return rows.take(
        first.aggregate([("at", "min")])["at_min"].sort() if rows.num_rows else pa.array([], pa.int64())
    )


def get_last_compared(first_point: str, reading: Row | None) -> dt.datetime:
    """When the content of a copy was compared last: when it was read again, else when it was made."""
    made_at: dt.datetime = get_point_time(first_point)
    return made_at if reading is None else max(made_at, reading["read_at"])


@dataclass
class HeldCopyReader:
    """One run's look at copies that an earlier point holds already."""

    points: Points
    place: str
    store: BackupStore
    budget_bytes: int
    now: dt.datetime

    def again(self, objects: pa.Table, day: str) -> tuple[pa.Table, list[Row]]:
        """Rows of schema OBJECTS with when each was compared, and with what is known or found to be damaged.

        In a folder copies are read again, those first that were not for the longest time, within the budget; the second
        value is what was read, as rows of schema READ. A bucket compares contents itself, and lists an ETag that is of
        the content: there only what a scrub found is taken over.
        """
        known = ReadingStore(self.points).of_place(self.place)
        rows = objects.select(
            [
                "stored_key",
                "stored_version_id",
                "stored_etag",
                "size_bytes",
                "checksum",
                "first_point",
                "is_whole",
            ]
        ).to_pylist()
        problems: list[str | None] = objects["problem"].to_pylist()
        compared: list[dt.datetime] = []
        old: list[tuple[dt.datetime, int]] = []
        found: list[Row] = []
        for at, row in enumerate(rows):
            earlier = known.get((row["stored_key"], row["stored_version_id"], row["stored_etag"]))
            is_held = row["first_point"] != day
            compared.append(get_last_compared(row["first_point"], earlier) if is_held else self.now)
            if is_held and problems[at] in DAMAGE:
                found.append(make_reading_row(self.place, row, CopyReading(problems[at]), self.now))
            if row["is_whole"] and is_held:
                if earlier is not None and earlier["problem"] is not None:
                    problems[at] = earlier["problem"]
                    found.append(earlier)
                elif self.store.address.kind == "folder":
                    old.append((compared[at], at))
        for at, reading in self._read([at for _, at in sorted(old)], rows, known):
            compared[at] = self.now
            problems[at] = reading.problem
            found.append(make_reading_row(self.place, rows[at], reading, self.now))
        return _replace_problems(objects, problems, compared), found

    def _read(
        self, places: Sequence[int], rows: Sequence[Row], known: Any
    ) -> Iterator[tuple[int, CopyReading]]:
        chosen, spent = list[int](), 0
        for at in places:
            if chosen and spent + rows[at]["size_bytes"] > self.budget_bytes:
                break
            spent += rows[at]["size_bytes"]
            chosen.append(at)

        def read(at: int) -> CopyReading:
            row = rows[at]
            reading = known.get((row["stored_key"], row["stored_version_id"], row["stored_etag"]))
            return read_copy(self.store, row, None if reading is None else reading["sha256"])

        with ThreadPoolExecutor(CONTENT_READERS) as pool:
            yield from zip(chosen, pool.map(read, chosen), strict=True)


def make_reading_row(place: str, row: Row, reading: CopyReading, now: dt.datetime) -> Row:
    """A row of schema READ; of what differs no digest is remembered to compare with."""
    return {
        "place": place,
        "stored_key": row["stored_key"],
        "stored_version_id": row["stored_version_id"],
        "stored_etag": row["stored_etag"],
        "sha256": reading.sha256 if reading.problem is None else None,
        "read_at": now,
        "problem": reading.problem,
    }


def _replace_problems(
    objects: pa.Table, problems: Sequence[str | None], compared: Sequence[dt.datetime]
) -> pa.Table:
    problem = pa.array(problems, pa.string())
    columns = {
        "problem": problem,
        "is_whole": pc.is_null(problem),
        "compared_at": pa.array(compared, pa.timestamp("us", tz="UTC")),
    }
    for name, column in columns.items():
        at = objects.schema.get_field_index(name)
        objects = objects.set_column(at, objects.schema.field(at), column)
    return objects


def report_damage(points: Points, now: dt.datetime) -> list[str]:
    """Downgrade every point that holds a copy that was found damaged, and take back what was repaired since.

    Returns the days that are downgraded now. Of dated points only their own place is theirs.
    """
    readings = ReadingStore(points).load()
    rotten = readings.filter(pc.is_valid(readings["problem"]))
    downgraded = []
    for point in points.readable(as_made=True)[0]:
        place = points.backup.target_of(point.day).url
        mine = rotten.filter(pc.equal(rotten["place"], place))
        try:
            damage = _find_damage(points, point, mine, now)
        except DamagedRecord as error:
            roots = tuple(proof.table.root for proof in point.verification.tables)
            damage = Damage(found_at=now, count=1, copies=(), tables=roots, record=error.reason)
        points.record_damage(point.day, damage)
        if damage is not None:
            downgraded.append(point.day)
    return downgraded


def _find_damage(points: Points, point: Point, rotten: pa.Table, now: dt.datetime) -> Damage | None:
    problems = {(row["stored_key"], row["stored_version_id"]): row["problem"] for row in rotten.to_pylist()}
    keys = rotten["stored_key"].combine_chunks()
    copies: list[DamagedCopy] = []
    for batch in points.read_copies(point, ["key", "stored_key", "stored_version_id", "table_root"]):
        for row in batch.filter(pc.is_in(batch["stored_key"], keys)).to_pylist():
            problem = problems.get((row["stored_key"], row["stored_version_id"]))
            if problem is not None:
                copies.append(
                    DamagedCopy(
                        key=row["key"],
                        stored_key=row["stored_key"],
                        table_root=row["table_root"],
                        problem=problem,
                    )
                )
    if not copies:
        return None
    tables = {copy.table_root for copy in copies if copy.table_root is not None}
    # A table may have files below the root of another one that is inside of it.
    tables |= {
        proof.table.root
        for proof in point.verification.tables
        if any(copy.key.startswith(f"{proof.table.root}/") for copy in copies)
    }
    return Damage(found_at=now, count=len(copies), copies=tuple(copies[:SHOWN]), tables=tuple(sorted(tables)))


def repair_points(points: Points, place: str, stored_key: str, head: ObjectHead, was: Row) -> None:
    """Let points that hold a copy, which was made again, know its new version and ETag, where these are others."""
    for point in points.readable(as_made=True)[0]:
        if points.backup.target_of(point.day).url != place:
            continue
        try:
            rows = [
                row
                for batch in points.read_copies(point)
                for row in batch.filter(pc.equal(batch["stored_key"], stored_key)).to_pylist()
                if row["stored_version_id"] == was["stored_version_id"]
            ]
        except DamagedRecord:
            continue
        new = {"stored_etag": head.etag, "stored_version_id": head.version_id}
        changed = [row | new for row in rows if row | new != row]
        if changed:
            points.record_repaired(point, pa.Table.from_pylist(changed, POINT_COPIES))


ENOUGH = 0.5
"""An older state with a smaller share of the newest state's rows is another table to its readers."""
TABLE_COPY_PRESENT, OPENED = 1, 4
"""Levels: every copy is there with its size; and an independent reader read every data file."""


@dataclass(frozen=True)
class Need:
    """Something a table needs that is not whole in the copy.

    `size_bytes` is what the table itself says of it, None where it does not.
    """

    location: str
    size_bytes: int | None = None
    etag: str | None = None
    """As the source's store says now, of what it was asked for."""


@dataclass(frozen=True)
class TableCopy:
    """The objects of one table; `objects` are rows of schema OBJECTS below its root."""

    table: FoundTable
    source: StoreAddress
    store: BackupStore
    """Where the copies are."""
    objects: pa.Table
    elsewhere: Callable[[Sequence[str]], pa.Table]
    """Rows of schema OBJECTS by location, of any table or none."""

    @property
    def location(self) -> str:
        """The root at its source, as tables spell it."""
        return self.source.at(self.table.bucket).location(self.table.root)

    @property
    def whole(self) -> pa.Table:
        """The objects whose copies are whole."""
        return self.objects.filter(self.objects["is_whole"])

    def below(self, name: str) -> pa.Table:
        """The objects below a folder of the table; `name` ends with a slash."""
        folder = f"{self.table.root}/{name}".lstrip("/")
        return self.objects.filter(pc.starts_with(self.objects["key"], folder))

    def is_inside(self, location: str) -> bool:
        """Whether it is below the table's root."""
        return location.startswith(f"{self.location.rstrip('/')}/")

    def stored_key(self, key: str) -> str:
        """Where the copy of a key of this table is, or would be."""
        below = key.removeprefix(self.table.root).lstrip("/")
        return f"{self.table.stored_root.rstrip('/')}/{below}"

    def there(self, named: pa.Array) -> pa.Table:
        """What is whole of the copy: its own objects, and of those named the ones of other tables, or of none.

        Also below its own root: what a run staged there may be a table of its own, and later a part of this one.
        """
        own = self.whole
        named = pc.unique(named.drop_null())
        others = named.filter(pc.invert(pc.is_in(named, value_set=own["location"].combine_chunks())))
        if not len(others):
            return own
        found = self.elsewhere(others.to_pylist())
        return pa.concat_tables([own, found.filter(found["is_whole"])])

    def proved(self, within_days: int, *, was_read: bool) -> "ProvenLevel":
        """What is proved of the copies of an opened table; `was_read`: its reader read every data file."""
        whole = self.whole
        compared_at = pc.min(whole["compared_at"]).as_py()
        lowest = int(pc.min(whole["level"]).as_py() or 0)
        stale = compared_at is not None and compared_at < dt.datetime.now(dt.UTC) - dt.timedelta(
            days=within_days
        )
        if stale:
            reason = (
                f"Some of its copies were compared last on {compared_at:%Y-%m-%d}, more than {within_days} days ago: "
                "`lakeshare backup scrub` reads them again."
            )
            return ProvenLevel(min(lowest, TABLE_COPY_PRESENT), compared_at, (reason,))
        if not was_read:
            reason = "It has too many files for all of them to be read: opened was its log, or its manifests."
            return ProvenLevel(lowest, compared_at, (reason,))
        return ProvenLevel(OPENED, compared_at, ())


@dataclass(frozen=True)
class ProvenLevel:
    """The level that the copies of an opened table have reached, since when, and why it is not the highest."""

    level: int
    compared_at: dt.datetime | None
    reasons: tuple[str, ...]


class AssessedTable(Protocol):
    """A table of one format, after its own metadata was read from the copy."""

    @property
    def copy(self) -> TableCopy:
        """The objects it is made of."""
        ...

    @property
    def needs(self) -> list[Need]:
        """What its newest version before as_of needs that is not whole."""
        ...

    @property
    def removed(self) -> list[str]:
        """Stored keys that were taken out of the copy when it was proved: what speaks of later versions."""
        ...

    def unlisted(self, source: BackupStore) -> list[Need]:
        """What the source has of the table from before as_of that no listing told of; asks the source."""
        ...

    def proof(self) -> TableProof:
        """Open it, at the newest version at which that goes well."""
        ...


def explain_too_small(rows: int | None, newest_rows: int | None) -> str | None:
    """Why an older state is no fallback: it is empty, or has less than half of the newest state's rows."""
    if rows is None or (newest_rows is not None and rows >= newest_rows * ENOUGH):
        return None
    if newest_rows is None and rows > 0:
        return None
    newest = (
        "how many the newest one has is not known"
        if newest_rows is None
        else f"the newest one has {newest_rows}"
    )
    return (
        f"The older state has {rows} rows, {newest}: it is no fallback. Restore the table from another point, or name "
        "this state with --point and --version."
    )


def explain_outside_needs(copy: TableCopy, needs: Sequence[Need], backup: Backup) -> list[str]:
    """What to say of needs that are outside of the source and were not followed; nothing where there are none."""
    inside = copy.source.at(copy.table.bucket).location("")
    outside = [need.location for need in needs if not need.location.startswith(inside)]
    if not outside or backup.external == "follow":
        return []
    return [
        f"{len(outside)} of its files are outside of the source, the first is {outside[0]}: say `external: follow` "
        "in the backup to have them copied as well, or rewrite the table so that it has its files to itself."
    ]


OpenSpark = Callable[[], "SparkSession"]
UNSUPPORTED_PHRASES = (
    "unsupported",
    "not supported",
    "not yet support",
    "does not support",
    "not implemented",
    "notimplemented",
)


def is_unsupported(reader_said: BackupError) -> bool:
    """Whether a reader refused for what it does not know, and not for what is wrong with the table."""
    reason = reader_said.reason.lower()
    return any(words in reason for words in UNSUPPORTED_PHRASES)


def count_rows_by_spark(
    open_spark: OpenSpark,
    table_format: Literal["delta", "iceberg"],
    location: str,
    version: int | None = None,
) -> tuple[int, str]:
    """How many rows Spark reads, every column of every row, and who says so.

    `location` is a table's root for Delta, of a metadata file for Iceberg.

    Raises:
        BackupError: it does not open in Spark either.
    """
    spark = open_spark()
    reader = f"Spark {spark.version}"
    place = location.replace("s3://", "s3a://", 1) if table_format == "delta" else location
    try:
        load = spark.read.format(table_format)
        if version is not None:
            load = load.option("versionAsOf", version)
        table = load.load(place)
        # A mere count would be answered from statistics; the sum needs the values.
        values = ", ".join(f"`{name.replace('`', '``')}`" for name in table.columns)
        counted = table.selectExpr(f"xxhash64({values}) AS of_row").selectExpr(
            "count(*) AS rows", "sum(of_row % 97)"
        )
        return int(counted.collect()[0]["rows"]), reader
    # Spark raises what its sources raise, through a gateway: nothing of it may pass for an opened table.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackupError(
            location, f"{reader} cannot open it: {reason}", "Look at the table at its source."
        ) from error
