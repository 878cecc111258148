"""On fake-gcs-server: tables are read with a service account's token, and URLs name the object they are for.

It checks no signature: those are compared with Google's own library in the unit tests.
"""

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from lakeshare_server.errors import StoreMissing
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores
from tests.builders.answering_store import answering_store
from tests.builders.google_account import account_file, token_answer
from tests.builders.keys import AWKWARD_KEYS
from tests.integration.gcs_server import running_gcs

# The stand-in folds paths with dots and double slashes; Google does not.
KEYS = [
    key
    for key in AWKWARD_KEYS
    if key.isprintable() and not any(part.strip(".") == "" for part in key.split("/"))
]
LOG = ["t/_delta_log/0.json", "t/_delta_log/1.json"]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_gcs(tmp_path_factory.mktemp("gcs")) as running:
        client = storage.Client("lake", AnonymousCredentials(), client_options={"api_endpoint": running})
        client.create_bucket("files")
        bucket = client.create_bucket("lake")
        for key in (*KEYS, *LOG):
            bucket.blob(key).upload_from_string(f"body of {key}")
        client.close()
        yield running


@pytest.fixture
def settings(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerSettings]:
    with answering_store(lambda _: token_answer("a-token")) as google:
        file = account_file(tmp_path, f"{google.endpoint}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        yield ServerSettings(_env_file=None, gcs_endpoint=endpoint)


def test_awkward_keys_are_read_opened_found_and_listed_as_they_are(settings: ServerSettings) -> None:
    stores = Stores(settings)
    for key in KEYS:
        body = f"body of {key}".encode()
        location = f"gs://lake/{key}"
        assert stores.read(location) == body, key
        found = stores.head(location)
        assert found is not None
        assert (found.location, found.size_bytes) == (location, len(body))
        with stores.open(f"gcs://lake/{key}") as file:
            file.seek(5)
            assert file.read() == body[5:]
    listed = [one.location.removeprefix("gs://lake/") for one in stores.list("gs://lake")]
    assert listed == sorted([*KEYS, *LOG], key=str.encode)
    log = stores.list("gs://lake/t/_delta_log", after="gs://lake/t/_delta_log/0.json")
    assert [one.location for one in log] == ["gs://lake/t/_delta_log/1.json"]
    with pytest.raises(StoreMissing):
        stores.read("gs://lake/gone")
    assert stores.head("gs://lake/gone") is None


def test_a_parquet_file_is_read_by_range(settings: ServerSettings, endpoint: str) -> None:
    numbers = pa.table({"n": range(100_000)})
    body = pa.BufferOutputStream()
    pq.write_table(numbers, body)
    client = storage.Client("lake", AnonymousCredentials(), client_options={"api_endpoint": endpoint})
    client.bucket("files").blob("f.parquet").upload_from_string(body.getvalue().to_pybytes())
    client.close()
    with Stores(settings).open("gs://files/f.parquet") as file:
        assert pq.read_table(file).equals(numbers)


def test_a_url_names_its_object(settings: ServerSettings) -> None:
    session = Signers(settings, LocalSigner(b"k", "http://host")).session(
        ["gs://lake"], lambda _: "ticket", 600
    )
    urls = session.sign(pa.array([f"gs://lake/{key}" for key in KEYS])).to_pylist()
    for key, url in zip(KEYS, urls, strict=True):
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=20)
        try:
            connection.request("GET", f"{parts.path}?{parts.query}", headers={"Range": "bytes=2-5"})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (206, f"body of {key}".encode()[2:6]), key
        finally:
            connection.close()
