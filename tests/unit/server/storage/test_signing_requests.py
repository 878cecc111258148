"""Signatures of our requests are botocore's, byte for byte: every awkward key, query, header, host, token and body."""

import datetime as dt
import types
from collections.abc import Callable, Mapping
from hashlib import sha256
from urllib.parse import unquote

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from lakeshare_server.storage import sigv4
from lakeshare_server.storage.s3 import signed_request
from lakeshare_server.storage.sigv4 import AwsKeys, Bucket, RequestSigner, quote_path, quote_query
from tests.builders.keys import AWKWARD_KEYS

NOW = dt.datetime(2026, 11, 21, 23, 59, 59, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(seconds=1)
LONG_LASTING = AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
TEMPORARY = AwsKeys("ASIAEXAMPLE", "secret", "FwoGZXIvYXdzE/+=token==")
QUERIES: list[Mapping[str, str]] = [
    {},
    {"uploads": ""},
    {"partNumber": "10", "uploadId": "a+b/c=="},
    {"list-type": "2", "start-after": "a b/ü+&=~%", "encoding-type": "url", "delimiter": "/", "prefix": ""},
    {"X-b": "1", "a": "2", "A": "3", "a-b": "4", "a_b": "5"},
]
HEADERS: list[Mapping[str, str]] = [
    {},
    {"x-amz-copy-source": "/lake/a%20b?versionId=null", "x-amz-copy-source-if-match": '"0123"'},
    {"content-type": "text/plain;  charset=utf-8", "range": "bytes=0-9", "x-amz-meta-a": "  many   spaces "},
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[dt.datetime], None]:
    """Sets botocore's clock."""

    def now_is(now: dt.datetime) -> None:
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: now.replace(tzinfo=None))

    return now_is


def of_botocore(
    keys: AwsKeys, method: str, url: str, headers: Mapping[str, str], body: bytes, region: str
) -> dict[str, str]:
    """What botocore sends."""
    request = AWSRequest(method, url, headers=dict(headers), data=body)
    S3SigV4Auth(Credentials(keys.access_key, keys.secret_key, keys.token), "s3", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("keys", [LONG_LASTING, TEMPORARY], ids=["long-lasting", "temporary"])
@pytest.mark.parametrize("key", AWKWARD_KEYS)
def test_every_key_is_signed_as_botocore_signs_it(
    clock: Callable[[dt.datetime], None], key: str, keys: AwsKeys
) -> None:
    signer = RequestSigner("eu-north-1")
    path = f"/lake/{quote_path(key)}"
    for moment in (NOW, LATER, NOW):
        clock(moment)
        ours = signer.sign(keys, "GET", "localhost:8333", path, "", {}, moment=moment)
        theirs = of_botocore(keys, "GET", f"http://localhost:8333{path}", {}, b"", "eu-north-1")
        assert ours.pop("host") == "localhost:8333"
        assert ours == theirs


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: ",".join(headers) or "none")
@pytest.mark.parametrize(("method", "body"), [("PUT", b"rows"), ("POST", b""), ("HEAD", b"")])
def test_every_query_header_and_body_is_signed_as_botocore_signs_it(
    clock: Callable[[dt.datetime], None],
    query: Mapping[str, str],
    headers: Mapping[str, str],
    method: str,
    body: bytes,
) -> None:
    clock(NOW)
    host, asked = "lake.s3.us-east-1.amazonaws.com", quote_query(query)
    signer = RequestSigner("us-east-1")
    digest = sha256(body).hexdigest()
    ours = signer.sign(TEMPORARY, method, host, "/a//b/../c", asked, headers, digest, NOW)
    url = f"https://{host}/a//b/../c{'?' if asked else ''}{asked}"
    theirs = of_botocore(TEMPORARY, method, url, headers, body, "us-east-1")
    assert ours["authorization"] == theirs["authorization"]


def test_keys_that_were_renewed_sign_from_the_next_request_on(clock: Callable[[dt.datetime], None]) -> None:
    clock(NOW)
    signer = RequestSigner("us-east-1")
    for keys in (LONG_LASTING, TEMPORARY, LONG_LASTING):
        ours = signer.sign(keys, "GET", "h", "/a", "", {}, moment=NOW)
        assert (
            ours["authorization"]
            == of_botocore(keys, "GET", "http://h/a", {}, b"", "us-east-1")["authorization"]
        )


@pytest.mark.parametrize("keys", [LONG_LASTING, TEMPORARY], ids=["long-lasting", "temporary"])
def test_the_read_of_a_recipient_is_signed_as_botocore_signs_it(
    clock: Callable[[dt.datetime], None], monkeypatch: pytest.MonkeyPatch, keys: AwsKeys
) -> None:
    """With the names of headers as botocore spells them, and without the client's own signature."""
    clock(NOW)
    monkeypatch.setattr(sigv4, "datetime", types.SimpleNamespace(now=lambda _: NOW))
    bucket = Bucket("lake", "eu-north-1", "https://s3.eu-north-1.amazonaws.com", path_style=False)
    wanted = {"X-Amz-Checksum-Mode": ["ENABLED"], "x-amz-request-payer": ["requester"]}
    given = {
        **wanted,
        "Range": ["bytes=0-3"],
        "Authorization": ["AWS4-HMAC-SHA256 theirs"],
        "x-amz-date": ["theirs"],
    }
    for key in AWKWARD_KEYS:
        signed = signed_request(bucket, keys, "GET", key, given)
        request = AWSRequest("GET", signed.uri, headers={name: value for name, [value] in wanted.items()})
        S3SigV4Auth(Credentials(keys.access_key, keys.secret_key, keys.token), "s3", "eu-north-1").add_auth(
            request
        )
        assert signed.uri == f"https://lake.s3.eu-north-1.amazonaws.com/{quote_path(key)}"
        assert signed.headers == {name: [value] for name, value in request.headers.items()}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_quoted_key_is_the_key_and_has_nothing_that_a_path_could_be_cut_at(key: str) -> None:
    quoted = quote_path(key)
    assert unquote(quoted) == key
    assert not set(quoted) & set("?# +\\")


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(TEMPORARY)
    assert "FwoG" not in repr(TEMPORARY)
