"""What this process knows of a followed Iceberg table: looked at once per interval, by one thread for all."""

from collections.abc import Callable
from dataclasses import dataclass

from lakeshare_server.catalog import Publication
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.versions.metadata_source import MetadataSource, Pointer


@dataclass(frozen=True)
class Seen:
    """What a look found: the current metadata file, and the number of the state that it tells."""

    pointer: Pointer
    newest: Publication


class SnapshotLook:
    """The last look at a table: what it found, or why it was refused."""

    def __init__(self, source: MetadataSource, check_every_s: float) -> None:
        self.source = source
        self.seen: Seen | None = None
        self._refresh = SharedRefresh(check_every_s, lasting_s=check_every_s)

    def is_fresh(self) -> bool:
        """Whether the last look found something and is not older than the interval."""
        return self._refresh.is_fresh()

    def refresh(self, look: Callable[[Seen | None], Seen]) -> Seen:
        """What is to be seen; `look` is asked when the last look is too old, and gets what that one found.

        Raises:
            LakeshareError: what `look` raises, to everybody who waited for it; what lasts is repeated to everybody who
                asks within the interval, what passes for a moment.
        """
        self._refresh.run(lambda: self._look(look))
        if self.seen is None:
            raise AssertionError("unreachable: a look finds something or is refused")
        return self.seen

    def _look(self, look: Callable[[Seen | None], Seen]) -> None:
        self.seen = look(self.seen)
