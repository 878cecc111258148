"""On an S3 server that takes every key: our URLs open every one of them; what cannot be read exactly is never read."""

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import find_deliveries, find_delivery
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores
from lakeshare_server.storage.location_columns import byte_strings
from lakeshare_server.storage.remote import NOT_AS_IT_IS
from tests.builders.keys import AWKWARD_KEYS
from tests.integration.ministack import MiniStack, running_ministack
from tests.integration.s3_server import REGION, a_client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    with running_ministack(tmp_path_factory.mktemp("ministack")) as running:
        client = a_client(running.endpoint, running.user)
        client.create_bucket(Bucket="lake")
        for key in AWKWARD_KEYS:
            client.put_object(Bucket="lake", Key=key, Body=f"body of {key}".encode())
        yield running


@pytest.fixture
def settings(server: MiniStack, monkeypatch: pytest.MonkeyPatch) -> ServerSettings:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.user.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.user.secret_key)
    return ServerSettings(_env_file=None, s3_endpoint=server.endpoint, s3_region=REGION)


def asked(url: bytes) -> tuple[int, bytes]:
    """An answer to exactly this URL."""
    parts = urlsplit(url.decode("ascii"))
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_every_key_is_opened_by_its_url_and_by_no_other_signature(settings: ServerSettings) -> None:
    session = Signers(settings, LocalSigner(b"k", "http://host")).session(
        ["s3://lake"], lambda _: "ticket", 60
    )
    urls = byte_strings(session.sign(pa.array([f"s3://lake/{key}" for key in AWKWARD_KEYS])))
    for key, url in zip(AWKWARD_KEYS, urls, strict=True):
        assert asked(url) == (200, f"body of {key}".encode()), key
        assert asked(url[:-1] + (b"0" if url[-1:] != b"0" else b"1"))[0] == 403, key


def test_every_key_is_read_exactly_or_refused(settings: ServerSettings) -> None:
    stores = Stores(settings)
    for key in AWKWARD_KEYS:
        if NOT_AS_IT_IS.search(key):
            with pytest.raises(Unserveable):
                stores.read(f"s3://lake/{key}")
        else:
            assert stores.read(f"s3://lake/{key}") == f"body of {key}".encode(), key
    with pytest.raises(Unserveable, match="cannot be listed"):
        list(stores.list("s3://lake"))


def test_a_key_that_cannot_be_listed_keeps_only_its_own_delivery_from_being_found(
    server: MiniStack, settings: ServerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    client, landing = (
        a_client(server.endpoint, server.user),
        LakeSettings(_env_file=None, landing="s3://odd/in"),
    )
    landing = landing.model_copy(update={"landing_s3_endpoint": server.endpoint, "landing_s3_region": REGION})
    client.create_bucket(Bucket="odd")
    days = {
        "2013-01-01": "../up.csv",
        "2013-01-02": "/x.csv",
        "2013-01-03": "a\\up.csv",
        "2013-01-04": "_SUCCESS",
    }
    for day, name in days.items():
        for key in ("departures.csv", "_SUCCESS", name):
            client.put_object(Bucket="odd", Key=f"in/flights/{day}/{key}", Body=b"year\n")
    contract = load_contracts()[0]
    assert [found.partition for found in find_deliveries(landing, contract)] == ["2013-01-03", "2013-01-04"]
    for day, name in days.items():
        if name == "_SUCCESS":
            assert find_delivery(landing, contract, day).complete
            continue
        assert name.startswith("a") or f"s3://odd/in/flights/{day} is ignored" in caplog.text
        with pytest.raises(DeliveryError, match=r"cannot be listed|has unusual characters"):
            find_delivery(landing, contract, day)
