"""What the server and the pipelines keep is for their own user, whatever the umask: state, audit, tables, backups."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import prepare_folders
from lakeshare_server.catalog import AuditLog, open_catalog
from lakeshare_server.settings import make_private
from tests.builders import plain_http
from tests.builders.lake_tables import an_iceberg_table
from tests.builders.server_process import a_process
from tests.builders.sharing import FLIGHTS, a_provider, a_provider_of_flights


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable_by_others(folder: Path) -> list[str]:
    """The files and folders that another user can get at, by the modes on the way to them."""
    if not stat.S_IMODE(folder.stat().st_mode) & 0o055:
        return []
    found = []
    for path in [folder, *folder.rglob("*")]:
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 and not path.is_symlink():
            found.append(str(path.relative_to(folder.parent)))
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_state_of_a_server_is_its_own_users(tmp_path: Path) -> None:
    provider = a_provider_of_flights(tmp_path)
    provider.publish_iceberg("lake.iceberg", an_iceberg_table(tmp_path / "warehouse").state())
    token = provider.recipient()
    with a_process(provider) as (process, url):
        headers = {"Authorization": f"Bearer {token}"}
        assert plain_http.post(f"{url}{FLIGHTS}/query", headers=headers).status_code == 200
        state = provider.settings.state_dir
        assert mode(state) == 0o700
        files = {path.relative_to(state): mode(path) for path in state.rglob("*")}
        assert files
        assert {path for path, found in files.items() if found & 0o077} == set()
        process.terminate()
        process.wait(30)


def test_the_database_is_made_for_its_owner_wherever_it_is(tmp_path: Path) -> None:
    database = tmp_path / "new" / "lake.db"
    catalog = open_catalog(f"sqlite:///{database}")
    log = AuditLog(catalog, tmp_path / "audit")
    try:
        assert mode(database.parent) == 0o700
        beside = [path for path in database.parent.iterdir() if path.is_file()]
        assert database in beside
        assert {mode(path) for path in beside} == {0o600}
        assert mode(tmp_path / "audit") == 0o700
    finally:
        log.close()
        catalog.close()


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o750)
    shared.chmod(0o750)
    make_private(shared / "a" / "b")
    assert mode(shared) == 0o750
    assert (mode(shared / "a"), mode(shared / "a" / "b")) == (0o700, 0o700)
    make_private(shared)
    assert mode(shared) == 0o750


def test_the_warehouse_and_a_backup_are_made_for_their_owner(tmp_path: Path) -> None:
    settings = LakeSettings(state_dir=tmp_path / "state", warehouse=tmp_path / "tables")
    prepare_folders(settings)
    assert (mode(settings.state_dir), mode(tmp_path / "tables")) == (0o700, 0o700)
    store = open_store(StoreAddress(url=str(tmp_path / "backups" / "lake")))
    store.put("a/b", b"copy")
    assert readable_by_others(tmp_path / "backups") == []


def test_an_open_state_folder_is_named_at_the_start_and_no_key_is_written_into_a_log(tmp_path: Path) -> None:
    provider = a_provider(tmp_path)
    state = provider.settings.state_dir
    state.chmod(0o755)
    with a_process(provider) as (process, _):
        process.terminate()
        said, errors = process.communicate(timeout=60)
    assert f"other users of this host can read {state} (mode 755)" in errors
    assert "chmod 700" in errors
    kept = state / "first-admin.key"
    key = kept.read_text().strip()
    assert key
    assert key not in said + errors
    assert mode(kept) == 0o600
    assert str(kept) in said
