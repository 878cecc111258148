"""An advisory lock on a file, which the kernel releases when its holder ends; a left-behind file is not locked."""

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
    """Holds the lock at `path`; `waiting` is called once when another process holds it.

    Raises:
        TimeoutError: another process held it for all of `wait_s`.
    """
    make_private(path.parent)
    with path.open("a") as file:
        if not try_lock(file):
            if waiting is not None:
                waiting()
            deadline = time.monotonic() + wait_s
            while not try_lock(file):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process has held {path} for {wait_s:.0f} s")
                time.sleep(POLL_S)
        yield


def try_lock(file: IO[str] | int, kind: int = fcntl.LOCK_EX) -> bool:
    """Takes the lock on an open file if it is free."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
