"""What an OIDC issuer publishes, fetched so that its address cannot lead anywhere else.

Issuers are named by administrators, never by a token. Even so, an address in the provider's own network is reached only
when a setting names its host: neither a name that resolves there, nor a redirect, nor a `jwks_uri` leads inside.
"""

import http.client
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from threading import Timer
from typing import Any
from urllib.parse import SplitResult, urlsplit

from lakeshare_server.errors import Unavailable

TIMEOUT_S = 5
MOST_BYTES = 1 << 20
PORTS = {"https": 443, "http": 80}


class IssuerDocuments:
    """Fetches JSON over TLS from public addresses, and from the hosts of our own network that are named."""

    def __init__(self, private_hosts: str) -> None:
        self._private = frozenset(private_hosts.lower().split())

    def fetch(self, url: str, within_s: float = TIMEOUT_S) -> dict[str, Any]:
        """The JSON object at a URL, if all of it is here in time, however many bytes came until then.

        Raises:
            Unavailable: it cannot be had, or may not be asked for.
        """
        try:
            body = self._body(urlsplit(url), time.monotonic() + within_s)
            document = json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(
                f"the issuer's {url} cannot be had: {error}",
                "Check that the server reaches it; LAKESHARE_OIDC_PRIVATE_HOSTS names hosts of your own network.",
            ) from error
        if not isinstance(document, dict):
            raise Unavailable(f"the issuer's {url} is not a JSON object", "Check the issuer of the policy.")
        return document

    def _body(self, url: SplitResult, ends_at: float) -> bytes:
        host, port = url.hostname or "", url.port or PORTS.get(url.scheme, 0)
        is_private = host in self._private or f"{host}:{port}" in self._private
        if url.scheme != "https" and not (url.scheme == "http" and is_private):
            raise ValueError("only https is asked")
        with closing(_connected(host, port, is_private)) as plain, _ended_at(plain, ends_at):
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
            if url.scheme == "https":
                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
                plain = context.wrap_socket(plain, server_hostname=host)
            # The connection that was judged is the one that is used: a name may resolve otherwise a moment later.
            with closing(plain):
                connection.sock = plain
                connection.request("GET", url.path or "/", headers={"Accept": "application/json"})
                answer = connection.getresponse()
                body = answer.read(MOST_BYTES + 1)
        if answer.status != 200 or len(body) > MOST_BYTES:
            raise ValueError(f"it answers {answer.status} with {len(body)} bytes")
        return body


@contextmanager
def _ended_at(connection: socket.socket, ends_at: float) -> Iterator[None]:
    """Cut the connection at that time: a peer that sends a byte now and then never reaches a timeout of reading."""
    # Another handle of it: TLS takes the first one over.
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


def _connected(host: str, port: int, is_private: bool) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    for address in addresses:
        if not (is_private or ipaddress.ip_address(address.partition("%")[0]).is_global):
            raise ValueError("it is in a private network")
    return socket.create_connection((addresses[0], port), TIMEOUT_S)
