"""Every known way in which a copied Delta table does not open, or opens wrong: seen of a plain one, and not of ours."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_pipelines.backup.stores import ListedObject
from tests.builders.backup_lakes import AS_OF, DAY, Lake, at

ROOT = "sales/orders"
HOUR = dt.timedelta(hours=1)


def log(version: int, kind: str = "json") -> str:
    return f"{ROOT}/_delta_log/{version:020}.{kind}"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Five commits before as_of, one an hour; row n comes with version n."""
    made = Lake(tmp_path)
    for number in range(5):
        _commit(made, number, AS_OF - (5 - number) * HOUR)
    return made


def _commit(lake: Lake, number: int, when: dt.datetime) -> None:
    before = set(_files(lake.source))
    write_deltalake(str(lake.source / ROOT), pa.table({"n": [number]}), mode="append")
    at(when, *(set(_files(lake.source)) - before))


def _checkpoint(lake: Lake, version: int, when: dt.datetime) -> None:
    before = set(_files(lake.source))
    DeltaTable(str(lake.source / ROOT), version=version).create_checkpoint()
    at(when, *(set(_files(lake.source)) - before), lake.source / ROOT / "_delta_log/_last_checkpoint")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def plain_copy(lake: Lake, keys: list[str]) -> Path:
    """What a copier of objects makes of a listing: each key that is there, as it is now."""
    target = lake.base / "plain"
    for key in keys:
        if (lake.source / key).exists():
            (target / key).parent.mkdir(parents=True, exist_ok=True)
            (target / key).write_bytes((lake.source / key).read_bytes())
    return target / ROOT


def every_key(lake: Lake) -> list[str]:
    """All keys, those that are never copied as data as well."""
    return [str(path.relative_to(lake.source)) for path in _files(lake.source)]


def reads(table: Path, version: int | None = None) -> list[int] | None:
    """The rows of a table; None when it does not open, or not to the end."""
    try:
        found = DeltaTable(str(table), version=version).to_pyarrow_table()
    except Exception:  # deltalake raises of everything, and here each means the same
        return None
    return sorted(found.column("n").to_pylist())


def ours(
    lake: Lake, listing: list[ListedObject], meanwhile: Callable[[], object] = lambda: None
) -> tuple[str, list[int] | None]:
    """The status of our copy, and the rows of the version that it says."""
    (proof,) = lake.made(DAY, listing, meanwhile).tables
    opened = None if proof.version is None else reads(lake.target / proof.table.stored_root, proof.version)
    return proof.status, opened


def lost(lake: Lake, *keys: str) -> list[ListedObject]:
    return [one for one in lake.listing() if one.key not in keys]


def test_a_commit_missing_in_the_middle(lake: Lake) -> None:
    keys = [key for key in every_key(lake) if key != log(2)]
    assert reads(plain_copy(lake, keys)) is None
    assert ours(lake, lost(lake, log(2))) == ("verified", [0, 1, 2, 3, 4])


def test_a_commit_that_is_gone_in_the_middle(lake: Lake) -> None:
    """Nobody has it any more: the newest version in front of the hole, and nothing else, is what can be proved."""
    listing = lake.listing()
    status, rows = ours(lake, listing, (lake.source / log(2)).unlink)
    assert (status, rows) == ("verified_with_fallback", [0, 1])


def test_a_hole_below_the_newest_checkpoint(lake: Lake) -> None:
    _checkpoint(lake, 3, AS_OF - HOUR)
    table = plain_copy(lake, [key for key in every_key(lake) if key != log(1)])
    assert reads(table) == [0, 1, 2, 3, 4]
    assert reads(table, 2) is None
    (lake.source / log(1)).unlink()
    (proof,) = lake.made(DAY, lake.listing()).tables
    assert (proof.status, proof.version, proof.oldest_version) == ("verified", 4, 0)
    assert reads(lake.target / proof.table.stored_root, 4) == [0, 1, 2, 3, 4]


def test_a_pointer_that_is_newer_than_the_copy(lake: Lake) -> None:
    """It was overwritten between the listing and the copy, and points to a checkpoint that was not listed."""
    listing = lake.listing()
    keys = [*every_key(lake), f"{ROOT}/_delta_log/_last_checkpoint"]
    _commit(lake, 5, AS_OF + HOUR)
    _checkpoint(lake, 5, AS_OF + HOUR)
    assert reads(plain_copy(lake, keys)) is None
    assert ours(lake, listing) == ("verified", [0, 1, 2, 3, 4])


def test_a_checkpoint_that_is_newer_than_the_cut(lake: Lake) -> None:
    """Commits after as_of are left out, their checkpoint is not: the copy opens at the later version."""
    _commit(lake, 5, AS_OF + HOUR)
    _checkpoint(lake, 5, AS_OF + HOUR)
    keys = [key for key in every_key(lake) if key != log(5) and "_last_checkpoint" not in key]
    assert reads(plain_copy(lake, keys)) == [0, 1, 2, 3, 4, 5]
    assert ours(lake, lake.listing()) == ("verified", [0, 1, 2, 3, 4])


def test_commits_after_the_cut(lake: Lake) -> None:
    """A copy of what is there is no moment of any table but of each another one."""
    _commit(lake, 5, AS_OF + HOUR)
    assert reads(plain_copy(lake, every_key(lake))) == [0, 1, 2, 3, 4, 5]
    assert ours(lake, lake.listing()) == ("verified", [0, 1, 2, 3, 4])


def test_a_data_file_that_was_not_listed(lake: Lake) -> None:
    key = next(key for key in every_key(lake) if key.endswith(".parquet"))
    assert reads(plain_copy(lake, [one for one in every_key(lake) if one != key])) is None
    assert ours(lake, lost(lake, key)) == ("verified", [0, 1, 2, 3, 4])


def test_data_files_that_were_vacuumed_before_they_were_copied(lake: Lake) -> None:
    listing = lake.listing()
    newest = DeltaTable(str(lake.source / ROOT)).get_add_actions().column("path").to_pylist()[0]
    path = lake.source / ROOT / newest
    content = path.read_bytes()
    path.unlink()
    assert reads(plain_copy(lake, every_key(lake))) is None
    path.write_bytes(content)
    at(AS_OF - HOUR, path)
    status, rows = ours(lake, lake.listing(), path.unlink)
    assert status == "verified_with_fallback"
    assert rows == [0, 1, 2, 3]
    assert listing


@pytest.mark.parametrize("layout", ["incremental", "dated"])
def test_a_clean_cut_opens_at_its_version(lake: Lake, layout: str) -> None:
    of_layout = Lake(lake.base, layout)
    _checkpoint(of_layout, 4, AS_OF - HOUR)
    _commit(of_layout, 5, AS_OF + HOUR)
    (proof,) = of_layout.made(DAY, of_layout.listing()).tables
    table = of_layout.target / proof.table.stored_root
    assert (proof.status, proof.version) == ("verified", 4)
    assert reads(table, 4) == [0, 1, 2, 3, 4]
    assert reads(table) == [0, 1, 2, 3, 4]
