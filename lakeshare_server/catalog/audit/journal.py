"""A process's journal: a file that holds its events until the database has them.

An event is in the operating system's hands before its reply begins: whatever becomes of the process, whoever finds the
journal afterwards brings it into the log, each event once. A journal whose lock is free has lost its process.

The file is mapped into memory, and as long as its mapping: an event is copied there without a call to the system, which
would give every other thread the chance to go first. Behind the last event there are zeros, which no event has.
"""

import fcntl
import logging
import mmap
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit.events import Written, read_back
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditJournalRow
from lakeshare_server.settings import make_private

SUFFIX = ".journal"
# A journal that has become this large goes on in a new file once the database has it all.
LONG_BYTES = 4 << 20
ROOM_BYTES = 2 * LONG_BYTES

_log = logging.getLogger(__name__)


class Journal:
    """The journal of this process; safe from any thread."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self.name = uuid.uuid4().hex
        self.path = folder / f"{self.name}{SUFFIX}"
        self.size = 0
        self._writing = threading.Lock()
        # It gets its name once it is held: nobody is to take it for one that has lost its process.
        unheld = self.path.with_suffix(".new")
        self._file = os.open(unheld, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._map = _mapped(self._file, ROOM_BYTES)
        unheld.rename(self.path)

    def write(self, text: bytes) -> int:
        """Hand a line over to the operating system; returns where it ends.

        Raises:
            OSError: there is no room for it, as on a full disk; the journal is as it was.
        """
        with self._writing:
            ends_at = self.size + len(text) + 1
            if ends_at > len(self._map):
                self._grow(ends_at)
            # The line feed is the last that comes: a line without one was never wholly there.
            self._map[self.size : ends_at] = text + b"\n"
            self.size = ends_at
            return ends_at

    def _grow(self, needed: int) -> None:
        larger = _mapped(self._file, max(needed, 2 * len(self._map)))
        self._map.close()
        self._map = larger

    def remove(self) -> None:
        """Take the journal away: the database has it all."""
        self.path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Leave the journal to whoever looks for journals without a process."""
        self._map.close()
        os.close(self._file)


def mark_taken(session: Session, name: str, taken: int) -> None:
    """Note how much of a journal is in the log, in the transaction that brings it there."""
    mark = update(AuditJournalRow).where(AuditJournalRow.name == name).values(taken=taken)
    if not session.execute(mark).rowcount:  # type: ignore[attr-defined]  # of an update it is a CursorResult
        session.execute(insert(AuditJournalRow).values(name=name, taken=taken))


def forget(catalog: Catalog, name: str) -> None:
    """Take the note of a journal away whose file is gone."""
    with catalog.writing(seen=False) as session:
        session.execute(delete(AuditJournalRow).where(AuditJournalRow.name == name))


@contextmanager
def orphans(folder: Path) -> Iterator[list[Path]]:
    """The journals in a folder that have lost their process, held for as long as they are looked at."""
    with ExitStack() as held:
        yield [path for path in sorted(folder.glob(f"*{SUFFIX}")) if _held(path, held)]


def events_in(catalog: Catalog, path: Path) -> Iterator[tuple[Written, int]]:
    """The events of a journal that are not in the log yet, each with where it ends."""
    with catalog.reading() as session:
        taken = session.scalar(select(AuditJournalRow.taken).where(AuditJournalRow.name == path.stem)) or 0
    with path.open("rb") as lines:
        lines.seek(taken)
        for line in lines:
            text, unused, _ = line.partition(b"\0")
            if unused:
                if text:
                    # Its process was ended while it wrote, so before the reply began.
                    _log.error("audit journal %s ends within an event: %r", path, text)
                return
            taken += len(line)
            try:
                yield read_back(line.rstrip(b"\n")), taken
            except ValueError as error:
                # The machine lost its power: what was begun is told of, and passed over.
                _log.error("audit journal %s, up to byte %d: %s: %r", path, taken, error, line)


def _mapped(file: int, length: int) -> mmap.mmap:
    """The file in memory, with that much room on its disk: writing to memory that has none would end the process.

    Raises:
        OSError: the disk is full.
    """
    os.posix_fallocate(file, 0, length)
    return mmap.mmap(file, length)


def _held(path: Path, held: ExitStack) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    held.callback(os.close, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # Its owner, or another finder, may have removed it between the two calls.
    return os.fstat(file).st_nlink > 0
