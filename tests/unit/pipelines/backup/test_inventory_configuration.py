"""The inventory that a backup needs is put into the store with its destination's policy, read back, never deleted."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.validate import ParamValidator

from lakeshare_pipelines.backup.config import Backup, ListingSource
from lakeshare_pipelines.backup.inventory.configuration import (
    InventoryOptions,
    get_configuration,
    make_configuration,
    make_statement,
    put_configuration,
    put_statement,
)
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from tests.builders.inventory_store import InventoryStore, an_inventory_store

LOCATION = "s3://reports/inventory/lake/backup"
ACCOUNT = "111122223333"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[InventoryStore]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with an_inventory_store() as running:
        yield running


def a_backup(store: InventoryStore | None = None, source: str = "s3://lake", **listing: Any) -> Backup:
    endpoint = store.endpoint if store else None
    return Backup(
        name="lake",
        source=StoreAddress(url=source, endpoint=endpoint, account=ACCOUNT),
        target=StoreAddress(url="s3://copies"),
        listing=ListingSource(**{"kind": "s3_inventory", "location": LOCATION} | listing),
    )


def enums_and_patterns(shape: Any, value: Any) -> Iterator[str]:
    """What a value has against the service model that botocore itself does not check."""
    if shape.type_name == "structure":
        for name, member in value.items():
            yield from enums_and_patterns(shape.members[name], member)
    elif shape.type_name == "list":
        for member in value:
            yield from enums_and_patterns(shape.member, member)
    elif shape.type_name == "string" and shape.enum and value not in shape.enum:
        yield f"{shape.name}: {value!r}"


@pytest.mark.parametrize(
    "wanted",
    [
        InventoryOptions(),
        InventoryOptions("CSV", "Weekly", "arn:aws:kms:us-east-1:111122223333:key/k", True),
        InventoryOptions("ORC"),
    ],
)
@pytest.mark.parametrize("source", ["s3://lake", "s3://lake/sales/"])
def test_the_configuration_is_one_that_s3_takes(source: str, wanted: InventoryOptions) -> None:
    document = make_configuration(a_backup(None, source, versions=True), wanted)
    model = boto3.session.Session()._session.get_service_model("s3")
    shape = model.shape_for("InventoryConfiguration")
    assert not ParamValidator().validate(document, shape).has_errors()
    assert list(enums_and_patterns(shape, document)) == []
    assert document["IncludedObjectVersions"] == "All"
    assert {"Size", "LastModifiedDate", "ETag"} <= set(document["OptionalFields"])
    assert document.get("Filter") == ({"Prefix": "sales/"} if "sales" in source else None)


def test_it_is_put_and_read_back_and_may_be_put_again(store: InventoryStore) -> None:
    backup = a_backup(store)
    assert get_configuration(backup) is None
    kept = put_configuration(backup, InventoryOptions())
    assert kept == get_configuration(backup)
    assert kept["Id"] == "backup"
    assert kept["Destination"]["S3BucketDestination"]["Prefix"] == "inventory"
    assert kept["Destination"]["S3BucketDestination"]["AccountId"] == ACCOUNT
    again = put_configuration(backup, InventoryOptions(frequency="Weekly"))
    assert again["Schedule"] == {"Frequency": "Weekly"}
    assert store.deletions == 0


def test_the_destination_lets_only_this_bucket_report(store: InventoryStore) -> None:
    backup = a_backup(store)
    put_statement(backup)
    others = {"Sid": "Theirs", "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*"}
    policy = json.loads(store.kept["reports", "policy "])
    store.kept["reports", "policy "] = json.dumps(
        policy | {"Statement": [others, *policy["Statement"]]}
    ).encode()
    policy = put_statement(backup)
    assert policy["Statement"] == [others, make_statement(backup)]
    assert json.loads(store.kept["reports", "policy "]) == policy
    assert policy["Statement"][1]["Condition"] == {
        "ArnLike": {"aws:SourceArn": "arn:aws:s3:::lake"},
        "StringEquals": {"aws:SourceAccount": ACCOUNT, "s3:x-amz-acl": "bucket-owner-full-control"},
    }
    assert policy["Statement"][1]["Principal"] == {"Service": "s3.amazonaws.com"}


def test_buckets_of_two_regions_are_refused_before_anything_is_put(store: InventoryStore) -> None:
    store.regions["reports"] = "eu-central-1"
    with pytest.raises(BackupError, match="it is in eu-central-1, and s3://lake in us-east-1"):
        put_configuration(a_backup(store), InventoryOptions())
    assert store.puts == []


def test_a_store_that_keeps_nothing_is_told(store: InventoryStore) -> None:
    store.forgetful = True
    with pytest.raises(BackupError, match="the store did not keep inventory configuration backup"):
        put_configuration(a_backup(store), InventoryOptions())
    with pytest.raises(BackupError, match="did not keep the bucket policy"):
        put_statement(a_backup(store))


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("AccessDenied", "GetBucketInventoryConfiguration: access is denied"),
        ("NotImplemented", "does not support GetBucketInventoryConfiguration.*Use the generator"),
        ("SomethingElse", "the store refused"),
    ],
)
def test_a_refusal_is_a_sentence(store: InventoryStore, code: str, sentence: str) -> None:
    store.refused = code
    with pytest.raises(BackupError, match=sentence):
        put_configuration(a_backup(store), InventoryOptions())


@pytest.mark.parametrize(
    ("source", "listing", "sentence"),
    [
        ("/lake", {}, "Set `listing.kind: s3_inventory`"),
        ("s3://lake", {"kind": "generator", "location": None}, "Set `listing.kind: s3_inventory`"),
        ("s3://lake", {"location": "s3://reports/lake"}, "reports cannot arrive there"),
        ("s3://lake", {"location": "s3://reports/pond/backup"}, "s3://bucket/prefix/lake/configuration-id"),
        ("s3://lake", {"location": "/reports/lake/backup"}, "reports cannot arrive there"),
    ],
)
def test_a_place_where_no_report_arrives_is_refused(
    source: str, listing: dict[str, Any], sentence: str
) -> None:
    backup = a_backup(None, source, **listing)
    backup = backup.model_copy(update={"source": StoreAddress(url=source)})
    with pytest.raises(BackupError, match=sentence):
        make_configuration(backup, InventoryOptions())


def test_without_the_sources_account_there_is_no_policy() -> None:
    backup = a_backup()
    nameless = backup.model_copy(update={"source": StoreAddress(url="s3://lake")})
    with pytest.raises(BackupError, match=r"Give `source\.account`"):
        make_statement(nameless)


@pytest.mark.parametrize(
    ("region", "partition"),
    [("eu-central-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), (None, "aws")],
)
def test_arns_are_of_the_regions_partition(region: str | None, partition: str) -> None:
    backup = a_backup().model_copy(
        update={"source": StoreAddress(url="s3://lake", region=region, account=ACCOUNT)}
    )
    assert make_statement(backup)["Condition"]["ArnLike"]["aws:SourceArn"] == f"arn:{partition}:s3:::lake"
