"""On Azurite: tables are read with a key, a signature or an identity, and URLs open one blob until their end.

What it cannot show (signatures of one directory) is compared with Azure's own library in the unit tests.
"""

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from azure.storage.blob import BlobServiceClient, generate_container_sas
from typer.testing import CliRunner

from lakeshare_server.catalog import allow_directory_access
from lakeshare_server.cli.main import commands
from lakeshare_server.errors import StoreDenied, StoreMissing, Unavailable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores
from lakeshare_server.storage.location_columns import byte_strings
from tests.builders.answering_store import answering_store, said
from tests.builders.keys import AWKWARD_KEYS
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import a_provider, a_server
from tests.integration.azurite import ACCOUNT, ACCOUNT_KEY, Azurite, identity_token, running_azurite

ROOT = f"abfss://lake@{ACCOUNT}.dfs.core.windows.net"
# Azure takes "\\" for "/" and keeps no dots at the end of a segment; control characters are no names there.
KEYS = [
    key
    for key in AWKWARD_KEYS
    if key.isprintable()
    and "\\" not in key
    and "//" not in key
    and not any(p.strip(".") == "" for p in key.split("/"))
]


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with running_azurite(tmp_path_factory.mktemp("azurite")) as running:
        with BlobServiceClient(
            running.endpoint, ACCOUNT_KEY, connection_verify=str(running.trusted)
        ) as service:
            lake = service.create_container("lake")
            for key in (*KEYS, "t/_delta_log/0.json", "t/_delta_log/1.json", "t/x"):
                lake.upload_blob(key, f"body of {key}".encode())
        yield running


@pytest.fixture
def trusting(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody takes the test's certificates for good, as they take a company's own."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(azurite.trusted))
    monkeypatch.setenv("SSL_CERT_FILE", str(azurite.trusted))


@pytest.fixture(params=["account key", "identity"])
def settings(
    request: pytest.FixtureRequest, azurite: Azurite, trusting: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerSettings]:
    """Settings with either kind of credentials; an identity's tokens are handed out as App Service does it."""
    if request.param == "account key":
        yield at(azurite, azure_account_key=ACCOUNT_KEY)
        return
    with answering_store(handed_out) as host:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{host.endpoint}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "hush")
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        yield at(azurite)
        assert host.requests


def handed_out(_: str) -> bytes:
    token, ends = identity_token()
    body = {"access_token": token, "expires_on": str(ends), "resource": "r", "token_type": "Bearer"}
    return said("200 OK", json.dumps(body), "Content-Type: application/json")


def at(azurite: Azurite, **more: object) -> ServerSettings:
    return ServerSettings(_env_file=None, azure_account=ACCOUNT, azure_endpoint=azurite.endpoint, **more)


def asked(azurite: Azurite, url: bytes, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """An answer to exactly this URL."""
    parts = urlsplit(url.decode("ascii"))
    trust = ssl.create_default_context(cafile=str(azurite.trusted))
    connection = http.client.HTTPSConnection(parts.netloc, timeout=20, context=trust)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_awkward_keys_are_read_opened_found_and_listed_as_they_are(settings: ServerSettings) -> None:
    stores = Stores(settings)
    for key in KEYS:
        body = f"body of {key}".encode()
        assert stores.read(f"{ROOT}/{key}") == body
        found = stores.head(f"az://lake/{key}")
        assert found is not None
        assert (found.location, found.size_bytes) == (f"{ROOT}/{key}", len(body))
        with stores.open(f"wasbs://lake@{ACCOUNT}.blob.core.windows.net/{key}") as file:
            file.seek(5)
            assert file.read() == body[5:]
    listed = [one.location.removeprefix(f"{ROOT}/") for one in stores.list(ROOT)]
    assert set(KEYS) <= set(listed)
    assert listed == sorted(listed, key=str.encode)
    log = stores.list(f"{ROOT}/t/_delta_log", after=f"{ROOT}/t/_delta_log/0.json")
    assert [one.location for one in log] == [f"{ROOT}/t/_delta_log/1.json"]
    with pytest.raises(StoreMissing):
        stores.read(f"{ROOT}/gone")
    assert stores.head(f"{ROOT}/gone") is None


def test_a_url_opens_its_blob_whole_and_by_range(settings: ServerSettings, azurite: Azurite) -> None:
    session = Signers(settings, LocalSigner(b"k", "http://host")).session([ROOT], lambda _: "ticket", 600)
    urls = byte_strings(session.sign(pa.array([f"{ROOT}/{key}" for key in KEYS])))
    for key, url in zip(KEYS, urls, strict=True):
        body = f"body of {key}".encode()
        assert asked(azurite, url) == (200, body), key
        assert asked(azurite, url, Range="bytes=2-5") == (206, body[2:6]), key


def test_a_container_of_the_servers_account_is_named_without_the_account(
    azurite: Azurite, trusting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a_delta_table(tmp_path / "orders")
    with BlobServiceClient(azurite.endpoint, ACCOUNT_KEY, connection_verify=str(azurite.trusted)) as service:
        container = service.create_container("orders")
        for file in table.rglob("*.*"):
            container.upload_blob(str(file.relative_to(table)), file.read_bytes())
    given = {"azure_account": ACCOUNT, "azure_endpoint": azurite.endpoint, "azure_account_key": ACCOUNT_KEY}
    provider = a_provider(tmp_path, **given)
    for name, value in {**given, "state_dir": provider.settings.state_dir}.items():
        monkeypatch.setenv(f"LAKESHARE_{name.upper()}", str(value))
    typed = ["table", "follow", "az://orders", "--as", "sales.orders"]
    said = CliRunner().invoke(commands, typed, catch_exceptions=False)
    assert "follows abfss://orders@devstoreaccount1.dfs.core.windows.net, now at version 0" in said.output
    allow_directory_access(provider.catalog, "lake", "sales", "orders", allowed=True)
    with a_server(provider) as server, server.client(provider.recipient(shares=("lake",))) as client:
        url = "/shares/lake/schemas/sales/tables/orders/temporary-table-credentials"
        granted = client.post(url, json={"location": "az://orders/"})
        assert granted.status_code == 200, granted.text
        assert client.post(url, json={"location": "az://lake/"}).status_code == 400


def test_a_url_that_was_changed_or_has_ended_is_refused(settings: ServerSettings, azurite: Azurite) -> None:
    session = Signers(settings, LocalSigner(b"k", "http://host")).session([ROOT], lambda _: "ticket", 3)
    (url,) = byte_strings(session.sign(pa.array([f"{ROOT}/t/x"])))
    assert asked(azurite, url) == (200, b"body of t/x")
    ends = datetime.fromtimestamp(session.expires_at_ms / 1000, UTC)
    later = (ends + timedelta(days=1)).strftime("%Y-%m-%dT%H").replace(":", "%3A").encode()
    for changed in (
        url.replace(b"/t/x", b"/t/_delta_log/0.json"),
        url.partition(b"&sig=")[0],
        url.partition(b"?")[0],
        url.replace(b"sp=r&", b"sp=rw&"),
        url.replace(ends.strftime("%Y-%m-%dT%H").encode(), later),
    ):
        assert changed != url
        assert asked(azurite, changed)[0] in (401, 403, 404), changed
    assert asked(azurite, url, "DELETE")[0] == 403
    time.sleep(max(0, session.expires_at_ms / 1000 - time.time()) + 1.5)
    assert asked(azurite, url)[0] == 403


@pytest.mark.usefixtures("trusting")
def test_a_signature_of_somebody_else_reads(azurite: Azurite) -> None:
    ends = datetime.now(UTC) + timedelta(minutes=5)
    signature = generate_container_sas(ACCOUNT, "lake", ACCOUNT_KEY, permission="rl", expiry=ends)
    stores = Stores(at(azurite, azure_sas_token=f"?{signature}"))
    assert stores.read(f"{ROOT}/t/x") == b"body of t/x"
    assert len(list(stores.list(f"{ROOT}/t"))) == 3


@pytest.mark.usefixtures("trusting")
def test_wrong_keys_are_denied_and_shown_to_nobody(
    azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    hush = generate_container_sas(
        ACCOUNT, "lake", "aHVzaA==", permission="rl", expiry=datetime.now(UTC) + timedelta(minutes=5)
    )
    for wrong in ({"azure_account_key": "aHVzaA=="}, {"azure_sas_token": hush}):
        stores = Stores(at(azurite, **wrong))
        for call in (stores.read, stores.open, stores.head, lambda place, of=stores: list(of.list(place))):
            with pytest.raises(StoreDenied) as caught:
                call(f"{ROOT}/t/x")
            assert "sig=" not in str(caught.value)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("lakeshare")]
    assert ours
    assert not any("sig" in text or "aHVzaA" in text for text in ours)


def test_a_certificate_that_nobody_vouches_for_is_unavailable(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(Unavailable, match=ROOT):
        Stores(at(azurite, azure_account_key=ACCOUNT_KEY)).read(f"{ROOT}/t/x")
