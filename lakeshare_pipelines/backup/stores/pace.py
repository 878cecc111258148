"""How many requests may be in flight, and how many a prefix bears a second: less when a store asks to slow down.

One pace may serve several buckets of a store; it belongs to one event loop.
"""

import asyncio
import time
from collections import deque

PREFIX_PER_S = 3500.0
"""Requests that write which S3 takes a second below one prefix (user guide, "Optimizing performance")."""
REST_S = 1.0
"""Requests that were under way together tell of the same congestion: between two cuts passes so long."""
MOST_PREFIXES = 4096
SHORTEST_S = 0.001


class Pace:
    """Additive increase, multiplicative decrease, between 1 and `most`; and a bucket of tokens for each prefix."""

    def __init__(self, most: int, prefix_per_s: float = PREFIX_PER_S) -> None:
        self.most, self.limit, self.in_flight = most, float(most), 0
        self.slowed = 0
        self._prefix_per_s = prefix_per_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._cut_at = -REST_S
        self._tokens: dict[str, tuple[float, float]] = {}

    async def enter(self, prefix: str | None = None) -> None:
        """Wait for a place among those in flight; `prefix` is given by requests that write below it."""
        if prefix is not None:
            await self._admitted(prefix)
        while self.in_flight >= int(self.limit):
            await self._place()
        self.in_flight += 1

    def leave(self) -> None:
        """Give the place back."""
        self.in_flight -= 1
        if self._waiting:
            self._wake()

    def slow_down(self) -> None:
        """The store asked for it: half as many from now on."""
        now = time.monotonic()
        if now - self._cut_at >= REST_S:
            self._cut_at, self.limit = now, max(1.0, self.limit / 2)
            self.slowed += 1

    def went_well(self) -> None:
        """An answer came: one more in flight after as many answers as there are places."""
        if self.limit < self.most:
            self.limit = min(float(self.most), self.limit + 1 / self.limit)
            self._wake()

    async def _place(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            # A place that was given to someone who no longer wants it goes to the next.
            if place.done() and not place.cancelled():
                self._wake()
            raise

    def _wake(self) -> None:
        free = int(self.limit) - self.in_flight
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1

    async def _admitted(self, prefix: str) -> None:
        while True:
            now, rate = time.monotonic(), self._prefix_per_s
            left, at = self._tokens.get(prefix, (rate, now))
            left = min(rate, left + (now - at) * rate)
            if left >= 1:
                self._tokens[prefix] = (left - 1, now)
                if len(self._tokens) > MOST_PREFIXES:
                    self._forget(now)
                return
            await asyncio.sleep(max(SHORTEST_S, (1 - left) / rate))

    def _forget(self, now: float) -> None:
        """Prefixes that nobody wrote below for a second are full again: nothing is to be remembered of them."""
        self._tokens = {prefix: (left, at) for prefix, (left, at) in self._tokens.items() if now - at < 1}
