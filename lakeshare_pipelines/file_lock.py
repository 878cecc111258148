"""One process at a time: an advisory lock on a file, released by the kernel however its holder ends.

A lock file that is left behind means nothing: only an open, locked one does, so there is no stale lock to clean.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lakeshare_server.settings import make_private

POLL_S = 0.1


@contextmanager
def hold_lock(path: Path, *, wait_s: float, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock at `path`; `waiting` is called once when somebody else holds it.

    Raises:
        TimeoutError: somebody else held it for all of `wait_s`.
    """
    make_private(path.parent)
    with path.open("a") as file:
        if not try_lock(file):
            if waiting is not None:
                waiting()
            _wait_for(file, path, wait_s)
        yield


@contextmanager
def hold_shared_lock(path: Path) -> Iterator[None]:
    """Hold a share of the lock at `path`: many may, and `is_held` sees that somebody does."""
    make_private(path.parent)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_held(path: Path) -> bool:
    """Whether any process holds the lock at `path`, or a share of it."""
    if not path.exists():
        return False
    with path.open("a") as file:
        return not try_lock(file)


def try_lock(file: IO[str]) -> bool:
    """Take the lock on an open file if it is free."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for(file: IO[str], path: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not try_lock(file):
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has held {path} for {wait_s:.0f} s")
        time.sleep(POLL_S)
