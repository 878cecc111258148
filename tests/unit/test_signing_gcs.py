"""Our V4 URLs are those of Google's own library, byte for byte; HMAC keys sign as S3's do."""

import datetime as dt
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import _signing
from google.oauth2 import service_account

from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing.gcs import GcsUrls
from lakeshare_server.stores.gcs import GcsAccess
from tests.builders.keys import AWKWARD_KEYS

NOW_S = int(dt.datetime(2026, 11, 21, 14, 34, 41, tzinfo=dt.UTC).timestamp())
EMAIL = "signer+1@lake.iam.gserviceaccount.com"


@pytest.fixture(scope="module")
def account() -> dict[str, str]:
    """A service account of nobody, with a private key of its own."""
    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": EMAIL,
        "private_key_id": "1",
        "private_key": pem.decode(),
        "token_uri": "http://127.0.0.1:9/token",
    }


@pytest.fixture
def signing(account: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))


def urls(**settings: str) -> GcsUrls:
    return GcsUrls(GcsAccess(ServerSettings(_env_file=None, **settings)))


@pytest.mark.usefixtures("signing")
@pytest.mark.parametrize(
    "endpoint", ["https://storage.googleapis.com", "http://127.0.0.1:4443", "https://gcs.example.org:8443"]
)
def test_urls_are_those_of_google(
    account: dict[str, str], monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    stamps = ("20261121T143441Z", "20261121")
    monkeypatch.setattr(_signing, "get_v4_now_dtstamps", lambda: stamps)
    theirs = service_account.Credentials.from_service_account_info(account)
    client = storage.Client("lake", AnonymousCredentials())
    signer = urls(gcs_public_endpoint=endpoint).signer("lake", 3600, NOW_S)
    assert [url.decode() for url in signer.sign([key.encode() for key in AWKWARD_KEYS])] == [
        client.bucket("lake")
        .blob(key)
        .generate_signed_url(
            expiration=dt.timedelta(seconds=3600),
            version="v4",
            credentials=theirs,
            api_access_endpoint=endpoint,
        )
        for key in AWKWARD_KEYS
    ]
    assert signer.expires_at_ms == (NOW_S + 3600) * 1000


@pytest.mark.usefixtures("signing")
def test_a_url_lives_seven_days_at_most() -> None:
    assert urls().signer("lake", 10**9, NOW_S).expires_at_ms == (NOW_S + 604_800) * 1000
