"""How a download shows itself: a bar on a terminal, plain lines everywhere else."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """What a download tells while it runs; called from several threads at once."""

    def begins(self, name: str, size_bytes: int) -> None: ...
    def advances(self, name: str, received_bytes: int) -> None: ...
    def ends(self, name: str) -> None: ...
    def says(self, text: str) -> None: ...


@contextmanager
def shown_on_stderr() -> Iterator[Progress]:
    """A bar per file when stderr is a terminal, otherwise a line when a file begins and when it ends."""
    if not sys.stderr.isatty():
        yield PlainLines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as rich:
        yield Bars(rich)


class Bars:
    """One bar per file."""

    def __init__(self, rich: RichProgress) -> None:
        self._rich = rich
        self._tasks: dict[str, TaskID] = {}

    def begins(self, name: str, size_bytes: int) -> None:
        if name in self._tasks:  # a second attempt starts its bar again
            self._rich.reset(self._tasks[name], total=size_bytes)
        else:
            self._tasks[name] = self._rich.add_task(name, total=size_bytes)

    def advances(self, name: str, received_bytes: int) -> None:
        self._rich.advance(self._tasks[name], received_bytes)

    def ends(self, name: str) -> None:
        self._rich.stop_task(self._tasks[name])

    def says(self, text: str) -> None:
        self._rich.console.print(text, highlight=False)


class PlainLines:
    """Lines for logs and pipes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def begins(self, name: str, size_bytes: int) -> None:
        self.says(f"fetching {name} ({size_bytes / 1e6:.1f} MB)")

    def advances(self, name: str, received_bytes: int) -> None:
        """Nothing: a log wants no running count."""

    def ends(self, name: str) -> None:
        self.says(f"fetched {name}")

    def says(self, text: str) -> None:
        with self._lock:
            sys.stderr.write(f"lakeshare: {text}\n")
            sys.stderr.flush()
