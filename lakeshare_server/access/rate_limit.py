"""How much a recipient may ask for: requests in a minute, files and bytes it gets URLs of in a day.

Requests are counted before they are answered. What an answer signs is counted while it is sent: one that has begun is
completed, the next is refused.
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
    """The permits of one subject that this worker has; below zero is what it used without."""

    window: int
    most: int
    left: int = 0
    is_exhausted: bool = False


class RateLimit:
    """One kind of permit, so many of them in each stretch of time; safe from any thread."""

    def __init__(self, allowances: Allowances, kind: str, window_s: int, leases: int = 50) -> None:
        self._allowances, self._kind, self._window_s, self._leases = allowances, kind, window_s, leases
        self._held: dict[str, _Permits] = {}
        self._turn = threading.Lock()

    def try_use(self, subject: str, limit: int) -> bool:
        """Use a permit that is here; never waits."""
        with self._turn:
            permits = self._of(subject, limit)
            if permits.left <= 0:
                return False
            permits.left -= 1
            return True

    def use(self, subject: str, limit: int, what: str) -> None:
        """Use a permit, taken from the catalog when none is here.

        Raises:
            TooManyRequests: there are no more now; `what` is what is told.
            Unavailable: the catalog does not answer.
        """
        while not self.try_use(subject, limit):
            self.require(subject, limit, what)

    def require(self, subject: str, limit: int, what: str) -> None:
        """See to it that there is a permit here, for something that is counted when it is done.

        Raises:
            TooManyRequests, Unavailable: as `use`.
        """
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
        """Whether it is known here that there are no more permits now."""
        if subject not in self._held:
            return False
        with self._turn:
            return self._of(subject, limit).is_exhausted

    def refusal(self, what: str) -> TooManyRequests:
        """The error that says so."""
        return TooManyRequests(what, max(1, math.ceil(self._window_s - now() % self._window_s)))

    def count(self, subject: str, limit: int, amount: int) -> None:
        """Something was done, whether or not there were permits for it."""
        with self._turn:
            self._of(subject, limit).left -= amount

    def flush(self) -> None:
        """Tell the catalog what was used without permits.

        Raises:
            Unavailable: it does not answer; what is owed stays known.
        """
        for subject in [name for name, held in list(self._held.items()) if held.left < 0]:
            with self._turn:
                permits = self._held[subject]
                overdrawn, permits.left = max(0, -permits.left), max(0, permits.left)
            self._take(subject, permits, overdrawn, 0)

    def _take(self, subject: str, permits: _Permits, overdrawn: int, wanted: int) -> int:
        began_at = datetime.fromtimestamp(permits.window * self._window_s, UTC)
        try:
            granted = self._allowances.take(subject, self._kind, began_at, permits.most, wanted, overdrawn)
        except BaseException:
            with self._turn:
                permits.left -= overdrawn
            raise
        with self._turn:
            permits.left += granted
            permits.is_exhausted = permits.is_exhausted or (wanted > 0 and granted == 0)
        return granted

    def _of(self, subject: str, limit: int) -> _Permits:
        window = int(now() // self._window_s)
        permits = self._held.get(subject)
        if permits is None or permits.window < window or permits.most != limit:
            if len(self._held) >= MAX_SUBJECTS:
                self._forget(window)
            # What is owed is owed in the next stretch of time, too.
            permits = self._held[subject] = _Permits(window, limit, min(0, permits.left) if permits else 0)
        return permits

    def _forget(self, window: int) -> None:
        """Leave out what says nothing any more, or, under attack, everything but debts."""
        kept = {name: permits for name, permits in self._held.items() if permits.window == window}
        if len(kept) >= MAX_SUBJECTS:
            kept = {name: permits for name, permits in kept.items() if permits.left < 0}
        self._held = kept


MINUTE_S, DAY_S = 60, 86_400
REQUESTS, URLS, BYTES = "requests_per_minute", "urls_per_day", "bytes_per_day"


class RecipientLimits:
    """The limits of recipients: their own, or those of the settings; safe from any thread."""

    def __init__(self, allowances: Allowances, settings: ServerSettings) -> None:
        self._usual = {name: getattr(settings, name) for name in (REQUESTS, URLS, BYTES)}
        self._requests = RateLimit(allowances, REQUESTS, MINUTE_S)
        self._signed = {name: RateLimit(allowances, name, DAY_S) for name in (URLS, BYTES)}

    @property
    def daily_limits(self) -> Sequence[RateLimit]:
        """All meters that may owe something."""
        return tuple(self._signed.values())

    def try_count_request(self, access: Access) -> bool:
        """Count a request, if that takes no look at the catalog."""
        limit = self._most(access, REQUESTS)
        return limit is None or self._requests.try_use(access.reader.id, limit)

    def count_request(self, access: Access) -> None:
        """Count a request.

        Raises:
            TooManyRequests: the recipient has made as many in this minute as it may.
        """
        limit = self._most(access, REQUESTS)
        if limit is not None:
            message = f"{access.reader.name} may make {limit} requests in a minute, and has made them"
            self._requests.use(access.reader.id, limit, message)

    def require_signing(self, access: Access) -> None:
        """Whether the recipient may get more URLs today.

        Raises:
            TooManyRequests: it has had as many, or as many bytes, as it may.
        """
        for name, unit in ((URLS, "files"), (BYTES, "bytes")):
            limit = self._most(access, name)
            if limit is not None:
                message = f"{access.reader.name} may get {limit} {unit} in a day (UTC), and has got them"
                self._signed[name].require(access.reader.id, limit, message)

    def count_signed(self, access: Access, files: int, size_bytes: int) -> None:
        """Count what an answer signed."""
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
    """Writes twice a second what there is, and the rest when it is stopped."""

    def __init__(self, uses: TokenUses, daily_limits: Sequence[RateLimit]) -> None:
        self._uses, self._meters = uses, daily_limits
        self._stopping = threading.Event()
        self._writer: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write."""
        self._writer = threading.Thread(target=self._keep_writing, name="bookkeeping", daemon=True)
        self._writer.start()

    def stop(self) -> None:
        """Write what is left, and end."""
        self._stopping.set()
        if self._writer is not None:
            self._writer.join()
            self._write()

    def _keep_writing(self) -> None:
        while not self._stopping.wait(WRITE_EVERY_S):
            self._write()

    def _write(self) -> None:
        for write in (self._uses.write, *(meter.flush for meter in self._meters)):
            try:
                write()
            except (LakeshareError, SQLAlchemyError) as error:
                # It is kept, and written with the next.
                _log.warning("uses of tokens and limits wait to be written: %s", error)


Address = IPv4Address | IPv6Address
# Whoever has one address of IPv6 has as many as that.
IPV6_PREFIX_LENGTH = 64
MAX_ADDRESS_CHARS = 64


class TrustedProxies:
    """The reverse proxies that are believed; nobody else can say that a request comes from elsewhere."""

    def __init__(self, named: str) -> None:
        self._networks = [_network(one) for one in named.split()]

    def names(self, peer: str) -> bool:
        """Whether this is the address of a proxy that is believed."""
        address = parse_address(peer) if self._networks else None
        return address is not None and self._is_believed(address)

    def client(self, peer: str | None, forwarded: Iterable[str]) -> str | None:
        """The address a request comes from, None where a believed proxy says what is no address.

        `forwarded` are the values of X-Forwarded-For, of which each proxy adds to the end whom it heard.
        """
        if not self._networks:
            return peer
        address = parse_address(peer)
        if address is None or not self._is_believed(address):
            return peer if address is None else str(address)
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        for hop in reversed(hops):
            address = parse_address(_without_port(hop))
            if address is None:
                return None
            if not self._is_believed(address):
                break
        return str(address)

    def _is_believed(self, address: Address) -> bool:
        return is_within(address, self._networks)


def parse_address(text: str | None) -> Address | None:
    """The address, one of IPv4 also where it is told as one of IPv6; None when it is none."""
    if text is None or len(text) > MAX_ADDRESS_CHARS:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    """Whether an address is in one of the networks."""
    return any(address in network for network in networks)


def require_allowed(recipient: str, allowed: Sequence[str], address: str | None) -> None:
    """Refuse an address that is not on a recipient's list; without a list every address will do.

    Raises:
        Denied: it is not.
    """
    if not allowed:
        return
    known = parse_address(address)
    if known is None or not is_within(known, [ip_network(one) for one in allowed]):
        raise Denied(
            f"{recipient} may not ask from {address or 'an unknown address'}. Ask your provider to allow it, or ask "
            "from an address that is allowed."
        )


def address_network(text: str | None) -> str:
    """Whose tries are counted together with those from this address."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), IPV6_PREFIX_LENGTH), strict=False))
    return "unknown" if address is None else str(address)


def _without_port(hop: str) -> str:
    """Some proxies write `192.0.2.1:4711` or `[2001:db8::1]:4711`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, _, _ = hop.partition(":")
    return host if hop.count(":") == 1 else hop


def _network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise BadRequest(
            "LAKESHARE_TRUSTED_PROXIES", text, "Give addresses and networks like 10.0.0.5 or 10.0.0.0/8."
        ) from error


MAX_REMEMBERED_SECRETS = 10_000
LEASES_PER_MINUTE = 10


class BruteForceProtection:
    """The tries of all addresses, counted for all workers together; safe from any thread."""

    def __init__(self, allowances: Allowances, limit: int) -> None:
        self._meter = RateLimit(allowances, "guesses", MINUTE_S, LEASES_PER_MINUTE)
        self._most = limit
        self._counted: dict[bytes, None] = {}
        self._turn = threading.Lock()

    def is_blocked(self, address: str | None) -> bool:
        """Whether the address has tried too many wrong tokens in this minute."""
        return self._meter.is_exhausted(address_network(address), self._most)

    def count(self, address: str | None, digest: bytes) -> None:
        """Count a secret, known by its digest, that let nobody in: it is wrong, or could not be verified.

        Raises:
            TooManyRequests: the address has tried too many in this minute.
        """
        origin = address_network(address)
        if self._meter.is_exhausted(origin, self._most):
            raise self._meter.refusal(_refusal_message(origin))
        if digest in self._counted:
            return
        self._remember(digest)
        try:
            self._meter.use(origin, self._most, _refusal_message(origin))
        except TooManyRequests:
            _log.warning("%s has tried more than %d wrong tokens in a minute", origin, self._most)
            raise

    def _remember(self, digest: bytes) -> None:
        with self._turn:
            if len(self._counted) >= MAX_REMEMBERED_SECRETS:
                del self._counted[next(iter(self._counted))]
            self._counted[digest] = None


def _refusal_message(origin: str) -> str:
    return f"Too many wrong tokens from {origin}"
