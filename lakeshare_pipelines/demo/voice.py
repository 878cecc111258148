"""How the demo speaks: a line per fact, and on a terminal a clock beside what is going on."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Say = Callable[[str], None]


class Voice:
    """Writes to stdout; `working` shows that something runs, and how long it took."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def chapter(self, title: str) -> None:
        """Begin a new part of the story."""
        self._console.print(f"\n[bold]{title}[/bold]")

    def says(self, line: str) -> None:
        """One fact."""
        self._console.print(f"  {line}", markup=False)

    @contextmanager
    def working(self, title: str) -> Iterator[Say]:
        """Show `title` while the block runs; what it is given to say appears as its steps."""
        started = time.monotonic()
        with self._console.status(f"{title} …"):
            yield lambda step: self.says(f"{time.monotonic() - started:5.1f} s  {step}")
        self.says(f"{time.monotonic() - started:5.1f} s  {title}: done")
