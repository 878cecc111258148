"""A catalog that was dumped into a point comes back whole into an empty database, and into no other.

What a dump has of Nessie is tested in test_nessie_refs.py, which has one.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from lakeshare_pipelines.backup.catalog_dump import (
    LEFT_OUT,
    MANIFEST,
    dump_catalog,
    get_dump_folder,
    list_dumped_tables,
    read_manifest,
    restore_catalog,
)
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog, Evidence, EvidenceStore, Ledger, open_catalog
from lakeshare_server.catalog.credentials import issue_token
from lakeshare_server.catalog.declared import apply_files
from lakeshare_server.catalog.models import Base
from lakeshare_server.catalog.sharing import create_recipient, editing
from lakeshare_server.catalog.transfer import dump_rows
from lakeshare_server.errors import CatalogConflict
from lakeshare_server.tables.index import index_path
from tests.builders.applied_files import EVERYTHING, exported
from tests.builders.database_schema import add_migration
from tests.builders.publications import a_publication

DAY = "2026-11-20"
LATER = 'op.add_column("recipients", sa.Column("later", sa.Integer(), nullable=False, server_default="7"))'
SECRETS = list[str]


@pytest.fixture
def points(tmp_path: Path) -> Points:
    source, target = (StoreAddress(url=str(tmp_path / name)) for name in ("lake", "copies"))
    return Points(Backup(name="lake", source=source, target=target))


@pytest.fixture
def settings(tmp_path: Path, catalog_url: str) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path / "state", database_url=catalog_url)


@pytest.fixture
def elsewhere(tmp_path: Path, other_url: str) -> LakeSettings:
    """A state folder of another place, and an empty database of the other kind than the catalog's."""
    return LakeSettings(_env_file=None, state_dir=tmp_path / "elsewhere", database_url=other_url)


@pytest.fixture
def secrets(catalog: Catalog, settings: LakeSettings, said: Callable[[str], Any]) -> SECRETS:
    """Fills the catalog; returns what only recipients know."""
    apply_files(catalog, said(EVERYTHING), "ann")
    found = []
    with editing(catalog, "ann") as edit:
        create_recipient(edit, "bob", comment="\u2028 two\nlines ü 🌊")
        found += [issue_token(edit, name).secret for name in ("acme", "bob")]
    settings.index_dir.mkdir(parents=True)
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    index_path(settings.index_dir, digest).touch()
    Ledger(catalog).append([a_publication(index_digest=digest, verdicts={"green": True, "rules": [1, None]})])
    Ledger(catalog).append([a_publication(changes_digest="1" * 64, snapshot_id=(1 << 63) - 1)])
    entries = hashlib.sha256(b"entries").hexdigest()
    index_path(settings.index_dir, entries).write_bytes(b"entries")
    signed = {"table": "lake.flights", "version": 0, "key_id": "2" * 64, "envelope": "{}", "salt": b"s" * 32}
    EvidenceStore(catalog).put(Evidence(entries_digest=entries, **signed))
    EvidenceStore(catalog).register("2" * 64, "a public key")
    return found


def rows_of(catalog: Catalog) -> dict[str, list[dict[str, Any]]]:
    with catalog.reading() as session:
        found = {
            table.name: [json.loads(line) for line in dump_rows(session, table)]
            for table in list_dumped_tables()
        }
    del found["catalog_state"]
    return found


def dumped_files(points: Points) -> list[Path]:
    return [path for path in Path(points.backup.target.url).rglob("*") if path.is_file()]


def test_a_dump_comes_back_whole_on_the_other_database_and_nothing_of_a_damaged_one(
    catalog: Catalog, settings: LakeSettings, points: Points, elsewhere: LakeSettings, secrets: SECRETS
) -> None:
    record = dump_catalog(settings, points.backup, points, DAY)
    assert (record.tables, record.publications, record.shares, record.grants) == (1, 2, 2, 2)
    assert (record.nessie_hash, record.key) == (None, f"{get_dump_folder(points, DAY)}{MANIFEST}")
    _require_no_secrets(points, secrets)
    _require_one_copy_of_each_file_index(settings, points)
    before = rows_of(catalog)
    with pytest.raises(
        BackupError, match=r"it is not empty: there are rows in .*recipients.* never overwritten"
    ):
        restore_catalog(settings, points, DAY)
    assert rows_of(catalog) == before
    _require_newer_and_damaged_dumps_are_refused(points, elsewhere)

    generation = catalog.generation()
    brought = restore_catalog(elsewhere, points, DAY)
    again = open_catalog(elsewhere.catalog_url)
    try:
        assert exported(again, revisions=True) == exported(catalog, revisions=True)
        assert rows_of(again) == before
        assert again.generation() > generation
        assert brought.rows["publications"] == 2
        manifest = read_manifest(points, DAY)
        assert (brought.indexes, brought.missing_indexes) == (2, manifest.missing_indexes)
        assert all(index_path(elsewhere.index_dir, file.sha256).exists() for file in manifest.indexes)
        assert EvidenceStore(again).find("lake.flights", 0) == EvidenceStore(catalog).find("lake.flights", 0)
        # What is written next has keys of its own.
        Ledger(again).append([a_publication()])
        with editing(again, "ann") as edit:
            create_recipient(edit, "carl")
        assert len(rows_of(again)["recipients"]) == len(before["recipients"]) + 1
        assert [publication.version for publication in Ledger(again).history("lake.flights")] == [2, 1, 0]
    finally:
        again.close()


def _require_no_secrets(points: Points, secrets: SECRETS) -> None:
    written = [path.read_bytes() for path in dumped_files(points)]
    assert any(b"bob" in content for content in written)
    assert not any(secret.encode() in content for content in written for secret in secrets)


def _require_one_copy_of_each_file_index(settings: LakeSettings, points: Points) -> None:
    dump_catalog(settings, points.backup, points, "2026-11-21")
    assert len([path for path in dumped_files(points) if path.suffix == ".arrow"]) == 2
    assert read_manifest(points, DAY).missing_indexes == ("0" * 64, "1" * 64)


def _require_newer_and_damaged_dumps_are_refused(points: Points, elsewhere: LakeSettings) -> None:
    """Refuses both, and makes the dump whole again."""
    revision = read_manifest(points, DAY).revision
    _change_manifest(points, revision="9999")
    with pytest.raises(
        CatalogConflict, match=r"revision 9999, this lakeshare knows up to .* Use the lakeshare"
    ):
        restore_catalog(elsewhere, points, DAY)
    _change_manifest(points, revision=revision)
    # The last table that is filled: all the others were by then.
    name = [table for table in read_manifest(points, DAY).tables if table.rows][-1].files[0].name
    key = get_dump_folder(points, DAY) + name
    whole = points.store.read(key)
    points.store.put(key, whole.replace(b"e", b"a", 1))
    with pytest.raises(BackupError, match="not what was dumped: its SHA-256 differs"):
        restore_catalog(elsewhere, points, DAY)
    half = open_catalog(elsewhere.catalog_url)
    assert not any(rows_of(half).values())
    half.close()
    points.store.put(key, whole)
    # File indexes are named by their content, so that those of a refused dump may stay.
    for index in elsewhere.index_dir.iterdir():
        index.unlink()


def test_every_table_is_kept_or_left_out_by_name() -> None:
    kept = {table.name for table in list_dumped_tables()}
    assert kept | LEFT_OUT == set(Base.metadata.tables)
    assert not kept & LEFT_OUT


@pytest.mark.usefixtures("secrets")
def test_a_dump_of_an_older_lakeshare_is_migrated(
    catalog: Catalog,
    settings: LakeSettings,
    points: Points,
    elsewhere: LakeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dump_catalog(settings, points.backup, points, DAY)
    rows = rows_of(catalog)
    revision = add_migration(tmp_path / "migrations", monkeypatch, LATER)
    restore_catalog(elsewhere, points, DAY)
    back = open_catalog(elsewhere.catalog_url)
    assert back.schema_state().revision == revision
    assert rows_of(back) == rows
    with back.reading() as session:
        assert session.execute(text("SELECT DISTINCT later FROM recipients")).scalars().all() == [7]
    back.close()


def test_a_point_without_a_dump_is_refused(points: Points, elsewhere: LakeSettings) -> None:
    with pytest.raises(
        BackupError, match=r"the point has no dump of the catalog. Restore the catalog of another"
    ):
        restore_catalog(elsewhere, points, DAY)
    assert not (elsewhere.state_dir / "lakeshare.db").exists()


def test_an_empty_catalog_is_dumped_and_comes_back(
    catalog: Catalog, settings: LakeSettings, points: Points, elsewhere: LakeSettings
) -> None:
    record = dump_catalog(settings, points.backup, points, DAY)
    assert (record.tables, record.publications, record.shares, record.grants) == (0, 0, 0, 0)
    assert sum(restore_catalog(elsewhere, points, DAY).rows.values()) == 1, "the count of generations"


def test_the_command_brings_rows_and_contracts_back(
    sqlite_url: str,
    tmp_path: Path,
    points: Points,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[str], Any],
) -> None:
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state", database_url=sqlite_url)
    catalog = open_catalog(sqlite_url)
    apply_files(catalog, said(EVERYTHING), "ann")
    dump_catalog(settings, points.backup, points, DAY)
    declared = tmp_path / "backups.yaml"
    declared.write_text(
        json.dumps({"backups": {"lake": json.loads(points.backup.model_dump_json(exclude={"name"}))}})
    )
    monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(declared))
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "elsewhere"))
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "reference.yaml").write_text("# mine\n")
    arguments = ["restore", "catalog", DAY, "--contracts", str(contracts)]
    planned = CliRunner().invoke(app, [*arguments, "--plan"])
    assert planned.exit_code == 0, planned.output
    assert not (tmp_path / "elsewhere").exists(), "a plan changes nothing"
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert "recipients keep their profiles" in told.stdout
    back = open_catalog(f"sqlite:///{tmp_path / 'elsewhere' / 'lakeshare.db'}")
    assert exported(back) == exported(catalog)
    back.close()
    catalog.close()
    assert (contracts / "reference.yaml").read_text() == "# mine\n"
    (contracts / "reference.yaml").unlink()
    assert [contract.name for contract in load_contracts(contracts)] == ["flights"]


def _change_manifest(points: Points, **different: object) -> None:
    key = f"{get_dump_folder(points, DAY)}{MANIFEST}"
    points.store.put(key, json.dumps(json.loads(points.store.read(key)) | different).encode())
