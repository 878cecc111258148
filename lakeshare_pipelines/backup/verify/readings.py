"""Reading copies again: their content beside the digests that were taken when they were made.

What was read when, and what was found, is kept in the target below `_lakeshare/<backup>/readings/`; a copy that is not
there was compared last when it was made.
"""

import base64
import binascii
import datetime as dt
import hashlib
import io
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.points import OWN_PREFIX, Points
from lakeshare_pipelines.backup.records import Damage, DamagedCopy, Point
from lakeshare_pipelines.backup.rows import HELD
from lakeshare_pipelines.backup.stores import BackupStore, Head
from lakeshare_pipelines.backup.verify.objects import CHUNK_BYTES, DAMAGE, DIFFERS, MISSING, SHA256
from lakeshare_pipelines.backup.workspace import end_of
from lakeshare_pipelines.errors import DamagedRecord, ObjectMissing

_log = logging.getLogger(__name__)

READERS = 8
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

Row = dict[str, Any]  # a row of an Arrow table, by column


@dataclass(frozen=True)
class Reading:
    """What reading a copy gave: `problem` is None where it is what was backed up."""

    problem: str | None
    sha256: str | None = None
    size_bytes: int = 0


def read_copy(store: BackupStore, row: Row, known_sha256: str | None = None) -> Reading:
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
        return Reading(MISSING)
    except OSError as error:
        # A sector that cannot be read shows up here, not when the file is opened.
        return Reading(f"the disk cannot read it: {error.strerror or error}")
    digests = {"sha256": sha256.hexdigest(), "md5": md5.hexdigest(), "crc32": f"{crc32:08x}"}
    problem = None
    if size != row["size_bytes"]:
        problem = f"it has {size} bytes in the target, {row['size_bytes']} were backed up"
    else:
        for algorithm, expected in _expected(store, row, known_sha256):
            if digests.get(algorithm) != expected:
                problem = f"{DIFFERS}: its {algorithm} is not what was backed up"
                break
    return Reading(problem, digests["sha256"], size)


def _expected(store: BackupStore, row: Row, known_sha256: str | None) -> Iterator[tuple[str, str]]:
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
        if (told := head.checksums.get(algorithm)) is not None and "-" not in told:
            yield algorithm, base64.b64decode(told).hex()


def _is_md5(head: Head, etag: str | None) -> bool:
    is_hex = etag is not None and len(etag) == MD5_HEX and all(digit in "0123456789abcdef" for digit in etag)
    return is_hex and head.storage_class not in NO_MD5 and (head.encryption or "AES256") == "AES256"


class Readings:
    """The readings of a backup's copies; for one writer at a time, where two write at once no row is lost."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self._prefix = f"{points.backup.records.prefix}{OWN_PREFIX}{points.backup.name}/readings/"

    def load(self) -> pa.Table:
        """The newest reading of each copy: rows of schema READ. A file that cannot be read is passed over."""
        return _newest([rows for _, rows in self._files()])

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
        merged = _newest([*(table for _, table in before), pa.Table.from_pylist(list(rows), READ)])
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


def _newest(tables: Sequence[pa.Table]) -> pa.Table:
    rows = pa.concat_tables([READ.empty_table(), *tables]).sort_by([("read_at", "descending")])
    names = ["place", "stored_key", "stored_version_id"]
    keys = pc.binary_join_element_wise(
        *(pc.fill_null(rows[name], "") for name in names), "\0"
    ).combine_chunks()
    first = pa.table({"key": keys, "at": pa.array(range(rows.num_rows), pa.int64())}).group_by("key")
    return rows.take(
        first.aggregate([("at", "min")])["at_min"].sort() if rows.num_rows else pa.array([], pa.int64())
    )


def last_compared(first_point: str, reading: Row | None) -> dt.datetime:
    """When the content of a copy was compared last: when it was read again, else when it was made."""
    made: dt.datetime = end_of(first_point)
    return made if reading is None else max(made, reading["read_at"])


@dataclass
class Rereading:
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
        known = Readings(self.points).of_place(self.place)
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
            compared.append(last_compared(row["first_point"], earlier) if is_held else self.now)
            if is_held and problems[at] in DAMAGE:
                found.append(read_row(self.place, row, Reading(problems[at]), self.now))
            if row["is_whole"] and is_held:
                if earlier is not None and earlier["problem"] is not None:
                    problems[at] = earlier["problem"]
                    found.append(earlier)
                elif self.store.address.kind == "folder":
                    old.append((compared[at], at))
        for at, reading in self._read([at for _, at in sorted(old)], rows, known):
            compared[at] = self.now
            problems[at] = reading.problem
            found.append(read_row(self.place, rows[at], reading, self.now))
        return _with(objects, problems, compared), found

    def _read(self, places: Sequence[int], rows: Sequence[Row], known: Any) -> Iterator[tuple[int, Reading]]:
        chosen, spent = list[int](), 0
        for at in places:
            if chosen and spent + rows[at]["size_bytes"] > self.budget_bytes:
                break
            spent += rows[at]["size_bytes"]
            chosen.append(at)

        def read(at: int) -> Reading:
            row = rows[at]
            reading = known.get((row["stored_key"], row["stored_version_id"], row["stored_etag"]))
            return read_copy(self.store, row, None if reading is None else reading["sha256"])

        with ThreadPoolExecutor(READERS) as pool:
            yield from zip(chosen, pool.map(read, chosen), strict=True)


def read_row(place: str, row: Row, reading: Reading, now: dt.datetime) -> Row:
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


def _with(objects: pa.Table, problems: Sequence[str | None], compared: Sequence[dt.datetime]) -> pa.Table:
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
    readings = Readings(points).load()
    rotten = readings.filter(pc.is_valid(readings["problem"]))
    downgraded = []
    for point in points.readable(as_made=True)[0]:
        place = points.backup.target_of(point.day).url
        mine = rotten.filter(pc.equal(rotten["place"], place))
        try:
            damage = _damage_of(points, point, mine, now)
        except DamagedRecord as error:
            roots = tuple(proof.table.root for proof in point.verification.tables)
            damage = Damage(found_at=now, count=1, copies=(), tables=roots, record=error.reason)
        points.record_damage(point.day, damage)
        if damage is not None:
            downgraded.append(point.day)
    return downgraded


def _damage_of(points: Points, point: Point, rotten: pa.Table, now: dt.datetime) -> Damage | None:
    problems = {(row["stored_key"], row["stored_version_id"]): row["problem"] for row in rotten.to_pylist()}
    keys = rotten["stored_key"].combine_chunks()
    copies: list[DamagedCopy] = []
    for batch in points.held(point, ["key", "stored_key", "stored_version_id", "table_root"]):
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
    tables = {one.table_root for one in copies if one.table_root is not None}
    # A table may have files below the root of another one that is inside of it.
    tables |= {
        proof.table.root
        for proof in point.verification.tables
        if any(one.key.startswith(f"{proof.table.root}/") for one in copies)
    }
    return Damage(found_at=now, count=len(copies), copies=tuple(copies[:SHOWN]), tables=tuple(sorted(tables)))


def repair_points(points: Points, place: str, stored_key: str, head: Head, was: Row) -> None:
    """Let points that hold a copy, which was made again, know its new version and ETag, where these are others."""
    for point in points.readable(as_made=True)[0]:
        if points.backup.target_of(point.day).url != place:
            continue
        try:
            rows = [
                row
                for batch in points.held(point)
                for row in batch.filter(pc.equal(batch["stored_key"], stored_key)).to_pylist()
                if row["stored_version_id"] == was["stored_version_id"]
            ]
        except DamagedRecord:
            continue
        new = {"stored_etag": head.etag, "stored_version_id": head.version_id}
        changed = [row | new for row in rows if row | new != row]
        if changed:
            points.record_repaired(point, pa.Table.from_pylist(changed, HELD))
