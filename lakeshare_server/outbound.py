"""Calls to services outside of this process (stores, catalogs, token services, issuers), each with a deadline.

A `Service` runs each call in its own thread and waits for it until the deadline. When a call has no response in time
and the service has given no other one meanwhile, its circuit breaker opens: calls are refused until a probe succeeds.
`SharedRefresh` is for state that many requests need: one thread refreshes it, and the others share the outcome.
`GuardedClient` is for URLs that others choose: of OIDC issuers and webhooks.
"""

import http.client
import ipaddress
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, Thread, Timer
from typing import Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from lakeshare_server.errors import LakeshareError, StoreMissing, Unavailable
from lakeshare_server.metrics import PROCESS

ANSWER_S = 15.0
# A call that fails sooner does not open the circuit breaker.
SLOW_S = 1.0
# How long calls are refused before one is let through as a probe.
PAUSE_S = 5.0
# Concurrent calls of one service, including those whose caller has stopped waiting.
MAX_CALLS = 64
# How long the failure of a refresh is repeated to other callers by default.
FAILED_S = 1.0
LATER = "Try again later."

Answer = TypeVar("Answer")
# Called with the name of a service, and whether it is unavailable now.
NoteOutage = Callable[[str, bool], None]
_log = logging.getLogger(__name__)


@dataclass
class _Outage:
    error: Unavailable
    since: float
    probe_at: float


@dataclass(frozen=True)
class ServiceState:
    """A service in monitoring; `outage` is None while its circuit breaker is closed."""

    name: str
    calls: int
    refused: int
    outage: str | None
    outage_s: float


class Service:
    """A service outside of this process; thread-safe."""

    def __init__(self, name: str, answer_s: float = ANSWER_S, note_outage: NoteOutage | None = None) -> None:
        self.name, self.answer_s = name, answer_s
        self._note_outage = note_outage or (lambda _service, _is_unavailable: None)
        self._turn = Lock()
        self._running = self._called = self._refused = 0
        self._answered_at = float("-inf")
        self._outage: _Outage | None = None

    def call(
        self, ask: Callable[[], Answer], no_answer: tuple[type[Exception], ...] = (), operation: str = "call"
    ) -> Answer:
        """Returns the result of `ask`, or raises its error; `operation` is for metrics.

        An `Unavailable` of `ask` counts as no response, as do errors of the kinds `no_answer`; others are responses.

        Raises:
            Unavailable: no response within `answer_s`; or nothing was called, because too many calls are running or the
                circuit breaker is open.
        """
        began, failure = self._enter(), None
        try:
            return self._wait(began, ask, no_answer)
        except BaseException as error:
            failure = None if isinstance(error, StoreMissing) else type(error).__name__
            raise
        finally:
            PROCESS.note_call(self.name, operation, time.monotonic() - began, failure)

    def _wait(
        self, began: float, ask: Callable[[], Answer], no_answer: tuple[type[Exception], ...]
    ) -> Answer:
        running = _Call(ask, (Unavailable, *no_answer))
        Thread(target=self._run, args=(running,), name=f"call {self.name}", daemon=True).start()
        try:
            running.outcome.get(timeout=self.answer_s)
        except Empty:
            silence = self._silence(f"nothing came within {self.answer_s:g} seconds")
            self._note_failure(began, silence)
            raise silence from None
        if running.error is not None:
            # A call that fails at once delays no caller.
            if not running.is_answered and time.monotonic() - began >= SLOW_S:
                error = running.error if isinstance(running.error, Unavailable) else None
                self._note_failure(began, error or self._silence(type(running.error).__name__))
            raise running.error
        [answer] = running.answers
        return answer

    def state(self) -> ServiceState:
        with self._turn:
            outage = self._outage
            what = None if outage is None else outage.error.what
            since = 0.0 if outage is None else time.monotonic() - outage.since
            return ServiceState(self.name, self._called, self._refused, what, since)

    def _enter(self) -> float:
        with self._turn:
            now = time.monotonic()
            outage = self._outage
            if outage is not None:
                if now < outage.probe_at:
                    self._refused += 1
                    # A running probe may take its whole deadline: Retry-After is the usual pause.
                    retry_s = math.ceil(min(PAUSE_S, outage.probe_at - now))
                    raise Unavailable(outage.error.what, outage.error.fix, retry_s)
                outage.probe_at = now + self.answer_s
            if self._running >= MAX_CALLS:
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
                # Other calls had a response meanwhile: one slow object is no outage.
                return
            now = time.monotonic()
            if self._outage is None:
                self._outage = _Outage(error, now, now)
                self._note_outage(self.name, True)
                _log.warning("%s; calls are refused until it answers again", error.what)
            self._outage.probe_at = now + PAUSE_S


class _Call(Generic[Answer]):
    """A call and its outcome, of which the waiting thread may be gone."""

    def __init__(self, ask: Callable[[], Answer], no_answer: tuple[type[Exception], ...]) -> None:
        self._ask, self._no_answer, self._context = ask, no_answer, copy_context()
        self.answers: list[Answer] = []
        self.error: BaseException | None = None
        self.outcome: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        try:
            self.answers.append(self._context.run(self._ask))
        except BaseException as error:  # raised to the caller
            self.error = error

    @property
    def is_answered(self) -> bool:
        """Whether the service responded, possibly with an error."""
        return not isinstance(self.error, self._no_answer)


class Services:
    """The services of this process by name, each created when it is first used."""

    def __init__(self, answer_s: float = ANSWER_S, note_outage: NoteOutage | None = None) -> None:
        self._answer_s, self._note_outage = answer_s, note_outage
        self._services: dict[str, Service] = {}
        self._turn = Lock()

    def of(self, name: str, answer_s: float | None = None) -> Service:
        """Returns the service `name`; `answer_s` is a shorter deadline."""
        found = self._services.get(name)
        if found is None:
            with self._turn:
                within_s = self._answer_s if answer_s is None else min(answer_s, self._answer_s)
                service = Service(name, within_s, note_outage=self._note_outage)
                found = self._services.setdefault(name, service)
        return found

    def states(self) -> list[ServiceState]:
        """Returns all services, unavailable ones first."""
        states = (service.state() for service in list(self._services.values()))
        return sorted(states, key=lambda state: (state.outage is None, state.name))


class SharedRefresh:
    """A refresh that one thread runs for all.

    The state is fresh for `fresh_s`. A passing failure is repeated to other callers for `failed_s`, a lasting one for
    `lasting_s`.
    """

    def __init__(self, fresh_s: float, failed_s: float = FAILED_S, lasting_s: float = 0.0) -> None:
        self._fresh_s, self._failed_s, self._lasting_s = fresh_s, failed_s, lasting_s
        self._turn = Lock()
        self._ended = 0
        self._ended_at = float("-inf")
        self._failure: LakeshareError | None = None

    def is_fresh(self) -> bool:
        return self._failure is None and time.monotonic() - self._ended_at < self._fresh_s

    def last(self) -> tuple[float | None, LakeshareError | None]:
        """Seconds since the last refresh ended, None before the first, and its error."""
        ended_at, failure = self._ended_at, self._failure
        return None if ended_at == float("-inf") else time.monotonic() - ended_at, failure

    def expire(self) -> None:
        """Makes the next caller refresh."""
        if self._failure is None:
            self._ended_at = float("-inf")

    def run(self, refresh: Callable[[], None]) -> None:
        """Refreshes, unless the state is fresh.

        Raises:
            LakeshareError: the error of `refresh`, in this thread or in the one that refreshed.
        """
        if self._is_settled():
            return
        failure, ended = self._failure, self._ended
        # After a failure only one caller waits for the next attempt.
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
        """Whether the last refresh is recent enough; raises its failure."""
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


def _repeat_failure(failure: LakeshareError | None) -> LakeshareError:
    if failure is None:
        raise AssertionError("unreachable: only a failure keeps threads from waiting")
    return failure.with_traceback(None)


CONNECT_S = 5.0
PORTS = {"https": 443, "http": 80}
# Networks whose IPv6 addresses contain the IPv4 address that is reached: NAT64 (RFC 6052) and 6to4.
TRANSLATED = ((ipaddress.IPv6Network("64:ff9b::/96"), 0), (ipaddress.IPv6Network("2002::/16"), 80))


@dataclass(frozen=True)
class GuardedResponse:
    """A response, whose body may be cut at the limit of bytes; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class GuardedClient:
    """Sends requests over TLS to public addresses, and also without TLS to the named private hosts.

    `private_hosts` has hosts, or `host:port`, by spaces. Redirects are responses: they are not followed.
    """

    def __init__(self, private_hosts: str) -> None:
        self._private = frozenset(private_hosts.lower().split())

    def require_allowed(self, url: str) -> None:
        """Raises ValueError for a URL that requests are not sent to now, and OSError for an unknown host."""
        self._resolve(urlsplit(url))

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        within_s: float,
        max_bytes: int,
    ) -> GuardedResponse:
        """The response to a request, complete within `within_s`.

        Raises:
            ValueError: the URL is not allowed.
            OSError, HTTPException: there is no complete response in time.
        """
        parts, ends_at = urlsplit(url), time.monotonic() + within_s
        host, port, addresses = self._resolve(parts)
        plain = _connect(addresses, port, ends_at)
        with closing(plain), _ended_at(plain, ends_at):
            connection = http.client.HTTPConnection(host, port)
            if parts.scheme == "https":
                connection = http.client.HTTPSConnection(host, port, context=_tls())
                plain = _tls().wrap_socket(plain, server_hostname=host)
            # The checked connection is used, because the name may resolve to another address later.
            with closing(plain):
                connection.sock = plain
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request(method, target, body, dict(headers))
                response = connection.getresponse()
                received = response.read(max_bytes)
                # At its end the connection is cut, which ends a response without a length as if it were complete.
                if time.monotonic() >= ends_at:
                    raise TimeoutError("no complete response in time")
                names = {name.lower(): value for name, value in response.getheaders()}
                return GuardedResponse(response.status, names, received)

    def _resolve(self, url: SplitResult) -> tuple[str, int, list[str]]:
        host, port = url.hostname or "", url.port or PORTS.get(url.scheme, 0)
        is_private = host in self._private or f"{host}:{port}" in self._private
        if url.scheme != "https" and not (url.scheme == "http" and is_private):
            raise ValueError("only https is asked")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not is_private and not all(map(_is_public, addresses)):
            raise ValueError("it is in a private network")
        return host, port, addresses


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        for network, bits in TRANSLATED:
            if address in network:
                return _is_public(str(ipaddress.IPv4Address(int(address) >> bits & 0xFFFFFFFF)))
    return address.is_global and not address.is_multicast


def _connect(addresses: list[str], port: int, ends_at: float) -> socket.socket:
    """A connection to the first address that accepts one; raises OSError."""
    failure: OSError = TimeoutError("no connection in time")
    for address in addresses:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            break
        try:
            return socket.create_connection((address, port), min(left_s, CONNECT_S))
        except OSError as error:
            failure = error
    raise failure


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _ended_at(connection: socket.socket, ends_at: float) -> Iterator[None]:
    """Cuts the connection at a time: a peer that sends single bytes never reaches a read timeout."""
    connection.settimeout(max(0.001, ends_at - time.monotonic()))
    handle = connection.dup()

    def cut() -> None:
        with suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)

    timer = Timer(max(0.0, ends_at - time.monotonic()), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        handle.close()
