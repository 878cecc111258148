"""The points of one backup, as they are in its target: `_lakeshare/<backup>/points/<day>/…`.

`point.json` is written last: a folder without it is a point that is being made, or that broke off. It and the rows of
what the point holds carry digests, so that a changed record is refused. What is found out after a point was written
lies beside it: `damage.json` (copies that rotted) and `held-repaired.parquet` (copies that were made again elsewhere).
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

OWN_PREFIX = "_lakeshare/"
"""Where everything is that lakeshare writes for itself: never backed up, never swept as an orphan."""

SWEEP = dt.timedelta(minutes=30)
"""How long a sweep keeps days from being claimed without saying again that it is still there."""


class Points:
    """The points of a backup; for many threads and many hosts."""

    def __init__(self, backup: Backup) -> None:
        self.backup = backup
        self.store: BackupStore = open_store(backup.records)

    def folder(self, day: str) -> str:
        """The key prefix of a point's own records, with a slash at its end."""
        return f"{self.backup.records.prefix}{OWN_PREFIX}{self.backup.name}/points/{day}/"

    def days(self) -> list[str]:
        """The days of all finished points, oldest first."""
        start = self.folder("x").removesuffix("x/")
        keys = (one.key for one in self.store.list(start))
        return sorted(key.removeprefix(start).split("/")[0] for key in keys if key.endswith("/point.json"))

    def get(self, day: str, *, as_made: bool = False) -> Point:
        """A finished point, as it is now: copies that were found damaged since it was made degrade it.

        With `as_made` it is as it was written, whatever was found since.

        Raises:
            BackupError: there is none of that day.
            DamagedRecord: there is one, but its record cannot be read or is not what was written.
        """
        try:
            content = self.store.read(f"{self.folder(day)}point.json")
        except ObjectMissing:
            days = ", ".join(self.days()) or "none"
            raise BackupError(
                f"backup {self.backup.name}",
                f"it has no point {day!r}; there are {days}",
                "Name one of them.",
            ) from None
        point = self._parsed(day, content)
        return point if as_made else point.downgraded(self._damage(day))

    def latest_good(self, before: str | None = None) -> Point | None:
        """The newest verified point, with fallbacks or without, of those before `before`."""
        return next(
            (point for point in reversed(self.readable(before)[0]) if point.status in GOOD_STATUSES), None
        )

    def readable(
        self, before: str | None = None, *, as_made: bool = False
    ) -> tuple[list[Point], list[DamagedRecord]]:
        """The points whose records can be read, oldest first, and why the others cannot."""
        points, damaged = list[Point](), list[DamagedRecord]()
        for day in self.days():
            if before is None or day < before:
                try:
                    points.append(self.get(day, as_made=as_made))
                except DamagedRecord as error:
                    damaged.append(error)
        return points, damaged

    def latest(self, before: str) -> Point | None:
        """The newest point of before `before` that can be built on, whatever was proved of it.

        Its copies are judged one by one; a point whose record, or whose rows of what it holds, are damaged is passed
        over.
        """
        for day in reversed([day for day in self.days() if day < before]):
            try:
                point = self.get(day)
                for _ in self._held_files(point):
                    pass
            except DamagedRecord:
                continue
            return point
        return None

    def write(self, point: Point, copies: Path) -> None:
        """Write a finished point: what it holds first, its record last.

        Raises:
            BackupError: the day has a point already; a point is never replaced.
        """
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
            raise BackupError(
                f"backup {self.backup.name}, point {point.day}",
                "another run already completed this backup point",
                f"Look at it with `lakeshare backup show {self.backup.name} {point.day}`.",
            )

    def read_copies(self, point: Point, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """What a point holds: rows of schema HELD, with copies that were made again elsewhere in their new place.

        Raises:
            DamagedRecord: a file of the rows is missing, cut or changed.
        """
        repaired = self.repaired(point)
        read = columns if columns is None or "stored_key" in columns else [*columns, "stored_key"]
        for name, content in self._held_files(point):
            try:
                with pq.ParquetFile(io.BytesIO(content)) as file:
                    for batch in file.iter_batches(columns=read):
                        if repaired.num_rows:
                            batch = batch.filter(
                                pc.invert(
                                    pc.is_in(batch["stored_key"], repaired["stored_key"].combine_chunks())
                                )
                            )
                        yield batch if columns is None else batch.select(columns)
            # What pyarrow raises of a cut or changed file depends on where it is cut.
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                raise self._damaged(point.day, f"held/{name} cannot be read: {error}") from error
        yield from repaired.select(columns or POINT_COPIES.names).to_batches()

    def mount_digest(self, location: str) -> str | None:
        """SHA-256 of all files of an Iceberg mount, by the location of its metadata file; None if there are none."""
        folder = location.rpartition("/")[0].removeprefix(self.store.address.location("")).lstrip("/")
        digest, files = hashlib.sha256(), 0
        for one in self.store.list(f"{folder}/"):
            try:
                content = self.store.read(one.key)
            except ObjectMissing:
                continue  # The digest tells that it is missing.
            digest.update(f"{one.key.removeprefix(folder)}\0{hashlib.sha256(content).hexdigest()}\n".encode())
            files += 1
        return digest.hexdigest() if files else None

    def repaired(self, point: Point) -> pa.Table:
        """Rows of schema HELD of the copies that were made again under another version or ETag."""
        try:
            content = self.store.read(f"{self.folder(point.day)}held-repaired.parquet")
            return pq.read_table(io.BytesIO(content)).cast(POINT_COPIES)
        except ObjectMissing:
            return POINT_COPIES.empty_table()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged(point.day, f"held-repaired.parquet cannot be read: {error}") from error

    def record_repaired(self, point: Point, rows: pa.Table) -> None:
        """Remember rows of schema HELD that stand for those of the same stored key from now on."""
        before = self.repaired(point)
        stays = pc.invert(pc.is_in(before["stored_key"], rows["stored_key"].combine_chunks()))
        file = io.BytesIO()
        pq.write_table(pa.concat_tables([before.filter(stays), rows.cast(POINT_COPIES)]), file)
        self.store.put(f"{self.folder(point.day)}held-repaired.parquet", file.getvalue())

    def record_damage(self, day: str, damage: Damage | None) -> None:
        """Downgrade a point by what was found damaged of its copies; None takes an earlier finding back."""
        key = f"{self.folder(day)}damage.json"
        if damage is not None:
            self.store.put(key, damage.model_dump_json(indent=1).encode())
        elif self.store.head(key) is not None:
            self.store.delete(key)

    def _parsed(self, day: str, content: bytes) -> Point:
        try:
            fields = json.loads(content)
            point = Point.model_validate({name: fields[name] for name in fields if name not in _BESIDE})
        # A ValidationError is a ValueError, as are errors of decoding.
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(day, f"point.json cannot be read: {str(error).splitlines()[0]}") from error
        if (point.backup, point.day) != (self.backup.name, day):
            raise self._damaged(day, f"point.json is that of backup {point.backup}, point {point.day}")
        if point.digest is not None and point.digest != _compute_digest(fields):
            raise self._damaged(day, "point.json is not what was written: its digest differs")
        return point

    def _damage(self, day: str) -> Damage | None:
        try:
            return Damage.model_validate_json(self.store.read(f"{self.folder(day)}damage.json"))
        except ObjectMissing:
            return None
        except ValueError as error:
            raise self._damaged(
                day, "damage.json cannot be read; `lakeshare backup scrub` writes it anew"
            ) from error

    def _held_files(self, point: Point) -> Iterator[tuple[str, bytes]]:
        """Name and content of each file of what a point holds."""
        folder = f"{self.folder(point.day)}held/"
        listed = [one.key.removeprefix(folder) for one in self.store.list(folder)]
        for name in sorted({*listed, *point.held_digests}):
            try:
                content = self.store.read(f"{folder}{name}")
            except ObjectMissing as error:
                raise self._damaged(point.day, f"held/{name} is missing") from error
            expected = point.held_digests.get(name)
            if expected is not None and hashlib.sha256(content).hexdigest() != expected:
                raise self._damaged(point.day, f"held/{name} is not what was written: its digest differs")
            yield name, content

    def _damaged(self, day: str, reason: str) -> DamagedRecord:
        return DamagedRecord(f"backup {self.backup.name}, point {day}", reason)

    def claim(self, day: str, owner: str) -> None:
        """Take a day's making for `owner` (a run id); taking it again as the same owner is nothing.

        Raises:
            BackupError: it is another's, there is a point already, or old copies are being swept.
        """
        key = f"{self.folder(day)}claim.json"
        if self.store.put(key, json.dumps({"owner": owner}).encode(), if_absent=True):
            # A sweep looks for claims after it wrote its mark: one of the two sees the other.
            self._require_no_sweep(day)
            return
        try:
            found = json.loads(self.store.read(key))["owner"]
        except (ValueError, TypeError, KeyError):
            found = "a run whose claim cannot be read"
        if found != owner:
            raise BackupError(
                f"backup {self.backup.name}, point {day}",
                f"{found} is making it",
                f"Wait for it, or take it over with `lakeshare backup release {self.backup.name} {day}`.",
            )

    def release(self, day: str) -> None:
        """Give a day's making up, for whoever comes next; what is copied stays."""
        self.store.delete(f"{self.folder(day)}claim.json")

    @property
    def sweep_key(self) -> str:
        """Key of what says that copies are being swept, and until when that holds."""
        return f"{self.backup.records.prefix}{OWN_PREFIX}{self.backup.name}/sweeping.json"

    def swept_until(self) -> dt.datetime | None:
        """Until when a sweep that runs, or broke off, wants to be alone; None when there is none."""
        try:
            return dt.datetime.fromisoformat(json.loads(self.store.read(self.sweep_key))["until"])
        except ObjectMissing:
            return None
        except (ValueError, TypeError, KeyError):
            # It was written then, for no longer than that.
            head = self.store.head(self.sweep_key)
            return None if head is None else head.last_modified + SWEEP

    def _require_no_sweep(self, day: str) -> None:
        until = self.swept_until()
        if until is not None and until > dt.datetime.now(dt.UTC):
            self.release(day)
            raise BackupError(
                f"backup {self.backup.name}, point {day}",
                "old copies are being swept, which could take new ones for old",
                f"Run it again when that is done, or after {until:%H:%M} UTC if the sweep broke off.",
            )


_BESIDE: Sequence[str] = ("damage", "status_when_made")
"""Fields of a point that are no part of its record."""


def _compute_digest(record: dict[str, object]) -> str:
    """SHA-256 of a record without its own digest, however its JSON is laid out."""
    fields = {name: record[name] for name in record if name != "digest"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class Workspace:
    """The folder of one backup's day; `listing`, `plan`, `done` and `held` are folders of rows (backup/rows.py)."""

    folder: Path

    @classmethod
    def of(cls, settings: LakeSettings, backup: Backup, day: str) -> "Workspace":
        """The day's own folder."""
        return cls(settings.state_dir / "backup_work" / backup.name / day)

    def rows(self, name: str) -> Path:
        """The folder of rows of a name; it may not be there yet."""
        return self.folder / name

    def clear(self, name: str) -> Path:
        """The folder of rows of a name, after it was removed."""
        for left in (self.folder / name, self.folder / f".{name}.part"):
            if left.exists():
                shutil.rmtree(left)
        make_private(self.folder)
        return self.folder / name

    def save(self, name: str, record: BaseModel) -> None:
        """Keep a record as `<name>.json`, whole or not at all."""
        make_private(self.folder)
        path = self.folder / f"{name}.json"
        part = path.with_suffix(".part")
        part.write_text(record.model_dump_json(indent=1))
        part.replace(path)

    def load(self, name: str, kind: type[Record]) -> Record | None:
        """A record that was kept; None when there is none."""
        path = self.folder / f"{name}.json"
        return kind.model_validate_json(path.read_text()) if path.exists() else None

    def remove(self) -> None:
        """Remove it all."""
        shutil.rmtree(self.folder, ignore_errors=True)


def get_point_time(day: str) -> dt.datetime:
    """The moment a point of a day is of: the end of that day, or the moment the name tells (`2026-11-22T101500Z`).

    Raises:
        ValueError: it is neither.
    """
    if "T" in day:
        return dt.datetime.strptime(day, "%Y-%m-%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    midnight = dt.datetime.combine(dt.date.fromisoformat(day), dt.time(), dt.UTC)
    return midnight + dt.timedelta(days=1)


def format_point_name(now: dt.datetime) -> str:
    """The name of a point of this moment."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H%M%SZ")


def wait_for_point_name() -> str:
    """The name of a point that has what was written until now: it ends with this second, which is waited for."""
    now = dt.datetime.now(dt.UTC)
    day = format_point_name(now + dt.timedelta(seconds=1))
    while dt.datetime.now(dt.UTC) < get_point_time(day):
        time.sleep((get_point_time(day) - now).total_seconds() / 10)
    return day
