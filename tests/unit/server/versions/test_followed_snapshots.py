"""Of a followed Iceberg table every snapshot that was current has a number for ever, and is read by it."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.catalog import FollowedTables, Ledger
from lakeshare_server.protocol.requests import format_iso
from lakeshare_server.storage import Stores
from tests.builders.followed_iceberg import (
    NAME,
    OwnedTable,
    a_reader,
    a_worker,
    count_of,
    following,
    log_of,
    numbered,
    pinned,
    refused,
    version_of,
)
from tests.builders.iceberg_rest import TABLE, door, rest_catalog
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import FLIGHTS, Provider, a_provider, a_server, lines


@pytest.fixture
def table(tmp_path: Path) -> OwnedTable:
    return OwnedTable(tmp_path / "warehouse")


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


def test_the_history_has_numbers_and_times_from_the_first_look_on(
    provider: Provider, table: OwnedTable
) -> None:
    table.append_days(2)
    table.append_days(3)
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 2
        assert [count_of(client, version=number) for number in range(3)] == [1, 3, 6]
        for number, (at_ms, snapshot_id) in enumerate(log_of(table)):
            assert numbered(provider)[number].snapshot_id == snapshot_id
            assert int(numbered(provider)[number].published_at.timestamp() * 1000) == at_ms
            assert version_of(client, startingTimestamp=format_iso(at_ms)) == number
            assert count_of(client, timestamp=format_iso(at_ms)) == [1, 3, 6][number]
        refused(client.post(f"{FLIGHTS}/query", json={"version": 3}), "no such version")
        refused(
            client.post(f"{FLIGHTS}/query", json={"startingVersion": 3}), "greater than the latest version 2"
        )
        refused(
            client.post(f"{FLIGHTS}/query", json={"timestamp": format_iso(log_of(table)[0][0] - 1)}), "before"
        )


def test_a_look_that_finds_several_snapshots_numbers_all_in_order(
    provider: Provider, table: OwnedTable
) -> None:
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 0
        later = [table.append_days(1) for _ in range(3)]
        assert version_of(client) == 3
        assert pinned(provider)[1:] == later
        assert [count_of(client, version=number) for number in range(4)] == [1, 2, 3, 4]
    counted = [(one.rows, one.files) for one in numbered(provider)]
    assert counted == [(4, 1), (8, 2), (12, 3), (16, 4)]


def test_a_rollback_is_a_new_number_that_pins_the_old_snapshot(provider: Provider, table: OwnedTable) -> None:
    first = table.current
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 0
        second = table.append_days(1)
        table.roll_back(first)
        third = table.append_days(3)
        assert version_of(client) == 3
        assert pinned(provider) == [first, second, first, third]
        assert [one.rollback_of for one in numbered(provider)] == [None, None, 0, None]
        assert [count_of(client, version=number) for number in range(4)] == [1, 2, 1, 4]


def test_numbers_stay_when_snapshots_expire(provider: Provider, table: OwnedTable) -> None:
    following(provider, table.folder)
    with a_reader(provider) as client:
        snapshots = [table.current, table.append_days(1), table.append_days(1)]
        assert version_of(client) == 2
        table.table.maintenance.expire_snapshots().by_ids(snapshots[:2]).commit()
        assert version_of(client) == 2
        snapshots.append(table.append_days(1))
        assert version_of(client) == 3
        assert pinned(provider) == snapshots
        # Their files and the metadata they were numbered by are still there.
        assert [count_of(client, version=number) for number in range(4)] == [1, 2, 3, 4]


def test_what_expired_before_anybody_looked_has_no_number_and_leaves_no_gap(
    provider: Provider, table: OwnedTable
) -> None:
    following(provider, table.folder)
    with a_reader(provider) as client:
        first = table.current
        assert version_of(client) == 0
        missed, seen = table.append_days(1), table.append_days(1)
        table.table.maintenance.expire_snapshots().by_ids([first, missed]).commit()
        assert version_of(client) == 1
        assert pinned(provider) == [first, seen]


def test_a_log_that_was_emptied_tells_the_current_snapshot_alone(
    provider: Provider, table: OwnedTable
) -> None:
    table.append_days(1)
    table.rewrite(lambda metadata: metadata.update({"snapshot-log": [], "metadata-log": []}))
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert (version_of(client), count_of(client)) == (0, 2)
        assert pinned(provider) == [table.current]


def test_history_before_a_gap_in_the_log_is_not_told(provider: Provider, table: OwnedTable) -> None:
    """A time before the expired snapshot would be answered with the wrong state."""
    snapshots = [table.current, table.append_days(1), table.append_days(1), table.append_days(1)]
    table.rewrite(
        lambda metadata: metadata.update(
            snapshots=[one for one in metadata["snapshots"] if one["snapshot-id"] != snapshots[1]]
        )
    )
    following(provider, table.folder)
    assert a_worker(provider).latest().number == 1
    assert pinned(provider) == snapshots[2:]


def test_other_columns_are_a_new_number_and_other_properties_are_none(
    provider: Provider, table: OwnedTable
) -> None:
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 0
        with table.table.transaction() as change:
            change.set_properties({"owner": "somebody"})
        assert version_of(client) == 0
        with table.table.update_schema() as schema:
            schema.delete_column("crew")
        assert version_of(client) == 1
        assert pinned(provider) == [table.current] * 2
        assert [one.rollback_of for one in numbered(provider)] == [None, None]

        def columns(version: int) -> list[str]:
            _, metadata, *_ = lines(client.post(f"{FLIGHTS}/query", json={"version": version}))
            schema = metadata["metaData"]["schemaString"]
            return [name for name in ("crew", "carrier") if f'"{name}"' in schema]

        assert (columns(0), columns(1)) == (["crew", "carrier"], ["carrier"])
    with a_server(provider) as server:
        loaded = rest_catalog(server, provider.recipient()).load_table(NAME)
        assert "crew" not in loaded.schema().column_names
        assert loaded.scan().to_arrow().num_rows == 4


def test_a_removed_metadata_file_is_replaced_by_a_newer_one(provider: Provider, table: OwnedTable) -> None:
    """As writers do with `write.metadata.delete-after-commit.enabled`."""
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 0
        told_by = table.newest_file
        second = table.append_days(1)
        told_by.unlink()
        assert version_of(client) == 1
        assert pinned(provider)[1] == second
        for index in (provider.settings.index_dir / "cache").glob("*.arrow"):
            index.unlink()
    with a_reader(provider) as client:
        assert [count_of(client, version=number) for number in (0, 1)] == [1, 2]
        assert [count_of(client), version_of(client)] == [2, 1]


def test_a_removed_metadata_file_is_not_replaced_where_the_columns_were_others(
    provider: Provider, table: OwnedTable
) -> None:
    following(provider, table.folder)
    with table.table.update_schema() as schema:
        schema.delete_column("crew")
    assert a_worker(provider).latest().number == 0
    told_by = table.newest_file
    table.append_days(1)
    told_by.unlink()
    for index in (provider.settings.index_dir / "cache").glob("*.arrow"):
        index.unlink()
    with a_reader(provider) as client:
        assert count_of(client) == 2
        refused(client.post(f"{FLIGHTS}/query", json={"version": 0}), "table files missing", "version 0")


def test_metadata_that_was_restored_from_a_backup_is_a_new_number(
    provider: Provider, table: OwnedTable
) -> None:
    first, old = table.current, table.newest_file
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 0
        second, newer = table.append_days(1), table.newest_file
        assert version_of(client) == 1
        before = datetime.now(UTC)
        newer.unlink()
        assert old.exists()
        assert version_of(client) == 2
        assert pinned(provider) == [first, second, first]
        assert numbered(provider)[2].published_at.timestamp() >= before.timestamp() - 0.001
        assert numbered(provider)[2].rollback_of == 0
        assert version_of(client) == 2


def test_requests_at_once_share_one_look_and_none_comes_within_the_interval(
    provider: Provider, table: OwnedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    following(provider, table.folder, check_every_s=3600)
    listed: list[str] = []
    list_store = Stores.list

    def counting(self: Stores, prefix: str, after: str | None = None) -> Any:
        listed.append(prefix)
        return list_store(self, prefix, after)

    monkeypatch.setattr(Stores, "list", counting)
    found: list[int] = []
    with a_server(provider) as server:
        token = provider.recipient()

        def poll() -> None:
            with server.client(token) as client:
                found.append(version_of(client))

        clients = [threading.Thread(target=poll) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        table.append_days(1)
        poll()
    assert found == [0] * 9
    assert len(listed) == 1


def test_a_look_that_finds_nothing_new_reads_no_metadata(
    provider: Provider, table: OwnedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 0
        read, locations = Stores.read, []

        def recorded(stores: Stores, location: str, *rest: Any, **options: Any) -> bytes:
            locations.append(location)
            return read(stores, location, *rest, **options)

        monkeypatch.setattr(Stores, "read", recorded)
        assert version_of(client) == 0
    # The hint may name another file at any time.
    assert {location.rpartition("/")[2] for location in locations} == {"version-hint.text"}


def test_versions_below_the_start_are_not_shown(provider: Provider, table: OwnedTable) -> None:
    table.append_days(1)
    table.append_days(1)
    following(provider, table.folder, start_version=1)
    with a_reader(provider) as client:
        refused(client.post(f"{FLIGHTS}/query", json={"version": 0}), "since version 1")
        assert count_of(client, version=1) == 2
        assert version_of(client, startingTimestamp="2000-01-01T00:00:00Z") == 1
        refused(
            client.post(f"{FLIGHTS}/query", json={"timestamp": format_iso(log_of(table)[0][0])}), "before"
        )


def test_iceberg_clients_read_what_is_followed_through_their_own_door(
    provider: Provider, table: OwnedTable
) -> None:
    first = table.current
    following(provider, table.folder)
    with a_server(provider) as server:
        token = provider.recipient()
        second = table.append_days(2)
        with table.table.manage_snapshots() as manage:
            manage.create_branch(second, "secret-branch")
        table.table.append(table.table.scan().to_arrow(), branch="secret-branch")
        loaded = rest_catalog(server, token).load_table(NAME)
        assert loaded.scan().to_arrow().num_rows == 12
        assert loaded.scan(snapshot_id=first).to_arrow().num_rows == 4
        assert [entry.snapshot_id for entry in loaded.history()] == [first, second] == pinned(provider)
        with door(server, token) as client:
            told = client.get(TABLE).text
    secret = table.table.metadata.refs["secret-branch"].snapshot_id
    assert "secret-branch" not in told
    assert str(secret) not in told


def test_iceberg_clients_see_what_came_after_they_loaded_the_table(
    provider: Provider, table: OwnedTable
) -> None:
    """Also when nobody asks at the other door."""
    following(provider, table.folder)
    with a_server(provider) as server:
        catalog = rest_catalog(server, provider.recipient())
        assert [catalog.load_table(NAME).scan().to_arrow().num_rows for _ in range(2)] == [4, 4]
        table.append_days(1)
        assert catalog.load_table(NAME).scan().to_arrow().num_rows == 8


def test_a_table_that_is_refused_fails_no_listing_of_others(
    provider: Provider, table: OwnedTable, tmp_path: Path
) -> None:
    following(provider, table.folder)
    provider.publish_iceberg("lake.published", OwnedTable(tmp_path / "published").state())
    provider.share(NAME, "lake.published", history=True)
    with a_server(provider) as server:
        catalog = rest_catalog(server, provider.recipient())
        assert catalog.list_tables("lake") == [("lake", "flights"), ("lake", "published")]
        table.rewrite(lambda metadata: metadata.update({"format-version": 9}))
        assert catalog.list_tables("lake") == [("lake", "published")]


def test_iceberg_clients_are_served_when_the_newest_metadata_has_replaced_the_numbered_one(
    provider: Provider, table: OwnedTable
) -> None:
    following(provider, table.folder)
    with a_server(provider) as server:
        token = provider.recipient()
        assert rest_catalog(server, token).load_table(NAME).scan().to_arrow().num_rows == 4
        told_by = table.newest_file
        with table.table.transaction() as change:
            change.set_properties({"owner": "somebody"})
        told_by.unlink()
    with a_server(provider) as server:
        assert rest_catalog(server, token).load_table(NAME).scan().to_arrow().num_rows == 4


def test_another_table_under_a_name_goes_on_with_its_numbers_and_does_not_show_the_first(
    provider: Provider, table: OwnedTable, tmp_path: Path
) -> None:
    table.append_days(1)
    following(provider, table.folder)
    with a_reader(provider) as client:
        assert version_of(client) == 1
        other = OwnedTable(tmp_path / "other", days=3)
        FollowedTables(provider.catalog).remove(NAME)
        assert client.get(f"{FLIGHTS}/version").status_code == 404
        provider.follow_iceberg(NAME, other.folder)
        assert (version_of(client), count_of(client)) == (2, 3)
        refused(client.post(f"{FLIGHTS}/query", json={"version": 1}), "since version 2")
        assert version_of(client, startingTimestamp="2000-01-01T00:00:00Z") == 2
        # The first one again: its states have numbers, but not the one that is next.
        FollowedTables(provider.catalog).remove(NAME)
        provider.follow_iceberg(NAME, table.folder)
        assert (version_of(client), count_of(client)) == (3, 2)
        assert pinned(provider)[3] == table.current


def test_a_delta_table_that_is_an_iceberg_table_as_well_is_followed_as_delta(
    provider: Provider, tmp_path: Path
) -> None:
    from lakeshare_server.versions import normalise_followed_location, read_unfollowed

    location = a_delta_table(tmp_path / "uniform")
    table = OwnedTable(tmp_path / "warehouse")
    (location / "metadata").mkdir()
    (location / "metadata" / table.newest_file.name).write_bytes(table.newest_file.read_bytes())
    place = normalise_followed_location(str(location), provider.settings)
    assert read_unfollowed(place, Stores(provider.settings), provider.settings) is None


def test_a_poll_within_the_interval_reads_nothing(
    provider: Provider, table: OwnedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    following(provider, table.folder, check_every_s=3600)
    with a_reader(provider) as client:
        # The number that the first poll gives begins the catalog's next generation.
        assert [version_of(client), version_of(client)] == [0, 0]
        for reads in ("read", "open", "head", "list"):
            monkeypatch.setattr(Stores, reads, lambda *_: pytest.fail("a poll looked into the store"))
        monkeypatch.setattr(Ledger, "latest", lambda *_: pytest.fail("a poll asked the ledger"))
        assert version_of(client) == 0
