"""On a real S3 server: tables are read, URLs open one object until their end, vended keys read one table only."""

import base64
import hashlib
import http.client
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError
from deltalake import DeltaTable, write_deltalake

from lakeshare_server.catalog import SharedTable, allow_directory_access, share_table
from lakeshare_server.errors import BadRequest, StoreDenied, StoreMissing, Unavailable
from lakeshare_server.outbound import Service
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores, TemporaryCredentials
from lakeshare_server.storage.location_columns import byte_strings
from lakeshare_server.storage.remote import PIECE_BYTES
from lakeshare_server.storage.stores import find_shortcoming
from tests.builders.keys import AWKWARD_KEYS
from tests.builders.sharing import a_provider, a_server
from tests.integration.s3_server import REGION, S3Server, S3User

# SeaweedFS takes no such keys, or makes others of them; so do many, S3 itself does not.
NOT_THERE = ("//", "\\", "./", "..")
KEYS = [
    key
    for key in AWKWARD_KEYS
    if not any(bad in key for bad in NOT_THERE) and not key.startswith(("/", ".")) and not key.endswith("/")
]
READABLE = [key for key in KEYS if key.isprintable() or "\u00a0" in key]
BUCKETS = (f"lake-{number}" for number in itertools.count(1))


@pytest.fixture
def bucket(s3: S3Server) -> str:
    name = next(BUCKETS)
    s3.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def act_as(monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> Callable[..., None]:
    """Gives the server's process the keys of a user."""

    def as_user(user: S3User, token: str | None = None) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", user.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", user.secret_key)
        if token:
            monkeypatch.setenv("AWS_SESSION_TOKEN", token)

    as_user(s3.admin)
    return as_user


def settings_at(s3: S3Server, **more: object) -> ServerSettings:
    return ServerSettings(_env_file=None, s3_endpoint=s3.endpoint, s3_region=REGION, **more)


def signers_at(s3: S3Server, **more: object) -> Signers:
    return Signers(settings_at(s3, **more), LocalSigner(b"k", "http://host"))


def put(s3: S3Server, bucket: str, *keys: str) -> None:
    client = s3.client()
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=f"body of {key}".encode())


def asked(url: bytes, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """An answer to exactly this URL: no client folds or quotes anything in between."""
    parts = urlsplit(url.decode("ascii"))
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


# --- reading


@pytest.mark.usefixtures("act_as")
def test_awkward_keys_are_read_opened_and_found_as_they_are(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, *READABLE)
    stores = Stores(settings_at(s3))
    for key in READABLE:
        body = f"body of {key}".encode()
        location = f"s3://{bucket}/{key}"
        assert stores.read(location) == body
        with stores.open(f"s3a://{bucket}/{key}") as file:
            assert file.size() == len(body)
            file.seek(5)
            assert file.read(2) == b"of"
            assert file.read() == body[7:]
        found = stores.head(location)
        assert found is not None
        assert (found.location, found.size_bytes) == (location, len(body))
        assert abs(found.modified_ms / 1000 - time.time()) < 600
    assert sorted(one.location for one in stores.list(f"s3://{bucket}")) == sorted(
        f"s3://{bucket}/{key}" for key in READABLE
    )


@pytest.mark.usefixtures("act_as")
def test_a_listing_is_in_key_order_whatever_the_server_says(s3: S3Server, bucket: str) -> None:
    keys = [
        "t/_delta_log/0.json",
        "t/_delta_log/1.json",
        "t/_delta_log/2.json",
        "t/a-b",
        "t/a/b",
        "t/a/c",
        "t-2/x",
    ]
    put(s3, bucket, *keys)
    stores = Stores(settings_at(s3))

    def listed(*asked: str) -> list[str]:
        return [one.location.removeprefix(f"s3://{bucket}/") for one in stores.list(*asked)]

    assert listed(f"s3://{bucket}/t") == keys[:6]
    assert listed(f"s3://{bucket}/t/") == keys[:6]
    assert listed(f"s3://{bucket}") == sorted(keys)
    assert listed(f"s3://{bucket}/t/_delta_log", f"s3://{bucket}/t/_delta_log/0.json") == keys[1:3]
    assert listed(f"s3://{bucket}/t/_delta_log", f"s3://{bucket}/t/_delta_log/0") == keys[:3]
    assert listed(f"s3://{bucket}/gone") == []


@pytest.mark.usefixtures("act_as")
def test_a_parquet_file_is_read_by_range_and_not_across_a_change(s3: S3Server, bucket: str) -> None:
    numbers = pa.table({"n": range(200_000), "text": [f"text {number}" for number in range(200_000)]})
    body = pa.BufferOutputStream()
    pq.write_table(numbers, body, row_group_size=20_000)
    client = s3.client()
    client.put_object(Bucket=bucket, Key="f.parquet", Body=body.getvalue().to_pybytes())
    stores = Stores(settings_at(s3))
    with stores.open(f"s3://{bucket}/f.parquet") as file:
        assert pq.read_table(file).equals(numbers)
        parquet = pq.ParquetFile(file, pre_buffer=False)
        assert parquet.read_row_group(3, ["n"])["n"][0].as_py() == 60_000
        client.put_object(Bucket=bucket, Key="f.parquet", Body=b"x" * 3_000_000)
        with pytest.raises(Unavailable, match=r"f\.parquet changed while it was read"):
            parquet.read_row_group(5)


@pytest.mark.parametrize("call", ["read", "open", "head"])
@pytest.mark.parametrize("user", ["stranger", "lister"])
def test_what_the_store_refuses_is_denied(
    s3: S3Server, bucket: str, act_as: Callable[..., None], user: str, call: str
) -> None:
    put(s3, bucket, "t/x")
    act_as(getattr(s3, user))
    with pytest.raises(StoreDenied) as caught:
        getattr(Stores(settings_at(s3)), call)(f"s3://{bucket}/t/x")
    assert caught.value.location == f"s3://{bucket}/t/x"
    assert not any(secret in str(caught.value) for secret in ("AK", "secret"))


@pytest.mark.usefixtures("act_as")
def test_a_checksum_that_the_store_keeps_is_found(s3: S3Server, bucket: str) -> None:
    stores, content = Stores(settings_at(s3)), b"1,2,3"
    digest = hashlib.sha256(content).digest()
    checksum = base64.b64encode(digest).decode()
    s3.client().put_object(Bucket=bucket, Key="with", Body=content, ChecksumSHA256=checksum)
    stores.write(f"s3://{bucket}/without", content)
    found = [stores.s3.stored_sha256(stores.place(f"s3://{bucket}/{name}")) for name in ("with", "without")]
    assert found == [digest.hex(), None]
    with pytest.raises(StoreMissing):
        stores.s3.stored_sha256(stores.place(f"s3://{bucket}/nothing"))


@pytest.mark.usefixtures("act_as")
def test_objects_are_written_once_or_again_and_folders_of_many_pages_listed_and_deleted_with_their_marks(
    s3: S3Server, bucket: str
) -> None:
    stores = Stores(settings_at(s3))
    location = f"s3://{bucket}/t/a b/one"
    assert stores.write(location, b"one")
    assert not stores.write(location, b"two", if_absent=True)
    assert stores.read(location) == b"one"
    assert stores.written_between(f"s3://{bucket}/t") is not None
    put(s3, bucket, *(f"t/{number:04}" for number in range(1_005)), "t-2/x")
    assert len(list(stores.list(f"s3://{bucket}/t"))) == 1_006
    assert len(list(stores.list(f"s3://{bucket}/t", f"s3://{bucket}/t/0999"))) == 6
    s3.client().put_object(Bucket=bucket, Key="t/mark/", Body=b"")
    stores.delete_folder(f"s3://{bucket}/t")
    stores.delete_folder(f"s3://{bucket}/t")
    stores.delete(f"s3://{bucket}/t/gone")
    left = s3.client().list_objects_v2(Bucket=bucket).get("Contents", [])
    assert [one["Key"] for one in left] == ["t-2/x"]
    assert stores.written_between(f"s3://{bucket}/t") is None
    with pytest.raises(BadRequest, match="A whole bucket is not deleted"):
        stores.delete_folder(f"s3://{bucket}")


@pytest.mark.usefixtures("act_as")
def test_a_file_is_uploaded_and_downloaded_in_pieces(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is a call of its own, so that a large file may take longer than one call."""
    calls: list[object] = []
    call = Service.call
    stores = Stores(settings_at(s3))
    assert stores.head(f"s3://{bucket}/t/x") is None
    monkeypatch.setattr(
        Service, "call", lambda *given, **options: (calls.append(given), call(*given, **options))[1]
    )
    source, target = tmp_path / "source", tmp_path / "target"
    for size, pieces in ((0, 1), (5, 1), (PIECE_BYTES, 1), (2 * PIECE_BYTES + 5, 3)):
        source.write_bytes(os.urandom(size))
        stores.upload(source, f"s3://{bucket}/t/x")
        assert len(calls) >= pieces
        calls.clear()
        stores.download(f"s3://{bucket}/t/x", target)
        assert target.read_bytes() == source.read_bytes(), size
        assert len(calls) >= pieces
        calls.clear()


@pytest.mark.parametrize("user", ["stranger", "lister"])
def test_writes_that_the_store_refuses_are_denied(
    s3: S3Server, bucket: str, act_as: Callable[..., None], user: str, tmp_path: Path
) -> None:
    put(s3, bucket, "t/x")
    large = tmp_path / "large"
    large.write_bytes(bytes(3 * PIECE_BYTES))
    act_as(getattr(s3, user))
    stores = Stores(settings_at(s3))
    with pytest.raises(StoreDenied, match=f"refuses to write s3://{bucket}/t/y"):
        stores.write(f"s3://{bucket}/t/y", b"y")
    with pytest.raises(StoreDenied, match=f"refuses to write s3://{bucket}/t/large"):
        stores.upload(large, f"s3://{bucket}/t/large")
    with pytest.raises(StoreDenied, match=f"refuses to delete s3://{bucket}/t/x"):
        stores.delete(f"s3://{bucket}/t/x")
    assert find_shortcoming(stores, f"s3://{bucket}/t") is not None


@pytest.mark.usefixtures("act_as")
def test_a_file_that_was_uploaded_in_chunks_is_handed_out_as_plain_content(s3: S3Server, bucket: str) -> None:
    """SeaweedFS keeps the coding of an upload by Java's SDK; some HTTP clients then refuse to read."""
    s3.client().put_object(Bucket=bucket, Key="t/x", Body=b"parquet", ContentEncoding="aws-chunked")
    session = signers_at(s3).session([f"s3://{bucket}"], lambda _: "ticket", 60)
    [url] = session.sign(pa.array([f"s3://{bucket}/t/x"])).to_pylist()
    assert fsspec.filesystem("http").info(url)["size"] == 7
    assert find_shortcoming(Stores(settings_at(s3)), f"s3://{bucket}/t") is None


def test_wrong_keys_and_a_wrong_bucket_are_told_apart(
    s3: S3Server, bucket: str, act_as: Callable[..., None]
) -> None:
    stores = Stores(settings_at(s3))
    for call in (stores.read, lambda at: list(stores.list(at))):
        with pytest.raises(StoreMissing):
            call("s3://no-such-bucket/t")
    act_as(S3User("AKADMIN", "wrong"))
    with pytest.raises(StoreDenied):
        list(Stores(settings_at(s3)).list(f"s3://{bucket}/t"))


# --- URLs


@pytest.mark.usefixtures("act_as")
def test_a_url_opens_its_object_whole_and_by_range(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, *KEYS)
    session = signers_at(s3).session([f"s3://{bucket}"], lambda _: "ticket", 60)
    urls = byte_strings(session.sign(pa.array([f"s3://{bucket}/{key}" for key in KEYS])))
    for key, url in zip(KEYS, urls, strict=True):
        body = f"body of {key}".encode()
        assert asked(url) == (200, body), key
        assert asked(url, Range="bytes=2-5") == (206, body[2:6]), key


@pytest.mark.usefixtures("act_as")
def test_a_url_that_was_changed_or_has_ended_is_refused(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, "t/one", "t/two")
    session = signers_at(s3).session([f"s3://{bucket}"], lambda _: "ticket", 3)
    (url,) = byte_strings(session.sign(pa.array([f"s3://{bucket}/t/one"])))
    assert asked(url)[0] == 200
    unsigned = url.partition(b"&X-Amz-Signature=")[0]
    assert asked(url.replace(b"t/one", b"t/two"))[0] == 403
    assert asked(url[:-1] + (b"0" if url[-1:] != b"0" else b"1"))[0] == 403
    assert asked(url.replace(b"X-Amz-Expires=3", b"X-Amz-Expires=3000"))[0] == 403
    assert asked(unsigned)[0] in (400, 403)
    assert asked(url.partition(b"?")[0])[0] == 403
    for method in ("PUT", "DELETE"):
        assert asked(url, method, b"changed" if method == "PUT" else None)[0] == 403
    time.sleep(max(0, session.expires_at_ms / 1000 - time.time()) + 1.5)
    status, said = asked(url)
    assert status == 403
    assert b"body of" not in said


@pytest.mark.usefixtures("act_as")
def test_urls_name_what_recipients_can_reach(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, "t/one")
    public = s3.endpoint.replace("localhost", "127.0.0.1")
    signers = signers_at(s3, s3_public_endpoint=public)
    session = signers.session([f"s3://{bucket}"], lambda _: "ticket", 60)
    (url,) = byte_strings(session.sign(pa.array([f"s3://{bucket}/t/one"])))
    assert url.startswith(f"{public}/{bucket}/t/one?".encode())
    assert asked(url) == (200, b"body of t/one")


@pytest.mark.usefixtures("act_as")
def test_an_answer_may_have_files_in_several_places(s3: S3Server, bucket: str) -> None:
    other = next(BUCKETS)
    s3.client().create_bucket(Bucket=other)
    put(s3, bucket, "t/one")
    put(s3, other, "t/two")
    session = signers_at(s3).session(["", f"s3://{other}", f"s3://{bucket}"], lambda _: "ticket", 60)
    paths = ["/lake/a b", f"s3a://{other}/t/two", f"s3://{bucket}/t/one", "file:/lake/c"]
    local, two, one, again = byte_strings(session.sign(pa.array(paths)))
    assert local.startswith(b"http://host/ticket/lake/a%20b?expires=")
    assert again.startswith(b"http://host/ticket/lake/c?expires=")
    assert [asked(url)[1] for url in (one, two)] == [b"body of t/one", b"body of t/two"]
    assert not len(session.sign(pa.array([], pa.string())))


# --- directory access


def client_of(s3: S3Server, vended: TemporaryCredentials) -> Any:
    fields = vended.fields
    return boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        region_name=REGION,
        aws_access_key_id=fields["accessKeyId"],
        aws_secret_access_key=fields["secretAccessKey"],
        aws_session_token=fields["sessionToken"],
    )


def refused(call: Callable[..., Any], **asked: Any) -> bool:
    try:
        call(**asked)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    return False


@pytest.mark.usefixtures("act_as")
@pytest.mark.parametrize("table", ["sales/orders", "odd names/ü+b=c"])
def test_vended_keys_read_the_table_and_nothing_else(s3: S3Server, bucket: str, table: str) -> None:
    sibling = f"{table}2/x"
    put(s3, bucket, f"{table}/_delta_log/0.json", f"{table}/day=1/x", sibling, "sales/x", "secret")
    signers = signers_at(s3, s3_role_arn=s3.role_arn)
    assert signers.can_vend(f"s3://{bucket}/{table}") is None
    vended = signers.vend(f"s3://{bucket}/{table}", 900)
    assert 800_000 < vended.expires_at_ms - time.time() * 1000 < 1_000_000
    client = client_of(s3, vended)

    read = client.get_object(Bucket=bucket, Key=f"{table}/day=1/x")["Body"].read()
    assert read == f"body of {table}/day=1/x".encode()
    assert client.head_object(Bucket=bucket, Key=f"{table}/_delta_log/0.json")["ContentLength"] > 0
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{table}/")["Contents"]
    assert [one["Key"] for one in listed] == [f"{table}/_delta_log/0.json", f"{table}/day=1/x"]

    for key in (sibling, "sales/x", "secret"):
        assert refused(client.get_object, Bucket=bucket, Key=key), key
    for prefix in (table, "sales/", "", f"{table}2/"):
        assert refused(client.list_objects_v2, Bucket=bucket, Prefix=prefix), prefix
    assert refused(client.put_object, Bucket=bucket, Key=f"{table}/day=1/x", Body=b"")
    assert refused(client.put_object, Bucket=bucket, Key=f"{table}/new", Body=b"")
    assert refused(client.delete_object, Bucket=bucket, Key=f"{table}/day=1/x")
    assert refused(client.create_multipart_upload, Bucket=bucket, Key=f"{table}/new")
    assert refused(client.list_buckets) or client.list_buckets()["Buckets"] == []


@pytest.mark.usefixtures("act_as")
def test_a_folder_that_policies_take_for_a_pattern_is_not_vended(s3: S3Server, bucket: str) -> None:
    assert "for a pattern" in str(signers_at(s3, s3_role_arn=s3.role_arn).can_vend(f"s3://{bucket}/st*r"))


@pytest.mark.usefixtures("act_as")
def test_a_delta_table_is_read_with_vended_keys(s3: S3Server, bucket: str) -> None:
    common = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION}
    admin = {"AWS_ACCESS_KEY_ID": s3.admin.access_key, "AWS_SECRET_ACCESS_KEY": s3.admin.secret_key}
    rows = pa.table({"n": [1, 2, 3]})
    for name in ("mine", "other"):
        write_deltalake(f"s3://{bucket}/{name}", rows, storage_options=common | admin)
    vended = signers_at(s3, s3_role_arn=s3.role_arn).vend(f"s3://{bucket}/mine", 900)
    theirs = common | {
        "AWS_ACCESS_KEY_ID": vended.fields["accessKeyId"],
        "AWS_SECRET_ACCESS_KEY": vended.fields["secretAccessKey"],
        "AWS_SESSION_TOKEN": vended.fields["sessionToken"],
    }
    assert DeltaTable(f"s3://{bucket}/mine", storage_options=theirs).to_pyarrow_table().equals(rows)
    for forbidden in (
        lambda: DeltaTable(f"s3://{bucket}/other", storage_options=theirs),
        lambda: write_deltalake(f"s3://{bucket}/mine", rows, mode="append", storage_options=theirs),
    ):
        with pytest.raises(Exception, match=r"403|AccessDenied|permission"):
            forbidden()


@pytest.mark.usefixtures("act_as")
def test_a_folder_is_handed_out_where_the_operator_says_so_and_its_history_is_shared(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Directory access over HTTP (protocol §1.4, §1.10): never by itself, never with a hidden history."""
    common = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION}
    admin = {"AWS_ACCESS_KEY_ID": s3.admin.access_key, "AWS_SECRET_ACCESS_KEY": s3.admin.secret_key}
    rows = pa.table({"n": [1, 2, 3]})
    location = f"s3://{bucket}/mine"
    write_deltalake(location, rows, storage_options=common | admin)
    provider = a_provider(tmp_path, s3_endpoint=s3.endpoint, s3_region=REGION, s3_role_arn=s3.role_arn)
    for name, history in (("open", True), ("closed", True), ("hidden", False)):
        provider.follow(f"lake.{name}", location)
        shared = SharedTable("lake", name, f"lake.{name}", history=history)
        share_table(provider.catalog, "s", shared)
        allow_directory_access(provider.catalog, "s", "lake", name, allowed=name != "closed")
    with a_server(provider) as running, running.client(provider.recipient(shares=("s",))) as client:
        tables = {table["name"]: table for table in client.get("/shares/s/all-tables").json()["items"]}
        assert tables["open"]["location"] == location
        assert tables["open"]["accessModes"] == ["url", "dir"]
        for name, reason in (("closed", "never published"), ("hidden", "history is not shared")):
            assert not {"location", "accessModes"} & set(tables[name])
            refusal = client.post(f"/shares/s/schemas/lake/tables/{name}/temporary-table-credentials")
            assert (refusal.status_code, reason in refusal.json()["message"]) == (400, True)
        answer = client.post("/shares/s/schemas/lake/tables/open/temporary-table-credentials")
        elsewhere = client.post(
            "/shares/s/schemas/lake/tables/open/temporary-table-credentials",
            json={"location": f"s3://{bucket}/other"},
        )
        assert elsewhere.status_code == 400
    granted = answer.json()["credentials"]
    assert granted["location"] == location
    assert granted["expirationTime"] > time.time() * 1000
    keys = granted["awsTempCredentials"]
    theirs = common | {
        "AWS_ACCESS_KEY_ID": keys["accessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["secretAccessKey"],
        "AWS_SESSION_TOKEN": keys["sessionToken"],
    }
    assert DeltaTable(location, storage_options=theirs).to_pyarrow_table().equals(rows)


def test_keys_with_a_session_token_read_and_sign(
    s3: S3Server, bucket: str, act_as: Callable[..., None]
) -> None:
    put(s3, bucket, "t/one", "u/two")
    fields = signers_at(s3, s3_role_arn=s3.role_arn).vend(f"s3://{bucket}/t", 900).fields
    act_as(S3User(fields["accessKeyId"], fields["secretAccessKey"]), fields["sessionToken"])
    assert Stores(settings_at(s3)).read(f"s3://{bucket}/t/one") == b"body of t/one"
    paths = pa.array([f"s3://{bucket}/t/one", f"s3://{bucket}/u/two"])
    one, two = byte_strings(signers_at(s3).session([f"s3://{bucket}"], lambda _: "ticket", 60).sign(paths))
    assert asked(one) == (200, b"body of t/one")
    assert asked(two)[0] == 403
