"""Our shared access signatures are those of Azure's own library, byte for byte, with either kind of key."""

import datetime as dt
from base64 import b64encode

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobClient, UserDelegationKey, generate_blob_sas
from azure.storage.filedatalake import generate_directory_sas

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.outbound import Services
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import azure, parse_location
from lakeshare_server.storage.azure import AzureAccess, azure_signer, to_delegation_key
from tests.builders.answering_store import AnsweringStore, answering_store, said
from tests.builders.keys import AWKWARD_KEYS

NOW_S = int(dt.datetime(2026, 11, 21, 14, 34, 41, tzinfo=dt.UTC).timestamp())
ACCOUNT_KEY = b64encode(bytes(range(64))).decode()
PLACE = parse_location("abfss://lake@acct.dfs.core.windows.net/t")
ENDPOINTS = [
    "https://acct.blob.core.windows.net",
    "http://127.0.0.1:10000/acct",
    "https://files.example.org:8443",
]


def lent(until: str = "2026-11-22T14:00:00Z") -> UserDelegationKey:
    key = UserDelegationKey()
    key.signed_oid, key.signed_tid = "3d2c-oid", "9a8b-tid"
    key.signed_start, key.signed_expiry = "2026-11-21T14:00:00Z", until
    key.signed_service, key.signed_version = "b", "2026-10-06"
    key.value = b64encode(bytes(range(32))).decode()
    return key


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("by", ["account key", "delegation key"])
def test_urls_are_those_of_azure(endpoint: str, by: str) -> None:
    key = lent() if by == "delegation key" else None
    ours = azure_signer(
        endpoint,
        PLACE,
        key.value if key else ACCOUNT_KEY,
        to_delegation_key(key) if key else None,
        NOW_S,
        3600,
    )
    signed = ours.sign([key.encode() for key in AWKWARD_KEYS]).to_pylist()
    for name, url in zip(AWKWARD_KEYS, signed, strict=True):
        signature = generate_blob_sas(
            "acct",
            "lake",
            name,
            account_key=None if key else ACCOUNT_KEY,
            user_delegation_key=key,
            permission="r",
            expiry=dt.datetime.fromtimestamp(NOW_S + 3600, dt.UTC),
            protocol="https" if endpoint.startswith("https:") else None,
        )
        theirs = BlobClient(endpoint, "lake", name, credential=signature).url
        assert url == theirs, name
    assert ours.expires_at_ms == (NOW_S + 3600) * 1000
    assert "sp=r&" in theirs, "by which the Python client knows a URL"


def urls(**settings: str) -> AzureAccess:
    return AzureAccess(ServerSettings(_env_file=None, **settings), Services())


def test_a_key_of_one_account_signs_nothing_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made = urls(azure_account="acct", azure_account_key=ACCOUNT_KEY)
    [url] = made.signer(PLACE, 60, NOW_S).sign([b"x"]).to_pylist()
    assert url.startswith("https://acct.blob.core.windows.net/lake/x?")
    monkeypatch.setattr(AzureAccess, "_request_key", lambda *_: pytest.fail("asks Azure, as it should"))
    with pytest.raises(pytest.fail.Exception, match="as it should"):
        made.signer(parse_location("abfss://lake@other.dfs.core.windows.net/t"), 60, NOW_S)


def test_a_url_never_lives_longer_than_the_key_that_was_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def lend(_: object, place: object, now_s: int, life_s: int) -> object:
        asked.append(life_s)
        until = dt.datetime.fromtimestamp(now_s + min(life_s, 7200), dt.UTC)
        return to_delegation_key(lent(until.strftime("%Y-%m-%dT%H:%M:%SZ")))

    monkeypatch.setattr(AzureAccess, "_request_key", lend)
    made = urls()
    assert made.signer(PLACE, 3600, NOW_S).expires_at_ms == (NOW_S + 3600) * 1000
    assert made.signer(PLACE, 3600, NOW_S + 3000).expires_at_ms == (NOW_S + 6600) * 1000
    assert asked == [86_400], "a key is kept while it lasts"
    assert made.signer(PLACE, 86_400, NOW_S).expires_at_ms == (NOW_S + 7200) * 1000
    assert asked == [86_400, 172_800]


LENT = """<UserDelegationKey><SignedOid>oid</SignedOid><SignedTid>tid</SignedTid>
<SignedStart>2026-11-21T14:00:00Z</SignedStart><SignedExpiry>2026-11-22T14:00:00Z</SignedExpiry>
<SignedService>b</SignedService><SignedVersion>2026-10-06</SignedVersion><Value>AAEC</Value></UserDelegationKey>"""


def of_an_identity(store: AnsweringStore) -> AzureAccess:
    made = urls(azure_account="acct", azure_endpoint=store.endpoint)
    # Azure's library sends tokens over TLS only; the rest is as with an identity.
    made.identity = AzureNamedKeyCredential("acct", ACCOUNT_KEY)
    return made


def test_a_lent_key_signs_for_one_directory_as_azure_does() -> None:
    with answering_store(lambda _: said("200 OK", LENT, "Content-Type: application/xml")) as store:
        vended = of_an_identity(store).vend(PLACE, 3600, NOW_S)
        assert "comp=userdelegationkey" in store.requests[0].partition("\r\n")[0]
    key = lent()
    key.signed_oid, key.signed_tid, key.value = "oid", "tid", "AAEC"
    ends = dt.datetime.fromtimestamp(NOW_S + 3600, dt.UTC)
    theirs = generate_directory_sas("acct", "lake", "t", key, "rl", ends)
    assert (vended.fields, vended.expires_at_ms) == ({"sasToken": theirs}, (NOW_S + 3600) * 1000)


DENIED = "<Error><Code>AuthorizationPermissionMismatch</Code><Message>hush</Message></Error>"
ODD_ANSWERS: dict[str, tuple[bytes, str]] = {
    "denied": (said("403 Forbidden", DENIED, "Content-Type: application/xml"), r"status 403.*Blob Delegator"),
    "busy": (said("429 Too Many Requests"), r"status 429.*Try again later"),
    "empty": (said("200 OK"), "Try again later"),
    "another page": (said("200 OK", "<html><br/></html>", "Content-Type: text/html"), "Try again later"),
    "error without a message": (
        said(
            "503 Service Unavailable",
            "<Error><Code>ServerBusy</Code></Error>",
            "Content-Type: application/xml",
        ),
        "Try again later",
    ),
}


@pytest.mark.parametrize("odd", ODD_ANSWERS)
def test_an_azure_that_lends_no_key_is_unavailable(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(azure.TIMEOUTS, "retry_total", 0)
    answer, words = ODD_ANSWERS[odd]
    with answering_store(lambda _: answer) as store, pytest.raises(Unavailable, match=words) as caught:
        of_an_identity(store).signer(PLACE, 60, NOW_S)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "given", [{"azure_account_key": "pasted in part"}, {"azure_sas_token": "pasted in part"}]
)
def test_a_malformed_secret_is_named_without_it(given: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match=r"malformed.*LAKESHARE_AZURE_SAS_TOKEN") as caught:
        urls(azure_account="acct", **given).open(PLACE)
    assert "pasted" not in str(caught.value)


def test_a_malformed_key_signs_nothing() -> None:
    with pytest.raises(Unavailable, match="malformed"):
        urls(azure_account="acct", azure_account_key="abc").signer(PLACE, 60, NOW_S)


def test_a_signature_of_somebody_else_reads_but_does_not_sign() -> None:
    with pytest.raises(Unserveable, match=r"signs no URLs.*AZURE_ACCOUNT_KEY"):
        urls(azure_account="acct", azure_sas_token="sv=1&sig=hush").signer(PLACE, 60, NOW_S)


def test_an_azure_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AZURE_TENANT_ID", "t" * 8),
        ("AZURE_CLIENT_ID", "c"),
        ("AZURE_CLIENT_SECRET", "hush"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "https://127.0.0.1:9")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    with pytest.raises(Unavailable) as caught:
        urls().signer(PLACE, 60, NOW_S)
    assert "hush" not in str(caught.value)
