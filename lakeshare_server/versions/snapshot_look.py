"""What this process knows of a followed Iceberg table: looked at once per interval, by one thread for all."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from lakeshare_server.catalog import Publication
from lakeshare_server.errors import LakeshareError
from lakeshare_server.versions.metadata_source import MetadataSource, Pointer


@dataclass(frozen=True)
class Seen:
    """What a look found: the current metadata file, and the number of the state that it tells."""

    pointer: Pointer
    newest: Publication


class SnapshotLook:
    """The last look at a table: what it found, or why it was refused."""

    def __init__(self, source: MetadataSource, check_every_s: float) -> None:
        self.source, self.check_every_s = source, check_every_s
        self.seen: Seen | None = None
        self._refusal: LakeshareError | None = None
        self._looking = Lock()
        self._looked_at = float("-inf")

    def is_fresh(self) -> bool:
        """Whether the last look found something and is not older than the interval."""
        return self._refusal is None and self._is_recent()

    def refresh(self, look: Callable[[Seen | None], Seen]) -> Seen:
        """What is to be seen; `look` is asked when the last look is too old, and gets what that one found.

        Raises:
            LakeshareError: what `look` raises, to everybody who asks within the interval.
        """
        if not self._is_recent():
            with self._looking:
                # Whoever waited here finds the look of another that was under way.
                if not self._is_recent():
                    return self._look(look)
        refusal, seen = self._refusal, self.seen
        if refusal is not None:
            raise refusal.with_traceback(None)
        if seen is None:
            raise AssertionError("unreachable: a look finds something or is refused")
        return seen

    def _look(self, look: Callable[[Seen | None], Seen]) -> Seen:
        try:
            self.seen = seen = look(self.seen)
        except LakeshareError as error:
            self._refusal = error
            raise
        else:
            self._refusal = None
            return seen
        finally:
            self._looked_at = time.monotonic()

    def _is_recent(self) -> bool:
        return time.monotonic() - self._looked_at < self.check_every_s
