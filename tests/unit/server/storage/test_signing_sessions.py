"""One answer, one end: its URLs never outlive what signs them, whichever stores its files are in."""

import datetime as dt
import re
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from lakeshare_server.errors import BadRequest, Unavailable, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores, sigv4
from lakeshare_server.storage.location_columns import byte_strings
from tests.builders.answering_store import answering_store, said

SETTINGS = ServerSettings(_env_file=None, s3_region="eu-north-1")


def signers(settings: ServerSettings = SETTINGS) -> Signers:
    return Signers(settings, LocalSigner(b"k", "http://host/files"))


def ticket(_folder: str) -> str:
    return "ticket"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SK")


def ending_in(monkeypatch: pytest.MonkeyPatch, minutes: int) -> int:
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", ends.isoformat())
    return int(ends.timestamp() * 1000)


def test_an_answer_ends_with_the_first_of_its_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_ms = ending_in(monkeypatch, minutes=20)
    session = signers().session(["", "s3://lake"], ticket, 3600)
    assert ends_ms - 2000 < session.expires_at_ms <= ends_ms
    for roots, life_s in (([""], 3600), (["s3://lake"], 60)):
        before_ms = time.time() * 1000
        found = signers().session(roots, ticket, life_s)
        # Some ends are told in whole seconds.
        assert before_ms - 1000 <= found.expires_at_ms - life_s * 1000 <= time.time() * 1000


def test_keys_that_have_ended_sign_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ending_in(monkeypatch, minutes=-1)
    with pytest.raises(Unavailable, match="no credentials for S3"):
        signers().session(["s3://lake"], ticket, 3600)


def test_files_of_one_store_and_of_several_are_signed_in_order() -> None:
    one = signers().session(["s3://lake"], ticket, 60)
    first, second = byte_strings(one.sign(pa.array(["s3://lake/b c", "s3://lake/a"])))
    assert first.startswith(b"https://lake.s3.eu-north-1.amazonaws.com/b%20c?X-Amz-Algorithm=")
    assert second.startswith(b"https://lake.s3.eu-north-1.amazonaws.com/a?")
    [local] = byte_strings(signers().session(["/"], ticket, 60).sign(pa.array(["/a b"])))
    assert local.startswith(b"http://host/files/ticket/a%20b?")
    many = signers().session(["/", "s3://lake", "s3://lake2"], ticket, 60)
    urls = many.sign(pa.array(["s3://lake2/x", "/a b", "s3a://lake/y", "file:///c", "s3://lake/z"]))
    assert [url.partition(b"?")[0] for url in byte_strings(urls)] == [
        b"https://lake2.s3.eu-north-1.amazonaws.com/x",
        b"http://host/files/ticket/a%20b",
        b"https://lake.s3.eu-north-1.amazonaws.com/y",
        b"http://host/files/ticket/c",
        b"https://lake.s3.eu-north-1.amazonaws.com/z",
    ]


def test_a_slice_of_a_column_is_signed_as_it_is() -> None:
    paths = pa.array([f"s3://lake/{number}" for number in range(10)])
    signed = signers().session(["s3://lake"], ticket, 60).sign(paths.slice(4, 2))
    assert [url.partition(b"?")[0].rpartition(b"/")[2] for url in byte_strings(signed)] == [b"4", b"5"]


def test_a_file_somewhere_else_is_refused_and_not_left_out() -> None:
    with pytest.raises(Unserveable, match=r"s3://lake2/x lies in a store"):
        signers().session(["s3://lake"], ticket, 60).sign(pa.array(["s3://lake/a", "s3://lake2/x"]))
    with pytest.raises(BadRequest, match="location"):
        signers().session(["s3://lake"], ticket, 60).sign(pa.array(["hdfs://host/x"]))


def test_a_bucket_of_aws_is_signed_for_in_its_own_region(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering_store(lambda _: said("403 Forbidden", "", "x-amz-bucket-region: ap-south-1")) as aws:
        monkeypatch.setattr(sigv4, "AWS", re.compile(r"127\.0\.0\.1"))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", aws.endpoint)
        made = signers(ServerSettings(_env_file=None, s3_path_style=True))
        for _ in range(2):
            (url,) = byte_strings(made.session(["s3://lake"], ticket, 60).sign(pa.array(["s3://lake/x"])))
            assert b"%2Fap-south-1%2Fs3%2F" in url
        assert [request.split(" ")[:2] for request in aws.requests] == [["HEAD", "/lake"]]


@pytest.mark.parametrize(
    ("location", "library", "extra"),
    [
        ("s3://lake/x", "boto3", "s3"),
        ("gs://lake/x", "google.auth", "gcs"),
        ("abfss://c@a.dfs.core.windows.net/x", "azure.identity", "azure"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    location: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Unavailable, match=rf"is not installed. Install lakeshare\[{extra}\]"):
        Stores(SETTINGS).read(location)


def test_a_server_of_local_tables_loads_no_vendors_library() -> None:
    loads = (
        "import sys, lakeshare_server.storage; "
        "print({name.partition('.')[0] for name in sys.modules} & {'boto3', 'botocore', 'azure', 'google'})"
    )
    ended = subprocess.run([sys.executable, "-c", loads], check=True, capture_output=True, text=True)
    assert ended.stdout == "set()\n"
