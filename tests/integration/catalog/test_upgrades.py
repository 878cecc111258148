"""`lakeshare db`: upgrades leave a backup that comes back, releases share a database, and rows move to another."""

import json
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from typer.testing import CliRunner

from lakeshare_server.catalog import Catalog, database, open_catalog, open_existing_catalog
from lakeshare_server.catalog.audit import verify
from lakeshare_server.catalog.declared import apply_files
from lakeshare_server.catalog.transfer import dump_rows, reflect_tables
from lakeshare_server.cli.main import commands
from lakeshare_server.errors import BadRequest, CatalogConflict
from tests.builders.applied_files import EVERYTHING
from tests.builders.database_schema import add_migration
from tests.builders.events import an_event, append

ADDED = 'op.add_column("recipients", sa.Column("later", sa.Integer()))'
RAISED = """op.execute("UPDATE catalog_state SET compatible_from = '9999'")"""


@pytest.fixture
def filled(catalog: Catalog, said: Callable[[str], Any]) -> Catalog:
    apply_files(catalog, said(EVERYTHING), "ann")
    append(catalog, [an_event(number) for number in range(3)])
    return catalog


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs `lakeshare db …` on a database, and returns what it prints; raises its error."""
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "host"))

    def run(url: str, *arguments: str, code: int = 0) -> str:
        monkeypatch.setenv("LAKESHARE_DATABASE_URL", url)
        ended = CliRunner().invoke(commands, ["db", *arguments])
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        assert ended.exit_code == code, ended.output
        return ended.stdout

    return run


def rows_of(catalog: Catalog) -> dict[str, list[bytes]]:
    with catalog.engine.connect() as connection:
        tables = reflect_tables(connection)
        return {
            table.name: list(dump_rows(connection, table))
            for table in tables
            if table.name != "catalog_state"
        }


def test_rows_move_to_a_database_of_the_other_kind_and_back(
    filled: Catalog, catalog_url: str, other_url: str, tmp_path: Path, run: Callable[..., str]
) -> None:
    file = tmp_path / "catalog.zip"
    assert f"wrote {file}" in run(catalog_url, "export", str(file))
    assert file.stat().st_mode & 0o077 == 0, "tokens' digests are for the owner only"
    with pytest.raises(BadRequest, match="It exists"):
        run(catalog_url, "export", str(file))
    with pytest.raises(
        CatalogConflict, match=r"is not empty: there are rows in .*recipients.* never overwritten"
    ):
        run(catalog_url, "import", str(file))

    run(other_url, "import", str(file))
    with closing(open_catalog(other_url)) as moved:
        assert rows_of(moved) == rows_of(filled)
        assert moved.generation() > filled.generation()
        assert verify(moved).is_sound
        # What is written next has keys of its own.
        append(moved, [an_event()])
        assert len(rows_of(moved)["audit_log"]) == len(rows_of(filled)["audit_log"]) + 1
    assert json.loads(run(other_url, "check", "--json"))["problems"] == []


def test_a_damaged_file_fills_nothing(
    filled: Catalog, catalog_url: str, other_url: str, tmp_path: Path, run: Callable[..., str]
) -> None:
    file, damaged = tmp_path / "catalog.zip", tmp_path / "damaged.zip"
    run(catalog_url, "export", str(file))
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content.replace(b"acme", b"acne") if "audit_log" in name else content)
    with pytest.raises(BadRequest, match="Its table audit_log is not what was exported"):
        run(other_url, "import", str(damaged))
    file.write_bytes(b"no archive")
    with pytest.raises(BadRequest, match="a file that `lakeshare db export` wrote"):
        run(other_url, "import", str(file))
    with closing(open_catalog(other_url)) as empty:
        assert not any(rows for name, rows in rows_of(empty).items() if name != "audit_chain")


def test_an_upgrade_keeps_a_backup_and_releases_share_the_database_in_between(
    filled: Catalog,
    catalog_url: str,
    tmp_path: Path,
    run: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, old = rows_of(filled), database.HEAD
    with monkeypatch.context() as newer:
        new = add_migration(tmp_path / "migrations", newer, ADDED)
        state = json.loads(run(catalog_url, "check", "--json", code=1))
        assert (state["revision"], state["expected"], state["is_usable"]) == (old, new, False)
        assert [migration["revision"] for migration in state["pending"]] == [new]
        if catalog_url.startswith("postgresql"):
            # Other hosts use it: the start of a server does not migrate it.
            with pytest.raises(CatalogConflict, match="Run `lakeshare db upgrade`, which backs it up first"):
                open_catalog(catalog_url)
        shown = run(catalog_url, "upgrade")
        assert f"upgraded the catalog from revision {old} to {new}" in shown
        assert "nothing to do" in run(catalog_url, "upgrade")
        backup = Path(shown.splitlines()[0].removeprefix("backup: "))
        assert backup.stat().st_mode & 0o077 == 0
        with closing(open_catalog(catalog_url)) as upgraded:
            assert upgraded.schema_state() == (new, "0018")

    # The old release goes on, also after a restart.
    for opened in (filled, open_catalog(catalog_url), open_existing_catalog(catalog_url)):
        assert opened is not None
        assert opened.schema_state().is_usable
        append(opened, [an_event()])
        opened.close()
    assert "releases from revision 0018 can use it" in run(catalog_url, "check")

    # And the backup is the state before, for the old release.
    if backup.suffix == ".zip":
        url = f"sqlite:///{tmp_path / 'back' / 'lakeshare.db'}"
        run(url, "import", str(backup))
    else:
        url = f"sqlite:///{backup}"
    with closing(open_catalog(url)) as back:
        assert back.schema_state().revision == old
        assert rows_of(back) == before


def test_an_older_file_is_copied_and_migrated_when_it_is_opened(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = database.HEAD
    new = add_migration(tmp_path / "migrations", monkeypatch, ADDED)
    with closing(open_catalog(sqlite_url)) as opened:
        assert opened.schema_state().revision == new
    file = database.database_file(sqlite_url)
    assert file is not None
    copy = database.copy_path(file, old)
    assert copy.stat().st_mode & 0o077 == 0
    with closing(open_existing_catalog(f"sqlite:///{file}") or opened) as again:
        assert again.schema_state().revision == new


def test_a_file_that_cannot_be_copied_is_not_migrated(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, file = database.HEAD, database.database_file(sqlite_url)
    assert file is not None
    (database.copy_path(file, old)).mkdir()
    with monkeypatch.context() as newer:
        add_migration(tmp_path / "migrations", newer, ADDED)
        with pytest.raises(Exception, match="cannot be copied") as refused:
            open_catalog(sqlite_url)
        assert "Make room beside it" in str(refused.value)
    with closing(open_catalog(sqlite_url)) as opened:
        assert opened.schema_state().revision == old
    assert not list(file.parent.glob("*.part"))


def test_a_database_that_old_releases_cannot_use_is_refused(
    catalog: Catalog,
    catalog_url: str,
    tmp_path: Path,
    run: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as newer:
        new = add_migration(tmp_path / "migrations", newer, RAISED)
        run(catalog_url, "upgrade", "--no-backup")
    assert not catalog.schema_state().is_usable
    for use in (open_catalog, open_existing_catalog, lambda url: run(url, "upgrade")):
        with pytest.raises(
            CatalogConflict, match=rf"revision {new}, .* Use the lakeshare version that migrated it"
        ):
            use(catalog_url)
    assert "this lakeshare cannot use it" in run(catalog_url, "check", code=1)


def test_a_check_names_drift_and_a_database_without_a_catalog(
    catalog: Catalog, catalog_url: str, other_url: str, run: Callable[..., str]
) -> None:
    with catalog.engine.begin() as connection:
        connection.execute(text("ALTER TABLE shares RENAME COLUMN notice TO note"))
    assert "shares notice" in run(catalog_url, "check", code=1)
    assert "no catalog" in run(other_url, "check", code=1)
    assert "created the catalog" in run(other_url, "upgrade")
    assert "state      current" in run(other_url, "check")


def test_migrations_since_the_floor_add_only_or_raise_it(empty_url: str) -> None:
    """Old servers read and write a database that is newer: what they use stays, what is new has a default."""
    revisions = sorted(path.name[:4] for path in (database.MIGRATIONS / "versions").glob("[0-9]*.py"))
    catalog = database.new_catalog(empty_url, database.COMPATIBLE_SINCE)
    with closing(catalog):
        for revision in (number for number in revisions if number > database.COMPATIBLE_SINCE):
            before, old_floor = _columns(catalog), catalog.schema_state().compatible_from
            database.migrate(catalog, revision, with_copy=False)
            after, floor = _columns(catalog), catalog.schema_state().compatible_from
            lost, tables = before.items() - after.items(), {table for table, _ in before}
            required = {name for name in after.keys() - before.keys() if after[name] and name[0] in tables}
            assert floor != old_floor or not (lost or required), f"{revision}: {lost or required}"


def _columns(catalog: Catalog) -> dict[tuple[str, str], bool]:
    """Whether a row needs a value of a column, by table and column."""
    inspector = inspect(catalog.engine)
    return {
        (table, column["name"]): not column["nullable"] and column["default"] is None
        for table in inspector.get_table_names()
        for column in inspector.get_columns(table)
    }
