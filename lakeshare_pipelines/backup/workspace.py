"""What the steps of one day's backup leave for each other, in a folder of this host: nothing of it is in a process.

Losing the folder loses no copy: the engines' ledgers and the points are in the target.
"""

import datetime as dt
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.settings import make_private

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


def end_of(day: str) -> dt.datetime:
    """The moment a point of a day is of: the end of that day, or the moment the name tells (`2026-11-22T101500Z`).

    Raises:
        ValueError: it is neither.
    """
    if "T" in day:
        return dt.datetime.strptime(day, "%Y-%m-%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    midnight = dt.datetime.combine(dt.date.fromisoformat(day), dt.time(), dt.UTC)
    return midnight + dt.timedelta(days=1)


def point_of_now(now: dt.datetime) -> str:
    """The name of a point of this moment."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H%M%SZ")


def point_of_this_moment() -> str:
    """The name of a point that has what was written until now: it ends with this second, which is waited for."""
    now = dt.datetime.now(dt.UTC)
    day = point_of_now(now + dt.timedelta(seconds=1))
    while dt.datetime.now(dt.UTC) < end_of(day):
        time.sleep((end_of(day) - now).total_seconds() / 10)
    return day
