"""Races with clean-up: tables whose old files may be removed between the moment of a point and their copy.

What tables say of it is read from the source: a few small files of each, newest first.
"""

import datetime as dt
import io
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.plan.tables import Format
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.tables.delta.commits import parse_commit
from lakeshare_server.tables.delta.log import CHECKPOINT, COMMIT
from lakeshare_server.tables.iceberg.metadata_json import LONGEST_BYTES, MetadataError, unpacked

MARGIN = dt.timedelta(hours=6)
"""For a report that is late, and a copy that is slower than estimated."""
DELTA_PROPERTY, DELTA_DEFAULT = "delta.deletedFileRetentionDuration", dt.timedelta(days=7)
ICEBERG_PROPERTY, ICEBERG_DEFAULT = "history.expire.max-snapshot-age-ms", dt.timedelta(days=5)
TELLING = r"(^|/)(_delta_log/[0-9]{20}\.[^/]*(json|parquet)|metadata/[^/]*\.metadata\.json(\.gz)?)$"
FILES_READ, LARGEST_BYTES, READERS = 100, 64 * 1024**2, 16
"""How many files of one log are read at most, how large they may be, how many tables at a time."""
UNIT = re.compile(r"(\d+)\s*(microsecond|millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)
TOLD = 20

LogFile = tuple[str, int, dt.datetime]
"""Key, bytes, time of writing."""


@dataclass
class LogFiles:
    """Files by the table they tell of, found while a listing goes by."""

    of_root: dict[str, list[LogFile]] = field(default_factory=dict)

    def look_at(self, rows: pa.RecordBatch) -> None:
        """Keep what these rows of schema LISTING have of it."""
        telling = rows.filter(pc.match_substring_regex(rows["key"], TELLING))
        for key, size_bytes, at in zip(
            *(telling[name].to_pylist() for name in ("key", "size_bytes", "last_modified")), strict=True
        ):
            root = key.rpartition("/")[0].rpartition("/")[0]
            self.of_root.setdefault(root, []).append((key, size_bytes, at))


def races(
    backup: Backup,
    source: BackupStore,
    tables: dict[str, Format],
    found: LogFiles,
    minutes: float,
) -> list[str]:
    """Sentences about tables that remove files sooner than a backup copies them; none where all wait long enough.

    A source that cannot be read is told of too: the copies may well be made by somebody who can.
    """
    need = dt.timedelta(days=backup.listing.lag_days, minutes=minutes) + MARGIN

    def asked(table: tuple[str, Format]) -> dt.timedelta | BackupError | None:
        files = found.of_root.get(table[0], [])
        try:
            return _delta(source, files) if table[1] == "delta" else _iceberg(source, files)
        except BackupError as error:
            return error

    with ThreadPoolExecutor(READERS) as pool:
        answers = list(zip(tables, pool.map(asked, tables.items()), strict=True))
    short = [(root, kept) for root, kept in answers if isinstance(kept, dt.timedelta) and kept < need]
    refused = [kept for _, kept in answers if isinstance(kept, BackupError)]
    told = [
        f"{root}: keeps removed files for {_words(kept)} only, and copying takes up to {_words(need)} from the day's "
        f"end on: a clean-up in between takes files from the point. Keep them longer ({_property(tables[root])})."
        for root, kept in short[:TOLD]
    ]
    if len(short) > TOLD:
        told.append(f"{len(short) - TOLD} more tables keep removed files for too short a time.")
    if refused:
        told.append(f"How long {len(refused)} tables keep removed files cannot be told: {refused[0]}")
    return told


def _delta(source: BackupStore, files: Sequence[LogFile]) -> dt.timedelta | None:
    """As the newest metaData action says (PROTOCOL.md, "Change Metadata"); None where it is not found."""
    by_version: dict[int, list[LogFile]] = {}
    for one in files:
        name = one[0].rpartition("/")[2]
        if told := COMMIT.fullmatch(name) or CHECKPOINT.fullmatch(name):
            by_version.setdefault(int(told[1]), []).append(one)
    for version in sorted(by_version, reverse=True)[:FILES_READ]:
        # A commit says it only where it changes it, a checkpoint always.
        for key, size_bytes, _ in sorted(by_version[version]):
            said = _configuration(source, key) if size_bytes <= LARGEST_BYTES else None
            if said is not None:
                return _interval(said.get(DELTA_PROPERTY)) or DELTA_DEFAULT
    return None


def _configuration(source: BackupStore, key: str) -> dict[str, str] | None:
    """The table's properties, as one file of its log tells them; None where it does not."""
    content = _content(source, key)
    if content is None:
        return None
    try:
        if not key.endswith(".parquet"):
            said = parse_commit(content, 0, 0, 0).metadata
            return None if said is None else dict(said.get("configuration") or {})
        with pq.ParquetFile(io.BytesIO(content)) as file:
            if "metaData" not in file.schema_arrow.names:
                return None
            column = file.read(["metaData"]).column("metaData")
    except (orjson.JSONDecodeError, pa.ArrowException, AttributeError):
        # A broken file of a log is for the verification to tell.
        return None
    found = [one for one in column.to_pylist() if one is not None]
    return dict(found[0]["configuration"] or ()) if found else None


def _iceberg(source: BackupStore, files: Sequence[LogFile]) -> dt.timedelta | None:
    """As the newest metadata file says (Iceberg, "Table properties"); None where it is not found."""
    for key, _, _ in sorted(files, key=lambda one: one[2], reverse=True)[:1]:
        content = _content(source, key)
        if content is None:
            return None
        try:
            said = orjson.loads(unpacked(content, LONGEST_BYTES)).get("properties") or {}
            return dt.timedelta(milliseconds=int(said[ICEBERG_PROPERTY]))
        except KeyError:
            return ICEBERG_DEFAULT
        except (MetadataError, ValueError, AttributeError):
            return None
    return None


def _content(source: BackupStore, key: str) -> bytes | None:
    try:
        return source.read(key)
    except ObjectMissing:
        return None


def _interval(text: str | None) -> dt.timedelta | None:
    """Delta's way to write a time: `interval 1 week`, `interval 36 hours`."""
    parts = [dt.timedelta(**{f"{unit.lower()}s": int(count)}) for count, unit in UNIT.findall(text or "")]
    return sum(parts, dt.timedelta()) if parts else None


def _property(of: Format) -> str:
    return DELTA_PROPERTY if of == "delta" else ICEBERG_PROPERTY


def _words(length: dt.timedelta) -> str:
    hours = length.total_seconds() / 3600
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
