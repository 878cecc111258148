"""A report laid out as AWS documents is read alike in each format: keys, versions, markers, and what is not known."""

import datetime as dt
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshare_pipelines.backup.inventory.configuration import (
    FORMATS,
    NEEDED_FIELDS,
    OPTIONAL_FIELDS,
    ReportFormat,
    format_file_schema,
    own_prefixes,
    parse_file_schema,
    select_report_columns,
)
from lakeshare_pipelines.backup.inventory.list_objects import decode_keys
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_inventory import MODIFIED, Stored, marker
from tests.builders.backup_listings import a_backup, as_listed, listed, reports_in
from tests.builders.keys import AWKWARD_KEYS

OF_PARTS = Stored(
    "sales/large.parquet", 6 * 1024**3, "9a0364b9e99bb480dd25e1f0284c8555-96", storage_class="GLACIER"
)
VERSIONS = [
    Stored("a", version_id="v2", modified=MODIFIED + dt.timedelta(hours=1)),
    Stored("a", version_id="v1", is_latest=False),
    Stored("b", 7, "0cc175b9c0f1b6a831c399e269772661"),
    marker("c", "v9"),
    Stored("c", version_id="v8", is_latest=False),
]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_key_is_listed_as_it_is(tmp_path: Path, file_format: str) -> None:
    objects = [*(Stored(key) for key in AWKWARD_KEYS), OF_PARTS]
    reports_in(tmp_path).deliver(objects, file_format, files=3)
    record, rows = listed(a_backup(tmp_path), tmp_path)
    assert rows == sorted((as_listed(one) for one in objects), key=lambda row: str(row["key"]))
    assert (record.kind, record.has_versions, record.is_late) == ("s3_inventory", False, False)
    assert record.scan_started_at == dt.datetime(2026, 11, 22, 1, 17, 42, tzinfo=dt.UTC)


@pytest.mark.parametrize("file_format", FORMATS)
def test_all_versions_are_listed_with_null_versions_and_markers(tmp_path: Path, file_format: str) -> None:
    reports_in(tmp_path).deliver(VERSIONS, file_format, versions=True)
    record, rows = listed(a_backup(tmp_path, versions=True), tmp_path)
    assert rows == sorted(
        (as_listed(one, versions=True) for one in VERSIONS),
        key=lambda row: (row["key"], row["version_id"] or ""),
    )
    assert record.has_versions
    assert record.warnings == ()


@pytest.mark.parametrize("file_format", FORMATS)
def test_columns_that_nobody_knows_are_passed_over(tmp_path: Path, file_format: str) -> None:
    reports_in(tmp_path).deliver([Stored("a b")], file_format, unknown=True, files=1)
    assert listed(a_backup(tmp_path), tmp_path)[1] == [as_listed(Stored("a b"))]


@pytest.mark.parametrize("file_format", FORMATS)
def test_columns_that_were_not_asked_for_are_null(tmp_path: Path, file_format: str) -> None:
    without = ("storage_class", "encryption_status", "checksum_algorithm", "is_multipart_uploaded")
    reports_in(tmp_path).deliver([Stored("a")], file_format, without=without)
    (row,) = listed(a_backup(tmp_path), tmp_path)[1]
    unknown = {"storage_class": None, "encryption": None, "checksum_algorithm": None, "is_multipart": None}
    assert row == as_listed(Stored("a")) | unknown


def test_a_report_of_current_objects_is_told_where_all_versions_are_wanted(tmp_path: Path) -> None:
    reports_in(tmp_path).deliver([Stored("a")])
    record, _ = listed(a_backup(tmp_path, versions=True), tmp_path)
    assert "nothing can be healed from older ones" in record.warnings[0]


def test_only_keys_of_the_source_are_listed_and_none_of_our_own(tmp_path: Path) -> None:
    keys = ["sales/a", "sales/_lakeshare/lake/x", "_lakeshare/y", "salesmen/b", "sales/_lakeshares/c"]
    reports_in(tmp_path).deliver([Stored(key) for key in keys])
    rows = listed(a_backup(tmp_path, "s3://lake/sales"), tmp_path)[1]
    assert [row["key"] for row in rows] == ["sales/_lakeshares/c", "sales/a"]


def test_targets_and_reports_in_the_source_are_not_listed(tmp_path: Path) -> None:
    reports_in(tmp_path).deliver(
        [Stored(key) for key in ("a", "copies/objects/a", "inventory/lake/daily/data/x")]
    )
    backup = a_backup(tmp_path)
    inside = backup.model_copy(
        update={"target": backup.source.model_copy(update={"url": "s3://lake/copies"})}
    )
    assert [row["key"] for row in listed(inside, tmp_path)[1]] == ["a", "inventory/lake/daily/data/x"]
    in_bucket = inside.listing.model_copy(update={"location": "s3://lake/inventory/lake/daily"})
    assert own_prefixes(inside.model_copy(update={"listing": in_bucket})) == (
        "_lakeshare/",
        "copies/",
        "inventory/lake/daily/",
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_any_key_is_decoded_to_what_it_was(keys: list[str]) -> None:
    spelt = [quote_plus(key, safe="/-_.~*") for key in keys]
    assert decode_keys([key.encode() for key in spelt]) == keys
    # Manifests may spell a space as %20.
    assert decode_keys([quote(key).encode() for key in keys]) == keys


@pytest.mark.parametrize("versions", [False, True])
@pytest.mark.parametrize("file_format", FORMATS)
def test_schemas_that_we_write_are_those_that_we_read(file_format: ReportFormat, versions: bool) -> None:
    every = select_report_columns(OPTIONAL_FIELDS, versions=versions)
    assert parse_file_schema(file_format, format_file_schema(file_format, every)) == tuple(
        column.name for column in every
    )


def test_the_fields_are_those_that_s3_takes() -> None:
    import boto3

    model = boto3.session.Session()._session.get_service_model("s3")
    assert set(OPTIONAL_FIELDS) == set(model.shape_for("InventoryOptionalField").enum)
    assert set(NEEDED_FIELDS) <= set(OPTIONAL_FIELDS)


@pytest.mark.parametrize(
    ("file_format", "told"),
    [
        ("CSV", "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag"),
        (
            "ORC",
            "struct<bucket:string,key:string,version_id:string,is_latest:boolean,is_delete_marker:boolean,"
            "size:bigint,last_modified_date:timestamp,e_tag:string>",
        ),
        (
            "Parquet",
            "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); optional binary "
            "version_id (UTF8); optional boolean is_latest; optional boolean is_delete_marker; optional int64 size; "
            "optional int64 last_modified_date (TIMESTAMP_MILLIS); optional binary e_tag (UTF8); }",
        ),
        (
            "Parquet",
            "message s3.inventory {  required binary bucket (STRING);  required binary key (STRING);  optional binary "
            "version_id (STRING);  optional boolean is_latest;  optional boolean is_delete_marker;  optional int64 "
            "size;  optional int64 last_modified_date (TIMESTAMP(MILLIS,true));  optional binary e_tag (STRING);}",
        ),
    ],
)
def test_schemas_are_read_as_aws_spells_them(file_format: ReportFormat, told: str) -> None:
    names = "bucket key version_id is_latest is_delete_marker size last_modified_date e_tag"
    assert parse_file_schema(file_format, told) == tuple(names.split())


@pytest.mark.parametrize(
    ("file_format", "told"),
    [
        ("CSV", ""),
        ("CSV", "Key, Size"),
        ("ORC", "Bucket, Key"),
        ("Parquet", "struct<bucket:string,key:string>"),
    ],
)
def test_what_is_no_schema_is_refused(file_format: ReportFormat, told: str) -> None:
    with pytest.raises(BackupError, match="no schema of a"):
        parse_file_schema(file_format, told)
