"""From where a request comes: the peer's address, or what proxies that are named say of it."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from lakeshare_server.catalog.credentials import Network
from lakeshare_server.errors import BadRequest, Denied

Address = IPv4Address | IPv6Address
# Whoever has one address of IPv6 has as many as that.
NEIGHBOURS = 64
LONGEST = 64


class Proxies:
    """The reverse proxies that are believed; nobody else can say that a request comes from elsewhere."""

    def __init__(self, named: str) -> None:
        self._networks = [_network(one) for one in named.split()]

    def names(self, peer: str) -> bool:
        """Whether this is the address of a proxy that is believed."""
        address = parsed(peer) if self._networks else None
        return address is not None and self._is_believed(address)

    def client(self, peer: str | None, forwarded: Iterable[str]) -> str | None:
        """The address a request comes from, None where a believed proxy says what is no address.

        `forwarded` are the values of X-Forwarded-For, of which each proxy adds to the end whom it heard.
        """
        if not self._networks:
            return peer
        address = parsed(peer)
        if address is None or not self._is_believed(address):
            return peer if address is None else str(address)
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        for hop in reversed(hops):
            address = parsed(_without_port(hop))
            if address is None:
                return None
            if not self._is_believed(address):
                break
        return str(address)

    def _is_believed(self, address: Address) -> bool:
        return is_within(address, self._networks)


def parsed(text: str | None) -> Address | None:
    """The address, one of IPv4 also where it is told as one of IPv6; None when it is none."""
    if text is None or len(text) > LONGEST:
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
    known = parsed(address)
    if known is None or not is_within(known, [ip_network(one) for one in allowed]):
        raise Denied(
            f"{recipient} may not ask from {address or 'an unknown address'}. Ask your provider to allow it, or ask "
            "from an address that is allowed."
        )


def neighbourhood(text: str | None) -> str:
    """Whose tries are counted together with those from this address."""
    address = parsed(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), NEIGHBOURS), strict=False))
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
