"""A location has one spelling: whatever tool wrote it, the same object has the same text, and keys stay exact."""

from pathlib import Path

import pytest

from lakeshare_server.errors import BadRequest
from lakeshare_server.locations import parse_lake_location, split_location
from lakeshare_server.storage import normalise_location, parse_location


@pytest.mark.parametrize(
    ("spelt", "ours"),
    [
        ("/lake/a b", "/lake/a b"),
        ("file:/lake/a%20b", "/lake/a%20b"),
        ("file:///lake/t", "/lake/t"),
        ("file://localhost/lake/t", "/lake/t"),
        ("s3://bucket/t", "s3://bucket/t"),
        ("s3a://bucket/a%20b/c d+e=f#g?h", "s3://bucket/a%20b/c d+e=f#g?h"),
        ("S3N://Bucket_1/t//x/./y/", "s3://Bucket_1/t//x/./y/"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("gcs://my.bucket/ü/日本", "gs://my.bucket/ü/日本"),
        ("abfss://c@acct.dfs.core.windows.net/k:1@2", "abfss://c@acct.dfs.core.windows.net/k:1@2"),
        ("abfs://c@Acct.dfs.core.windows.net/k", "abfss://c@acct.dfs.core.windows.net/k"),
        ("wasbs://c@acct.blob.core.windows.net/k", "abfss://c@acct.dfs.core.windows.net/k"),
        ("wasb://c@acct.blob.core.chinacloudapi.cn/k", "abfss://c@acct.dfs.core.chinacloudapi.cn/k"),
        ("az://c/k", "abfss://c@mine.dfs.core.windows.net/k"),
        ("abfs://$web/k", "abfss://$web@mine.dfs.core.windows.net/k"),
    ],
)
def test_every_spelling_becomes_ours(spelt: str, ours: str) -> None:
    assert normalise_location(spelt, azure_account="mine") == ours
    assert normalise_location(ours) == ours


@pytest.mark.parametrize(
    "spelt",
    [
        "", "lake/t", "./t", "s3:/bucket/t", "s3:bucket", "s3://", "s3:///key", "s3://user:secret@bucket/key",
        "s3://bucket?x/key", "https://bucket.example/t", "hdfs://host/t", "az://container/key",
        "abfss://c@localhost/key", "C:\\lake", "gs://a b/k",
    ],
)  # fmt: skip
def test_what_names_no_object_is_refused_with_the_spellings(spelt: str) -> None:
    with pytest.raises(BadRequest, match=r"location: .* cannot be used.*://") as caught:
        parse_location(spelt)
    assert caught.value.field == "location"


@pytest.mark.parametrize(
    "spelt",
    [
        "s3://me:hush@bucket/k",
        "s3://me:a/hush/b@bucket/k",
        "s3://me:a@hush@bucket/k",
        "https://a.blob.core.windows.net/c/k?sv=1&sig=hush",
        "az://container/k?sv=1&sig=hush",
    ],
)
def test_a_secret_inside_a_refused_location_is_not_repeated(spelt: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_location(spelt)
    assert "hush" not in str(caught.value)


def test_a_place_knows_its_store_and_its_bucket() -> None:
    place = parse_location("wasbs://box@acct.blob.core.windows.net/a/b")
    assert (place.kind, place.root, place.key) == ("azure", "abfss://box@acct.dfs.core.windows.net", "a/b")
    assert place.bucket == "box"
    assert parse_location("s3a://bucket/k").bucket == "bucket"
    assert parse_location("/lake/t").root == ""


def test_a_prefix_begins_every_key_below_a_location() -> None:
    assert [parse_location(f"s3://bucket{key}").prefix for key in ("", "/", "/in", "/in/", "//in//x/")] == [
        "", "", "in/", "in/", "in//x/",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "location",
    [
        "/lake/a b",
        "/",
        "s3://bucket",
        "s3://bucket/a%20b//c",
        "gs://b/k",
        "abfss://c@a.dfs.core.windows.net/k@2",
    ],
)
def test_a_normalised_location_is_split_as_it_is_parsed(location: str) -> None:
    assert split_location(location) == parse_location(location)
    assert split_location(location).location == location


def test_placeholders_are_split_where_they_stand() -> None:
    place = split_location("s3://vault-{day}/lake/{day}/")
    assert (place.bucket, place.prefix) == ("vault-{day}", "lake/{day}/")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/lake/../t/", "/t"),
        ("file:///lake/a b/", "/lake/a b"),
        ("file:/lake", "/lake"),
        ("file://localhost/lake", "/lake"),
        ("s3a://bucket/a%20b//", "s3://bucket/a%20b"),
        ("S3://bucket/", "s3://bucket"),
    ],
)
def test_a_lake_has_no_slash_at_its_end(text: str, location: str) -> None:
    assert parse_lake_location(text).location == location


def test_a_folder_of_a_lake_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/of/it")
    assert parse_lake_location("lake").location == str(tmp_path.resolve() / "lake")
    assert parse_lake_location("~/lake").location == "/home/of/it/lake"


@pytest.mark.parametrize("text", ["hdfs://bucket/t", "https://bucket/t", "s3://", "s3://me:hush@bucket/t"])
def test_a_lake_is_in_no_other_store(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"pipelines do not use .*give a folder, s3://bucket/prefix, gs://bucket/prefix or abfss://",
    ) as caught:
        parse_lake_location(text)
    assert "hush" not in str(caught.value)
