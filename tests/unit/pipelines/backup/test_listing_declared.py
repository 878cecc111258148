"""Declarations that could not be listed, or whose copies would be listed again, are refused with their place."""

from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from lakeshare_pipelines.backup.config import load_backups
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"listing": {"kind": "s3_inventory"}}, "backups.lake.listing.location: s3_inventory needs it"),
        ({"listing": {"kind": "s3_inventory", "location": "reports/lake"}}, "give an absolute path or s3://"),
        ({"listing": {"kind": "manifest_csv", "location": "m.csv"}}, "give an absolute path or s3://"),
        ({"listing": {"kind": "csv"}}, "backups.lake.listing.kind: cannot be 'csv'"),
        (
            {"target": {"url": "s3://lake"}},
            "backups.lake.target.url: copies would lie among the source's objects",
        ),
        (
            {"target": {"url": "s3://lake/{day}"}, "layout": "dated"},
            "backups.lake.target.url: copies would lie among the source's objects",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, changed: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "backups.yaml"
    lake = {"source": {"url": "s3://lake"}, "target": {"url": "s3://copies"}, **changed}
    path.write_text(yaml.safe_dump({"backups": {"lake": lake}}))
    with pytest.raises(BackupError, match=r"See docs/reference/backup\.md") as refused:
        load_backups(LakeSettings(_env_file=None, state_dir=tmp_path, backups_file=path))
    assert sentence in str(refused.value)


LAKE = "backups:\n  lake:\n    source: {url: /a}\n"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (LAKE + "    target: {url: /b}\n    engin: spark\n", 5, "Did you mean 'engine'?"),
        (LAKE + "    target:\n      url: /b\n      uri: /c\n", 6, "Did you mean 'url'?"),
        (LAKE, 2, "backups.lake.target: is missing. Add it"),
        (LAKE.replace("/a", "a"), 3, "backups.lake.source.url: cannot be 'a'"),
        ("backups:\n  Lake:\n    source: {url: /a}\n    target: {url: /b}\n", 2, "backups.Lake: cannot be 'Lake'"),
        ("backups:\n  lake: daily\n", 2, "backups.lake: cannot be 'daily'. Input should be a mapping."),
        ("backups:\n  lake: {}\n  lake: {}\n", 3, "the key 'lake' is given twice, first in line 2"),
        ("backups: []\n", 1, "it has no `backups`"),
        ("backups: {a: b: c}\n", 1, "LAKESHARE_BACKUPS_FILE names the file"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_line(tmp_path: Path, text: str, line: int, sentence: str) -> None:
    path = tmp_path / "backups.yaml"
    path.write_text(text)
    with pytest.raises(BackupError) as refused:
        load_backups(LakeSettings(_env_file=None, state_dir=tmp_path, backups_file=path))
    assert str(refused.value).startswith(f"{path}:{line}: ")
    assert sentence in str(refused.value)


def test_targets_elsewhere_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "backups.yaml"
    source, elsewhere = {"url": "s3://lake"}, {"url": "s3://lake", "endpoint": "http://127.0.0.1:9000"}
    within = {"url": "s3://lake/copies"}
    backups = {"one": {"source": source, "target": elsewhere}, "two": {"source": source, "target": within}}
    path.write_text(yaml.safe_dump({"backups": backups}))
    found = load_backups(LakeSettings(_env_file=None, state_dir=tmp_path, backups_file=path))
    assert [backup.name for backup in found] == ["one", "two"]


@pytest.mark.parametrize(
    ("url", "kind", "bucket", "prefix", "of_key"),
    [
        ("s3://lake", "s3", "lake", "", "s3://lake/a b%20"),
        ("s3://lake/", "s3", "lake", "", "s3://lake/a b%20"),
        ("s3://lake/sales//eu/", "s3", "lake", "sales//eu/", "s3://lake/a b%20"),
        ("s3://vault-{day}/lake", "s3", "vault-{day}", "lake/", "s3://vault-{day}/a b%20"),
        ("/backups/", "folder", "/backups", "", "/backups/a b%20"),
    ],
)
def test_an_address_has_complete_keys(url: str, kind: str, bucket: str, prefix: str, of_key: str) -> None:
    address = StoreAddress(url=url, endpoint="http://store", account="123456789012")
    assert (address.kind, address.bucket, address.prefix) == (kind, bucket, prefix)
    assert address.location("a b%20") == of_key
    assert address.url == (url if kind == "s3" else "/backups")
    other = address.at("other")
    assert (other.url, other.endpoint, other.account) == ("s3://other", "http://store", "123456789012")


@pytest.mark.parametrize(
    "url", ["", "lake", "s3://", "s3:///k", "s3://a b/k", "s3a://lake", "gs://lake", "file:/lake"]
)
def test_an_address_of_no_folder_or_bucket_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="give an absolute path or s3://bucket/prefix/"):
        StoreAddress(url=url)


def test_the_greatest_age_of_a_point_is_declared_or_follows_from_its_reports(tmp_path: Path) -> None:
    """The check `recent` and the metric of the goal have it from there."""
    path = tmp_path / "backups.yaml"
    reports = {"kind": "s3_inventory", "location": str(tmp_path), "lag_days": 3, "wait_hours": 6}
    ages = []
    for options in ({"listing": reports}, {"listing": reports, "max_age_hours": 20}):
        lake = {"source": {"url": "s3://lake"}, "target": {"url": "s3://copies"}, **options}
        path.write_text(yaml.safe_dump({"backups": {"lake": lake}}))
        [backup] = load_backups(LakeSettings(_env_file=None, state_dir=tmp_path, backups_file=path))
        ages.append(backup.max_age)
    assert ages == [timedelta(days=4, hours=18), timedelta(hours=20)]
