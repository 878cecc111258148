"""Wrong tokens are counted by the address that tries them: after so many in a minute it has to wait.

A token that was wrong before is no new guess, however often a client sends it. Where one is known to be good, nobody
is kept waiting because of others behind the same address.
"""

import logging
import threading

from lakeshare_server.access.addresses import neighbourhood
from lakeshare_server.access.limits import MINUTE_S
from lakeshare_server.access.meters import Meter
from lakeshare_server.catalog.allowances import Allowances
from lakeshare_server.errors import TooManyRequests

REMEMBERED = 10_000
LEASES = 10

_log = logging.getLogger(__name__)


class Guesses:
    """The tries of all addresses, counted for all workers together; safe from any thread."""

    def __init__(self, allowances: Allowances, most: int) -> None:
        self._meter = Meter(allowances, "guesses", MINUTE_S, LEASES)
        self._most = most
        self._wrong: dict[bytes, None] = {}
        self._right: dict[bytes, None] = {}
        self._turn = threading.Lock()

    def require(self, address: str | None, digest: bytes) -> None:
        """Whether this address may try a secret, told by its digest.

        Raises:
            TooManyRequests: it has tried too many wrong ones in this minute, and this one is not known to be right.
        """
        origin = neighbourhood(address)
        if self._meter.is_exhausted(origin, self._most) and digest not in self._right:
            raise self._meter.refusal(_told(origin))

    def was_right(self, digest: bytes) -> None:
        """The secret let somebody in."""
        self._remember(self._right, digest)

    def was_wrong(self, address: str | None, digest: bytes) -> None:
        """The secret let nobody in.

        Raises:
            TooManyRequests: that was one too many in this minute.
        """
        if digest in self._wrong:
            return
        self._remember(self._wrong, digest)
        origin = neighbourhood(address)
        try:
            self._meter.use(origin, self._most, _told(origin))
        except TooManyRequests:
            _log.warning("%s has tried more than %d wrong tokens in a minute", origin, self._most)
            raise

    def _remember(self, digests: dict[bytes, None], digest: bytes) -> None:
        with self._turn:
            if len(digests) >= REMEMBERED:
                del digests[next(iter(digests))]
            digests[digest] = None


def _told(origin: str) -> str:
    return f"Too many wrong tokens from {origin}"
