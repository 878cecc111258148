"""What every copy engine takes, says while it works, and leaves behind."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from lakeshare_pipelines.backup.records import CopyRecord
from lakeshare_pipelines.backup.stores import StoreAddress


@dataclass(frozen=True)
class CopyTask:
    """Rows of a plan to copy from a source to a target; the same task is the same work, whoever does it again."""

    source: StoreAddress
    target: StoreAddress
    plan: Path
    """Folder of rows of schema PLAN. Those of lane `held` are none of the engine's; `archived` ones were thawed."""
    done: Path
    """Folder that the rows of schema DONE go to, one for each row to copy; it appears when all is told."""
    work_prefix: str
    """Where in the target the engine keeps its ledger, manifests and reports; ends with a slash."""
    as_of: dt.datetime
    """Objects modified later are not what was planned: the copy of one is a failure."""
    copy_limit_bytes: int
    in_flight: int
    overwrite: bool = True
    """False, for restores: what has a key of the target already stays, and its row fails as `AlreadyThere`; where it
    is the very object that was to be copied there, the row succeeds."""

    def token(self, attempt: int = 0) -> str:
        """At most 64 characters that are the same for the same work."""
        said = (
            f"{self.source.url}\n{self.target.url}\n{self.work_prefix}\n{self.as_of.isoformat()}\n{attempt}"
        )
        return sha256(said.encode()).hexdigest()[:40]


@dataclass(frozen=True)
class Progress:
    """How far a copy is."""

    objects: int
    objects_of: int
    size_bytes: int
    size_bytes_of: int
    failed: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before the first object."""
        return self.seconds / self.objects * (self.objects_of - self.objects) if self.objects else None


Tell = Callable[[Progress], None]


class CopyEngine(Protocol):
    """Copies a task, resumes it, and gives it up."""

    name: str

    def copy(self, task: CopyTask, tell: Tell) -> CopyRecord:
        """Copy all rows; called again after a crash it goes on where it was, and copies nothing twice.

        An object that cannot be copied is a failed row, not an error.

        Raises:
            BackupError: the target refuses everything, or more fails than the engine bears.
        """
        ...

    def cancel(self, task: CopyTask) -> None:
        """Stop what runs of a task, here or elsewhere; what is copied stays."""
        ...
