"""The points of a backup in its target: `_lakeshare/<backup>/points/<day>/…`.

`point.json` is written last: a folder without it is an unfinished point. Later findings are beside it: `damage.json`
(damaged copies) and `held-repaired.parquet` (copies that were made again).
"""

import datetime as dt
import hashlib
import io
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import GOOD_STATUSES, POINT_COPIES, Damage, Point
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.settings import make_private
from lakeshare_server.storage.stores import write_file

OWN_PREFIX = "_lakeshare/"  # Key prefix of lakeshare's own files: never backed up, never reported as orphans

POINT, CLAIM = "point.json", "claim.json"  # In a point's folder: its record, and the run that makes it
SWEPT = "swept.json"
"""In a point's folder: its sweep began. Written before leases are read, as leases are written before it is read."""
SWEEP = dt.timedelta(minutes=30)  # How long a sweep blocks new claims unless it renews that


class Points:
    """The points of a backup; safe for several threads and hosts."""

    def __init__(self, backup: Backup) -> None:
        self.backup = backup
        self.store: BackupStore = open_store(backup.records)

    def folder(self, day: str) -> str:
        return f"{self.backup.records.prefix}{OWN_PREFIX}{self.backup.name}/points/{day}/"

    def list_marks(self) -> dict[str, set[str]]:
        """The names of the files directly in the folder of each day."""
        start, marks = self.folder("x").removesuffix("x/"), dict[str, set[str]]()
        for listed in self.store.list(start):
            day, *rest = listed.key.removeprefix(start).split("/")
            if len(rest) == 1:
                marks.setdefault(day, set()).add(rest[0])
        return marks

    def days(self) -> list[str]:
        return sorted(day for day, names in self.list_marks().items() if POINT in names)

    def unfinished(self) -> list[str]:
        """The days that a run has claimed and that have no point."""
        marks = self.list_marks().items()
        return sorted(day for day, names in marks if CLAIM in names and not names & {POINT, SWEPT})

    def get(self, day: str, *, as_made: bool = False) -> Point:
        """A finished point; with `as_made` as it was written, else degraded by copies that were found damaged since.
        Raises BackupError if the day has no point, and DamagedRecord if its record cannot be read or was changed."""
        try:
            content = self.store.read(f"{self.folder(day)}point.json")
        except ObjectMissing:
            reason = f"it has no point {day!r}; there are {', '.join(self.days()) or 'none'}"
            raise BackupError(f"backup {self.backup.name}", reason, "Name one of them.") from None
        point = self._parse(day, content)
        return point if as_made else point.downgraded(self._load_damage(day))

    def latest_good(self) -> Point | None:
        """The newest verified point, with fallbacks or without."""
        points = reversed(self.readable()[0])
        return next((point for point in points if point.status in GOOD_STATUSES), None)

    def readable(
        self, before: str | None = None, *, as_made: bool = False
    ) -> tuple[list[Point], list[DamagedRecord]]:
        """The points whose records can be read, oldest first, and the errors of the others."""
        points, damaged = list[Point](), list[DamagedRecord]()
        for day in self.days():
            if before is None or day < before:
                try:
                    points.append(self.get(day, as_made=as_made))
                except DamagedRecord as error:
                    damaged.append(error)
        return points, damaged

    def latest(self, before: str) -> Point | None:
        """The newest point before `before` whose record and rows can be read, whatever its status."""
        for day in reversed([day for day in self.days() if day < before]):
            try:
                point = self.get(day)
                for _ in self._read_held_files(point):
                    pass
            except DamagedRecord:
                continue
            return point
        return None

    def write(self, point: Point, copies: Path) -> None:
        """Write a finished point: its rows first, its record last."""
        folder = self.folder(point.day)
        digests = {}
        for path in sorted(copies.glob("*.parquet")):
            content = path.read_bytes()
            digests[path.name] = hashlib.sha256(content).hexdigest()
            self.store.put(f"{folder}held/{path.name}", content)
        record = json.loads(
            point.model_copy(update={"held_digests": digests}).model_dump_json(exclude=set(_BESIDE))
        )
        record["digest"] = _compute_digest(record)
        content = json.dumps(record, indent=1).encode()
        if not self.store.put(f"{folder}point.json", content, if_absent=True):
            reason = "another run already completed this backup point"
            fix = f"Look at it with `lakeshare backup show {self.backup.name} {point.day}`."
            raise BackupError(f"backup {self.backup.name}, point {point.day}", reason, fix)

    def read_copies(self, point: Point, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The copies of a point: rows of schema POINT_COPIES; copies that were made again are in their new place.
        Raises DamagedRecord if a file of the rows is missing, truncated or changed."""
        repaired = self.read_repaired(point.day)
        repaired_keys = repaired["stored_key"].combine_chunks()
        read = columns if columns is None or "stored_key" in columns else [*columns, "stored_key"]
        for name, content in self._read_held_files(point):
            try:
                with pq.ParquetFile(io.BytesIO(content)) as file:
                    for batch in file.iter_batches(columns=read):
                        if repaired.num_rows:
                            is_repaired = pc.is_in(batch["stored_key"], repaired_keys)
                            batch = batch.filter(pc.invert(is_repaired))
                        yield batch if columns is None else batch.select(columns)
            # What pyarrow raises for a damaged file depends on where the damage is.
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                raise self._make_error(point.day, f"held/{name} cannot be read: {error}") from error
        yield from repaired.select(columns or POINT_COPIES.names).to_batches()

    def mount_digest(self, location: str) -> str | None:
        """SHA-256 over the files of an Iceberg mount, by the location of its metadata file; None if there are none."""
        folder = location.rpartition("/")[0].removeprefix(self.store.address.location("")).lstrip("/")
        digest, files = hashlib.sha256(), 0
        for listed in self.store.list(f"{folder}/"):
            try:
                content = self.store.read(listed.key)
            except ObjectMissing:
                continue  # The digest differs without it.
            digest.update(
                f"{listed.key.removeprefix(folder)}\0{hashlib.sha256(content).hexdigest()}\n".encode()
            )
            files += 1
        return digest.hexdigest() if files else None

    def read_repaired(self, day: str) -> pa.Table:
        """The copies of a day's point that were made again: rows of schema POINT_COPIES."""
        try:
            content = self.store.read(f"{self.folder(day)}held-repaired.parquet")
            return pq.read_table(io.BytesIO(content)).cast(POINT_COPIES)
        except ObjectMissing:
            return POINT_COPIES.empty_table()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._make_error(day, f"held-repaired.parquet cannot be read: {error}") from error

    def record_repaired(self, point: Point, rows: pa.Table) -> None:
        before = self.read_repaired(point.day)
        stays = pc.invert(pc.is_in(before["stored_key"], rows["stored_key"].combine_chunks()))
        file = io.BytesIO()
        pq.write_table(pa.concat_tables([before.filter(stays), rows.cast(POINT_COPIES)]), file)
        self.store.put(f"{self.folder(point.day)}held-repaired.parquet", file.getvalue())

    def record_damage(self, day: str, damage: Damage | None) -> None:
        """Downgrade a point by its damaged copies; None removes an earlier finding."""
        key = f"{self.folder(day)}damage.json"
        if damage is not None:
            self.store.put(key, damage.model_dump_json(indent=1).encode())
        elif self.store.head(key) is not None:
            self.store.delete(key)

    def _parse(self, day: str, content: bytes) -> Point:
        try:
            fields = json.loads(content)
            point = Point.model_validate({name: fields[name] for name in fields if name not in _BESIDE})
        # A ValidationError is a ValueError, as are errors of decoding.
        except (ValueError, TypeError, RecursionError) as error:
            raise self._make_error(day, f"point.json cannot be read: {str(error).splitlines()[0]}") from error
        if (point.backup, point.day) != (self.backup.name, day):
            raise self._make_error(day, f"point.json is that of backup {point.backup}, point {point.day}")
        if point.digest is not None and point.digest != _compute_digest(fields):
            raise self._make_error(day, "point.json is not what was written: its digest differs")
        return point

    def _load_damage(self, day: str) -> Damage | None:
        try:
            return Damage.model_validate_json(self.store.read(f"{self.folder(day)}damage.json"))
        except ObjectMissing:
            return None
        except ValueError as error:
            reason = "damage.json cannot be read; `lakeshare backup scrub` writes it again"
            raise self._make_error(day, reason) from error

    def _read_held_files(self, point: Point) -> Iterator[tuple[str, bytes]]:
        folder = f"{self.folder(point.day)}held/"
        existing = [listed.key.removeprefix(folder) for listed in self.store.list(folder)]
        for name in sorted({*existing, *point.held_digests}):
            try:
                content = self.store.read(f"{folder}{name}")
            except ObjectMissing as error:
                raise self._make_error(point.day, f"held/{name} is missing") from error
            expected = point.held_digests.get(name)
            if expected is not None and hashlib.sha256(content).hexdigest() != expected:
                raise self._make_error(point.day, f"held/{name} is not what was written: its digest differs")
            yield name, content

    def _make_error(self, day: str, reason: str) -> DamagedRecord:
        return DamagedRecord(f"backup {self.backup.name}, point {day}", reason)

    def claim(self, day: str, owner: str) -> None:
        """Claim a day for `owner` (a run id); the same owner may claim it again. Raises BackupError if another run
        has claimed the day, or a sweep is running."""
        title, key = f"backup {self.backup.name}, point {day}", f"{self.folder(day)}{CLAIM}"
        if self.store.put(key, json.dumps({"owner": owner}).encode(), if_absent=True):
            # A sweep reads claims after it wrote its mark: one of the two sees the other.
            until = self.swept_until()
            if until is not None and until > dt.datetime.now(dt.UTC):
                self.release(day)
                fix = (
                    f"Run it again when the sweep is done, or after {until:%H:%M} UTC if it was interrupted."
                )
                raise BackupError(title, "a sweep of old copies is running, which could remove new ones", fix)
            return
        claimed_by = self.read_owner(day)
        if claimed_by != owner:
            fix = f"Wait for it, or take it over with `lakeshare backup release {self.backup.name} {day}`."
            raise BackupError(title, f"{claimed_by} is making it", fix)

    def read_owner(self, day: str) -> str | None:
        """The run that has claimed a day."""
        try:
            owner: str = json.loads(self.store.read(f"{self.folder(day)}{CLAIM}"))["owner"]
        except ObjectMissing:
            return None
        except (ValueError, TypeError, KeyError):
            return "a run whose claim cannot be read"
        return owner

    def release(self, day: str) -> None:
        """Remove the claim of a day; finished copies stay."""
        self.store.delete(f"{self.folder(day)}{CLAIM}")

    @property
    def sweep_key(self) -> str:
        return f"{self.backup.records.prefix}{OWN_PREFIX}{self.backup.name}/sweeping.json"

    def swept_until(self) -> dt.datetime | None:
        """When the mark of a sweep that runs or was interrupted ends; None if there is none."""
        try:
            return dt.datetime.fromisoformat(json.loads(self.store.read(self.sweep_key))["until"])
        except ObjectMissing:
            return None
        except (ValueError, TypeError, KeyError):
            # A mark that cannot be read ends as one written when the file was.
            head = self.store.head(self.sweep_key)
            return None if head is None else head.last_modified + SWEEP


_BESIDE: Sequence[str] = ("damage", "status_when_made")  # Fields of a point that are not part of its record


def _compute_digest(record: dict[str, object]) -> str:
    """SHA-256 of a record without its own digest, independent of the layout of its JSON."""
    fields = {name: record[name] for name in record if name != "digest"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class Workspace:
    """The folder of a backup's day on this host; `listing`, `plan`, `done` and `held` are folders of rows."""

    folder: Path

    @classmethod
    def of(cls, settings: LakeSettings, backup: Backup, day: str) -> "Workspace":
        # The number changes with the schema of the rows: steps of an earlier release are run again.
        return cls(settings.state_dir / "backup_work" / backup.name / "2" / day)

    def rows(self, name: str) -> Path:
        return self.folder / name

    def clear(self, name: str) -> Path:
        for left in (self.folder / name, self.folder / f".{name}.part"):
            if left.exists():
                shutil.rmtree(left)
        make_private(self.folder)
        return self.folder / name

    def save(self, name: str, record: BaseModel) -> None:
        content = record.model_dump_json(indent=1).encode()
        write_file(self.folder / f"{name}.json", content, if_absent=False)

    def load(self, name: str, kind: type[Record]) -> Record | None:
        path = self.folder / f"{name}.json"
        return kind.model_validate_json(path.read_text()) if path.exists() else None

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def get_point_time(day: str) -> dt.datetime:
    """The time of a point: the end of its day, or the time in its name (`2026-11-22T101500Z`). Raises ValueError if
    the name is neither."""
    if "T" in day:
        return dt.datetime.strptime(day, "%Y-%m-%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    midnight = dt.datetime.combine(dt.date.fromisoformat(day), dt.time(), dt.UTC)
    return midnight + dt.timedelta(days=1)


def format_point_name(now: dt.datetime) -> str:
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H%M%SZ")


def wait_for_point_name() -> str:
    """The name of a point with all that is written until now: it ends with this second, which is waited for."""
    now = dt.datetime.now(dt.UTC)
    day = format_point_name(now + dt.timedelta(seconds=1))
    while dt.datetime.now(dt.UTC) < get_point_time(day):
        time.sleep((get_point_time(day) - now).total_seconds() / 10)
    return day
