"""A set in an Iceberg REST catalog, SeaweedFS's own, whose tables are in a table bucket of its store."""

from collections.abc import Iterator
from uuid import uuid4

import boto3
import pyarrow as pa
import pytest
import yaml

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.sets import ARROW_TYPES, a_contract, orders
from tests.integration import test_publication as story
from tests.integration.conftest import a_lake_at
from tests.integration.s3_server import REGION, S3Server


@pytest.fixture
def rest_lake(s3: S3Server, lake: Lake, s3_keys: None, tmp_path, monkeypatch) -> Iterator[Lake]:
    """Records and indexes are in a bucket of its own: a table bucket takes files of tables only."""
    user, bucket, tables = s3.admin, f"lake-{uuid4().hex[:8]}", f"tables-{uuid4().hex[:8]}"
    s3.client().create_bucket(Bucket=bucket)
    keys = {"aws_access_key_id": user.access_key, "aws_secret_access_key": user.secret_key}
    buckets = boto3.client("s3tables", endpoint_url=s3.endpoint, region_name=REGION, **keys)
    arn = buckets.create_table_bucket(name=tables)["arn"]
    properties = {
        "type": "rest",
        "uri": s3.iceberg,
        "warehouse": f"s3://{tables}",
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": REGION,
        "client.access-key-id": user.access_key,
        "client.secret-access-key": user.secret_key,
    }
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"rest": properties}}))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    there = a_lake_at(lake, s3.endpoint, f"s3://{bucket}/lake", iceberg_catalog="rest")
    yield there
    for namespace in there.iceberg.list_namespaces():
        for table in there.iceberg.list_tables(namespace):
            there.iceberg.drop_table(table)
        there.iceberg.drop_namespace(namespace)
    buckets.delete_table_bucket(tableBucketARN=arn)


def make_tables(lake: Lake, contract: SetContract) -> None:
    """The contract's tables, as a team that has them already.

    Spark gives the first column of a new table the id 0, and SeaweedFS 4.48 refuses a partition by it: "Invalid request
    body".
    """
    for table in contract.tables:
        lake.iceberg.create_namespace_if_not_exists(table.name.rsplit(".", 1)[0])
        columns = [
            pa.field(column.name, ARROW_TYPES.get(column.type, pa.string())) for column in table.columns
        ]
        create = lake.iceberg.create_table_transaction(table.name, pa.schema(columns))
        with create as transaction, transaction.update_spec() as spec:
            spec.add_identity("day")


def test_a_set_is_published_corrected_and_read(rest_lake, catalog, tmp_path):
    contract = a_contract(tmp_path / "contracts", "rested", "iceberg")
    make_tables(rest_lake, contract)
    published_set = story.PublishedSet(rest_lake, catalog, contract)
    story.every_table_gets_its_first_number_once(published_set)
    published_set.deliver(story.MONDAY, orders(story.MONDAY, 1))
    corrected = published_set.publish(*published_set.staged_and_green(story.MONDAY))
    assert [(p.version, p.rows) for p in corrected] == [(1, 1), (1, 1)]
    # A table bucket takes no files but those of Iceberg: change files are in the warehouse.
    folder = f"{rest_lake.settings.shared_root}/changes/{contract.tables[0].name}"
    assert len(rest_lake.stores.folders(folder)) == 1
    assert published_set.places() == []
    published_set.require_spark_reads_the_same()
    story.recipients_read_what_spark_reads(published_set, tmp_path / "host 2")
