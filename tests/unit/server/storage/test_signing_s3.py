"""Our SigV4 is botocore's, byte for byte: every awkward key, style, endpoint, region, time, token and payer."""

import datetime as dt
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import boto3
import botocore.auth
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials, RefreshableCredentials
from hypothesis import given
from hypothesis import strategies as st

from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import Service
from lakeshare_server.storage.remote import MIN_BATCH, quote_keys
from lakeshare_server.storage.s3 import KeyChain
from lakeshare_server.storage.sigv4 import AwsKeys, Bucket, UrlSigner
from tests.builders.keys import AWKWARD_KEYS

NOW_S = int(dt.datetime(2026, 11, 21, 14, 34, 41, tzinfo=dt.UTC).timestamp())
LEAP_S = int(dt.datetime(2024, 2, 29, 23, 59, 59, tzinfo=dt.UTC).timestamp())
BUCKETS = [
    Bucket("lake", region, endpoint, path_style)
    for region, endpoint, path_style in [
        ("us-east-1", "https://s3.amazonaws.com", False),
        ("eu-north-1", "https://s3.eu-north-1.amazonaws.com", False),
        ("eu-north-1", "https://s3.eu-north-1.amazonaws.com", True),
        ("cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn", False),
        ("us-east-1", "http://127.0.0.1:9000", True),
        ("us-east-1", "http://s3.example.org:8333", False),
        ("us-east-1", "https://s3.example.org:443", True),
        ("us-east-1", "http://s3.example.org:80", True),
        ("x", "https://s3.example.org/behind/a-path", True),
    ]
]
LONG_LASTING = AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None, None)
TEMPORARY = AwsKeys("ASIAEXAMPLE", "secret", "FwoGZXIvYXdzE/+=token==", (NOW_S + 9_999) * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets botocore's clock."""

    def now_is(now_s: int) -> None:
        moment = dt.datetime.fromtimestamp(now_s, dt.UTC).replace(tzinfo=None)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: moment)

    return now_is


def a_client(bucket: Bucket, keys: AwsKeys) -> Any:
    style = {"addressing_style": "path" if bucket.path_style else "virtual"}
    return boto3.client(
        "s3",
        region_name=bucket.region,
        endpoint_url=bucket.endpoint,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        aws_session_token=keys.token,
        config=Config(signature_version="s3v4", s3=style),
    )


@pytest.mark.parametrize("keys", [LONG_LASTING, TEMPORARY], ids=["long-lasting", "temporary"])
@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: f"{bucket.url}-{bucket.region}")
def test_urls_are_those_of_boto3(clock: Callable[[int], None], bucket: Bucket, keys: AwsKeys) -> None:
    client = a_client(bucket, keys)
    for now_s, life_s in ((NOW_S, 3600), (LEAP_S, 1), (NOW_S - 86_400, 7_200)):
        clock(now_s)
        signer = UrlSigner.of(bucket, keys, life_s, now_s=now_s)
        assert signer.sign([key.encode() for key in AWKWARD_KEYS]).to_pylist() == [
            client.generate_presigned_url(
                "get_object", Params={"Bucket": bucket.name, "Key": key}, ExpiresIn=life_s
            )
            for key in AWKWARD_KEYS
        ]
        assert signer.expires_at_ms == (now_s + life_s) * 1000


@pytest.mark.parametrize("keys", [LONG_LASTING, TEMPORARY], ids=["long-lasting", "temporary"])
@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: f"{bucket.url}-{bucket.region}")
def test_requests_that_we_pay_for_say_so_in_the_signed_query(
    clock: Callable[[int], None], bucket: Bucket, keys: AwsKeys
) -> None:
    # boto3 signs it as a header, which the readers of our URLs do not send: here botocore's signer is the judge.
    clock(NOW_S)
    urls = UrlSigner.of(bucket, keys, 60, NOW_S, {"x-amz-request-payer": "requester"}).sign([b"a b=c", b"d"])
    for url, path in zip(urls.to_pylist(), ("a%20b%3Dc", "d"), strict=True):
        request = AWSRequest("GET", f"{bucket.url}/{path}", params={"x-amz-request-payer": "requester"})
        credentials = Credentials(keys.access_key, keys.secret_key, keys.token)
        S3SigV4QueryAuth(credentials, "s3", bucket.region, expires=60).add_auth(request)
        assert url == request.url
        assert "x-amz-request-payer=requester&" in request.url


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=6))
def test_many_keys_are_quoted_as_one_is(keys: list[str]) -> None:
    assert quote_keys([key.encode() for key in keys], b"/") == [quote(key, "/").encode() for key in keys]


def test_keys_of_many_different_bytes_are_quoted_too() -> None:
    keys = ["".join(map(chr, range(1, 256))), "%", "a/b"]
    assert len(set(keys[0])) > MIN_BATCH
    assert quote_keys([key.encode() for key in keys], b"/=") == [quote(key, "/=").encode() for key in keys]


def test_a_url_never_lives_longer_than_the_keys_that_signed_it() -> None:
    ending = AwsKeys("AK", "SK", "token", (NOW_S + 90) * 1000 + 999)
    signer = UrlSigner.of(BUCKETS[0], ending, 3600, now_s=NOW_S)
    assert signer.expires_at_ms == (NOW_S + 90) * 1000
    assert "&X-Amz-Expires=90&" in signer.sign([b"k"])[0].as_py()
    assert UrlSigner.of(BUCKETS[0], ending, 60, now_s=NOW_S).expires_at_ms == (NOW_S + 60) * 1000
    assert (
        UrlSigner.of(BUCKETS[0], LONG_LASTING, 10**9, now_s=NOW_S).expires_at_ms == (NOW_S + 604_800) * 1000
    )
    with pytest.raises(Unavailable, match="credentials that sign URLs have ended"):
        UrlSigner.of(BUCKETS[0], ending, 3600, now_s=NOW_S + 90)


class Overtaken(RefreshableCredentials):
    """Keys that another thread refreshes while we take them."""

    def get_frozen_credentials(self) -> Any:
        taken = self._frozen_credentials
        super().get_frozen_credentials()
        return taken


def test_keys_that_are_refreshed_meanwhile_come_with_their_own_end() -> None:
    now = dt.datetime.now(dt.UTC)
    soon, later = now + dt.timedelta(minutes=12), now + dt.timedelta(hours=6)
    fresh = {"access_key": "NEW", "secret_key": "s", "token": "t", "expiry_time": later.isoformat()}
    session = SimpleNamespace(
        get_credentials=lambda: Overtaken("OLD", "s", "t", soon, lambda: fresh, "a role")
    )
    chain = KeyChain(lambda: session, lambda: Service("credentials"))
    for _ in range(2):
        keys = chain.keys()
        assert (keys.access_key, keys.expires_at_ms) == ("NEW", int(later.timestamp() * 1000))


def test_nothing_to_sign_is_nothing() -> None:
    assert UrlSigner.of(BUCKETS[0], LONG_LASTING, 60, NOW_S).sign([]).to_pylist() == []


def test_keys_and_signers_do_not_show_their_secret() -> None:
    shown = repr(TEMPORARY) + repr(UrlSigner.of(BUCKETS[0], TEMPORARY, 60, now_s=NOW_S))
    assert "secret" not in shown.replace("secret_key", "")
    assert "token==" not in shown
