"""Rate limits: requests per minute, and files and bytes with signed URLs per day; trusted proxies and brute force.

Requests are counted before the response. Signed files are counted while it is sent: a response that has begun is
completed, the next one is refused.
"""

import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from time import time as now

from sqlalchemy.exc import SQLAlchemyError

from lakeshare_server.catalog import TokenUses
from lakeshare_server.catalog.credentials import Access, Allowances, Network
from lakeshare_server.errors import BadRequest, Denied, LakeshareError, TooManyRequests
from lakeshare_server.settings import ServerSettings

MAX_SUBJECTS = 20_000


@dataclass
class _Permits:
    """The permits that this worker holds for one subject; a negative number was used without permits."""

    window: int
    most: int
    left: int = 0
    is_exhausted: bool = False


class RateLimit:
    """One kind of permit, limited per time window; safe from any thread."""

    def __init__(self, allowances: Allowances, kind: str, window_s: int, leases: int = 50) -> None:
        self._allowances, self._kind, self._window_s, self._leases = allowances, kind, window_s, leases
        self._permits: dict[str, _Permits] = {}
        self._turn = threading.Lock()

    def try_use(self, subject: str, limit: int) -> bool:
        with self._turn:
            permits = self._of(subject, limit)
            if permits.left <= 0:
                return False
            permits.left -= 1
            return True

    def use(self, subject: str, limit: int, what: str) -> None:
        """Uses a permit, if needed from the catalog. Raises TooManyRequests with `what` as its text, or Unavailable."""
        while not self.try_use(subject, limit):
            self.require(subject, limit, what)

    def require(self, subject: str, limit: int, what: str) -> None:
        """Ensures that a permit is left, without using it. Raises the same errors as `use`."""
        with self._turn:
            permits = self._of(subject, limit)
            if permits.left > 0:
                return
            if permits.is_exhausted:
                raise self.refusal(what)
            overdrawn, permits.left = -permits.left, 0
        granted = self._take(subject, permits, overdrawn, max(1, limit // self._leases))
        if not granted:
            raise self.refusal(what)

    def is_exhausted(self, subject: str, limit: int) -> bool:
        if subject not in self._permits:
            return False
        with self._turn:
            return self._of(subject, limit).is_exhausted

    def refusal(self, what: str) -> TooManyRequests:
        return TooManyRequests(what, max(1, math.ceil(self._window_s - now() % self._window_s)))

    def count(self, subject: str, limit: int, amount: int) -> None:
        with self._turn:
            self._of(subject, limit).left -= amount

    def flush(self) -> None:
        """Writes uses without permits to the catalog. Raises Unavailable and keeps them if that fails."""
        for subject in [name for name, permits in list(self._permits.items()) if permits.left < 0]:
            with self._turn:
                # They may have been forgotten, or written by a request.
                permits = self._permits.get(subject)
                if permits is None:
                    continue
                overdrawn, permits.left = max(0, -permits.left), max(0, permits.left)
            self._take(subject, permits, overdrawn, 0)

    def _take(self, subject: str, permits: _Permits, overdrawn: int, requested: int) -> int:
        began_at = datetime.fromtimestamp(permits.window * self._window_s, UTC)
        try:
            granted = self._allowances.take(subject, self._kind, began_at, permits.most, requested, overdrawn)
        except BaseException:
            with self._turn:
                permits.left -= overdrawn
            raise
        with self._turn:
            permits.left += granted
            permits.is_exhausted = permits.is_exhausted or (requested > 0 and granted == 0)
        return granted

    def _of(self, subject: str, limit: int) -> _Permits:
        window = int(now() // self._window_s)
        permits = self._permits.get(subject)
        if permits is None or permits.window < window or permits.most != limit:
            if len(self._permits) >= MAX_SUBJECTS:
                self._forget(window)
            # Uses without permits also count in the next window.
            permits = self._permits[subject] = _Permits(window, limit, min(0, permits.left) if permits else 0)
        return permits

    def _forget(self, window: int) -> None:
        """Drops permits of earlier windows, and if too many remain all; never those used beyond their number."""
        kept = {name: held for name, held in self._permits.items() if held.window == window or held.left < 0}
        if len(kept) >= MAX_SUBJECTS:
            kept = {name: held for name, held in kept.items() if held.left < 0}
        self._permits = kept


MINUTE_S, DAY_S = 60, 86_400
REQUESTS, URLS, BYTES = "requests_per_minute", "urls_per_day", "bytes_per_day"


class RecipientLimits:
    """The limits of recipients, their own or those of the settings; safe from any thread."""

    def __init__(self, allowances: Allowances, settings: ServerSettings) -> None:
        self._usual = {name: getattr(settings, name) for name in (REQUESTS, URLS, BYTES)}
        self._requests = RateLimit(allowances, REQUESTS, MINUTE_S)
        self._signed = {name: RateLimit(allowances, name, DAY_S) for name in (URLS, BYTES)}

    @property
    def daily_limits(self) -> Sequence[RateLimit]:
        return tuple(self._signed.values())

    def try_count_request(self, access: Access) -> bool:
        """Counts a request if that needs no catalog access."""
        limit = self._most(access, REQUESTS)
        return limit is None or self._requests.try_use(access.reader.id, limit)

    def count_request(self, access: Access) -> None:
        limit = self._most(access, REQUESTS)
        if limit is not None:
            message = f"{access.reader.name} may make {limit} requests in a minute, and has made them"
            self._requests.use(access.reader.id, limit, message)

    def require_signing(self, access: Access) -> None:
        for name, unit in ((URLS, "files"), (BYTES, "bytes")):
            limit = self._most(access, name)
            if limit is not None:
                message = f"{access.reader.name} may get {limit} {unit} in a day (UTC), and has got them"
                self._signed[name].require(access.reader.id, limit, message)

    def count_signed(self, access: Access, files: int, size_bytes: int) -> None:
        for name, amount in ((URLS, files), (BYTES, size_bytes)):
            limit = self._most(access, name)
            if limit is not None and amount:
                self._signed[name].count(access.reader.id, limit, amount)

    def _most(self, access: Access, name: str) -> int | None:
        own = access.limits.get(name)
        return self._usual[name] if own is None else own


WRITE_EVERY_S = 0.5

_log = logging.getLogger(__name__)


class UsageWriter:
    def __init__(self, uses: TokenUses, daily_limits: Sequence[RateLimit]) -> None:
        self._uses, self._limits = uses, daily_limits
        self._stopping = threading.Event()
        self._writer: threading.Thread | None = None

    def start(self) -> None:
        self._writer = threading.Thread(target=self._keep_writing, name="bookkeeping", daemon=True)
        self._writer.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._writer is not None:
            self._writer.join()
            self._write()

    def _keep_writing(self) -> None:
        while not self._stopping.wait(WRITE_EVERY_S):
            self._write()

    def _write(self) -> None:
        for write in (self._uses.write, *(limit.flush for limit in self._limits)):
            try:
                write()
            except (LakeshareError, SQLAlchemyError) as error:
                # The counts are kept, and written with the next.
                _log.warning("uses of tokens and limits are not yet written: %s", error)


Address = IPv4Address | IPv6Address
IPV6_PREFIX_LENGTH = 64  # the network of one IPv6 customer
MAX_ADDRESS_CHARS = 64


class TrustedProxies:
    def __init__(self, named: str) -> None:
        self._networks = []
        for text in named.split():
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError as error:
                hint = "Give addresses and networks like 10.0.0.5 or 10.0.0.0/8."
                raise BadRequest("LAKESHARE_TRUSTED_PROXIES", text, hint) from error

    def names(self, peer: str) -> bool:
        address = parse_address(peer) if self._networks else None
        return address is not None and is_within(address, self._networks)

    def client(self, peer: str | None, forwarded: Iterable[str]) -> str | None:
        """The client's address by the values of X-Forwarded-For; None if a trusted proxy sent an invalid address."""
        if not self._networks:
            return peer
        address = parse_address(peer)
        if address is None or not is_within(address, self._networks):
            return peer if address is None else str(address)
        # Each proxy appends the address of its peer.
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        for hop in reversed(hops):
            address = parse_address(_without_port(hop))
            if address is None:
                return None
            if not is_within(address, self._networks):
                break
        return str(address)


def parse_address(text: str | None) -> Address | None:
    if text is None or len(text) > MAX_ADDRESS_CHARS:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def require_allowed(recipient: str, allowed: Sequence[str], address: str | None) -> None:
    if allowed:
        require_within(recipient, [ip_network(text) for text in allowed], address)


def require_within(recipient: str, networks: Iterable[Network], address: str | None) -> None:
    parsed = parse_address(address)
    if parsed is None or not is_within(parsed, networks):
        raise Denied(
            f"{recipient} may not ask from {address or 'an unknown address'}. Ask your provider to allow it, or ask "
            "from an address that is allowed."
        )


def address_network(text: str | None) -> str:
    """The network whose attempts are counted together with those of this address."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), IPV6_PREFIX_LENGTH), strict=False))
    return "unknown" if address is None else str(address)


def _without_port(hop: str) -> str:
    """Removes the port that some proxies write: `192.0.2.1:4711`, `[2001:db8::1]:4711`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, _, _ = hop.partition(":")
    return host if hop.count(":") == 1 else hop


MAX_REMEMBERED_SECRETS = 10_000
LEASES_PER_MINUTE = 10


class BruteForceProtection:
    """Counts wrong credentials per address, for all workers together; safe from any thread."""

    def __init__(self, allowances: Allowances, limit: int) -> None:
        self._rate = RateLimit(allowances, "guesses", MINUTE_S, LEASES_PER_MINUTE)
        self._limit = limit
        self._counted: dict[bytes, None] = {}
        self._turn = threading.Lock()

    def is_blocked(self, address: str | None) -> bool:
        return self._rate.is_exhausted(address_network(address), self._limit)

    def count(self, address: str | None, digest: bytes) -> None:
        """Counts a wrong or unverifiable credential once, by its digest. Raises TooManyRequests at the limit."""
        origin = address_network(address)
        message = f"Too many wrong tokens from {origin}"
        if self._rate.is_exhausted(origin, self._limit):
            raise self._rate.refusal(message)
        if digest in self._counted:
            return
        with self._turn:
            if len(self._counted) >= MAX_REMEMBERED_SECRETS:
                del self._counted[next(iter(self._counted))]
            self._counted[digest] = None
        try:
            self._rate.use(origin, self._limit, message)
        except TooManyRequests:
            _log.warning("%s has tried more than %d wrong tokens in a minute", origin, self._limit)
            raise
