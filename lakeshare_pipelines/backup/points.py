"""The points of one backup, as they are in its target: `_lakeshare/<backup>/points/<day>/…`.

`point.json` is written last: a folder without it is a point that is being made, or that broke off.
"""

import datetime as dt
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.records import GOOD, Point
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.errors import BackupError, ObjectMissing

OWN_PREFIX = "_lakeshare/"
"""Where everything is that lakeshare writes for itself: never backed up, never swept as an orphan."""


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

    def get(self, day: str) -> Point:
        """A finished point.

        Raises:
            BackupError: there is none of that day.
        """
        try:
            return Point.model_validate_json(self.store.read(f"{self.folder(day)}point.json"))
        except ObjectMissing:
            days = ", ".join(self.days()) or "none"
            raise BackupError(
                f"backup {self.backup.name}",
                f"it has no point {day!r}; there are {days}",
                "Name one of them.",
            ) from None

    def latest_good(self, before: str | None = None) -> Point | None:
        """The newest verified point, of those before `before`."""
        for day in reversed(self.days()):
            if before is None or day < before:
                point = self.get(day)
                if point.status in GOOD:
                    return point
        return None

    def latest(self, before: str) -> Point | None:
        """The newest point of before `before`, whatever was proved of it: its copies are told one by one."""
        earlier = [day for day in self.days() if day < before]
        return self.get(earlier[-1]) if earlier else None

    def write(self, point: Point, held: Path) -> None:
        """Write a finished point: what it holds first, its record last.

        Raises:
            BackupError: the day has a point already; a point is never replaced.
        """
        folder = self.folder(point.day)
        for path in sorted(held.glob("*.parquet")):
            self.store.put(f"{folder}held/{path.name}", path.read_bytes())
        if not self.store.put(
            f"{folder}point.json", point.model_dump_json(indent=1).encode(), if_absent=True
        ):
            raise BackupError(
                f"backup {self.backup.name}, point {point.day}",
                "somebody else finished it first",
                f"Look at it with `lakeshare backup show {self.backup.name} {point.day}`.",
            )

    def held(self, point: Point, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """What a point holds: rows of schema HELD."""
        for one in self.store.list(f"{self.folder(point.day)}held/"):
            with pq.ParquetFile(io.BytesIO(self.store.read(one.key))) as file:
                yield from file.iter_batches(columns=columns)

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
        found = json.loads(self.store.read(key))["owner"]
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
            said = json.loads(self.store.read(self.sweep_key))
        except ObjectMissing:
            return None
        return dt.datetime.fromisoformat(said["until"])

    def _require_no_sweep(self, day: str) -> None:
        until = self.swept_until()
        if until is not None and until > dt.datetime.now(dt.UTC):
            self.release(day)
            raise BackupError(
                f"backup {self.backup.name}, point {day}",
                "old copies are being swept, which could take new ones for old",
                f"Run it again when that is done, or after {until:%H:%M} UTC if the sweep broke off.",
            )
