"""Which state of each table main had at a moment is told by Nessie, branches beside it or not."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from nessie_fixtures import RunningNessie, a_table

from lakeshare_pipelines.backup.verify.iceberg import list_main_pointers
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.waiting import wait_until


def test_main_is_told_as_it_was_at_the_moment(lake: Lake) -> None:
    nessie, table = RunningNessie(lake.settings, lake.endpoint), a_table()

    def told(as_of: datetime) -> list[str]:
        return [one for one in list_main_pointers(lake.settings, as_of) if f"/{table}/" in one]

    before = datetime.now(UTC)
    nessie.commit("main", {table: 1}, "publisher")
    first = datetime.now(UTC)
    # Nessie's times may be cut to milliseconds.
    wait_until(lambda: datetime.now(UTC) > first + timedelta(milliseconds=2))
    nessie.commit("main", {table: 2}, "publisher")
    nessie.commit(nessie.a_branch(), {table: 3})
    assert told(datetime.now(UTC) + timedelta(days=1)) == [f"file:/warehouse/{table}/2.metadata.json"]
    assert told(first) == [f"file:/warehouse/{table}/1.metadata.json"]
    assert told(before) == []


def test_nothing_is_started_where_no_catalog_was_ever_used(tmp_path: Path) -> None:
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    assert list_main_pointers(settings, datetime.now(UTC)) == ()
    assert not (tmp_path / "state/nessie").exists()
