"""Copies on a real S3 server: inside the store, by parts, between stores and folders; resumed, refused, told of."""

import asyncio
import json
import os
import random
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from lakeshare_pipelines.backup.async_s3 import AsyncS3
from lakeshare_pipelines.backup.copy.local import LocalEngine, probe_capabilities
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError, NoResponse
from tests.builders.backup_copies import WORK, a_plan, a_task, done_of
from tests.builders.keys import AWKWARD_KEYS
from tests.integration.s3_server import REGION, S3Server

MIB = 1024**2
NOT_ON_SEAWEEDFS = {"..", "./a", "a/", "a/./b", "a/../b", "a//b", "//a", "/a", "a\\b"}


@pytest.fixture(autouse=True)
def _keys(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)


@pytest.fixture
def client(s3: S3Server) -> Any:
    return s3.client()


@pytest.fixture
def lake(s3: S3Server, client: Any, request: pytest.FixtureRequest) -> StoreAddress:
    """A bucket with a few objects."""
    source = a_bucket(s3, client, f"lake-{crc32(request.node.name.encode())}")
    for number in range(20):
        body = f"row {number}".encode() * 50
        client.put_object(
            Bucket=source.bucket, Key=f"t/part-{number:02}", Body=body, Metadata={"n": str(number)}
        )
    return source


@pytest.fixture
def vault(s3: S3Server, client: Any, lake: StoreAddress) -> StoreAddress:
    """A bucket for the copies."""
    return a_bucket(s3, client, lake.bucket.replace("lake", "vault"))


def a_bucket(s3: S3Server, client: Any, name: str) -> StoreAddress:
    client.create_bucket(Bucket=name)
    return StoreAddress(url=f"s3://{name}", endpoint=s3.endpoint, region=REGION)


def read(client: Any, address: StoreAddress, key: str) -> bytes:
    content: bytes = client.get_object(Bucket=address.bucket, Key=key)["Body"].read()
    return content


def by_another_name(address: StoreAddress) -> StoreAddress:
    """The same server as another store: nothing can be copied inside it."""
    return address.model_copy(update={"endpoint": str(address.endpoint).replace("localhost", "127.0.0.1")})


@pytest.mark.parametrize("way", ["inside", "streamed"])
def test_objects_are_copied_with_what_belongs_to_them(
    tmp_path: Path, client: Any, lake: StoreAddress, vault: StoreAddress, way: str
) -> None:
    client.put_object(
        Bucket=lake.bucket, Key="tagged", Body=b"x", ContentType="text/x", Tagging="a=1&b=c%20d"
    )
    for key in set(AWKWARD_KEYS) - NOT_ON_SEAWEEDFS:
        client.put_object(Bucket=lake.bucket, Key=key, Body=key.encode())
    keys = a_plan(tmp_path / "plan", lake, held=["t/part-00"])
    target = vault if way == "inside" else by_another_name(vault)
    task = a_task(tmp_path, lake, target)
    record = LocalEngine().copy(task, lambda _: None)
    assert (record.succeeded, record.failed) == (len(keys), 0)
    for key, row in done_of(task).items():
        content = read(client, lake, key)
        assert read(client, vault, f"objects/{key}") == content
        head = client.head_object(Bucket=vault.bucket, Key=f"objects/{key}")
        assert row["stored_etag"] == head["ETag"].strip('"')
        assert head["Metadata"] == client.head_object(Bucket=lake.bucket, Key=key)["Metadata"]
        assert row["checksum"] == (None if way == "inside" else f"sha256:{sha256(content).hexdigest()}")
    tags = client.get_object_tagging(Bucket=vault.bucket, Key="objects/tagged")["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"a": "1", "b": "c d"}
    assert client.head_object(Bucket=vault.bucket, Key="objects/tagged")["ContentType"] == "text/x"
    assert "NoSuchKey" in str(_error(lambda: read(client, vault, "objects/t/part-00")))


def _error(work: Any) -> Exception:
    with pytest.raises(Exception, match=r".") as caught:
        work()
    return caught.value


@pytest.mark.parametrize("way", ["inside", "streamed"])
def test_a_large_object_goes_in_the_parts_it_was_written_in(
    tmp_path: Path, client: Any, lake: StoreAddress, vault: StoreAddress, way: str
) -> None:
    content = random.Random(7).randbytes(12 * MIB + 5)
    etag = in_parts(client, lake, "large", content, 5 * MIB)
    client.put_object(Bucket=lake.bucket, Key="single", Body=content[: 11 * MIB])
    a_plan(tmp_path / "plan", lake)
    target = vault if way == "inside" else by_another_name(vault)
    task = a_task(tmp_path, lake, target, copy_limit_bytes=5 * MIB)
    assert LocalEngine().copy(task, lambda _: None).failed == 0
    assert read(client, vault, "objects/large") == content
    assert read(client, vault, "objects/single") == content[: 11 * MIB]
    head = client.head_object(Bucket=vault.bucket, Key="objects/large")
    assert head["Metadata"] == {"of": "large"}
    assert head["ContentType"] == "text/parts"
    if way == "streamed":
        assert head["ETag"].strip('"') == etag
        assert done_of(task)["large"]["checksum"] == f"sha256:{sha256(content).hexdigest()}"
    assert client.list_multipart_uploads(Bucket=vault.bucket).get("Uploads", []) == []


def in_parts(client: Any, address: StoreAddress, key: str, content: bytes, part_bytes: int) -> str:
    upload = client.create_multipart_upload(
        Bucket=address.bucket, Key=key, Metadata={"of": key}, ContentType="text/parts"
    )["UploadId"]
    parts = []
    for number, start in enumerate(range(0, len(content), part_bytes), start=1):
        sent = client.upload_part(
            Bucket=address.bucket,
            Key=key,
            UploadId=upload,
            PartNumber=number,
            Body=content[start : start + part_bytes],
        )
        parts.append({"PartNumber": number, "ETag": sent["ETag"]})
    done = client.complete_multipart_upload(
        Bucket=address.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
    )
    etag: str = done["ETag"].strip('"')
    return etag


def test_what_vanished_or_changed_is_a_failed_row(
    tmp_path: Path, client: Any, lake: StoreAddress, vault: StoreAddress
) -> None:
    content = os.urandom(6 * MIB)
    in_parts(client, lake, "large", content, 5 * MIB)
    a_plan(tmp_path / "plan", lake)
    client.delete_object(Bucket=lake.bucket, Key="t/part-03")
    client.put_object(Bucket=lake.bucket, Key="t/part-04", Body=b"another")
    in_parts(client, lake, "large", content[::-1], 5 * MIB)
    task = a_task(tmp_path, lake, vault, copy_limit_bytes=5 * MIB)
    record = LocalEngine().copy(task, lambda _: None)
    failed = {key: row["error_code"] for key, row in done_of(task).items() if row["status"] == "failed"}
    assert failed == {
        "t/part-03": "NoSuchKey",
        "t/part-04": "PreconditionFailed",
        "large": "PreconditionFailed",
    }
    assert (record.succeeded, record.failed) == (18, 3)
    assert client.list_multipart_uploads(Bucket=vault.bucket).get("Uploads", []) == []


def test_a_bucket_goes_to_a_folder_and_back_as_it_was(
    tmp_path: Path, s3: S3Server, client: Any, lake: StoreAddress, vault: StoreAddress
) -> None:
    content = random.Random(8).randbytes(17 * MIB)
    client.put_object(Bucket=lake.bucket, Key="t/large", Body=content)
    keys = a_plan(tmp_path / "plan", lake)
    folder = StoreAddress(url=str(tmp_path / "vault"))
    out = a_task(tmp_path, lake, folder)
    assert LocalEngine().copy(out, lambda _: None).failed == 0
    a_plan(tmp_path / "back" / "plan", StoreAddress(url=str(tmp_path / "vault" / "objects")), stored="back/")
    back = a_task(tmp_path / "back", StoreAddress(url=str(tmp_path / "vault" / "objects")), vault)
    assert LocalEngine().copy(back, lambda _: None).failed == 0
    for key in keys:
        assert read(client, vault, f"back/{key}") == read(client, lake, key)
        listed = client.head_object(Bucket=lake.bucket, Key=key)["LastModified"]
        assert Path(folder.url, "objects", key).stat().st_mtime == listed.timestamp()
        assert done_of(out)[key]["checksum"] == done_of(back)[key]["checksum"] is not None


def test_every_version_that_is_asked_for_is_the_one_that_is_copied(
    tmp_path: Path, client: Any, lake: StoreAddress, vault: StoreAddress
) -> None:
    import pyarrow as pa

    from lakeshare_pipelines.backup.model import COPIES, read_table, write_rows

    for bucket in (lake.bucket, vault.bucket):
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    old = client.put_object(Bucket=lake.bucket, Key="t/part-00", Body=b"old")
    client.put_object(Bucket=lake.bucket, Key="t/part-00", Body=b"new")
    a_plan(tmp_path / "all" / "plan", lake)
    rows = [row for row in read_table(tmp_path / "all" / "plan", COPIES).to_pylist() if "00" in row["key"]]
    rows[0] |= {"version_id": old["VersionId"], "etag": old["ETag"].strip('"'), "size_bytes": 3}
    write_rows(tmp_path / "plan", COPIES, [pa.Table.from_pylist(rows, COPIES)])
    task = a_task(tmp_path, lake, vault)
    record = LocalEngine().copy(task, lambda _: None)
    stored = done_of(task)["t/part-00"]
    assert read(client, vault, "objects/t/part-00") == b"old"
    assert (
        stored["stored_version_id"]
        == client.head_object(Bucket=vault.bucket, Key="objects/t/part-00")["VersionId"]
    )
    assert record.capabilities["versions"]


def test_an_upload_goes_on_where_a_run_broke_off(
    tmp_path: Path, client: Any, lake: StoreAddress, vault: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(9).randbytes(21 * MIB)
    in_parts(client, lake, "large", content, 5 * MIB)
    a_plan(tmp_path / "plan", lake, held=[f"t/part-{number:02}" for number in range(20)])
    task = a_task(tmp_path, lake, vault, copy_limit_bytes=5 * MIB, in_flight=1)
    sent, request, dead_from = list[str](), AsyncS3.request, 4

    async def breaking(
        self: AsyncS3, method: str, key: str = "", query: Any = None, *rest: Any, **more: Any
    ) -> Any:
        number = (query or {}).get("partNumber") if method == "PUT" and key.startswith("objects/") else None
        while number and int(number) >= dead_from and len(sent) < 3:
            await asyncio.sleep(0.01)
        if number and int(number) >= dead_from:
            raise NoResponse(key, "the line is dead")
        answer = await request(self, method, key, query, *rest, **more)
        sent.extend([number] if number else [])
        return answer

    monkeypatch.setattr(AsyncS3, "request", breaking)
    assert LocalEngine().copy(task, lambda _: None).failed == 1
    assert "the line is dead" in done_of(task)["large"]["message"]
    assert sorted(sent) == ["1", "2", "3"]
    dead_from = 99
    assert LocalEngine().copy(task, lambda _: None).succeeded == 1
    assert read(client, vault, "objects/large") == content
    assert sorted(sent) == ["1", "2", "3", "4", "5"]


def test_who_may_write_nothing_there_is_told_before_anything_is_copied(
    tmp_path: Path, s3: S3Server, lake: StoreAddress, vault: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_plan(tmp_path / "plan", lake)
    for user, words in ((s3.stranger, "access is denied"), ("wrong", "does not belong to the access key")):
        known = s3.admin if user == "wrong" else s3.stranger
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", known.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" if user == "wrong" else known.secret_key)
        with pytest.raises(BackupError, match=words):
            LocalEngine().copy(a_task(tmp_path, lake, vault), lambda _: None)
    assert not (tmp_path / "done").exists()


def test_what_the_store_does_is_found_out_by_trying(vault: StoreAddress, client: Any) -> None:
    async def ask() -> dict[str, bool]:
        async with AsyncS3(vault, 8) as s3:
            return (await probe_capabilities(s3, WORK)).model_dump()

    assert asyncio.run(ask()) == {
        "copies_on_condition": True,
        "copies_parts": True,
        "writes_on_condition": True,
        "checks_checksums": True,
        "versions": False,
        "locks": False,
    }
    assert client.list_multipart_uploads(Bucket=vault.bucket).get("Uploads", []) == []


def test_one_prefix_that_is_denied_fails_and_all_else_is_copied(
    tmp_path: Path,
    s3: S3Server,
    client: Any,
    lake: StoreAddress,
    vault: StoreAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(5):
        client.put_object(Bucket=lake.bucket, Key=f"secret/{number}", Body=b"x")
    a_plan(tmp_path / "plan", lake)
    session = a_session(s3, denied=f"arn:aws:s3:::{vault.bucket}/objects/secret/*")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", session["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", session["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", session["SessionToken"])
    task = a_task(tmp_path, lake, vault)
    record = LocalEngine().copy(task, lambda _: None)
    denied = {key: row["error_code"] for key, row in done_of(task).items() if row["status"] == "failed"}
    assert denied == {f"secret/{number}": "AccessDenied" for number in range(5)}
    assert (record.succeeded, record.failed) == (20, 5)


def a_session(s3: S3Server, denied: str) -> dict[str, str]:
    """Keys of a role that may everything but write to one prefix."""
    import boto3

    sts = boto3.client(
        "sts",
        endpoint_url=s3.endpoint,
        region_name=REGION,
        aws_access_key_id=s3.admin.access_key,
        aws_secret_access_key=s3.admin.secret_key,
    )
    everything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]}
    never = {"Effect": "Deny", "Action": ["s3:PutObject"], "Resource": [denied]}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [everything, never]})
    answer = sts.assume_role(RoleArn=s3.role_arn, RoleSessionName="copies", Policy=policy)
    keys: dict[str, str] = answer["Credentials"]
    return keys
