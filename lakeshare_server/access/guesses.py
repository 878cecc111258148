"""Rate-limits failed authentication per address, for all workers together.

A token that failed before is no new guess, however often a client sends it. A good token passes even where others
behind the same address have used its guesses up: tokens are random, so looking one up helps nobody to guess another.
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
        self._counted: dict[bytes, None] = {}
        self._turn = threading.Lock()

    def are_used_up(self, address: str | None) -> bool:
        """Whether the address has tried too many wrong tokens in this minute."""
        return self._meter.is_exhausted(neighbourhood(address), self._most)

    def count(self, address: str | None, digest: bytes) -> None:
        """Count a secret, known by its digest, that let nobody in: it is wrong, or could not be verified.

        Raises:
            TooManyRequests: the address has tried too many in this minute.
        """
        origin = neighbourhood(address)
        if self._meter.is_exhausted(origin, self._most):
            raise self._meter.refusal(_told(origin))
        if digest in self._counted:
            return
        self._remember(digest)
        try:
            self._meter.use(origin, self._most, _told(origin))
        except TooManyRequests:
            _log.warning("%s has tried more than %d wrong tokens in a minute", origin, self._most)
            raise

    def _remember(self, digest: bytes) -> None:
        with self._turn:
            if len(self._counted) >= REMEMBERED:
                del self._counted[next(iter(self._counted))]
            self._counted[digest] = None


def _told(origin: str) -> str:
    return f"Too many wrong tokens from {origin}"
