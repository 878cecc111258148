"""Iceberg clients read through the REST door what was published, and find nothing else in the metadata they get."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_server.catalog import SharedTable, share_table
from lakeshare_server.iceberg_rest.trimming import SMALL_BYTES
from lakeshare_server.storage import Stores
from lakeshare_server.tables import TableSnapshot, read_iceberg
from tests.builders.iceberg_rest import (
    SECRET_BRANCH,
    SECRET_TAG,
    TABLE,
    door,
    leave_secrets,
    rest_catalog,
    state_of,
    told_values,
)
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, some_rows
from tests.builders.sharing import Provider, Running, a_provider, a_server


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("distance").drop_columns("delay").to_pylist()


def loaded(server: Running, token: str) -> dict[str, Any]:
    with door(server, token) as client:
        answer = client.get(TABLE)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_pyiceberg_lists_and_reads_a_published_table(provider: Provider, tmp_path: Path) -> None:
    made = an_iceberg_table(tmp_path / "warehouse")
    provider.publish_iceberg("lake.flights", made.state())
    provider.share("lake.flights")
    with a_server(provider) as server:
        catalog = rest_catalog(server, provider.recipient())
        assert catalog.list_namespaces() == [("lake",)]
        assert catalog.namespace_exists("lake")
        assert catalog.load_namespace_properties("lake") == {}
        assert catalog.list_tables("lake") == [("lake", "flights")]
        assert catalog.table_exists("lake.flights")
        assert not catalog.table_exists("lake.other")
        table = catalog.load_table("lake.flights")
        assert in_order(table.scan().to_arrow()) == in_order(some_rows())
        assert table.scan(row_filter="day = '2013-01-02'").to_arrow().num_rows == 4


def test_nothing_unpublished_is_in_the_metadata_that_is_handed_out(
    provider: Provider, tmp_path: Path
) -> None:
    made = an_iceberg_table(tmp_path / "warehouse")
    secrets = leave_secrets(made)
    state = state_of(made)
    # The secrets are there to be told: the file that the publication pins has each of them.
    pinned = Path(state.metadata_location.removeprefix("file://")).read_text()
    assert all(secret in pinned + state.metadata_location for secret in secrets)
    provider.publish_iceberg("lake.flights", state)
    provider.share("lake.flights", history=True)
    with a_server(provider) as server:
        token = provider.recipient()
        answer = loaded(server, token)
        texts = told_values(answer)
        assert [text for text in texts for secret in secrets if secret in text] == []
        metadata = answer["metadata"]
        assert [one["snapshot-id"] for one in metadata["snapshots"]] == [state.snapshot_id]
        assert metadata["refs"] == {"main": {"snapshot-id": state.snapshot_id, "type": "branch"}}
        assert (metadata["metadata-log"], metadata["properties"]) == ([], {})
        table = rest_catalog(server, token).load_table("lake.flights")
        assert in_order(table.scan().to_arrow()) == in_order(some_rows())
        for ref in (SECRET_BRANCH, SECRET_TAG):
            with pytest.raises(ValueError, match="unknown ref"):
                table.scan().use_ref(ref)


def share(provider: Provider, *, history: bool = True, start_version: int | None = None) -> None:
    table = SharedTable("lake", "flights", "lake.flights", history=history)
    share_table(provider.catalog, "flights", table, start_version=start_version)


def test_history_is_told_where_it_is_shared_and_from_where_it_is_shared(
    provider: Provider, tmp_path: Path
) -> None:
    made = an_iceberg_table(tmp_path / "warehouse")
    states = [made.state()]
    made.append(some_rows(days=1))  # never published
    states += [made.append(some_rows(days=1)) for _ in range(2)]
    for state in states:
        provider.publish_iceberg("lake.flights", state)
    share(provider)
    ids = [state.snapshot_id for state in states]
    with a_server(provider) as server:
        token = provider.recipient()
        for options, expected in (
            ({"history": False}, ids[-1:]),
            ({}, ids),
            ({"start_version": 1}, ids[1:]),
            ({"start_version": 9}, ids[-1:]),
        ):
            share(provider, **options)
            metadata = loaded(server, token)["metadata"]
            assert [one["snapshot-id"] for one in metadata["snapshots"]] == expected
            assert [one["snapshot-id"] for one in metadata["snapshot-log"]] == expected
            assert metadata["current-snapshot-id"] == ids[-1]
            parents = {one.get("parent-snapshot-id") for one in metadata["snapshots"]}
            assert parents <= {None, *expected}
            table = rest_catalog(server, token).load_table("lake.flights")
            for number, snapshot_id in enumerate(ids):
                if snapshot_id in expected:
                    rows = table.scan(snapshot_id=snapshot_id).to_arrow().num_rows
                    assert rows == [12, 20, 24][number]


def test_a_new_publication_and_a_rollback_are_what_is_loaded_next(provider: Provider, tmp_path: Path) -> None:
    made = an_iceberg_table(tmp_path / "warehouse")
    first = made.state()
    provider.publish_iceberg("lake.flights", first)
    provider.share("lake.flights", history=True)
    with a_server(provider) as server:
        token = provider.recipient()
        table = rest_catalog(server, token).load_table("lake.flights")
        second = made.append(some_rows(days=1))
        seen = [loaded(server, token)]
        for state in (second, first):
            provider.publish_iceberg("lake.flights", state)
            seen.append(loaded(server, token))
        current = [one["metadata"]["current-snapshot-id"] for one in seen]
        assert current == [first.snapshot_id, second.snapshot_id, first.snapshot_id]
        # Java clients take a table for unchanged as long as its metadata's location is the same.
        locations = [one["metadata-location"] for one in seen]
        assert locations[0] == locations[2] != locations[1]
        assert all(location.endswith(".avro") for location in locations)
        assert [one["snapshot-id"] for one in seen[-1]["metadata"]["snapshot-log"]] == [
            first.snapshot_id,
            second.snapshot_id,
            first.snapshot_id,
        ]
        assert table.refresh().scan().to_arrow().num_rows == 12


def test_a_renamed_column_and_a_new_partitioning_are_read_as_published(
    provider: Provider, tmp_path: Path
) -> None:
    made = an_iceberg_table(tmp_path / "warehouse")
    provider.publish_iceberg("lake.flights", made.state())
    published = set(made.table.schema().column_names)
    with made.table.update_schema() as change:
        change.rename_column("carrier", "secret_name")
        change.add_column("secret_column", made.table.schema().find_type("flight"))
    with made.table.update_spec() as spec:
        spec.add_identity("secret_name")
    made.table.append(made.table.scan().to_arrow())
    # What is pinned is the older snapshot, in a file that has the newer columns, too.
    with made.table.manage_snapshots() as manage:
        manage.create_branch(made.table.snapshots()[0].snapshot_id, "back")
    provider.publish("lake.again", _index_of(made), metadata_location=made.table.metadata_location)
    provider.share("lake.flights", "lake.again")
    with a_server(provider) as server:
        catalog = rest_catalog(server, provider.recipient())
        for name in ("lake.flights", "lake.again"):
            table = catalog.load_table(name)
            assert set(table.schema().column_names) == published
            assert "secret" not in table.metadata.model_dump_json()
            assert in_order(table.scan().to_arrow()) == in_order(some_rows())


def _index_of(made: Any) -> TableSnapshot:
    """The first snapshot, as a publication of an older state has it."""
    return read_iceberg(made.table.metadata_location, made.table.snapshots()[0].snapshot_id)


def test_delta_tables_and_planned_ones_are_neither_listed_nor_loaded(
    provider: Provider, tmp_path: Path
) -> None:
    provider.publish_delta("lake.delta", a_delta_table(tmp_path / "delta"))
    provider.publish_iceberg("lake.flights", an_iceberg_table(tmp_path / "warehouse").state())
    provider.share("lake.delta", "lake.flights", "lake.planned")
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        listed = client.get("/v1/shares/flights/namespaces/lake/tables").json()
        assert listed == {"identifiers": [{"namespace": ["lake"], "name": "flights"}]}
        for name in ("delta", "planned", "unknown"):
            path = TABLE.replace("tables/flights", f"tables/{name}")
            told = client.get(path)
            assert told.status_code == client.head(path).status_code == 404
            assert told.json()["error"]["type"] == "NoSuchTableException"


def test_large_metadata_is_taken_apart_once(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.publish_iceberg("lake.flights", an_iceberg_table(tmp_path / "warehouse").state())
    provider.share("lake.flights")
    read, reads = Stores.read, []

    def counted(self: Stores, location: str) -> bytes:
        reads.append(location)
        return read(self, location)

    monkeypatch.setattr(Stores, "read", counted)
    with a_server(provider) as server:
        token = provider.recipient()
        bodies = [loaded(server, token) for _ in range(3)]
        provider.recipient("alice")  # a new generation of the catalog
        bodies.append(loaded(server, token))
    assert [location for location in reads if location.endswith(".metadata.json")] == reads[:1]
    assert all(body == bodies[0] for body in bodies)


@pytest.mark.parametrize("packed", [False, True])
def test_metadata_of_many_snapshots_is_cut_down_in_a_process_of_its_own(
    provider: Provider, tmp_path: Path, packed: bool
) -> None:
    made = an_iceberg_table(tmp_path / "warehouse")
    state = made.state()
    provider.publish_iceberg("lake.flights", state)
    provider.share("lake.flights", history=True)
    with a_server(provider) as server:
        token = provider.recipient()
        small = loaded(server, token)
    pinned = Path(state.metadata_location.removeprefix("file://"))
    metadata = json.loads(pinned.read_text())
    others = [{**metadata["snapshots"][0], "snapshot-id": number} for number in range(1, 2000)]
    metadata["snapshots"] += others
    text = json.dumps(metadata).encode()
    assert len(text) > SMALL_BYTES
    pinned.write_bytes(gzip.compress(text) if packed else text)
    with a_server(provider) as server:
        assert loaded(server, token) == small


def test_large_metadata_that_is_not_whole_is_refused(provider: Provider, tmp_path: Path) -> None:
    state = an_iceberg_table(tmp_path / "warehouse").state()
    provider.publish_iceberg("lake.flights", state)
    provider.share("lake.flights")
    Path(state.metadata_location.removeprefix("file://")).write_bytes(b'{"a": "' + b"x" * SMALL_BYTES)
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        answer = client.get(TABLE)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestException")


def test_metadata_that_is_gone_or_damaged_is_refused_with_a_reason(
    provider: Provider, tmp_path: Path
) -> None:
    damage: list[tuple[str, Any]] = [
        ("gone", None), ("cut", b'{"format-version": 2,'), ("empty", b"{}"), ("list", b"[]"),
        ("lost", json.dumps({"format-version": 2, "snapshots": []}).encode()),
    ]  # fmt: skip
    for name, content in damage:
        state = an_iceberg_table(tmp_path / name).state()
        provider.publish_iceberg(f"lake.{name}", state)
        pinned = Path(state.metadata_location.removeprefix("file://"))
        pinned.unlink() if content is None else pinned.write_bytes(content)
    provider.share(*(f"lake.{name}" for name, _ in damage))
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        for name, _ in damage:
            answer = client.get(TABLE.replace("tables/flights", f"tables/{name}"))
            assert answer.status_code == 400, name
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("BadRequestException", 400)
            assert "Provider:" in error["message"]
            assert str(tmp_path) not in error["message"]
