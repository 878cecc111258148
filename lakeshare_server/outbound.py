"""Calls to services outside of this process (stores, catalogs, token services, issuers), each with a deadline.

A `Service` runs each call in a thread of its own and waits for it no longer than the deadline. When a call gets no
answer in time and the service has answered nothing else meanwhile, its circuit breaker opens: calls are refused at
once until one that is let through as a probe gets an answer. `SharedRefresh` is for what many requests need to be
refreshed: one thread does it, and the others share its outcome.
"""

import logging
import math
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

from lakeshare_server.errors import LakeshareError, Unavailable

ANSWER_S = 15.0
# A call that fails sooner is no reason to refuse the next one.
SLOW_S = 1.0
# How long calls are refused before one is let through as a probe.
PAUSE_S = 5.0
# Calls of one service that run at a time, those included that nobody waits for any more.
MAX_CALLS = 64
# How long a refresh that failed is repeated to those who need it, where they set no other time.
FAILED_S = 1.0
LATER = "Try again later."

Answer = TypeVar("Answer")
# Takes the name of a service, and whether it is unavailable now.
NoteOutage = Callable[[str, bool], None]
_log = logging.getLogger(__name__)


@dataclass
class _Outage:
    """Why a service is not called, and when the next probe may be."""

    error: Unavailable
    since: float
    probe_at: float


@dataclass(frozen=True)
class ServiceState:
    """A service as monitoring shows it; `outage` is None while its circuit breaker is closed."""

    name: str
    calls: int
    refused: int
    outage: str | None
    outage_s: float


class Service:
    """One service outside of this process; for many threads."""

    def __init__(
        self,
        name: str,
        answer_s: float = ANSWER_S,
        most_calls: int = MAX_CALLS,
        note_outage: NoteOutage | None = None,
    ) -> None:
        self.name, self.answer_s, self._most_calls = name, answer_s, most_calls
        self._note_outage = note_outage or _note_nothing
        self._turn = Lock()
        self._running = self._called = self._refused = 0
        self._answered_at = float("-inf")
        self._outage: _Outage | None = None

    def call(self, ask: Callable[[], Answer], no_answer: tuple[type[Exception], ...] = ()) -> Answer:
        """What `ask` returns or raises.

        An `Unavailable` that it raises counts as no answer, and so does an error of the kinds `no_answer`; every other
        error is an answer.

        Raises:
            Unavailable: there was no answer within `answer_s`, too many calls are running, or the circuit breaker is
                open; in the last two cases nothing was called.
        """
        began = self._enter()
        running = _Call(ask, (Unavailable, *no_answer))
        Thread(target=self._run, args=(running,), name=f"call {self.name}", daemon=True).start()
        try:
            running.outcome.get(timeout=self.answer_s)
        except Empty:
            silence = self._silence(f"nothing came within {self.answer_s:g} seconds")
            self._note_failure(began, silence)
            raise silence from None
        if running.error is not None:
            # A call that fails at once costs its callers nothing: they may as well call again.
            if not running.is_answered and time.monotonic() - began >= SLOW_S:
                error = running.error if isinstance(running.error, Unavailable) else None
                self._note_failure(began, error or self._silence(type(running.error).__name__))
            raise running.error
        return running.result()

    def state(self) -> ServiceState:
        """Calls and outage of this process."""
        with self._turn:
            outage = self._outage
            since = 0.0 if outage is None else time.monotonic() - outage.since
            return ServiceState(
                self.name, self._called, self._refused, None if outage is None else outage.error.what, since
            )

    def _enter(self) -> float:
        with self._turn:
            now = time.monotonic()
            outage = self._outage
            if outage is not None:
                if now < outage.probe_at:
                    self._refused += 1
                    # A probe that runs may take its whole deadline: callers are told the usual pause.
                    retry_s = math.ceil(min(PAUSE_S, outage.probe_at - now))
                    raise Unavailable(outage.error.what, outage.error.fix, retry_s)
                outage.probe_at = now + self.answer_s
            if self._running >= self._most_calls:
                self._refused += 1
                what = f"{self.name} has {self._running} calls without an answer"
                raise Unavailable(what, LATER, math.ceil(PAUSE_S))
            self._running += 1
            self._called += 1
            return now

    def _run(self, running: "_Call[Answer]") -> None:
        running.run()
        with self._turn:
            self._running -= 1
            if running.is_answered:
                self._answered_at = time.monotonic()
                if self._outage is not None:
                    self._outage = None
                    self._note_outage(self.name, False)
                    _log.warning("%s answers again", self.name)
        running.outcome.put(None)

    def _silence(self, why: str) -> Unavailable:
        return Unavailable(f"{self.name} does not answer: {why}", LATER, math.ceil(PAUSE_S))

    def _note_failure(self, began: float, error: Unavailable) -> None:
        with self._turn:
            if self._answered_at >= began:
                # Other calls were answered meanwhile: one slow object is not an outage.
                return
            now = time.monotonic()
            if self._outage is None:
                self._outage = _Outage(error, now, now)
                self._note_outage(self.name, True)
                _log.warning("%s; calls are refused until it answers again", error.what)
            self._outage.probe_at = now + PAUSE_S


class _Call(Generic[Answer]):
    """One call and its outcome; the thread that waits may have left when it comes."""

    def __init__(self, ask: Callable[[], Answer], no_answer: tuple[type[Exception], ...]) -> None:
        self._ask, self._no_answer, self._context = ask, no_answer, copy_context()
        self._answers: list[Answer] = []
        self.error: BaseException | None = None
        self.outcome: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        try:
            self._answers.append(self._context.run(self._ask))
        except BaseException as error:  # whatever it is, the caller gets it
            self.error = error

    @property
    def is_answered(self) -> bool:
        """Whether the service answered, be it with an error."""
        return not isinstance(self.error, self._no_answer)

    def result(self) -> Answer:
        [answer] = self._answers
        return answer


class Services:
    """The services of this process by name, each made when it is first used."""

    def __init__(self, answer_s: float = ANSWER_S, note_outage: NoteOutage | None = None) -> None:
        self._answer_s, self._note_outage = answer_s, note_outage
        self._services: dict[str, Service] = {}
        self._turn = Lock()

    def of(self, name: str, answer_s: float | None = None) -> Service:
        """The service of this name; `answer_s` is for one with a deadline of its own."""
        found = self._services.get(name)
        if found is None:
            with self._turn:
                within_s = self._answer_s if answer_s is None else min(answer_s, self._answer_s)
                found = self._services.setdefault(
                    name, Service(name, within_s, note_outage=self._note_outage)
                )
        return found

    def states(self) -> list[ServiceState]:
        """All services, those that do not answer first."""
        states = (service.state() for service in list(self._services.values()))
        return sorted(states, key=lambda state: (state.outage is None, state.name))


class SharedRefresh:
    """A refresh that one thread does for all; the others share what it ends with.

    What was refreshed is fresh for `fresh_s`. A failure that passes is repeated to everybody for `failed_s`, one that
    lasts for `lasting_s`.
    """

    def __init__(self, fresh_s: float, failed_s: float = FAILED_S, lasting_s: float = 0.0) -> None:
        self._fresh_s, self._failed_s, self._lasting_s = fresh_s, failed_s, lasting_s
        self._turn = Lock()
        self._ended = 0
        self._ended_at = float("-inf")
        self._failure: LakeshareError | None = None

    def is_fresh(self) -> bool:
        """Whether the last refresh succeeded and is not older than the interval."""
        return self._failure is None and time.monotonic() - self._ended_at < self._fresh_s

    def expire(self) -> None:
        """Let the next caller refresh, however fresh this is."""
        if self._failure is None:
            self._ended_at = float("-inf")

    def run(self, refresh: Callable[[], None]) -> None:
        """Refresh unless that was done within the interval.

        Raises:
            LakeshareError: what `refresh` raised, in this thread or in the one that this one waited for.
        """
        if self._is_settled():
            return
        failure, ended = self._failure, self._ended
        # What failed before is likely to fail again: nobody waits for that but the one who tries.
        if not self._turn.acquire(blocking=failure is None):
            raise _repeat_failure(failure)
        try:
            if self._ended != ended and self._failure is not None:
                raise _repeat_failure(self._failure)
            if not self._is_settled():
                self._run(refresh)
        finally:
            self._turn.release()

    def _is_settled(self) -> bool:
        """Whether the last refresh is recent enough to be taken; raises if it failed."""
        age_s, failure = time.monotonic() - self._ended_at, self._failure
        if failure is None:
            return age_s < self._fresh_s
        if age_s < (self._failed_s if isinstance(failure, Unavailable) else self._lasting_s):
            raise _repeat_failure(failure)
        return False

    def _run(self, refresh: Callable[[], None]) -> None:
        try:
            refresh()
        except LakeshareError as error:
            self._failure = error
            raise
        else:
            self._failure = None
        finally:
            self._ended_at = time.monotonic()
            self._ended += 1


def _note_nothing(_service: str, _is_unavailable: bool) -> None:
    """Where nobody watches services."""


def _repeat_failure(failure: LakeshareError | None) -> LakeshareError:
    """The same failure for another thread."""
    if failure is None:
        raise AssertionError("unreachable: only a failure keeps threads from waiting")
    return failure.with_traceback(None)
