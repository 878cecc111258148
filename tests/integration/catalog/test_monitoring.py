"""What monitoring reads every few seconds, and the console of sets, does not grow with the number of publications."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, DeclaredShare, Ledger, SharedTable, apply_shares, open_catalog
from lakeshare_server.catalog.models import PublicationRow
from lakeshare_server.catalog.monitoring import FreshnessGoals, LakeState, read_lake_state, read_last_runs
from lakeshare_server.catalog.overviews import find_sets
from tests.builders.publications import a_publication

SETS = ("birds", "fish", "plants")
BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
SAME: dict[str, object] = {
    **dict.fromkeys(("rows", "files", "size_bytes"), 1),
    **dict.fromkeys(("table_id", "index_digest", "contract_digest"), "0"),
    "format": "delta",
    "location": "file:///lake",
    "schema_string": "{}",
    "partition": "all",
    "verdicts": {},
    "audited": True,
}


def share(catalog: Catalog, *tables: str) -> None:
    shared = tuple(SharedTable("lake", f"t{at}", table) for at, table in enumerate(tables))
    apply_shares(catalog, [DeclaredShare("nature", shared)])


def read_state(session: Session, max_tables: int = 100) -> LakeState:
    return read_lake_state(session, FreshnessGoals(), max_tables)


def test_the_last_run_of_each_set_and_the_last_data_of_each_table_are_found(catalog: Catalog) -> None:
    ledger = Ledger(catalog)
    for at, name in enumerate(SETS):
        for day in range(3):
            run = {"set_name": name, "run_id": f"{name}-{day}", "rows": at + day}
            both = [a_publication(table=f"{name}.{table}", **run) for table in ("seen", "counted")]
            ledger.append(both)
    ledger.append([a_publication(table="birds.seen", set_name="birds", run_id="back", rollback_of=0)])
    ledger.append([a_publication(table="fish.seen", set_name="fish", run_id="compacted", maintenance_of=2)])
    ledger.append([a_publication(table="plants.seen", set_name="plants", run_id="last", rows=70)])
    share(catalog, "birds.seen", "birds.counted", "fish.seen", "plants.seen", "plants.never_published")
    with catalog.reading() as session:
        runs = read_last_runs(session)
        state, first_two = read_state(session), read_state(session, 2)
        sets, later = find_sets(session).items, find_sets(session, "LA", "birds").items
        dates = {
            (table, version): at
            for table, version, at in session.execute(
                select(PublicationRow.table, PublicationRow.version, PublicationRow.published_at)
            )
        }
    assert [(run.set_name, run.rows) for run in runs] == [("birds", 4), ("fish", 6), ("plants", 70)]
    assert runs[0].published_at == max(dates["birds.seen", 2], dates["birds.counted", 2])
    newest = {"birds": ("birds.seen", 3), "fish": ("fish.seen", 3), "plants": ("plants.seen", 3)}
    found = [(found.name, found.tables, found.published_at) for found in sets]
    assert found == [(name, 1 if name == "plants" else 2, dates[newest[name]]) for name in SETS]
    assert [found.name for found in later] == ["plants"]
    assert [(table.table, table.published_at) for table in state.tables] == [
        (name, dates[name, version])
        for name, version in (("birds.counted", 2), ("birds.seen", 2), ("fish.seen", 2), ("plants.seen", 3))
    ]
    assert (state.left_out, first_two.left_out) == (0, 3)
    assert [table.table for table in first_two.tables] == ["birds.counted", "birds.seen"]


def test_without_publications_there_are_no_runs(catalog: Catalog) -> None:
    with catalog.reading() as session:
        assert read_last_runs(session) == find_sets(session).items == []
        assert read_state(session).tables == []


def test_a_hundred_times_as_many_publications_take_no_more_steps(sqlite_url: str) -> None:
    catalog = open_catalog(sqlite_url)
    tables = [f"{name}.seen" for name in SETS]
    share(catalog, *tables)
    few = _count_steps(catalog, range(10))
    assert few > 0
    assert _count_steps(catalog, range(10, 1000)) < 2 * few


def _count_steps(catalog: Catalog, days: range) -> int:
    """Publishes each set on these days; returns the steps of SQLite's machine for all readings."""
    rows = [
        {
            **SAME,
            "table": f"{name}.seen",
            "version": day,
            "set_name": name,
            "run_id": f"{name}-{day}",
            "published_at": BEGAN + timedelta(day),
        }
        for day in days
        for name in SETS
    ]
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    with catalog.writing() as session:
        session.execute(insert(PublicationRow), rows)
    with catalog.reading() as session:
        connection = session.connection().connection.driver_connection
        assert connection is not None
        connection.set_progress_handler(count, 1)
        found = read_last_runs(session), read_state(session).tables, find_sets(session).items
        connection.set_progress_handler(None, 1)
    assert list(map(len, found)) == [len(SETS)] * 3
    return steps
