"""Runs that outlive their first keys: the chains of credentials renew them, or the run fails and publishes nothing.

The keys are of SeaweedFS's STS and live for seconds; an endpoint of container credentials hands them out.
"""

import os
from collections.abc import Iterator

import deltalake
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.stores import make_delta_options
from lakeshare_pipelines.wap.staged import open_delta
from lakeshare_server.errors import Unavailable
from lakeshare_server.storage import Stores
from tests.builders.apart import process_apart
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.issued_keys import OTHER_KEYS, URI, KeyIssuer, key_issuer, run_longer_than_keys
from tests.builders.waiting import wait_until
from tests.integration.s3_server import REGION, S3Server, S3User, a_client, running_s3

KEYS_S = 4


@pytest.fixture(scope="module")
def short_lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3"), KEYS_S) as server:
        server.client().create_bucket(Bucket="lake")
        yield server


@pytest.fixture
def issuer(short_lived: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyIssuer]:
    for name in OTHER_KEYS:
        monkeypatch.delenv(name, raising=False)
    with key_issuer(short_lived) as issuer:
        monkeypatch.setenv(URI, issuer.uri)
        yield issuer


def outlive(s3: S3Server, issuer: KeyIssuer) -> None:
    """Wait until the store refuses the keys that were issued last."""
    keys = issuer.issued[-1]
    user = S3User(keys["AccessKeyId"], keys["SecretAccessKey"])
    client = a_client(s3.endpoint, user, keys["Token"])

    def has_ended() -> bool:
        try:
            client.list_objects_v2(Bucket="lake", MaxKeys=1)
        except ClientError:
            return True
        return False

    wait_until(has_ended, look_s=0.2)


def test_obstore_and_deltalake_go_on_with_renewed_keys_and_write_nothing_without(
    short_lived: S3Server, issuer: KeyIssuer
) -> None:
    settings = LakeSettings(_env_file=None, s3_endpoint=short_lived.endpoint, s3_region=REGION)
    stores = Stores(settings)
    table, row = "s3://lake/of sales", pa.table({"id": [1]})

    def append(stores: Stores) -> None:
        deltalake.write_deltalake(
            table, row, mode="append", storage_options=make_delta_options(stores, table)
        )

    stores.write("s3://lake/first", b"1")
    append(stores)
    outlive(short_lived, issuer)
    stores.write("s3://lake/second", b"2")
    append(stores)
    issuer.fails = True
    outlive(short_lived, issuer)
    with pytest.raises(Unavailable, match="credentials"):
        stores.write("s3://lake/third", b"3")
    with pytest.raises(Unavailable, match="credentials"):
        append(stores)
    issuer.fails = False
    # As a rerun has it: without what this one has seen of the chain.
    stores = Stores(settings)
    assert stores.head("s3://lake/third") is None
    stores.write("s3://lake/third", b"3")
    append(stores)
    opened = open_delta(stores, table)
    assert opened is not None
    assert (opened.version(), opened.count()) == (2, 3)


# For minutes: under `make campaign` only.
if IS_CAMPAIGN:

    @pytest.mark.campaign
    def test_a_run_goes_on_with_renewed_keys_and_publishes_nothing_without(
        short_lived: S3Server, issuer: KeyIssuer, tmp_path
    ) -> None:
        """Spark's S3A, S3FileIO, deltalake and obstore, for more than half a minute."""
        settings = {
            "state_dir": tmp_path / "state",
            "warehouse": "s3://lake/tables",
            "s3_endpoint": short_lived.endpoint,
            "s3_region": REGION,
        }
        with process_apart({URI: os.environ[URI]}) as apart:
            found = apart(run_longer_than_keys, settings, tmp_path / "contracts", KEYS_S)
        assert {name: numbers for name, (numbers, _) in found.items()} == {"iceberg": [0, 1], "delta": [0, 1]}
        for _, refused in found.values():
            assert "credentials" in refused
        assert len(issuer.issued) > len(found)
