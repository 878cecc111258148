"""Temporary credentials are asked for one folder and for reading, and what a token service says stays with us."""

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qs, unquote_plus

import pytest
from azure.storage.filedatalake import generate_directory_sas
from google.auth import downscoped

from lakeshare_server.catalog import SharedTable, allow_directory_access, share_table
from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, parse_location
from lakeshare_server.storage import azure as temporary_azure
from lakeshare_server.storage.gcs import access_condition
from lakeshare_server.storage.s3 import session_policy
from lakeshare_server.tables import read_delta
from tests.builders.answering_store import AnsweringStore, answering_store, said
from tests.builders.google_account import account_file, token_answer
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import a_provider, a_server

TABLE = "s3://lake/sales/orders"
ROLE = "arn:aws:iam::000000000000:role/reader"
HANDED_OUT = """<{0}Response><{0}Result><Credentials><AccessKeyId>ASIA1</AccessKeyId>
<SecretAccessKey>hush-secret</SecretAccessKey><SessionToken>hush-token</SessionToken>
<Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></{0}Result></{0}Response>"""
REFUSED = (
    "<ErrorResponse><Error><Code>{}</Code><Message>hush-secret may not</Message></Error></ErrorResponse>"
)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-secret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def signers(**settings: object) -> Signers:
    return Signers(ServerSettings(_env_file=None, **settings), LocalSigner(b"k", "http://host"))


def at(store: AnsweringStore, **settings: object) -> Signers:
    return signers(s3_endpoint=store.endpoint, s3_region="eu-north-1", **settings)


def asked_of(store: AnsweringStore) -> dict[str, str]:
    """The form of the last request."""
    return {name: values[0] for name, values in parse_qs(store.requests[-1].partition("\r\n\r\n")[2]).items()}


def test_a_local_table_has_none_and_says_why() -> None:
    assert "own disk" in str(signers().can_vend("/lake/t"))
    with pytest.raises(Unserveable, match=r"No temporary credentials for /lake/t: .*own disk"):
        signers().vend("/lake/t", 900)


def test_a_policy_reads_and_lists_below_the_folder_and_nothing_else() -> None:
    policy = json.loads(session_policy("lake", "sales/orders", "eu-north-1", on_aws=False))
    assert policy["Statement"] == [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::lake/sales/orders/*"},
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": "arn:aws:s3:::lake",
            "Condition": {"StringLike": {"s3:prefix": "sales/orders/*"}},
        },
    ]


def test_a_policy_takes_no_letter_of_a_name_for_a_pattern() -> None:
    policy = json.loads(session_policy("lake", "a*b?c$d${e}/f", "cn-north-1", on_aws=True))
    assert policy["Statement"][0]["Resource"] == "arn:aws-cn:s3:::lake/a${*}b${?}c${$}d${$}{e}/f/*"
    assert policy["Statement"][2]["Condition"] == {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}}


def test_a_role_is_assumed_for_the_folder_alone() -> None:
    with answering_store(lambda _: said("200 OK", HANDED_OUT.format("AssumeRole"))) as sts:
        made = at(sts, s3_role_arn=ROLE)
        assert made.can_vend(TABLE) is None
        vended = made.vend(TABLE, 60)
        asked = asked_of(sts)
    assert (asked["Action"], asked["RoleArn"], asked["DurationSeconds"]) == ("AssumeRole", ROLE, "900")
    assert asked["Policy"] == session_policy("lake", "sales/orders", "eu-north-1", on_aws=False)
    assert (vended.location, vended.kind) == (TABLE, "awsTempCredentials")
    assert vended.fields == {
        "accessKeyId": "ASIA1",
        "secretAccessKey": "hush-secret",
        "sessionToken": "hush-token",
    }
    assert vended.expires_at_ms == int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert vended.iceberg_config == {
        "s3.access-key-id": "ASIA1",
        "s3.secret-access-key": "hush-secret",
        "s3.session-token": "hush-token",
        "s3.session-token-expires-at-ms": str(vended.expires_at_ms),
    }
    assert "hush" not in repr(vended)


def test_without_a_role_a_federation_token_is_asked_for() -> None:
    with answering_store(lambda _: said("200 OK", HANDED_OUT.format("GetFederationToken"))) as sts:
        vended = at(sts).vend("s3a://lake/sales/orders", 7200)
        asked = asked_of(sts)
    assert (asked["Action"], asked["DurationSeconds"]) == ("GetFederationToken", "3600")
    assert asked["Policy"] == session_policy("lake", "sales/orders", "eu-north-1", on_aws=False)
    assert vended.location == TABLE


def test_temporary_keys_without_a_role_are_refused_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hush-token")
    with answering_store(lambda _: said("200 OK", "")) as sts:
        assert "LAKESHARE_S3_ROLE_ARN" in str(at(sts).can_vend(TABLE))
        assert sts.requests == []


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("403 Forbidden", "AccessDenied", Unserveable),
        ("400 Bad Request", "ValidationError", Unserveable),
        ("400 Bad Request", "Throttling", Unavailable),
        ("503 Service Unavailable", "ServiceUnavailable", Unavailable),
    ],
)
def test_an_sts_that_refuses_is_told_by_its_code_alone(status: str, code: str, expected: type) -> None:
    refused = said(status, REFUSED.format(code))
    with answering_store(lambda _: refused) as sts, pytest.raises(expected, match=code) as caught:
        at(sts, s3_role_arn=ROLE).vend(TABLE, 900)
    assert "hush" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_an_sts_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="STS does not answer"):
        signers(s3_endpoint="http://127.0.0.1:9", s3_region="x", s3_role_arn=ROLE).vend(TABLE, 900)


@pytest.mark.parametrize(
    "odd",
    [
        said("405 Method Not Allowed"),
        said("404 Not Found", "There is no STS here."),
        said("200 OK", "<html><br/></html>"),
        said("200 OK", HANDED_OUT.format("AssumeRole").replace("2030-01-01T00:00:00Z", "soon")),
    ],
    ids=["no method", "no XML", "another page", "no time"],
)
def test_a_response_that_is_none_of_an_sts_is_unavailable(odd: bytes) -> None:
    named = pytest.raises(Unavailable, match=r"STS does not answer .*LAKESHARE_S3_STS_ENDPOINT")
    with answering_store(lambda _: odd) as store, named:
        at(store, s3_role_arn=ROLE).vend(TABLE, 900)


def test_keys_that_cannot_be_had_now_fail_no_listing_and_are_no_lasting_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = a_provider(tmp_path, s3_endpoint="http://127.0.0.1:9", s3_region="x")
    snapshot = read_delta(str(a_delta_table(tmp_path / "orders")))
    provider.publish("sales.orders", replace(snapshot, location=TABLE, files=snapshot.files.slice(0, 0)))
    share_table(provider.catalog, "lake", SharedTable("sales", "orders", "sales.orders"))
    allow_directory_access(provider.catalog, "lake", "sales", "orders", allowed=True)
    token = provider.recipient(shares=("lake",))
    orders = "/shares/lake/schemas/sales/tables/orders"
    with a_server(provider) as server, server.client(token) as client:
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        [listed] = client.get("/shares/lake/all-tables").json()["items"]
        assert "accessModes" not in listed
        assert client.get(f"{orders}/metadata").status_code == 200
        refused = client.post(f"{orders}/temporary-table-credentials", json={})
        assert (refused.status_code, refused.json()["errorCode"]) == (503, "TEMPORARILY_UNAVAILABLE")
        assert "no credentials for S3" in refused.json()["message"]
        monkeypatch.delenv("AWS_PROFILE")
        [listed] = client.get("/shares/lake/all-tables").json()["items"]
        assert listed["accessModes"] == ["url", "dir"]


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a service account whose tokens, and the narrowed ones, come from a given endpoint."""

    def account(endpoint: str) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account_file(tmp_path, f"{endpoint}/token")))
        monkeypatch.setattr(downscoped, "_STS_TOKEN_URL_PATTERN", f"{endpoint}/narrow?{{}}")

    return account


def a_token(request: str) -> bytes:
    return token_answer("narrow-token" if "/narrow" in request.split(" ")[1] else "hush-token")


def test_googles_token_is_narrowed_to_the_folder(google: Callable[[str], None]) -> None:
    with answering_store(a_token) as store:
        google(store.endpoint)
        made = signers()
        assert made.can_vend("gs://lake/t") is None
        before_ms = int(datetime.now(UTC).timestamp() * 1000)
        vended = made.vend('gs://lake/it\'s "t"', 900)
        asked = asked_of(store)
    assert (vended.kind, vended.fields) == ("gcpOauthToken", {"oauthToken": "narrow-token"})
    assert vended.iceberg_config == {
        "gcs.oauth2.token": "narrow-token",
        "gcs.oauth2.token-expires-at": str(vended.expires_at_ms),
    }
    assert 0 <= vended.expires_at_ms - before_ms - 3_600_000 < 60_000
    assert asked["subject_token"] == "hush-token"
    (rule,) = json.loads(unquote_plus(asked["options"]))["accessBoundary"]["accessBoundaryRules"]
    assert rule["availableResource"] == "//storage.googleapis.com/projects/_/buckets/lake"
    assert rule["availablePermissions"] == ["inRole:roles/storage.objectViewer"]
    assert rule["availabilityCondition"]["expression"] == access_condition(
        parse_location('gs://lake/it\'s "t"')
    )


def test_the_condition_names_objects_and_listings_below_the_folder() -> None:
    assert access_condition(parse_location("gs://lake/a/b \\\"c'/")) == (
        'resource.name.startsWith("projects/_/buckets/lake/objects/a/b \\\\\\"c\'/") || '
        "api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith(\"a/b \\\\\\\"c'/\")"
    )


def test_a_google_that_refuses_is_told_without_its_words(google: Callable[[str], None]) -> None:
    def refusing(request: str) -> bytes:
        body = json.dumps({"error": "invalid_request", "error_description": "hush-token"})
        return said("400 Bad Request", body) if "/narrow" in request.split(" ")[1] else a_token(request)

    with answering_store(refusing) as store:
        google(store.endpoint)
        with pytest.raises(Unserveable, match=r"narrows no token for gs://lake .*uniform") as caught:
            signers().vend("gs://lake/t", 900)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "silence",
    [
        b"",
        said("503 Service Unavailable", "busy"),
        said("429 Too Many Requests", "{}"),
        said("200 OK", "<html>"),
        said("200 OK", "{}"),
    ],
    ids=["cut off", "503", "429", "another page", "no token"],
)
def test_a_google_that_gives_no_answer_is_no_lasting_refusal(
    google: Callable[[str], None], silence: bytes
) -> None:
    with answering_store(lambda asked: silence if "/narrow" in asked else a_token(asked)) as store:
        google(store.endpoint)
        with pytest.raises(Unavailable, match="issues no token"):
            signers().vend("gs://lake/t", 900)


ACCOUNT_KEY = b64encode(bytes(range(64))).decode()
FOLDER = "abfss://lake@acct.dfs.core.windows.net/sales/orders"


def azure(store: AnsweringStore) -> Signers:
    return signers(azure_account="acct", azure_account_key=ACCOUNT_KEY, azure_endpoint=store.endpoint)


def account_with(folders: str) -> Callable[[str], bytes]:
    return lambda _: said("200 OK", "", f"x-ms-is-hns-enabled: {folders}", "x-ms-sku-name: Standard_LRS")


def test_azure_signs_for_one_directory_and_for_reading() -> None:
    with answering_store(account_with("true")) as store:
        vended = azure(store).vend("abfss://lake@acct.dfs.core.windows.net/sales/orders/", 900)
    ends = datetime.fromtimestamp(vended.expires_at_ms / 1000, UTC)
    assert vended.kind == "azureUserDelegationSas"
    assert vended.fields == {
        "sasToken": generate_directory_sas("acct", "lake", "sales/orders", ACCOUNT_KEY, "rl", ends)
    }
    assert "sp=rl&" in vended.fields["sasToken"]
    assert "sr=d&sdd=2&" in vended.fields["sasToken"]
    assert vended.iceberg_config == {
        "adls.sas-token.acct.dfs.core.windows.net": vended.fields["sasToken"],
        "adls.sas-token-expires-at-ms.acct.dfs.core.windows.net": str(vended.expires_at_ms),
    }


def test_an_account_without_folders_limits_nothing_to_one() -> None:
    with answering_store(account_with("false")) as store:
        made = azure(store)
        assert "no hierarchical namespace" in str(made.can_vend(FOLDER))
        assert "no hierarchical namespace" in str(made.can_vend(FOLDER))
        assert len(store.requests) == 1, "an account is asked once"
        assert made.can_vend("abfss://lake@acct.dfs.core.windows.net/") is None
        vended = made.vend("abfss://lake@acct.dfs.core.windows.net/", 900)
        assert "sr=c&" in vended.fields["sasToken"]


def test_an_account_that_does_not_tell_is_asked_again_minutes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [said("403 Forbidden"), account_with("false")("")]
    with answering_store(lambda _: answers.pop(0)) as store:
        made = azure(store)
        assert [made.can_vend(FOLDER) for _ in range(3)] == [None] * 3
        assert len(store.requests) == 1
        monkeypatch.setattr(temporary_azure, "monotonic", lambda: monotonic() + temporary_azure.RETRY_S)
        assert "no hierarchical namespace" in str(made.can_vend(FOLDER))


@pytest.mark.parametrize(
    ("library", "package"),
    [
        ("azure.storage.blob", "azure-storage-blob"),
        ("azure.storage.filedatalake", "azure-storage-file-datalake"),
    ],
)
def test_a_library_of_azure_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, library: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    missing = pytest.raises(Unavailable, match=rf"{package} is not installed.*lakeshare\[azure\]")
    with answering_store(account_with("true")) as store, missing:
        azure(store).vend(FOLDER, 900)


def test_a_signature_of_somebody_else_issues_no_other() -> None:
    made = signers(azure_account="acct", azure_sas_token="sv=1&sig=hush")
    assert "issues no other" in str(made.can_vend(FOLDER))
