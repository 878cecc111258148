"""On an S3 server that takes every key and keeps ETags of parts, copies have every key, and the same composite ETag."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.stores import StoreAddress
from tests.builders.backup_copies import a_plan, a_task, done_of
from tests.builders.keys import AWKWARD_KEYS
from tests.integration.ministack import MiniStack, running_ministack
from tests.integration.s3_server import REGION, a_client
from tests.integration.test_backup_copies import in_parts

MIB = 1024**2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    with running_ministack(tmp_path_factory.mktemp("ministack")) as running:
        yield running


def test_every_key_and_every_part_is_copied(
    tmp_path: Path, server: MiniStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The credentials are a profile's, the source's and the target's alike.
    credentials = tmp_path / "credentials"
    keys = f"aws_access_key_id={server.user.access_key}\naws_secret_access_key={server.user.secret_key}\n"
    credentials.write_text(f"[backups]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    lake, vault = (
        StoreAddress(url=f"s3://{name}", endpoint=server.endpoint, region=REGION, profile="backups")
        for name in ("lake", "vault")
    )
    client = a_client(server.endpoint, server.user)
    for one in (lake, vault):
        client.create_bucket(Bucket=one.bucket)
    for key in AWKWARD_KEYS:
        client.put_object(Bucket="lake", Key=key, Body=f"body of {key}".encode())
    etag = in_parts(client, lake, "large", random.Random(7).randbytes(12 * MIB + 5), 5 * MIB)
    planned = a_plan(tmp_path / "plan", lake)
    assert set(AWKWARD_KEYS) <= set(planned)
    task = a_task(tmp_path, lake, vault, copy_limit_bytes=5 * MIB)
    assert LocalEngine().copy(task, lambda _: None).failed == 0
    for key in AWKWARD_KEYS:
        copied = client.get_object(Bucket="vault", Key=f"objects/{key}")["Body"].read()
        assert copied == f"body of {key}".encode(), key
    head = client.head_object(Bucket="vault", Key="objects/large")
    assert head["ETag"].strip('"') == etag == done_of(task)["large"]["stored_etag"]
    assert etag.endswith("-3")
