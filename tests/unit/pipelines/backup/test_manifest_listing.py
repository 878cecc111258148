"""A manifest CSV becomes a listing: the source tells of each object, and what it does not have is told."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_listings import a_backup, listed


def by_manifest(folder: Path, text: str, *keys: str) -> Backup:
    """A backup of a folder with some files, by a manifest of that text; `{lake}` stands for the folder."""
    lake = folder / "lake"
    lake.mkdir()
    for key in keys:
        path = lake / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"abc")
    (folder / "manifest.csv").write_bytes(text.replace("{lake}", str(lake)).encode("latin-1"))
    return a_backup(folder, str(lake), kind="manifest_csv", location=str(folder / "manifest.csv"))


@pytest.mark.parametrize(
    "spelt", [quote, lambda key: quote(key).replace("%20", "+"), lambda key: f'"{quote(key)}"']
)
def test_the_source_tells_what_the_manifest_does_not(tmp_path: Path, spelt: Callable[[str], str]) -> None:
    keys = ["sales/day=1/a b,c", "ü"]
    text = "".join(f"{{lake}},{spelt(key)}\r\n" for key in keys)
    backup = by_manifest(tmp_path, text, *keys, "unnamed")
    record, rows = listed(backup, tmp_path)
    assert [row["key"] for row in rows] == keys
    assert all(row["size_bytes"] == 3 and row["is_latest"] and row["etag"] for row in rows)
    assert (record.kind, record.has_versions, record.warnings) == ("manifest_csv", False, ())


def test_what_is_not_there_is_left_out_and_told(tmp_path: Path) -> None:
    backup = by_manifest(
        tmp_path, "{lake},a\n{lake},gone\n{lake},_lakeshare/x\n{lake},a\n", "a", "_lakeshare/x"
    )
    record, rows = listed(backup, tmp_path)
    assert [row["key"] for row in rows] == ["a"]
    assert "names 1 objects that the source does not have: gone" in record.warnings[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{lake},a\n{lake}\n", "line 2 has 1 columns, or no key"),
        ("{lake},a\n{lake},\n", "line 2 has 2 columns, or no key"),
        ("Bucket,Key\n", "line 1 names bucket 'Bucket'"),
        ("{lake},a,,\n", "line 1 has 4 columns"),
        ("{lake},%FF\n", "line 1 cannot be read"),
        ("{lake},\xff\n", "line 1 cannot be read"),
        ("{lake},gone\n", "has no object that it names"),
        ("", "has no object that it names"),
    ],
)
def test_what_is_no_manifest_of_the_source_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BackupError, match=sentence):
        listed(by_manifest(tmp_path, text, "a"), tmp_path)
    assert not (tmp_path / "work/listing").exists()


def test_a_manifest_that_is_not_there_is_told(tmp_path: Path) -> None:
    backup = by_manifest(tmp_path, "", "a")
    (tmp_path / "manifest.csv").unlink()
    with pytest.raises(BackupError, match=r"manifest\.csv: it is not there"):
        listed(backup, tmp_path)
