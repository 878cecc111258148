"""Declarations that could not be listed, or whose copies would be listed again, are refused with their place."""

from pathlib import Path

import pytest
import yaml

from lakeshare_pipelines.backup.config import load_backups
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"listing": {"kind": "s3_inventory"}}, "backups.lake.listing.location: s3_inventory needs it"),
        ({"listing": {"kind": "s3_inventory", "location": "reports/lake"}}, "give an absolute path or s3://"),
        ({"listing": {"kind": "manifest_csv", "location": "m.csv"}}, "give an absolute path or s3://"),
        ({"listing": {"kind": "csv"}}, "backups.lake.listing.kind is 'csv'"),
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


def test_targets_elsewhere_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "backups.yaml"
    source, elsewhere = {"url": "s3://lake"}, {"url": "s3://lake", "endpoint": "http://127.0.0.1:9000"}
    within = {"url": "s3://lake/copies"}
    backups = {"one": {"source": source, "target": elsewhere}, "two": {"source": source, "target": within}}
    path.write_text(yaml.safe_dump({"backups": backups}))
    found = load_backups(LakeSettings(_env_file=None, state_dir=tmp_path, backups_file=path))
    assert [backup.name for backup in found] == ["one", "two"]
