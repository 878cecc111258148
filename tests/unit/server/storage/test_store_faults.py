"""A store that fails is told from one that refuses, in bounded time, and its own words reach nobody."""

import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakeshare_server.errors import LakeshareError, StoreDenied, StoreMissing, Unavailable, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores, gcs, remote, s3, sigv4
from tests.builders.answering_store import answering_store, said, said_of_object
from tests.builders.google_account import account_file, token_answer

SECRETS = ("AKHUSH", "hush-secret", "hush-token")
REFUSAL = (
    "<Error><Code>{}</Code><AWSAccessKeyId>AKHUSH</AWSAccessKeyId>"
    "<StringToSign>hush-secret hush-token</StringToSign></Error>"
)
CALLS: dict[str, Callable[[Stores], object]] = {
    "read": lambda stores: stores.read("s3://lake/t/x"),
    "open": lambda stores: stores.open("s3://lake/t/x"),
    "list": lambda stores: list(stores.list("s3://lake/t")),
    "head": lambda stores: stores.head("s3://lake/t/x"),
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), SECRETS, strict=True
    ):
        monkeypatch.setenv(name, value)
    # As it is, only sooner.
    monkeypatch.setattr(remote, "RETRIES", 2)
    monkeypatch.setattr(remote, "RETRIES_S", 2)
    monkeypatch.setattr(remote, "READ_TIMEOUT_S", 1)


def stores_at(endpoint: str) -> Stores:
    return Stores(ServerSettings(_env_file=None, s3_endpoint=endpoint, s3_region="eu-north-1"))


def fault(call: str, endpoint: str) -> LakeshareError:
    with pytest.raises(LakeshareError) as caught:
        CALLS[call](stores_at(endpoint))
    assert not any(secret in repr(caught.value) + str(caught.value) for secret in SECRETS)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return caught.value


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", ["503 Slow Down", "500 Oh", "429 Too Many Requests"])
def test_a_store_that_cannot_now_is_asked_again_and_then_unavailable(call: str, status: str) -> None:
    with answering_store(lambda _: said(status, REFUSAL.format("SlowDown"))) as store:
        assert isinstance(fault(call, store.endpoint), Unavailable)
        assert len(store.requests) > 1


@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_says_nothing_is_unavailable_in_bounded_time(call: str) -> None:
    with answering_store(lambda _: None) as store:
        started = time.monotonic()
        assert isinstance(fault(call, store.endpoint), Unavailable)
        assert time.monotonic() - started < 2 + 2 * 1 + 3


def test_a_store_that_falls_silent_in_the_middle_is_unavailable_in_bounded_time() -> None:
    with answering_store(lambda head: said_of_object(b"x" * 100, head, cut_after=10)) as store:
        started = time.monotonic()
        assert isinstance(fault("read", store.endpoint), Unavailable)
        assert time.monotonic() - started < 2 + 2 * 1 + 3


@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_is_not_there_is_unavailable(call: str) -> None:
    assert isinstance(fault(call, "http://127.0.0.1:9"), Unavailable)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", [b"no HTTP at all\r\n\r\n", b""])
def test_a_store_that_babbles_or_hangs_up_is_unavailable(call: str, answer: bytes) -> None:
    with answering_store(lambda _: answer) as store:
        assert isinstance(fault(call, store.endpoint), Unavailable)


def test_a_listing_that_is_no_listing_is_unavailable_and_not_empty() -> None:
    with answering_store(lambda _: said("200 OK", "<ListBucketResult><Contents><Key>t/x")) as store:
        assert isinstance(fault("list", store.endpoint), Unavailable)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("403 Forbidden", "SignatureDoesNotMatch"),
        ("401 Unauthorized", "AccessDenied"),
        ("400 Bad Request", "ExpiredToken"),
        ("301 Moved Permanently", "PermanentRedirect"),
    ],
)
def test_a_refusal_is_lasting_and_only_its_code_is_logged(
    call: str, status: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with answering_store(lambda _: said(status, REFUSAL.format(code))) as store:
        found = fault(call, store.endpoint)
        assert isinstance(found, StoreDenied)
        assert found.location == ("s3://lake/t" if call == "list" else "s3://lake/t/x")
        assert len(store.requests) == 1
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("lakeshare")]
    assert len(ours) == 1
    assert ours[0].startswith(found.location)
    assert not any(secret in ours[0] for secret in SECRETS)
    if call == "read" and not status.startswith("301"):
        assert ours[0].endswith(f"{status[:3]} {code}")


def test_what_is_not_there_is_missing_and_has_no_head() -> None:
    with answering_store(lambda _: said("404 Not Found", REFUSAL.format("NoSuchKey"))) as store:
        for call in ("read", "open", "list"):
            assert isinstance(fault(call, store.endpoint), StoreMissing)
        assert CALLS["head"](stores_at(store.endpoint)) is None


def test_looking_for_what_is_not_there_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with answering_store(lambda _: said("404 Not Found", REFUSAL.format("NoSuchKey"))) as store:
        stores = stores_at(store.endpoint)
        assert stores.head("s3://lake/t/_delta_log/00000000000000000001.json") is None
        with pytest.raises(StoreMissing):
            stores.read("s3://lake/t/metadata/version-hint.text")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("lakeshare")] == []


def test_an_answer_that_breaks_off_is_taken_up_where_it_was() -> None:
    body = bytes(range(256)) * 10

    def half(head: str) -> bytes:
        return said_of_object(body, head, cut_after=1500)

    with answering_store(half, closes=True) as store:
        assert stores_at(store.endpoint).read("s3://lake/t/x") == body
        assert len(store.requests) == 2


@pytest.mark.parametrize("key", ["a//b", "/a", "a/", "a/./b", "../a", "a\tb", "."])
def test_a_key_that_would_be_folded_is_refused_and_never_asked_for(key: str) -> None:
    with answering_store(lambda _: said("200 OK", "another object")) as store:
        stores = stores_at(store.endpoint)
        for call in (stores.read, stores.open, stores.head):
            with pytest.raises(Unserveable, match="cannot be read"):
                call(f"s3://lake/{key}")
        assert store.requests == []


def test_folder_marks_are_no_objects_and_a_key_that_cannot_be_told_fails_the_listing() -> None:
    keys = ["t/", "t/a", "t/empty", "t/sub/", "t/sub/x", "t/z"]

    def listing(_: str) -> bytes:
        found = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2030-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
            f"<Size>{0 if key.endswith(('/', 'y')) else 3}</Size></Contents>"
            for key in keys
        )
        return said("200 OK", f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>")

    with answering_store(listing) as store:
        stores = stores_at(store.endpoint)
        found = [one.location.removeprefix("s3://lake/") for one in stores.list("s3://lake/t/")]
        assert found == ["t/a", "t/empty", "t/sub/x", "t/z"]
        keys.append("t//x")
        with pytest.raises(Unserveable, match="s3://lake/t cannot be listed"):
            list(stores.list("s3://lake/t"))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said("403 Forbidden"), StoreDenied),
        (said("404 Not Found"), StoreMissing),
        (said("503 Slow Down"), Unavailable),
        (b"", Unavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", Unavailable),
    ],
    ids=["403", "404", "503", "cut off", "no length"],
)
def test_a_digest_that_is_not_told_is_an_error_of_the_store(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, error: type[LakeshareError]
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with answering_store(lambda _: answer, closes=True) as store:
        stores = stores_at(store.endpoint)
        with pytest.raises(error, match="s3://lake/t/x"):
            stores.s3.stored_sha256(stores.place("s3://lake/t/x"))


@pytest.mark.parametrize(
    "fault", [said("403 Forbidden"), said("503 Slow Down"), b""], ids=["403", "503", "cut off"]
)
@pytest.mark.parametrize("root", ["s3://lake", "gs://lake"])
def test_a_folder_mark_that_is_not_deleted_fails_the_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: bytes, root: str
) -> None:
    mark = (
        "<Contents><Key>t/mark/</Key><LastModified>2030-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
        "<Size>0</Size></Contents>"
    )
    listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{mark}</ListBucketResult>"
    deleted = "<DeleteResult><Deleted><Key>t/mark</Key></Deleted></DeleteResult>"

    def answer(request: str) -> bytes:
        method, path = request.split(" ")[:2]
        if path == "/token":
            return token_answer("hush-token")
        if method == "DELETE":
            return fault if path.startswith("/lake/t/mark/") else said("204 No Content")
        return said("200 OK", listing if method == "GET" else deleted)

    with answering_store(answer) as store:
        account = account_file(tmp_path, f"{store.endpoint}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        at = {"s3_endpoint": store.endpoint, "s3_region": "eu-north-1", "gcs_endpoint": store.endpoint}
        with pytest.raises(Unavailable, match="is not deleted"):
            Stores(ServerSettings(_env_file=None, **at)).delete_folder(f"{root}/t")


def test_credentials_that_are_not_there_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(Unavailable, match=r"no credentials for S3.*AWS_ACCESS_KEY_ID"):
        stores_at("http://127.0.0.1:9").read("s3://lake/x")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Unavailable, match=r"no credentials for S3.*nobody"):
        stores_at("http://127.0.0.1:9").read("s3://lake/x")


def test_an_sts_of_the_chain_of_credentials_that_says_nothing_is_unavailable_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("hush-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::000000000000:role/reader")
    monkeypatch.setattr(s3, "ANSWER_S", 0.2)
    with answering_store(lambda _: None) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.endpoint)
        started = time.monotonic()
        with pytest.raises(Unavailable, match="no credentials for S3"):
            stores_at("http://127.0.0.1:9").read("s3://lake/x")
        assert time.monotonic() - started < 10
        assert len(sts.requests) == 2


def test_a_token_service_of_google_that_says_nothing_is_unavailable_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "TIMEOUT_S", (1, 0.2))
    with answering_store(lambda _: None) as google:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account_file(tmp_path, google.endpoint)))
        started = time.monotonic()
        with pytest.raises(Unavailable, match="no credentials for Google"):
            stores_at("http://127.0.0.1:9").read("gs://lake/x")
        assert time.monotonic() - started < 10
        assert google.requests


def test_a_vendor_that_takes_long_keeps_nobody_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slowly(_: str) -> bytes:
        asked.set()
        assert go_on.wait(30)
        return b""

    with (
        answering_store(slowly) as google,
        answering_store(lambda head: said_of_object(b"x", head)) as store,
        ThreadPoolExecutor(2) as pool,
    ):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account_file(tmp_path, google.endpoint)))
        stores = stores_at(store.endpoint)
        waiting = pool.submit(stores.read, "gs://lake/t/x")
        assert asked.wait(30)
        try:
            assert pool.submit(stores.read, "s3://lake/t/x").result(30) == b"x"
            assert not waiting.done()
        finally:
            go_on.set()
        with pytest.raises(Unavailable):
            waiting.result(30)


def test_aws_is_addressed_by_host_and_others_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def url(bucket: str, **settings: object) -> str:
        return Stores(ServerSettings(_env_file=None, **settings)).s3.bucket(bucket, public=True).url

    aws = {"s3_region": "eu-north-1"}
    assert url("lake", **aws) == "https://lake.s3.eu-north-1.amazonaws.com"
    assert url("my.lake", **aws) == "https://s3.eu-north-1.amazonaws.com/my.lake"
    assert url("lake", s3_path_style=True, **aws) == "https://s3.eu-north-1.amazonaws.com/lake"
    ours = {"s3_endpoint": "http://minio:9000/", "s3_region": "x"}
    assert url("lake", **ours) == "http://minio:9000/lake"
    assert url("lake", s3_path_style=False, **ours) == "http://lake.minio:9000"
    assert url("lake", s3_public_endpoint="https://s3.example.org", **ours) == "https://s3.example.org/lake"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://elsewhere:1")
    assert url("lake", **aws) == "http://elsewhere:1/lake"


def test_a_region_that_was_not_told_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    there = said("403 Forbidden", "", "x-amz-bucket-region: eu-central-1")
    answers = [said("503 Slow Down"), b"", said("404 Not Found"), there]
    with answering_store(lambda _: answers.pop(0)) as store:
        monkeypatch.setattr(sigv4, "AWS", re.compile(r"127\.0\.0\.1"))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
        access = Stores(ServerSettings(_env_file=None)).s3
        for why in ("status 503", "RemoteProtocolError"):
            with pytest.raises(
                Unavailable, match=rf"region of the bucket lake \({why}\).*LAKESHARE_S3_REGION"
            ):
                access.bucket("lake")
        assert [access.bucket("lake").region for _ in range(3)] == [
            "us-east-1",
            "eu-central-1",
            "eu-central-1",
        ]
        assert len(store.requests) == 4


@pytest.mark.parametrize(
    "endpoint", ["minio:9000", "https://me:hush@minio", "https://minio?x=1", "ftp://minio"]
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="s3_endpoint"):
        ServerSettings(_env_file=None, s3_endpoint=endpoint)


def test_a_large_object_may_take_longer_than_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PIECE_BYTES", 1000)
    body = bytes(range(256)) * 40
    with answering_store(lambda head: said_of_object(body, head)) as store:
        assert stores_at(store.endpoint).read("s3://lake/t/x") == body
