"""Files while they are written: beside their place, under names that nobody looks for."""

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

PREFIX = ".writing-"
# Whoever is at work writes more often than that.
ABANDONED_AFTER_S = 6 * 3600


def scratch_file(folder: Path) -> Path:
    """A place for one writer."""
    return folder / f"{PREFIX}{uuid.uuid4()}"


def remove_abandoned(folder: Path) -> None:
    """Remove what writers left behind that were killed."""
    for file in folder.glob(f"{PREFIX}*"):
        # Another process may remove it at the same time.
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > ABANDONED_AFTER_S:
                file.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names of a folder's files as lasting as their bytes are."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
