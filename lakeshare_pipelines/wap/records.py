"""What a run leaves beside its staging place: the staged record and its verdicts, until it is published.

One folder per staging place under `<state folder>/runs`, so that `lakeshare wap` can list, show and retry.
"""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdicts
from lakeshare_server.settings import make_private

BEGUN, STAGED, VERDICTS = "begun", "staged.json", "verdicts.json"


@dataclass(frozen=True)
class Attempt:
    """A staging place as its run left it; `verdicts` is None before its audit."""

    staged: Staged
    verdicts: Verdicts | None
    written_at: datetime

    @property
    def state(self) -> str:
        """`staged`, `red` or `green`."""
        if self.verdicts is None:
            return "staged"
        return "green" if self.verdicts.green else "red"


def begin(settings: LakeSettings, ref: str) -> None:
    """Note that a staging place is about to be made: its age counts from here, not from main's last commit."""
    (_folder(settings, ref) / BEGUN).touch(0o600)


def begun(settings: LakeSettings, ref: str) -> datetime | None:
    """When a staging place was made; None when that was not noted in this state folder."""
    try:
        return datetime.fromtimestamp((settings.runs_dir / ref / BEGUN).stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


def keep(settings: LakeSettings, staged: Staged, verdicts: Verdicts | None = None) -> None:
    """Write the record of a staging place; a crash leaves the former one or this one, never half of it."""
    folder = _folder(settings, staged.ref)
    if verdicts is None:
        (folder / VERDICTS).unlink(missing_ok=True)
    else:
        _write(folder / VERDICTS, verdicts.as_record())
    _write(folder / STAGED, staged.as_record())


def kept(settings: LakeSettings, ref: str) -> Attempt | None:
    """The record of a staging place; None when there is none."""
    folder = settings.runs_dir / ref
    try:
        staged = Staged.from_record(json.loads((folder / STAGED).read_text(encoding="utf-8")))
        written_at = datetime.fromtimestamp((folder / STAGED).stat().st_mtime, UTC)
    except FileNotFoundError:
        return None
    verdicts = folder / VERDICTS
    judged = (
        Verdicts.from_record(json.loads(verdicts.read_text(encoding="utf-8"))) if verdicts.exists() else None
    )
    return Attempt(staged, judged, written_at)


def attempts(settings: LakeSettings) -> list[Attempt]:
    """Every record, oldest first."""
    folders = settings.runs_dir.iterdir() if settings.runs_dir.is_dir() else iter(())
    found = (kept(settings, folder.name) for folder in folders)
    return sorted((one for one in found if one is not None), key=lambda one: one.written_at)


def recorded(settings: LakeSettings, prefix: str) -> list[tuple[str, datetime]]:
    """Staging places with a record, even an unfinished one, by name, and when each record was last changed."""
    folders = settings.runs_dir.glob(f"{prefix}*")
    return [(folder.name, datetime.fromtimestamp(folder.stat().st_mtime, UTC)) for folder in folders]


def forget(settings: LakeSettings, ref: str) -> None:
    """Remove the record of a staging place that is published or discarded."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(settings.runs_dir / ref)


def _folder(settings: LakeSettings, ref: str) -> Path:
    """The folder of a staging place's record, for its owner only: verdicts hold sample rows."""
    folder = settings.runs_dir / ref
    make_private(folder)
    return folder


def _write(path: Path, record: object) -> None:
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    scratch.touch(0o600, exist_ok=False)
    scratch.write_text(json.dumps(record, indent=1, sort_keys=True, default=str), encoding="utf-8")
    scratch.replace(path)
