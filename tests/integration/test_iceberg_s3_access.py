"""Iceberg tables in S3 through the REST door: with credentials where the folder is granted, else request by request."""

import datetime as dt
import itertools
import shutil
import warnings
from dataclasses import replace
from datetime import time
from pathlib import Path
from typing import Any

import boto3
import delta_sharing
import httpx
import pandas as pd
import pyarrow as pa
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from pyiceberg.exceptions import SignError
from pyiceberg.io.fsspec import S3V4RestSigner
from sqlalchemy import select

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share import publication
from lakeshare_pipelines.share.changes import TableState
from lakeshare_pipelines.wap.staged import Lake, open_lake_without_spark
from lakeshare_server.catalog import Ledger, allow_directory_access
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import StateSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.deletes import Targets, deletion_vectors
from tests.builders.deletion_vector import positions
from tests.builders.grants import grant_to
from tests.builders.iceberg_matrix.made import session_of_its_own
from tests.builders.iceberg_rest import (
    SECRET_BRANCH,
    TABLE,
    door,
    door_url,
    leave_secrets,
    rest_catalog,
    state_of,
)
from tests.builders.lake_tables import IcebergTable, some_rows
from tests.builders.recipients import Recipients
from tests.builders.row_deletes import a_target, a_vector, position_deletes
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.integration.s3_server import REGION, S3Server

BUCKETS = (f"iceberg-{number}" for number in itertools.count(1))


@pytest.fixture
def provider(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
    return a_provider(tmp_path, s3_endpoint=s3.endpoint, s3_region=REGION, s3_role_arn=s3.role_arn)


def pyiceberg_at(s3: S3Server) -> dict[str, str]:
    return {
        "s3.endpoint": s3.endpoint,
        "s3.region": REGION,
        "s3.access-key-id": s3.admin.access_key,
        "s3.secret-access-key": s3.admin.secret_key,
    }


@pytest.fixture
def made(s3: S3Server, provider: Provider) -> IcebergTable:
    bucket = next(BUCKETS)
    s3.client().create_bucket(Bucket=bucket)
    table = IcebergTable(f"s3://{bucket}/warehouse", some_rows().schema, **pyiceberg_at(s3))
    table.append(some_rows())
    return table


def granted(provider: Provider, made: IcebergTable, **options: Any) -> None:
    provider.publish_iceberg("lake.flights", state_of(made))
    provider.share("lake.flights", **options)


def signed_client(config: dict[str, str], server: Running, token: str) -> Any:
    """A client of boto3 that has each request signed by PyIceberg's signer, as PyIceberg sets it up."""
    client = boto3.client(
        "s3",
        endpoint_url=config["s3.endpoint"],
        region_name=config["s3.region"],
        config=Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}),
    )
    signer = S3V4RestSigner({**config, "uri": str(httpx.URL(server.url).join("/iceberg")), "token": token})
    client.meta.events.register("before-sign.s3", signer)
    return client


def bucket_and_key(location: str) -> dict[str, str]:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}


def files_of(made: IcebergTable, snapshot: Any) -> set[str]:
    manifests = snapshot.manifests(made.table.io)
    data = {
        entry.data_file.file_path for one in manifests for entry in one.fetch_manifest_entry(made.table.io)
    }
    return {snapshot.manifest_list, *(one.manifest_path for one in manifests)} | data


def test_a_table_in_s3_is_published_and_served_with_the_settings_alone(
    provider: Provider, made: IcebergTable
) -> None:
    """Its metadata, manifests and, since a column was renamed, the footers of its files are read in S3."""
    with made.table.update_schema() as change:
        change.rename_column("carrier", "airline")
    granted(provider, made)
    shutil.rmtree(provider.settings.index_dir)  # so that the server reads it all once more
    wanted = made.table.scan().to_arrow().to_pandas(date_as_object=True)
    with a_server(provider) as server:
        profile = server.profile(provider.recipient())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the client's own
            found = delta_sharing.load_as_pandas(f"{profile}#flights.lake.flights", use_delta_format=True)
    order = ["distance"]
    pd.testing.assert_frame_equal(
        found.sort_values(order, ignore_index=True)[list(wanted.columns)],
        wanted.sort_values(order, ignore_index=True),
        check_dtype=False,
    )


def test_deletes_are_read_in_s3(provider: Provider, s3: S3Server, tmp_path: Path) -> None:
    bucket = next(BUCKETS)
    s3.client().create_bucket(Bucket=bucket)
    (folder := tmp_path / "deletes").mkdir()
    targets = [a_target("a"), a_target("b")]
    deletes = []
    for one in (position_deletes(folder, [("a", 1), ("a", 5)]), a_vector(folder, [7], of="b")):
        s3.client().upload_file(one.path, bucket, Path(one.path).name)
        deletes.append(replace(one, path=f"s3://{bucket}/{Path(one.path).name}"))
    stores = Stores(provider.settings)
    vectors = deletion_vectors(stores, Targets(targets), deletes, "/t")
    found = {number: positions(one.content).tolist() for number, one in vectors.items()}
    assert found == {0: [1, 5], 1: [7]}
    for one in deletes:
        s3.client().delete_object(**bucket_and_key(one.path))
        with pytest.raises(Unserveable, match=one.path):
            deletion_vectors(stores, Targets(targets), [one], "/t")


def test_pipelines_read_what_they_publish_with_their_own_settings(
    provider: Provider, made: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the catalog says that a table is in S3; our own catalogs are on disks."""
    state = state_of(made)
    lake = open_lake_without_spark(
        LakeSettings(**provider.settings.model_dump(include=set(StateSettings.model_fields)))
    )
    told = TableState(state.metadata_location, state.snapshot_id, Stores(lake.settings))
    monkeypatch.setattr(publication, "get_table_state", lambda *_: told)
    table = Table("lake.flights", "iceberg", ())
    nothing = {"set_name": "", "run_id": "", "partition": "", "contract_digest": "", "verdicts": {}}
    ledger = Ledger(provider.catalog)
    found = publication.pin_publication(lake, ledger, table, nessie_hash="0", delta_version=None, **nothing)
    assert (found.rows, found.location) == (12, made.table.location())
    assert found.changes_digest is not None


def test_granted_folders_are_read_with_vended_credentials(provider: Provider, made: IcebergTable) -> None:
    granted(provider, made, history=True)
    allow_directory_access(provider.catalog, "flights", "lake", "flights", allowed=True)
    with a_server(provider) as server:
        token = provider.recipient()
        with door(server, token) as client:
            answer = client.get(TABLE).json()
            fresh = client.get(f"{TABLE}/credentials").json()["storage-credentials"]
        assert "s3.remote-signing-enabled" not in answer["config"]
        vended = answer["storage-credentials"]
        assert (
            [one["prefix"] for one in vended] == [one["prefix"] for one in fresh] == [made.table.location()]
        )
        assert vended[0]["config"].keys() == fresh[0]["config"].keys()
        table = rest_catalog(server, token).load_table("lake.flights")
        assert table.io.properties["s3.session-token"]
        assert table.scan().to_arrow().num_rows == 12


def test_all_other_tables_are_read_by_requests_signed_one_by_one(
    provider: Provider, made: IcebergTable
) -> None:
    secrets = leave_secrets(made)
    granted(provider, made)
    published = files_of(made, made.table.snapshot_by_id(state_of(made).snapshot_id))
    unpublished = files_of(made, made.table.snapshot_by_name(SECRET_BRANCH)) - published
    with a_server(provider) as server:
        token = provider.recipient()
        with door(server, token) as client:
            answer = client.get(TABLE).json()
            assert client.get(f"{TABLE}/credentials").status_code == 400
        assert "storage-credentials" not in answer
        assert not any(secret in str(answer) for secret in secrets)
        reader = signed_client(answer["config"], server, token)
        assert len(published) == 5
        for location in published:
            at = bucket_and_key(location)
            whole = reader.get_object(**at)["Body"].read()
            assert reader.get_object(**at, Range="bytes=1-3")["Body"].read() == whole[1:4]
            assert reader.head_object(**at)["ContentLength"] == len(whole)
        others = {made.table.metadata_location, f"{made.table.location()}/no"}
        assert len(unpublished) == 3
        for location in unpublished | others:
            with pytest.raises(SignError, match="403"):
                reader.get_object(**bucket_and_key(location))
        at = bucket_and_key(next(iter(published)))
        for change in (
            lambda: reader.put_object(**at, Body=b""),
            lambda: reader.delete_object(**at),
            lambda: reader.list_objects_v2(Bucket=at["Bucket"]),
            lambda: reader.get_object(**at, VersionId="1"),
            lambda: reader.get_object(Bucket="readiness", Key="probe"),
        ):
            with pytest.raises(SignError, match="403"):
                change()
    _require_audited(provider, unpublished)


def _require_audited(provider: Provider, refused: set[str]) -> None:
    with provider.catalog.reading() as session:
        rows = session.scalars(
            select(AuditRow).where(AuditRow.action == "sign_request", AuditRow.status == 403)
        )
        told = {(row.details or {}).get("location") for row in rows}
    assert refused <= told


def test_files_of_earlier_publications_are_signed_where_history_is_shared(
    provider: Provider, made: IcebergTable
) -> None:
    provider.publish_iceberg("lake.flights", state_of(made))
    before = made.table.snapshot_by_id(state_of(made).snapshot_id)
    made.table.overwrite(some_rows(days=1))
    granted(provider, made, history=True)
    with a_server(provider) as server:
        token = provider.recipient()
        for history in (True, False):
            provider.share("lake.flights", history=history)
            with door(server, token) as client:
                config = client.get(TABLE).json()["config"]
            reader = signed_client(config, server, token)
            at = bucket_and_key(before.manifest_list)
            if history:
                assert reader.get_object(**at)["Body"].read()
            else:
                with pytest.raises(SignError, match="403"):
                    reader.get_object(**at)


def test_a_signature_is_for_the_one_file_only(provider: Provider, made: IcebergTable) -> None:
    granted(provider, made)
    lists = [made.table.current_snapshot().manifest_list, made.table.metadata_location]
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        config = client.get(TABLE).json()["config"]
        uris = [location.replace("s3:/", config["s3.endpoint"]) for location in lists]
        signed = client.post(f"{TABLE}/sign", json={"method": "GET", "uri": uris[0], "headers": {}}).json()
        headers = {name: values[0] for name, values in signed["headers"].items()}
        assert httpx.get(signed["uri"], headers=headers).status_code == 200
        assert httpx.get(uris[1], headers=headers).status_code == 403
        assert httpx.put(signed["uri"], headers=headers, content=b"x").status_code == 403
        folded = uris[0].replace("/metadata/", "/metadata/../metadata/")
        for uri in (
            folded,
            f"{uris[0]}?acl",
            uris[0].replace("/warehouse", "//warehouse"),
            "file:///etc/passwd",
        ):
            asked = {"method": "GET", "uri": uri, "headers": {}}
            assert client.post(f"{TABLE}/sign", json=asked).status_code == 403
        for body in ({}, {"method": "GET"}, {"method": "GET", "uri": uris[0], "headers": {"a": "b"}}):
            assert client.post(f"{TABLE}/sign", json=body).status_code == 400


def test_a_restricted_recipient_has_its_own_files_signed_only(
    provider: Provider, made: IcebergTable, s3: S3Server
) -> None:
    """done-when 4; directory access or not, it gets no credentials, no manifests, and the files of one day"""
    granted(provider, made, history=True)
    allow_directory_access(provider.catalog, "flights", "lake", "flights", allowed=True)
    files = files_of(made, made.table.current_snapshot())
    own = {location for location in files if "day=2013-01-02" in location}
    with a_server(provider) as server:
        token = provider.recipient()
        grant_to(provider, "bob", rule="day = DATE '2013-01-02'")
        with door(server, token) as client:
            answer = client.get(TABLE).json()
            assert client.get(f"{TABLE}/credentials").status_code == 400
        counts = [name for one in answer["metadata"]["snapshots"] for name in one["summary"] if "-" in name]
        assert counts == []
        assert "storage-credentials" not in answer
        assert answer["config"]["scan-planning-mode"] == "server"
        reader = signed_client(answer["config"], server, token)
        assert len(own) == 1
        for location in own:
            assert reader.get_object(**bucket_and_key(location))["Body"].read()
        for location in files - own:
            with pytest.raises(SignError, match="403"):
                reader.get_object(**bucket_and_key(location))
        io = {
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "scan-planning-mode": "server",
            **pyiceberg_at(s3),
        }
        table = rest_catalog(server, token, **io).load_table("lake.flights")
        days = table.scan().to_arrow().column("day").unique().to_pylist()
        assert [str(day) for day in days] == ["2013-01-02"]


def test_spark_reads_whole_and_restricted_tables_by_signed_requests_alone(
    provider: Provider, made: IcebergTable, lake: Lake
) -> None:
    """Iceberg's own client of S3, with keys that the store refuses: those that the driver may have are not used."""
    granted(provider, made)
    tokens = {name: provider.recipient(name) for name in ("whole", "part")}
    grant_to(provider, "part", rule="day = DATE '2013-01-02'")
    rows = made.table.scan(selected_fields=("day", "distance")).to_arrow().to_pylist()
    every = sorted((row["day"], row["distance"]) for row in rows)
    spark, found = session_of_its_own(lake.spark), {}
    with a_server(provider) as server:
        catalog = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "rest",
            ".uri": door_url(server),
            ".warehouse": "flights",
            ".client.region": REGION,
            ".s3.access-key-id": "AKNOBODY",
            ".s3.secret-access-key": "wrong",
        }
        for name, token in tokens.items():
            for key, value in {**catalog, ".token": token}.items():
                spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
            read = spark.sql(f"SELECT day, distance FROM {name}.lake.flights").collect()
            found[name] = sorted(tuple(row) for row in read)
    assert found["whole"] == every
    assert found["part"] == [row for row in every if row[0] == dt.date(2013, 1, 2)]
    assert 0 < len(found["part"]) < len(found["whole"])


def test_a_revoked_recipient_has_nothing_signed(provider: Provider, made: IcebergTable) -> None:
    granted(provider, made)
    with a_server(provider) as server:
        token = provider.recipient()
        with door(server, token) as client:
            config = client.get(TABLE).json()["config"]
        reader = signed_client(config, server, token)
        at = bucket_and_key(made.table.current_snapshot().manifest_list)
        assert reader.get_object(**at)["Body"].read()
        Recipients(provider.catalog).revoke("bob")
        with pytest.raises((SignError, ClientError), match="401"):
            reader.get_object(**at)


@pytest.mark.parametrize("vended", [False, True])
def test_a_followed_table_that_only_iceberg_clients_read_is_signed_or_vended(
    s3: S3Server, provider: Provider, vended: bool
) -> None:
    """It has no file index: its manifests tell which files are its own."""
    bucket = next(BUCKETS)
    s3.client().create_bucket(Bucket=bucket)
    rows = some_rows().append_column("odd", pa.array([time(1, 2, 3)] * 12, pa.time64("us")))
    table = IcebergTable(f"s3://{bucket}/warehouse", rows.schema, **pyiceberg_at(s3))
    table.append(rows)
    # The catalog in memory is nobody else's: the table is followed by its metadata file.
    provider.follow_iceberg("lake.flights", table.table.metadata_location)
    provider.share("lake.flights", history=True)
    if vended:
        allow_directory_access(provider.catalog, "flights", "lake", "flights", allowed=True)
    with a_server(provider) as server:
        token = provider.recipient()
        with door(server, token) as client:
            answer = client.get(TABLE).raise_for_status().json()
        assert ("storage-credentials" in answer) == vended
        if not vended:
            reader = signed_client(answer["config"], server, token)
            for location in files_of(table, table.table.current_snapshot()):
                assert reader.head_object(**bucket_and_key(location))["ContentLength"] > 0
            with pytest.raises(SignError, match="403"):
                reader.head_object(Bucket=bucket, Key="warehouse/lake/flights/data/other.parquet")
