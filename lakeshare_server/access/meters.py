"""Counting what is used against a limit, for all workers together, without a write for each use.

A worker takes permits from the catalog, a fiftieth of the limit at a time, and uses them up by itself. A limit is never
exceeded by that; what other workers still hold may be refused to whoever asks this one.
"""

import math
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time as now

from lakeshare_server.catalog.allowances import Allowances
from lakeshare_server.errors import TooManyRequests

MOST_SUBJECTS = 20_000


@dataclass
class _Held:
    """The permits of one subject that this worker has; below zero is what it used without."""

    window: int
    most: int
    left: int = 0
    is_exhausted: bool = False


class Meter:
    """One kind of permit, so many of them in each stretch of time; safe from any thread."""

    def __init__(self, allowances: Allowances, kind: str, window_s: int, leases: int = 50) -> None:
        self._allowances, self._kind, self._window_s, self._leases = allowances, kind, window_s, leases
        self._held: dict[str, _Held] = {}
        self._turn = threading.Lock()

    def try_use(self, subject: str, most: int) -> bool:
        """Use a permit that is here; never waits."""
        with self._turn:
            held = self._of(subject, most)
            if held.left <= 0:
                return False
            held.left -= 1
            return True

    def use(self, subject: str, most: int, what: str) -> None:
        """Use a permit, taken from the catalog when none is here.

        Raises:
            TooManyRequests: there are no more now; `what` is what is told.
            Unavailable: the catalog does not answer.
        """
        while not self.try_use(subject, most):
            self.require(subject, most, what)

    def require(self, subject: str, most: int, what: str) -> None:
        """See to it that there is a permit here, for something that is counted when it is done.

        Raises:
            TooManyRequests, Unavailable: as `use`.
        """
        with self._turn:
            held = self._of(subject, most)
            if held.left > 0:
                return
            if held.is_exhausted:
                raise self.refusal(what)
            owed, held.left = -held.left, 0
        granted = self._take(subject, held, owed, max(1, most // self._leases))
        if not granted:
            raise self.refusal(what)

    def is_exhausted(self, subject: str, most: int) -> bool:
        """Whether it is known here that there are no more permits now."""
        if subject not in self._held:
            return False
        with self._turn:
            return self._of(subject, most).is_exhausted

    def refusal(self, what: str) -> TooManyRequests:
        """The error that says so."""
        return TooManyRequests(what, max(1, math.ceil(self._window_s - now() % self._window_s)))

    def count(self, subject: str, most: int, amount: int) -> None:
        """Something was done, whether or not there were permits for it."""
        with self._turn:
            self._of(subject, most).left -= amount

    def settle(self) -> None:
        """Tell the catalog what was used without permits.

        Raises:
            Unavailable: it does not answer; what is owed stays known.
        """
        for subject in [name for name, held in list(self._held.items()) if held.left < 0]:
            with self._turn:
                held = self._held[subject]
                owed, held.left = max(0, -held.left), max(0, held.left)
            self._take(subject, held, owed, 0)

    def _take(self, subject: str, held: _Held, owed: int, wanted: int) -> int:
        began_at = datetime.fromtimestamp(held.window * self._window_s, UTC)
        try:
            granted = self._allowances.take(subject, self._kind, began_at, held.most, wanted, owed)
        except BaseException:
            with self._turn:
                held.left -= owed
            raise
        with self._turn:
            held.left += granted
            held.is_exhausted = held.is_exhausted or (wanted > 0 and granted == 0)
        return granted

    def _of(self, subject: str, most: int) -> _Held:
        window = int(now() // self._window_s)
        held = self._held.get(subject)
        if held is None or held.window < window or held.most != most:
            if len(self._held) >= MOST_SUBJECTS:
                self._forget(window)
            # What is owed is owed in the next stretch of time, too.
            held = self._held[subject] = _Held(window, most, min(0, held.left) if held else 0)
        return held

    def _forget(self, window: int) -> None:
        """Leave out what says nothing any more, or, under attack, everything but debts."""
        kept = {name: held for name, held in self._held.items() if held.window == window}
        if len(kept) >= MOST_SUBJECTS:
            kept = {name: held for name, held in kept.items() if held.left < 0}
        self._held = kept
