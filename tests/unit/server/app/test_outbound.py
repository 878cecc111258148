"""Calls of outside services end at their deadline; a service without an answer is not called again for a while."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lakeshare_server import outbound
from lakeshare_server.errors import StoreMissing, Unavailable
from lakeshare_server.outbound import GuardedClient, GuardedResponse, Service, SharedRefresh
from lakeshare_server.settings import ServerSettings, StoreSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores
from lakeshare_server.versions.metadata_sources import CatalogTable
from tests.builders.certificates import certificates
from tests.builders.held_requests import silent_service
from tests.builders.http_server import listening
from tests.builders.waiting import wait_until

ANSWER_S = 0.2


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def service() -> Service:
    return Service("s3://lake", ANSWER_S)


def silent(over: threading.Event) -> Callable[[], str]:
    def ask() -> str:
        over.wait()
        return "late"

    return ask


def refuse(service: Service, ask: Callable[[], str]) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        service.call(ask)
    return caught.value


def test_answers_and_errors_come_through(service: Service) -> None:
    def missing() -> str:
        raise StoreMissing("s3://lake/x")

    assert service.call(lambda: "here") == "here"
    with pytest.raises(StoreMissing):
        service.call(missing)
    assert service.state().outage is None


def test_without_an_answer_calls_are_refused_at_once_until_a_probe_is_answered(
    service: Service, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "PAUSE_S", 60.0)
    assert "s3://lake does not answer: nothing came within 0.2 seconds" in refuse(service, silent(over)).what
    called: list[str] = []
    for _ in range(100):
        refused = refuse(service, lambda: called.append("x") or "x")
        assert refused.retry_s == 60
    assert called == []
    state = service.state()
    assert (state.calls, state.refused) == (1, 100)
    assert state.outage is not None
    monkeypatch.setattr(service._outage, "probe_at", time.monotonic())
    assert service.call(lambda: "again") == "again"
    assert service.state().outage is None


def test_a_probe_is_one_call_and_the_others_are_refused_meanwhile(
    service: Service, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(service, silent(over))
    monkeypatch.setattr(service._outage, "probe_at", time.monotonic())
    started = threading.Event()

    def probe() -> str:
        started.set()
        return silent(over)()

    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(refuse, service, probe)
        assert started.wait(30)
        calls = service.state().calls
        refuse(service, lambda: "x")
        assert service.state().calls == calls
        assert "does not answer" in probing.result().what


def test_one_slow_object_of_a_service_that_answers_others_is_no_outage(
    service: Service, over: threading.Event
) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(refuse, service, silent(over))
        wait_until(lambda: service.state().calls == 1)
        assert service.call(lambda: "other") == "other"
        assert "nothing came" in slow.result().what
    assert service.state().outage is None


def test_an_answer_that_comes_late_ends_the_outage(service: Service, over: threading.Event) -> None:
    refuse(service, silent(over))
    over.set()
    wait_until(lambda: service.state().outage is None)


def test_what_fails_at_once_is_called_again(service: Service) -> None:
    def fail() -> str:
        raise Unavailable("no credentials", "Set some.")

    for _ in range(3):
        assert refuse(service, fail).what == "no credentials"
    assert service.state().calls == 3


def test_calls_that_run_are_limited_in_number(over: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakeshare_server.outbound.MAX_CALLS", 3)
    service = Service("s3://lake", 30)
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(service.call, silent(over)) for _ in range(3)]
        wait_until(lambda: service.state().calls == 3)
        assert "3 calls without an answer" in refuse(service, lambda: "x").what
        over.set()
        assert [one.result() for one in running] == ["late"] * 3


def test_a_catalog_that_does_not_answer_is_named_and_asked_again_when_it_does(over: threading.Event) -> None:
    location = "s3://lake/orders/metadata/1.metadata.json"
    service = Service("iceberg:lake", ANSWER_S)
    table = CatalogTable("lake", ("sales", "orders"), StoreSettings(_env_file=None), service)

    def metadata_location(_: object) -> str:
        over.wait()
        return location

    table._translate_errors = metadata_location  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="iceberg:lake does not answer"):
        table.current(None)
    over.set()
    wait_until(lambda: service.state().outage is None)
    assert table.current(None).metadata_location == location


def test_those_who_wait_for_a_refresh_share_its_failure() -> None:
    refresh, go_on = SharedRefresh(0), threading.Event()
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        assert go_on.wait(30)
        raise Unavailable("the store does not answer", "Try again later.")

    with ThreadPoolExecutor(20) as pool:
        began = time.monotonic()
        waiting = [pool.submit(refresh.run, fail) for _ in range(20)]
        wait_until(lambda: bool(tried))
        go_on.set()
        assert {type(one.exception()) for one in waiting} == {Unavailable}
    # Looked for again only where a thread came later than the failure is remembered for.
    assert len(tried) == 1 or time.monotonic() - began > outbound.FAILED_S


def test_nobody_waits_for_a_refresh_that_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh, go_on, started = SharedRefresh(0, failed_s=0), threading.Event(), threading.Event()

    def fail() -> None:
        started.set()
        assert go_on.wait(30)
        raise Unavailable("the store does not answer", "Try again later.")

    go_on.set()
    with pytest.raises(Unavailable):
        refresh.run(fail)
    go_on.clear()
    started.clear()
    with ThreadPoolExecutor(1) as pool:
        trying = pool.submit(refresh.run, fail)
        assert started.wait(30)
        # The other thread holds the turn until the event is set: this one does not wait for it.
        with pytest.raises(Unavailable):
            refresh.run(lambda: pytest.fail("there is one refresh at a time"))
        assert not trying.done()
        go_on.set()
        assert isinstance(trying.exception(), Unavailable)


def test_an_sts_that_hangs_is_named_and_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with silent_service() as sts:
        settings = ServerSettings(_env_file=None, s3_region="eu-north-1", s3_endpoint=sts, outside_answer_s=1)
        stores = Stores(settings)
        signers = Signers(settings, LocalSigner(b"k" * 32, "http://127.0.0.1"), stores)
        for _ in range(3):
            with pytest.raises(Unavailable, match="STS does not answer"):
                signers.vend("s3://lake/orders", 900)
        [state] = [one for one in stores.services.states() if one.name == "STS"]
    assert (state.calls, state.refused) == (1, 2)


class Answering(BaseHTTPRequestHandler):
    """Answers at once, or below /slow with bytes that do not end."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers["Host"].encode() + self.path.encode() + body)
        while self.path == "/slow":
            try:
                self.wfile.write(b".")
            except OSError:
                return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with a certificate for 127.0.0.1, whose authority is trusted meanwhile."""
    made = certificates(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.own, made.key)
    with pytest.MonkeyPatch.context() as patched, ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        patched.setenv("SSL_CERT_FILE", str(made.authority))
        outbound._tls.cache_clear()
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        with listening(server):
            yield server.server_port
    outbound._tls.cache_clear()


def post(url: str, within_s: float = 10.0) -> GuardedResponse:
    client = GuardedClient("127.0.0.1 localhost")
    return client.request("POST", url, {}, b"body", within_s=within_s, max_bytes=1 << 20)


def test_a_request_over_tls_trusts_certificates_of_the_host_alone(tls_port: int) -> None:
    response = post(f"https://127.0.0.1:{tls_port}/hook?x=1")
    assert (response.status, response.body) == (200, f"127.0.0.1:{tls_port}/hook?x=1body".encode())
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'localhost'"):
        post(f"https://localhost:{tls_port}/hook")
    # Closed before or after all of the request was sent, or answered by an alert of TLS.
    with pytest.raises((OSError, HTTPException)):
        post(f"http://127.0.0.1:{tls_port}/hook")


def test_a_request_over_tls_ends_in_time(tls_port: int) -> None:
    with pytest.raises(OSError, match=r"no complete response in time|timed out|closed"):
        post(f"https://127.0.0.1:{tls_port}/slow", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError):  # noqa: PT011 - of TLS or the socket
        post(f"https://127.0.0.1:{silent.getsockname()[1]}/", 0.1)


def test_the_next_address_of_a_host_is_tried(tls_port: int) -> None:
    ends_at = time.monotonic() + 10
    with closing(outbound._connect(["127.0.0.2", "127.0.0.1"], tls_port, ends_at)) as connection:
        assert connection.getpeername() == ("127.0.0.1", tls_port)
    with pytest.raises(ConnectionRefusedError):
        outbound._connect(["127.0.0.2"], tls_port, ends_at)
    with pytest.raises(TimeoutError, match="no connection in time"):
        outbound._connect(["127.0.0.1"], tls_port, time.monotonic())
