"""A copy that is killed at random points loses nothing, and copies nothing twice beyond one batch."""

import asyncio
import random
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.async_s3 import AsyncS3
from lakeshare_pipelines.backup.copy.engine import Ledger
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from tests.builders.backup_copies import WORK, a_plan, a_task, done_of
from tests.builders.campaign import campaign_size
from tests.builders.killed_copy import NEVER, killed_copies
from tests.builders.small_batches import BATCH
from tests.integration.s3_server import REGION, S3Server

KILLS = campaign_size(in_ci=4, in_campaign=20)
POINTS = [random.Random(number).randint(1, 60) for number in range(KILLS)]
"""Requests after which a run is killed."""
OBJECTS = sum(POINTS)
"""So many that no run comes to its end before it is killed."""


async def fill(lake: StoreAddress) -> None:
    async with AsyncS3(lake, 32) as s3:
        keys = [f"t/part-{number}" for number in range(OBJECTS)]
        answers = await asyncio.gather(*(s3.request("PUT", key, body=b"rows") for key in keys))
    assert all(answer.is_success for answer in answers)


@pytest.mark.campaign
def test_nothing_is_lost_and_at_most_a_batch_is_copied_again(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
    client = s3.client()
    lake, vault = (
        StoreAddress(url=f"s3://{name}", endpoint=s3.endpoint, region=REGION) for name in ("lake", "vault")
    )
    for one in (lake, vault):
        client.create_bucket(Bucket=one.bucket)
    client.put_bucket_versioning(Bucket=vault.bucket, VersioningConfiguration={"Status": "Enabled"})
    asyncio.run(fill(lake))
    keys = a_plan(tmp_path / "plan", lake)
    task, store = a_task(tmp_path, lake, vault, in_flight=4), open_store(vault)

    def copied() -> list[str]:
        """Every copy that was made, by its key: each is a version."""
        return [one.key for one in store.versions("objects/")]

    again = 0
    with killed_copies(tmp_path, task) as copies:
        for point in POINTS:
            assert copies.copy(point)
            told = sum(batch.num_rows for batch in Ledger(store, WORK).rows())
            untold = len(copied()) - again - told
            assert 0 <= untold <= BATCH
            again += untold
        assert not copies.copy(NEVER)
    assert again > 0
    assert set(copied()) == {f"objects/{key}" for key in keys}
    assert len(copied()) == OBJECTS + again
    done = done_of(task)
    assert {row["status"] for row in done.values()} == {"succeeded"}
    assert sorted(done) == sorted(keys)
