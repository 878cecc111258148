"""The client for requests by the thousand sends keys as they are, tries again what passes, and nothing else."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from lakeshare_pipelines.backup import async_s3
from lakeshare_pipelines.backup import async_s3 as pace_module
from lakeshare_pipelines.backup import stores as store_module
from lakeshare_pipelines.backup.async_s3 import AsyncS3, Identity, Pace, Response
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError, NoResponse
from lakeshare_server.outbound import Service
from tests.builders.answering_store import AnsweringStore, answering_store, said
from tests.builders.keys import AWKWARD_KEYS

SLOW = said("503 Slow Down", "<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>")
DONE = said("200 OK", "<CopyObjectResult><ETag>&quot;one&quot;</ETag></CopyObjectResult>")
ERROR_INSIDE = said("200 OK", '<?xml version="1.0"?>\n<Error><Code>InternalError</Code></Error>')


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(async_s3, "FIRST_WAIT_S", 0.001)


def answers_of(*answers: bytes | None) -> Callable[[str], bytes | None]:
    """One after the other; the last one for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def asked(
    store: AnsweringStore, method: str = "PUT", key: str = "a", *, query: Mapping[str, str] | None = None
) -> Response:
    """One request of a client of its own."""

    async def ask() -> Response:
        address = StoreAddress(url="s3://lake", endpoint=store.endpoint, region="us-east-1")
        async with AsyncS3(address, 4) as s3:
            return await s3.request(method, key, query, attempts=4)

    return asyncio.run(ask())


def test_keys_are_sent_as_they_are() -> None:
    async def ask(endpoint: str) -> None:
        async with AsyncS3(StoreAddress(url="s3://lake", endpoint=endpoint), 1) as s3:
            for key in AWKWARD_KEYS:
                await s3.request("GET", key, {"versionId": "a+b/="})

    with answering_store(answers_of(DONE)) as store:
        asyncio.run(ask(store.endpoint))
    sent = [request.split(" ", 2)[1].partition("?") for request in store.requests]
    assert [unquote(path) for path, _, _ in sent] == [f"/lake/{key}" for key in AWKWARD_KEYS]
    assert {query for _, _, query in sent} == {"versionId=a%2Bb%2F%3D"}


def test_nothing_is_sent_that_the_signature_or_the_object_would_not_bear() -> None:
    with answering_store(answers_of(DONE)) as store:
        asked(store)
    lines = store.requests[0].lower()
    assert "content-type:" not in lines
    assert "accept-encoding:" not in lines
    assert "signedheaders=host;x-amz-content-sha256;x-amz-date," in lines


@pytest.mark.parametrize(
    "fault",
    [
        SLOW,
        ERROR_INSIDE,
        said("500 Internal Server Error"),
        said("429 Too Many Requests"),
        said("400 Bad Request", "<Error><Code>RequestTimeout</Code></Error>"),
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf",
    ],
    ids=["503", "error in a 200", "500", "429", "timeout of the store", "broken line", "nonsense"],
)
def test_what_passes_is_tried_again(fault: bytes) -> None:
    with answering_store(answers_of(fault, fault, DONE), closes=not fault.startswith(b"HTTP")) as store:
        store.closes = b"half" in fault
        assert asked(store).text("ETag") == '"one"'
        assert len(store.requests) >= 3


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (404, "NoSuchKey"), (412, "PreconditionFailed")]
)
@pytest.mark.parametrize("inside", [False, True], ids=["as a status", "in a 200"])
def test_what_stays_is_a_result_at_once(status: int, code: str, *, inside: bool) -> None:
    line = "200 OK" if inside else f"{status} No"
    with answering_store(answers_of(said(line, f"<Error><Code>{code}</Code></Error>"))) as store:
        answer = asked(store)
    assert (answer.status, answer.code, len(store.requests)) == (status, code, 1)


def test_an_object_that_looks_like_an_error_is_an_object() -> None:
    with answering_store(answers_of(said("200 OK", "<Error><Code>InternalError</Code></Error>"))) as store:
        assert asked(store, "GET").status == 200


def test_a_store_that_always_asks_to_slow_down_has_the_last_word() -> None:
    with answering_store(answers_of(SLOW)) as store:
        answer = asked(store)
    assert (answer.status, answer.message, len(store.requests)) == (503, "Reduce your rate", 4)


def test_a_store_that_does_not_answer_is_told_as_a_sentence() -> None:
    with answering_store(answers_of(b"")) as store, pytest.raises(NoResponse) as refused:
        asked(store, key="a b")
    assert "s3://lake/a b: the store does not answer" in str(refused.value)
    assert "Check the endpoint and the network" in str(refused.value)


@pytest.mark.parametrize(
    "elsewhere",
    [
        said("301 Moved", "<Error><Code>PermanentRedirect</Code></Error>", "x-amz-bucket-region: eu-north-1"),
        said(
            "400 Bad Request",
            "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region></Error>",
        ),
        said("400 Bad Request", "", "x-amz-bucket-region: eu-north-1"),
    ],
    ids=["redirect", "region in the body", "HEAD"],
)
def test_a_region_that_the_store_names_is_learnt(elsewhere: bytes) -> None:
    with answering_store(answers_of(elsewhere, DONE)) as store:
        assert asked(store).status == 200
    assert "/us-east-1/s3/" in store.requests[0]
    assert "/eu-north-1/s3/" in store.requests[1]


def test_a_new_bucket_is_followed_to_where_it_is() -> None:
    with answering_store(answers_of(DONE)) as there:
        moved = said("307 Temporary Redirect", "", f"Location: {there.endpoint}/lake/a")
        with answering_store(answers_of(moved)) as store:
            assert asked(store).status == 200
    assert there.requests[0].startswith("PUT /lake/a ")


@pytest.mark.parametrize(
    ("url", "region", "wanted"),
    [
        ("s3://lake", "eu-north-1", "https://lake.s3.eu-north-1.amazonaws.com"),
        ("s3://my.lake", "eu-north-1", "https://s3.eu-north-1.amazonaws.com/my.lake"),
        ("s3://lake", "cn-north-1", "https://lake.s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_buckets_of_aws_are_hosts_where_their_name_allows(url: str, region: str, wanted: str) -> None:
    s3 = AsyncS3(StoreAddress(url=url, region=region), 1)
    assert s3.identity.bucket_url(s3.address.bucket) == wanted


def test_without_credentials_the_request_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")
    with answering_store(answers_of(DONE)) as store, pytest.raises(BackupError, match="AWS_ACCESS_KEY_ID"):
        asked(store)


def test_at_most_as_many_are_in_flight_as_the_pace_allows_and_fewer_after_a_cut() -> None:
    most: list[int] = []

    async def work(pace: Pace) -> None:
        await pace.enter()
        most.append(pace.in_flight)
        await asyncio.sleep(0)
        pace.leave()

    async def run() -> Pace:
        pace = Pace(8)
        await asyncio.gather(*(work(pace) for _ in range(40)))
        assert max(most) == 8
        most.clear()
        pace.slow_down()
        pace.slow_down()  # of the same congestion
        await asyncio.gather(*(work(pace) for _ in range(40)))
        assert max(most) == 4
        most.clear()
        for _ in range(100):
            pace.record_success()
        await asyncio.gather(*(work(pace) for _ in range(40)))
        assert max(most) == 8
        return pace

    pace = asyncio.run(run())
    assert (pace.slowed, pace.in_flight) == (1, 0)


@pytest.mark.parametrize(("prefixes", "wanted_s"), [(1, 1.0), (2, 0.0)])
def test_a_prefix_takes_no_more_writes_a_second_than_it_bears(
    monkeypatch: pytest.MonkeyPatch, prefixes: int, wanted_s: float
) -> None:
    now_s = 1000.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    # Of this module only: threads of other tests may sleep, too.
    monkeypatch.setattr(pace_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(pace_module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))

    async def run() -> None:
        pace = Pace(64, prefix_per_s=50)
        for number in range(100):
            await pace.enter(f"p{number % prefixes}")
            pace.leave()

    asyncio.run(run())
    # 50 at once, 50 more within the next second; two prefixes have tokens of their own.
    assert now_s - 1000 == pytest.approx(wanted_s, abs=0.01)


def test_credentials_that_are_not_there_or_do_not_come_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile that no file has, none at all, and a token service that takes the request and never answers."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    address = StoreAddress(url="s3://lake", endpoint="http://127.0.0.1:9", region="us-east-1")
    with pytest.raises(BackupError, match=r"s3://lake.*nobody.*name a profile"):
        open_store(address.model_copy(update={"profile": "nobody"})).read("a")
    with pytest.raises(BackupError, match=r"s3://lake.*no credentials for it.*AWS_ACCESS_KEY_ID"):
        asyncio.run(Identity(address).keys())
    (tmp_path / "token").write_text("x")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::000000000000:role/reader")
    with pytest.raises(
        BackupError, match=r"(?s)ParamValidationError\): .*Invalid length for parameter WebIdentityToken"
    ):
        asyncio.run(Identity(address).keys())
    (tmp_path / "token").write_text("token")
    monkeypatch.setattr(store_module, "Service", partial(Service, answer_s=0.2))
    with answering_store(lambda _: None) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.endpoint)
        with pytest.raises(BackupError, match=r"credentials of s3://lake does not answer.*0\.2 seconds"):
            asyncio.run(Identity(address).keys())
