"""A followed Iceberg table that cannot be served is refused with the reason; its last good number stays readable."""

import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.catalog import FollowedTables, Ledger
from lakeshare_server.errors import CatalogConflict, TableFilesMissing, Unserveable
from lakeshare_server.versions import iceberg_history
from tests.builders.followed_iceberg import (
    NAME,
    Metadata,
    OwnedTable,
    a_reader,
    a_worker,
    count_of,
    following,
    pinned,
    refused,
    version_of,
)
from tests.builders.iceberg_rest import TABLE
from tests.builders.publications import a_publication
from tests.builders.sharing import FLIGHTS, Provider, a_provider, lines


@pytest.fixture
def table(tmp_path: Path) -> OwnedTable:
    return OwnedTable(tmp_path / "warehouse")


@pytest.fixture
def provider(tmp_path: Path, table: OwnedTable) -> Provider:
    return following(a_provider(tmp_path), table.folder)


def manifest_list(table: OwnedTable) -> Path:
    return Path(table.table.current_snapshot().manifest_list.removeprefix("file://"))


def newest_manifest(table: OwnedTable) -> Path:
    manifests = table.table.current_snapshot().manifests(table.table.io)
    return Path(manifests[0].manifest_path.removeprefix("file://"))


def cut(path: Path) -> Callable[[], object]:
    """Cut a file in half; returns what makes it whole again."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return lambda: path.write_bytes(content)


def remove(path: Path) -> Callable[[], object]:
    content = path.read_bytes()
    path.unlink()
    return lambda: path.write_bytes(content)


@pytest.mark.parametrize(
    ("broken", "harm", "said"),
    [
        pytest.param(manifest_list, cut, "cannot be read", id="manifest list cut"),
        pytest.param(manifest_list, remove, "cannot be read", id="manifest list gone"),
        pytest.param(newest_manifest, cut, "cannot be read", id="manifest cut"),
        pytest.param(newest_manifest, remove, "cannot be read", id="manifest gone"),
        # One that is gone is as if it had never been committed.
        pytest.param(lambda table: table.newest_file, cut, "is not whole", id="metadata cut"),
    ],
)
def test_a_broken_newest_state_is_refused_until_it_is_whole(
    provider: Provider,
    table: OwnedTable,
    broken: Callable[[OwnedTable], Path],
    harm: Callable[[Path], Callable[[], object]],
    said: str,
) -> None:
    with a_reader(provider) as client:
        assert count_of(client) == 1
        table.append_days(1)
        repair = harm(broken(table))
        for answer in (
            client.get(f"{FLIGHTS}/version"),
            client.get(f"{FLIGHTS}/metadata"),
            client.post(f"{FLIGHTS}/query"),
            client.post(f"{FLIGHTS}/query", json={"timestamp": "2100-01-01T00:00:00Z"}),
        ):
            refused(answer, said)
        # No number was given, and the last good publication is readable by its own.
        assert pinned(provider) == [table.table.history()[0].snapshot_id]
        assert count_of(client, version=0) == 1
        assert client.get(f"{FLIGHTS}/metadata", params={"version": 0}).status_code == 200
        repair()
        assert (version_of(client), count_of(client)) == (1, 2)


def test_a_metadata_file_that_is_being_written_is_waited_for(provider: Provider, table: OwnedTable) -> None:
    """Writers on a disk are seen at work."""
    with a_reader(provider) as client:
        assert count_of(client) == 1
        table.append_days(1)
        finish = cut(table.newest_file)
        writer = threading.Timer(iceberg_history.WRITTEN_WITHIN_S, finish)
        writer.start()
        assert (version_of(client), count_of(client)) == (1, 2)
        writer.join()


def test_pages_go_on_after_the_newest_state_has_become_unreadable(
    provider: Provider, table: OwnedTable
) -> None:
    table.append_days(2)
    with a_reader(provider) as client:
        first = client.post(f"{FLIGHTS}/query", json={"maxFiles": 2})
        assert len([line for line in lines(first) if "file" in line]) == 2
        token = lines(first)[-1]["endStreamAction"]["nextPageToken"]
        table.append_days(1)
        cut(table.newest_file)
        refused(client.post(f"{FLIGHTS}/query"), "not whole")
        assert count_of(client, maxFiles=2, pageToken=token) == 1


def edited(**fields: Any) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.update(fields)


def with_an_unknown_transform(metadata: Metadata) -> None:
    metadata["partition-specs"][0]["fields"] = [
        {"source-id": 1, "field-id": 1000, "name": "day_zorder", "transform": "zorder[7]"}
    ]
    metadata["default-spec-id"] = 0


def with_an_unknown_type(metadata: Metadata) -> None:
    metadata["schemas"][0]["fields"][1]["type"] = "geometry"


REFUSED = [
    pytest.param(
        edited(**{"format-version": 4}), "of format version 4; this server reads", id="format version"
    ),
    pytest.param(with_an_unknown_type, "the type geometry", id="type"),
    pytest.param(
        edited(**{"table-uuid": "11111111-1111-4111-8111-111111111111"}), "has another table now", id="uuid"
    ),
    pytest.param(edited(location="file:///elsewhere/flights"), "has moved", id="location"),
    pytest.param(edited(location="hdfs://nn/flights"), "no store of ours", id="store"),
    pytest.param(edited(**{"table-uuid": None}), "has no table UUID", id="no uuid"),
    pytest.param(
        edited(**{"current-snapshot-id": -1}), "has no current snapshot, but a main branch", id="no snapshot"
    ),
    pytest.param(edited(**{"current-snapshot-id": 17}), "is not whole", id="unknown snapshot"),
    pytest.param(edited(snapshots="many"), "is not whole", id="snapshots"),
    pytest.param(edited(**{"snapshot-log": [{"timestamp-ms": None}]}), "is not whole", id="log"),
    pytest.param(lambda metadata: metadata.pop("location"), "is not whole", id="no location"),
]


@pytest.mark.parametrize(("edit", "said"), REFUSED)
def test_metadata_that_cannot_be_served_is_refused_by_name(
    provider: Provider, table: OwnedTable, edit: Callable[[Metadata], None], said: str
) -> None:
    with a_reader(provider) as client:
        assert count_of(client) == 1
        table.append_days(1)
        made = table.rewrite(edit)
        for answer in (client.get(f"{FLIGHTS}/version"), client.post(f"{FLIGHTS}/query")):
            refused(answer, said)
        through_door = client.get(str(client.base_url.join("/iceberg")) + TABLE)
        assert through_door.status_code == 400
        assert said in through_door.json()["error"]["message"]
        assert count_of(client, version=0) == 1
        assert len(pinned(provider)) == 1
        made.unlink()
        assert (version_of(client), count_of(client)) == (1, 2)
        assert len(pinned(provider)) == 2


@pytest.mark.parametrize(("edit", "said"), [one for one in REFUSED if one.id != "uuid"])
def test_nobody_follows_what_cannot_be_served(
    tmp_path: Path, table: OwnedTable, edit: Callable[[Metadata], None], said: str
) -> None:
    provider = a_provider(tmp_path)
    table.rewrite(edit)
    with pytest.raises((Unserveable, TableFilesMissing), match=said):
        provider.follow_iceberg(NAME, table.folder)
    assert FollowedTables(provider.catalog).list() == []


def test_a_spec_with_an_unknown_transform_is_served_without_it(provider: Provider, table: OwnedTable) -> None:
    """Iceberg spec, "Partition Transforms": readers ignore a transform that they do not know."""
    with a_reader(provider) as client:
        assert count_of(client) == 1
        table.append_days(1)
        table.rewrite(with_an_unknown_transform)
        assert (version_of(client), count_of(client)) == (1, 2)


def test_metadata_that_is_too_large_is_refused_before_it_is_read(
    provider: Provider, table: OwnedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_reader(provider) as client:
        assert count_of(client) == 1
        made = table.rewrite(edited(owner="x" * (iceberg_history.MAX_METADATA_BYTES + 1)))
        monkeypatch.setattr(iceberg_history.orjson, "loads", lambda _: pytest.fail("it was taken apart"))
        refused(client.get(f"{FLIGHTS}/version"), "this server reads up to", "Provider")
        packed = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        content = packed.compress(made.read_bytes()) + packed.flush()
        made.write_bytes(content)
        assert len(content) < 100_000
        refused(client.get(f"{FLIGHTS}/version"), "this server reads up to")
        monkeypatch.undo()
        assert count_of(client, version=0) == 1


def test_metadata_of_many_megabytes_is_served(provider: Provider, table: OwnedTable) -> None:
    with a_reader(provider) as client:
        assert count_of(client) == 1
        table.append_days(1)
        table.rewrite(edited(owner="x" * (iceberg_history.MAX_METADATA_BYTES - (1 << 20))))
        assert (version_of(client), count_of(client)) == (1, 2)


def test_a_table_that_was_made_anew_at_its_place_is_another_one(
    provider: Provider, table: OwnedTable, tmp_path: Path
) -> None:
    with a_reader(provider) as client:
        assert count_of(client) == 1
        table.folder.rename(tmp_path / "aside")
        other = OwnedTable(tmp_path / "warehouse", days=2)
        assert other.folder == table.folder
        refused(client.post(f"{FLIGHTS}/query"), "has another table now: its UUID is")
        with pytest.raises(CatalogConflict, match=r"another table than the one that is followed.*unfollow"):
            provider.follow_iceberg(NAME, table.folder)
        FollowedTables(provider.catalog).remove(NAME)
        provider.follow_iceberg(NAME, table.folder)
        assert (version_of(client), count_of(client)) == (1, 2)


def test_a_table_that_is_gone_is_said_and_found_again(
    provider: Provider, table: OwnedTable, tmp_path: Path
) -> None:
    with a_reader(provider) as client:
        assert count_of(client) == 1
        aside = table.folder.rename(tmp_path / "aside")
        refused(client.get(f"{FLIGHTS}/version"), "table files missing")
        aside.rename(table.folder)
        assert (version_of(client), count_of(client)) == (0, 1)


def test_a_refusal_holds_for_the_interval(tmp_path: Path, table: OwnedTable) -> None:
    provider = following(a_provider(tmp_path / "patient"), table.folder, check_every_s=3600)
    with a_reader(provider) as client:
        repair = cut(table.newest_file)
        first = refused(client.get(f"{FLIGHTS}/version"), "not whole")
        repair()
        assert refused(client.get(f"{FLIGHTS}/version")) == first


def test_a_table_of_delta_does_not_become_one_of_iceberg(tmp_path: Path, table: OwnedTable) -> None:
    provider = a_provider(tmp_path / "once-delta")
    was_delta = a_publication(table=NAME, format="delta", delta_version=3, audited=False)
    Ledger(provider.catalog).append([was_delta])
    with pytest.raises(CatalogConflict, match="has versions in the format delta"):
        following(provider, table.folder)
    provider = a_provider(tmp_path / "delta-meanwhile")
    following(provider, table.folder)
    Ledger(provider.catalog).append([was_delta])
    with pytest.raises(Unserveable, match="cannot be numbered") as refused:
        a_worker(provider).latest()
    assert "was published as delta" in str(refused.value.__cause__)
