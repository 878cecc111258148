"""Followed tables of real Iceberg catalogs, configured as pyiceberg's are: Glue, and a REST catalog that signs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyiceberg.catalog import load_catalog

from lakeshare_server.catalog import Ledger
from lakeshare_server.cli import main
from lakeshare_server.errors import Unserveable
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions, list_tables_at
from tests.builders.followed_iceberg import NAME, a_reader, count_of, numbered, pinned, refused, version_of
from tests.builders.iceberg_rest import rest_catalog
from tests.builders.lake_tables import some_rows
from tests.builders.sharing import FLIGHTS, Provider, a_provider, a_server
from tests.integration.ministack import MiniStack, running_ministack
from tests.integration.s3_server import REGION, S3Server, S3User


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    with running_ministack(tmp_path_factory.mktemp("ministack")) as running:
        yield running


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No configuration but the test's own."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def a_provider_in(
    environment: pytest.MonkeyPatch, folder: Path, endpoint: str, user: S3User, catalog: Mapping[str, str]
) -> Provider:
    """One whose settings, all in the environment, name a store and the catalog `lake`."""
    settings = {"LAKESHARE_S3_ENDPOINT": endpoint, "LAKESHARE_S3_REGION": REGION}
    keys = {"AWS_ACCESS_KEY_ID": user.access_key, "AWS_SECRET_ACCESS_KEY": user.secret_key}
    named = {
        f"PYICEBERG_CATALOG__LAKE__{name.upper().replace('-', '_').replace('.', '__')}": value
        for name, value in catalog.items()
    }
    state = {"LAKESHARE_STATE_DIR": str(folder / "state")}
    for name, value in (settings | keys | named | state).items():
        environment.setenv(name, value)
    return a_provider(folder, s3_endpoint=endpoint, s3_region=REGION)


def follow(environment: pytest.MonkeyPatch, location: str) -> None:
    """As the operator types it."""
    arguments = ("table", "follow", location, "--as", NAME, "--share", "flights", "--check-every", "0")
    environment.setattr("sys.argv", ["lakeshare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def a_table(catalog: Any) -> Any:
    """A table of two snapshots in the catalog, as another process would write it."""
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", some_rows().schema)
    table.append(some_rows(days=1))
    table.append(some_rows(days=1))
    return table


def log_of(table: Any) -> list[int]:
    return [entry.snapshot_id for entry in table.refresh().history()]


def is_served_as_it_grows(provider: Provider, table: Any) -> None:
    """Each number reads, at both doors, as the table did; what the catalog holds is in no database of ours."""
    with a_reader(provider) as client:
        assert (version_of(client), count_of(client)) == (1, 2)
        table.append(some_rows(days=1))
        table.append(some_rows(days=1))
        assert version_of(client) == 3
        table.manage_snapshots().set_current_snapshot(log_of(table)[1]).commit()
        assert version_of(client) == 4
        assert [count_of(client, version=number) for number in range(5)] == [1, 2, 3, 4, 2]
    assert pinned(provider) == log_of(table)
    assert numbered(provider)[4].rollback_of == 1
    with a_server(provider) as server:
        keys = {
            name: table.io.properties[name]
            for name in ("s3.endpoint", "s3.region", "s3.access-key-id", "s3.secret-access-key")
        }
        loaded = rest_catalog(server, provider.recipient(), **keys).load_table(NAME)
        assert [entry.snapshot_id for entry in loaded.history()] == log_of(table)
    database = provider.settings.state_dir.joinpath("lakeshare.db").read_bytes()
    assert keys["s3.secret-access-key"].encode() not in database


def is_followed_in_its_folder(provider: Provider, table: Any) -> None:
    """The catalog aside: the newest metadata file of the bucket is found, and found again."""
    provider.follow_iceberg("lake.folder", table.refresh().location())
    versions = Versions(provider.catalog, provider.settings, Stores(provider.settings))
    before = len(log_of(table))
    assert versions.of("lake.folder").latest().number == before - 1
    table.append(some_rows(days=1))
    assert versions.of("lake.folder").latest().number == before
    newest = Ledger(provider.catalog).latest("lake.folder")
    assert newest is not None
    assert (newest.snapshot_id, newest.metadata_location) == (
        table.refresh().current_snapshot().snapshot_id,
        table.metadata_location,
    )


def is_refused_when_dropped(provider: Provider, catalog: Any) -> None:
    catalog.drop_table("sales.orders")
    with a_reader(provider) as client:
        message = refused(client.get(f"{FLIGHTS}/version"), "is not in its catalog")
        assert count_of(client, version=4) == 2
    assert "sales" not in message


def test_a_table_of_glue_is_followed(
    ministack: MiniStack, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = ministack.user
    boto3.client(
        "s3",
        endpoint_url=ministack.endpoint,
        region_name=REGION,
        aws_access_key_id=user.access_key,
        aws_secret_access_key=user.secret_key,
    ).create_bucket(Bucket="glue-lake")
    named = {
        "type": "glue",
        "glue.endpoint": ministack.endpoint,
        "glue.region": REGION,
        "warehouse": "s3://glue-lake/warehouse",
        "s3.access-key-id": user.access_key,
        "s3.secret-access-key": user.secret_key,
    }
    provider = a_provider_in(environment, tmp_path, ministack.endpoint, user, named)
    catalog = load_catalog("mine", **named, **{"s3.endpoint": ministack.endpoint, "s3.region": REGION})
    table = a_table(catalog)
    follow(environment, "iceberg:lake/sales.orders")
    is_served_as_it_grows(provider, table)
    is_followed_in_its_folder(provider, table)
    environment.setenv("PYICEBERG_CATALOG__LAKE__CLIENT__SECRET_ACCESS_KEY", "not-the-secret")
    environment.setenv("PYICEBERG_CATALOG__LAKE__CLIENT__ACCESS_KEY_ID", user.access_key)
    with pytest.raises(Unserveable, match="is refused to our credentials"):
        provider.follow_iceberg("lake.other", "iceberg:lake/sales.orders")
    environment.delenv("PYICEBERG_CATALOG__LAKE__CLIENT__SECRET_ACCESS_KEY")
    environment.delenv("PYICEBERG_CATALOG__LAKE__CLIENT__ACCESS_KEY_ID")
    is_refused_when_dropped(provider, catalog)


def test_a_table_of_a_rest_catalog_is_followed(
    s3: S3Server, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = s3.admin
    # Its catalog has tables in table buckets only, and takes signed requests.
    buckets = boto3.client(
        "s3tables",
        endpoint_url=s3.endpoint,
        region_name=REGION,
        aws_access_key_id=user.access_key,
        aws_secret_access_key=user.secret_key,
    )
    arn = buckets.create_table_bucket(name="rest-lake")["arn"]
    named = {
        "uri": s3.iceberg,
        "warehouse": "s3://rest-lake",
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": REGION,
        "client.access-key-id": user.access_key,
        "client.secret-access-key": user.secret_key,
        "s3.access-key-id": user.access_key,
        "s3.secret-access-key": user.secret_key,
    }
    provider = a_provider_in(environment, tmp_path, s3.endpoint, user, named)
    catalog = load_catalog("mine", **named, **{"s3.endpoint": s3.endpoint, "s3.region": REGION})
    table = a_table(catalog)
    follow(environment, "iceberg:lake/sales.orders")
    is_served_as_it_grows(provider, table)
    is_followed_in_its_folder(provider, table)
    is_refused_when_dropped(provider, catalog)
    catalog.drop_namespace("sales")
    buckets.delete_table_bucket(tableBucketARN=arn)


def test_the_tables_of_a_folder_in_s3_are_found_without_a_listing_of_their_files(
    environment: pytest.MonkeyPatch, tmp_path: Path, s3: S3Server
) -> None:
    """`lakeshare table follow 's3://bucket/lake/*'`."""
    provider = a_provider_in(environment, tmp_path, s3.endpoint, s3.admin, {})
    client = s3.client()
    client.create_bucket(Bucket="folders")
    keys = ["lake/_tmp/_delta_log/0.json", "lake/a-b/_delta_log/0.json", "lake/a/_delta_log/0.json"]
    keys += [
        "lake/a.txt",
        "lake/notes/x",
        "lake/\u00fc z/metadata/v1.metadata.json",
        "other/t/_delta_log/0.json",
    ]
    for key in keys:
        client.put_object(Bucket="folders", Key=key, Body=b"{}")
    stores = Stores(provider.settings)
    assert stores.folders("s3://folders/lake") == ["_tmp", "a", "a-b", "notes", "\u00fc z"]
    found = list_tables_at("s3://folders/lake/*", stores, provider.settings)
    assert found == [f"s3://folders/lake/{name}" for name in ("a", "a-b", "\u00fc z")]
