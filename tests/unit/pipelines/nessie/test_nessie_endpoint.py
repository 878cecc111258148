"""A given Nessie is used as it is given; one that is not there is an error with a remedy."""

import os
import socket

import pytest

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import (
    NessieEndpoint,
    ensure_nessie,
    nessie_for,
    nessie_status,
    stop_nessie,
)
from lakeshare_pipelines.settings import LakeSettings


def settings_with(tmp_path, **more) -> LakeSettings:
    return LakeSettings(state_dir=tmp_path / "state", **more)


@pytest.fixture
def nobody() -> str:
    """An address of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}/api/v2"


def test_a_given_server_is_used_with_the_given_tokens_and_none_is_started(tmp_path):
    settings = settings_with(
        tmp_path,
        nessie_uri="https://nessie.example/api/v2/",
        nessie_token="writes",
        nessie_publisher_token="publishes",
    )
    endpoint = NessieEndpoint("https://nessie.example/api/v2", "writes", "publishes")
    assert ensure_nessie(settings) == endpoint
    with nessie_for(settings, keep=False) as found:
        assert found == endpoint
    assert stop_nessie(settings) is False
    assert not (tmp_path / "state").exists()


def test_the_writers_token_publishes_where_no_other_is_given(tmp_path):
    settings = settings_with(tmp_path, nessie_uri="http://n.example:19120/api/v2", nessie_token="both")
    assert ensure_nessie(settings).publisher_token == "both"
    open_server = settings_with(tmp_path, nessie_uri="http://n.example:19120/api/v2")
    assert ensure_nessie(open_server) == NessieEndpoint("http://n.example:19120/api/v2", None, None)


@pytest.mark.parametrize(
    "uri", ["nessie.example/api/v2", "http://nessie.example/api/v1", "http://nessie.example"]
)
def test_an_address_that_is_no_v2_api_is_refused_by_name(tmp_path, uri):
    with pytest.raises(NessieError, match="LAKESHARE_NESSIE_URI") as raised:
        ensure_nessie(settings_with(tmp_path, nessie_uri=uri))
    assert raised.value.code == "BAD_ADDRESS"


@pytest.mark.parametrize(
    "ask",
    [
        lambda nessie: nessie.reference("main"),
        lambda nessie: nessie.content("flights.departures", "main"),
        lambda nessie: nessie.branches("wap-"),
        lambda nessie: list(nessie.history("main")),
    ],
)
def test_a_server_that_does_not_answer_is_named_with_a_remedy(nobody, ask):
    with pytest.raises(NessieError, match="lakeshare doctor") as raised:
        ask(Nessie.connect(NessieEndpoint(nobody, None, None), "writer"))
    assert (raised.value.status, raised.value.code) == (0, "UNREACHABLE")
    assert nobody in str(raised.value)
    assert "refused" in str(raised.value)


def test_a_given_server_that_is_not_there_is_not_running(tmp_path, nobody):
    status = nessie_status(settings_with(tmp_path, nessie_uri=nobody))
    assert (status.is_embedded, status.is_running, status.uri) == (False, False, nobody)


def test_a_server_on_this_machine_is_never_asked_through_the_proxy(nobody, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "internal.example")
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://proxy.invalid:3128")
    nessie = Nessie.connect(NessieEndpoint(nobody, None, None), "writer")
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "internal.example,127.0.0.1"
    for ask in (lambda: nessie.reference("main"), lambda: nessie.branches()):
        with pytest.raises(
            NessieError, match="refused"
        ):  # by the address itself, not by a proxy nobody knows
            ask()


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(NessieError, match="LAKESHARE_STATE_DIR"):
        ensure_nessie(LakeSettings(state_dir=tmp_path / "file" / "state"))
