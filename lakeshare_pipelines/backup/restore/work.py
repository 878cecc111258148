"""One restore while it runs: what was chosen, where to, who copies, and what is told on the way."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from lakeshare_pipelines.backup.copy.engine import CopyEngine, Progress, Tell
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.restore.chosen import Chosen
from lakeshare_pipelines.backup.restore.copied import Copying
from lakeshare_pipelines.backup.restore.opening import Opened
from lakeshare_pipelines.backup.restore.placed import Placed
from lakeshare_pipelines.backup.restore.records import RestoreRecord
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.folder import remove_unfinished
from lakeshare_pipelines.backup.workspace import Workspace
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.stores import normalised

Say = Callable[[str], None]


def silent(progress: Progress) -> None:
    """Tell nobody."""


def remove_empty(root: Path, prefix: str) -> None:
    """Remove the folders of a prefix that keep nothing any more, those above it too."""
    for folder, _, _ in os.walk(root / prefix, topdown=False):
        Path(folder).rmdir()
    # The folders above may be others' as well.
    for above in list((root / prefix).parents)[: prefix.rstrip("/").count("/")]:
        with suppress(OSError):
            above.rmdir()


def unsaid(sentence: str) -> None:
    """Say it to nobody."""


@dataclass
class Work:
    """A table of a point on its way to `root` in the store `to`."""

    settings: LakeSettings
    backup: Backup
    choice: Chosen
    to: StoreAddress
    root: str
    say: Say = unsaid
    tell: Tell = silent
    began: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    objects: int = 0
    size_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @cached_property
    def engine(self) -> CopyEngine:
        """The engine that copies: always our own, which needs neither Spark nor a service."""
        from lakeshare_pipelines.backup.copy.local import LocalEngine

        return LocalEngine()

    @cached_property
    def store(self) -> BackupStore:
        """Where the table goes."""
        return open_store(self.to)

    @property
    def place(self) -> str:
        """Location of the table's new root."""
        return self.to.location(self.root)

    @property
    def title(self) -> str:
        """What is done, for people."""
        return f"restore of {self.choice.table.root or 'other files'} to {self.place}"

    @property
    def name(self) -> str:
        """The same for the same restore, whoever does it again."""
        told = f"{self.choice.point.day}\n{self.choice.table.root}\n{self.choice.version}\n{self.place}"
        return sha256(told.encode()).hexdigest()[:16]

    def bring(self, at: Placed, *, into_live_log: bool = False) -> None:
        """Copy what is missing, and count it; what the engine keeps for itself goes when all is there."""
        if not at.missing.num_rows:
            return
        self._forget()
        if self.to.kind == "folder" and self.root:
            remove_unfinished(Path(self.to.url) / self.root)
        # A ledger of an earlier attempt tells of what may be gone again: what is missing now is copied now.
        prefix = f"{self._prefix}{uuid4().hex}/"
        copying = Copying(self.backup, self.choice, self._workspace, prefix, self.engine, self.tell)
        copying.bring(at.missing, self.to, into_live_log=into_live_log)
        self.objects += at.missing.num_rows
        self.size_bytes += sum(at.missing["size_bytes"].to_pylist())
        self._forget()
        self.say(f"{at.missing.num_rows:,} objects brought to {self.place}, {at.there:,} were there")

    @property
    def _prefix(self) -> str:
        """What the engine keeps for itself while it copies, in the store that the table goes to."""
        return f"{self.to.prefix}{OWN_PREFIX}{self.backup.name}/restores/{self.name}/"

    @property
    def _workspace(self) -> Workspace:
        return Workspace(self.settings.state_dir / "backup_work" / self.backup.name / "restores" / self.name)

    def _forget(self) -> None:
        for one in self.store.list(self._prefix):
            self.store.delete(one.key)
        if self.to.kind == "folder":
            remove_empty(Path(self.to.url), self._prefix)
        self._workspace.remove()

    def moved(self, keys: Mapping[str, str]) -> Callable[[str], str]:
        """New locations of a table's files by what its metadata calls them: `keys` are new locations by old ones.

        What the point does not hold moves with the root it is under, or stays.
        """
        old, new = normalised(self.backup.source.location(self.choice.table.root)), self.place

        def moved(location: str) -> str:
            at = normalised(location)
            if at in keys:
                return keys[at]
            return f"{new}/{at.removeprefix(old + '/')}" if at.startswith(old + "/") else location

        return moved

    def record(
        self, location: str, opened: Opened, *, is_part: bool = False, **more: object
    ) -> RestoreRecord:
        """What was done.

        Raises:
            BackupError: the table has another number of rows than the point proved.
        """
        if not is_part:
            self.require_rows(location, opened)
        return RestoreRecord.model_validate(
            {
                "day": self.choice.point.day,
                "table": self.choice.table,
                "version": self.choice.version,
                "location": location,
                "rows": opened.rows,
                "files": opened.files,
                "opened_by": opened.reader,
                "objects": self.objects,
                "size_bytes": self.size_bytes,
                "started_at": self.started_at,
                "seconds": time.monotonic() - self.began,
                "notes": tuple(self.notes),
                **more,
            }
        )

    def require_rows(self, location: str, opened: Opened) -> None:
        """Refuse a table that is not what the point proved of it.

        Raises:
            BackupError: it has more rows, or fewer.
        """
        proof = self.choice.proof
        proved = proof.snapshot_id if proof.table.format == "iceberg" else proof.version
        if (
            self.choice.version == proved
            and None not in (proof.rows, opened.rows)
            and proof.rows != opened.rows
        ):
            raise BackupError(
                location,
                f"it opens with {opened.rows} rows, the point proved {proof.rows}",
                "Restore from another point; what is there now was not registered.",
            )
