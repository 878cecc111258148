"""Where a request comes from is what the network says, unless a proxy that a setting names says otherwise."""

import asyncio

import httpx
import pytest

from lakeshare_server.access.rate_limit import TrustedProxies, address_network
from lakeshare_server.app import create_app
from lakeshare_server.errors import BadRequest
from tests.builders.credentials import Known, a_recipient
from tests.builders.sharing import Provider, a_provider, a_provider_of_flights, a_server

PROXY, OTHER_PROXY, CLIENT, STRANGER = "127.0.0.1", "10.0.0.7", "192.0.2.10", "198.51.100.1"


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        (CLIENT, [], CLIENT),
        (CLIENT, [STRANGER], CLIENT),
        (PROXY, [], PROXY),
        (PROXY, [CLIENT], CLIENT),
        # What a client adds itself stands to the left of what the proxy heard.
        (PROXY, [f"{STRANGER}, {CLIENT}"], CLIENT),
        (PROXY, [STRANGER, CLIENT], CLIENT),
        (PROXY, [f"{STRANGER},{CLIENT} , {OTHER_PROXY}"], CLIENT),
        (PROXY, [f"{OTHER_PROXY}, {PROXY}"], OTHER_PROXY),
        (PROXY, [f"{CLIENT}:4711"], CLIENT),
        (PROXY, ["[2001:db8::1]:4711"], "2001:db8::1"),
        (PROXY, ["2001:DB8:0::1"], "2001:db8::1"),
        (PROXY, [f"::ffff:{CLIENT}"], CLIENT),
        (f"::ffff:{PROXY}", [CLIENT], CLIENT),
        ("fd00::5", [CLIENT], CLIENT),
        # A proxy that says nonsense says nothing of the client: it is nobody, and not the proxy.
        (PROXY, ["unknown"], None),
        (PROXY, [f"{CLIENT}, _hidden"], None),
        (PROXY, [""], None),
        (PROXY, [f"{CLIENT},"], None),
        (PROXY, ["1.2.3"], None),
        (PROXY, ["x" * 10_000], None),
        (None, [CLIENT], None),
        ("testclient", [CLIENT], "testclient"),
    ],
)
def test_only_named_proxies_are_believed(peer: str | None, forwarded: list[str], found: str | None) -> None:
    assert TrustedProxies(f"{PROXY} 10.0.0.0/8 fd00::/64").client(peer, forwarded) == found


def test_without_the_setting_nobody_is_believed() -> None:
    assert TrustedProxies("").client(PROXY, [CLIENT]) == PROXY


@pytest.mark.parametrize("named", ["localhost", "10.0.0.0/33", "10.0.0.5,10.0.0.6", "*"])
def test_a_setting_that_names_no_network_is_refused_at_the_start(named: str) -> None:
    with pytest.raises(BadRequest, match="LAKESHARE_TRUSTED_PROXIES"):
        TrustedProxies(named)


@pytest.mark.parametrize(
    ("address", "together"),
    [
        (CLIENT, CLIENT),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        (f"::ffff:{CLIENT}", CLIENT),
        (None, "unknown"),
        ("testclient", "unknown"),
    ],
)
def test_who_has_one_address_of_ipv6_has_its_whole_network(address: str | None, together: str) -> None:
    assert address_network(address) == together


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    return a_provider_of_flights(tmp_path_factory.mktemp("forwarded"), trusted_proxies=f"{PROXY}/32")


@pytest.fixture(scope="module")
def inside(provider: Provider) -> Known:
    return a_recipient(provider, "inside", ip_allow=[f"{CLIENT}/32"])


async def status(provider: Provider, known: Known, peer: str, *forwarded: str) -> int:
    app = create_app(provider.settings)
    transport = httpx.ASGITransport(app, client=(peer, 4711))
    headers = [("Authorization", f"Bearer {known.secret}")]
    headers += [("X-Forwarded-For", value) for value in forwarded]
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        answer = await client.get("/delta-sharing/shares", headers=headers)
    app.state.app_state.audit.close()
    return answer.status_code


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        (CLIENT, (), 200),
        (STRANGER, (), 403),
        (STRANGER, (CLIENT,), 403),
        (PROXY, (), 403),
        (PROXY, (CLIENT,), 200),
        (PROXY, (f"{CLIENT}, {STRANGER}",), 403),
        (PROXY, (f"{STRANGER}, {CLIENT}",), 200),
        (PROXY, (CLIENT, STRANGER), 403),
        (PROXY, ("nonsense",), 403),
    ],
)
def test_an_address_list_goes_by_what_is_believed(
    provider: Provider, inside: Known, peer: str, forwarded: tuple[str, ...], expected: int
) -> None:
    assert asyncio.run(status(provider, inside, peer, *forwarded)) == expected


def test_a_real_connection_is_believed_no_more_than_set(tmp_path_factory: pytest.TempPathFactory) -> None:
    """uvicorn believes a proxy on this machine by itself, unless it is told not to."""
    provider = a_provider(tmp_path_factory.mktemp("plain"))
    known = a_recipient(provider, "far", shares=(), ip_allow=[f"{CLIENT}/32"])
    with a_server(provider) as server, server.client(known.secret) as client:
        for headers in (
            {},
            {"X-Forwarded-For": CLIENT},
            {"Forwarded": f"for={CLIENT}"},
            {"X-Real-IP": CLIENT},
        ):
            assert client.get("/shares", headers=headers).status_code == 403
