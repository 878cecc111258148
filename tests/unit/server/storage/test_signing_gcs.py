"""Our V4 URLs are those of Google's own library, byte for byte; HMAC keys sign as S3's do."""

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from google.auth import _default, iam
from google.auth.compute_engine import _metadata
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import _signing
from google.oauth2 import service_account

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.locations import parse_location
from lakeshare_server.outbound import Services
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers
from lakeshare_server.storage.gcs import GcsAccess
from lakeshare_server.storage.location_columns import byte_strings
from tests.builders.answering_store import answering_store, said
from tests.builders.google_account import EMAIL, account_file, google_account, token_answer
from tests.builders.keys import AWKWARD_KEYS

PLACE = parse_location("gs://lake/t")
NOW_S = int(dt.datetime(2026, 11, 21, 14, 34, 41, tzinfo=dt.UTC).timestamp())


@pytest.fixture
def signing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = account_file(tmp_path, "http://127.0.0.1:9/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))


def urls(**settings: str) -> GcsAccess:
    return GcsAccess(ServerSettings(_env_file=None, **settings), Services())


@pytest.mark.usefixtures("signing")
@pytest.mark.parametrize(
    "endpoint", ["https://storage.googleapis.com", "http://127.0.0.1:4443", "https://gcs.example.org:8443"]
)
def test_urls_are_those_of_google(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    stamps = ("20261121T143441Z", "20261121")
    monkeypatch.setattr(_signing, "get_v4_now_dtstamps", lambda: stamps)
    theirs = service_account.Credentials.from_service_account_info(google_account())
    client = storage.Client("lake", AnonymousCredentials())
    signer = urls(gcs_public_endpoint=endpoint).signer(PLACE, 3600, NOW_S)
    assert signer.sign([key.encode() for key in AWKWARD_KEYS]).to_pylist() == [
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
    assert urls().signer(PLACE, 10**9, NOW_S).expires_at_ms == (NOW_S + 604_800) * 1000


def urls_of_an_instance(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, email: str | None = EMAIL
) -> GcsAccess:
    """With the credentials of an instance: its metadata service and IAM are both at `endpoint`."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setattr(iam, "_IAM_SIGN_ENDPOINT", endpoint + "/iam/{}:signBlob")
    host = endpoint.removeprefix("http://")
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    monkeypatch.setenv("GCE_METADATA_IP", host)
    monkeypatch.setenv("GCE_METADATA_MTLS_MODE", "none")
    # No profile of whoever runs the tests is looked at.
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nowhere")
    monkeypatch.setattr(_default, "_get_gae_credentials", lambda: (None, None))
    return urls()


def an_instance(request: str) -> bytes:
    """What the metadata service and IAM answer."""
    asked = request.split(" ")[1]
    if asked.startswith("/iam/"):
        return said(
            "200 OK", json.dumps({"signedBlob": "AAECAw==", "keyId": "1"}), "Content-Type: application/json"
        )
    answers = {
        "default/token": {"access_token": "hush-token", "expires_in": 3600, "token_type": "Bearer"},
        "default/": {"email": EMAIL, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]},
    }
    body = next(
        (json.dumps(value) for end, value in answers.items() if asked.partition("?")[0].endswith(end)), ""
    )
    kind = "Content-Type: application/json" if body else "Content-Type: text/plain"
    return said("200 OK", body, kind, "Metadata-Flavor: Google")


def test_without_a_private_key_iam_signs_each_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering_store(an_instance) as google:
        signer = urls_of_an_instance(monkeypatch, google.endpoint).signer(PLACE, 10**6, NOW_S)
        assert signer.expires_at_ms == (NOW_S + 43_200) * 1000, "IAM rotates its keys"
        one, two = byte_strings(signer.sign([b"a", b"b"]))
    assert one.endswith(b"&X-Goog-Signature=00010203")
    assert two.startswith(b"https://storage.googleapis.com/lake/b?X-Goog-Algorithm=GOOG4-RSA-SHA256&")
    assert quote(EMAIL, "").encode() in two
    asked = [request for request in google.requests if "/iam/" in request]
    assert len({request.partition("\r\n\r\n")[2] for request in asked}) == 2
    assert all(f"POST /iam/{EMAIL}:signBlob " in request for request in asked)
    assert all("hush-token" in request for request in asked)


def test_an_iam_that_refuses_is_told_with_the_role_and_without_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(request: str) -> bytes:
        return said("403 Forbidden", "hush-token may not") if "/iam/" in request else an_instance(request)

    with answering_store(refusing) as google:
        signer = urls_of_an_instance(monkeypatch, google.endpoint).signer(PLACE, 60, NOW_S)
        with pytest.raises(Unavailable, match=r"serviceAccountTokenCreator") as caught:
            signer.sign([b"a"])
    assert "hush" not in str(caught.value)


@pytest.fixture
def impersonating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], GcsAccess]:
    """Makes the access of an account that impersonates another one, with Google's services at an endpoint."""

    def access(endpoint: str) -> GcsAccess:
        file = tmp_path / "impersonated.json"
        url = f"{endpoint}/serviceAccounts/{EMAIL}:generateAccessToken"
        source = google_account(f"{endpoint}/token")
        kind = "impersonated_service_account"
        file.write_text(
            json.dumps({"type": kind, "service_account_impersonation_url": url, "source_credentials": source})
        )
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        monkeypatch.setattr(iam, "_IAM_SIGN_ENDPOINT", endpoint + "/iam/{}:signBlob")
        return urls()

    return access


def test_an_impersonated_account_signs_by_iam(impersonating: Callable[[str], GcsAccess]) -> None:
    with answering_store(
        lambda asked: an_instance(asked) if "/iam/" in asked else token_answer("t")
    ) as google:
        signer = impersonating(google.endpoint).signer(PLACE, 10**6, NOW_S)
        assert signer.expires_at_ms == (NOW_S + 43_200) * 1000
        assert signer.sign([b"a"])[0].as_py().endswith("&X-Goog-Signature=00010203")


@pytest.mark.parametrize(
    "odd", [b"", said("200 OK", "<html>"), said("200 OK", "{}")], ids=["cut", "page", "empty"]
)
@pytest.mark.parametrize("is_instance", [True, False])
def test_an_iam_that_gives_no_signature_is_unavailable(
    impersonating: Callable[[str], GcsAccess], monkeypatch: pytest.MonkeyPatch, odd: bytes, is_instance: bool
) -> None:
    def answer(asked: str) -> bytes:
        if "/iam/" in asked:
            return odd
        return token_answer("t") if asked.startswith("POST /token ") else an_instance(asked)

    with answering_store(answer) as google:
        endpoint = google.endpoint
        access = urls_of_an_instance(monkeypatch, endpoint) if is_instance else impersonating(endpoint)
        with pytest.raises(Unavailable, match="IAM signs no URLs"):
            access.signer(PLACE, 60, NOW_S).sign([b"a"])


@pytest.mark.parametrize("odd", [said("200 OK", "<html>"), said("200 OK", "[1]")], ids=["page", "list"])
def test_a_token_service_whose_answer_is_none_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: bytes
) -> None:
    with answering_store(lambda _: odd) as google:
        file = account_file(tmp_path, f"{google.endpoint}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        with pytest.raises(Unavailable, match="no credentials for Google"):
            urls().open(PLACE)


def test_a_person_signs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person = {"type": "authorized_user", "client_id": "c", "client_secret": "hush", "refresh_token": "hush"}

    def token(_: str) -> bytes:
        return said(
            "200 OK", json.dumps({"access_token": "t", "expires_in": 3600}), "Content-Type: application/json"
        )

    with answering_store(token) as google:
        (tmp_path / "person.json").write_text(json.dumps(person | {"token_uri": google.endpoint}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "person.json"))
        made = urls()
        made.credentials._token_uri = google.endpoint
        with pytest.raises(Unserveable, match=r"no service account.*GCS_HMAC_ID"):
            made.signer(PLACE, 60, NOW_S)


def test_no_credentials_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "gone.json"))
    with pytest.raises(Unavailable, match=r"no credentials for Google.*GOOGLE_APPLICATION_CREDENTIALS"):
        urls().signer(PLACE, 60, NOW_S)


def test_an_hmac_key_signs_as_s3_does() -> None:
    settings = ServerSettings(_env_file=None, gcs_hmac_id="GOOG1E", gcs_hmac_secret="hush")
    session = Signers(settings, LocalSigner(b"k", "http://host")).session(
        ["gs://lake"], lambda _: "ticket", 60
    )
    (url,) = byte_strings(session.sign(pa.array(["gs://lake/a b=c"])))
    assert url.startswith(b"https://storage.googleapis.com/lake/a%20b%3Dc?X-Amz-Algorithm=AWS4-HMAC-SHA256&")
    assert b"X-Amz-Credential=GOOG1E%2F" in url
    assert b"%2Fauto%2Fs3%2Faws4_request" in url
