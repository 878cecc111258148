"""A followed Iceberg table that cannot be served is refused with the reason; its last good number stays readable."""

import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakeshare_server.catalog import FollowedTables, Ledger
from lakeshare_server.errors import CatalogConflict, TableFilesMissing, Unserveable
from lakeshare_server.versions import followed_iceberg
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


def begin(path: Path) -> Callable[[], object]:
    """Leave the first half of a file, as while it is written; returns what makes it whole again."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return lambda: path.write_bytes(content)


def cut(path: Path) -> Callable[[], object]:
    """Leave the first half of a file, as its writer did long ago; returns what makes it whole again."""
    repair = begin(path)
    os.utime(path, (0, 0))
    return repair


def remove(path: Path) -> Callable[[], object]:
    content = path.read_bytes()
    path.unlink()
    return lambda: path.write_bytes(content)


BROKEN = {
    "manifest list cut": (manifest_list, cut, "cannot be read"),
    "manifest list gone": (manifest_list, remove, "cannot be read"),
    "manifest cut": (newest_manifest, cut, "cannot be read"),
    "manifest gone": (newest_manifest, remove, "cannot be read"),
    # One that is gone is as if it had never been committed.
    "metadata cut": (lambda table: table.newest_file, cut, "is not whole"),
}


def test_a_broken_newest_state_is_refused_until_it_is_whole(
    provider: Provider, table: OwnedTable, subtests: pytest.Subtests
) -> None:
    """One table, broken and repaired in each way after one more commit."""
    with a_reader(provider) as client:
        assert count_of(client) == 1
        for number, (way, (broken, harm, reason)) in enumerate(BROKEN.items()):
            with subtests.test(way):
                table.append_days(1)
                repair = harm(broken(table))
                for answer in (
                    client.get(f"{FLIGHTS}/version"),
                    client.get(f"{FLIGHTS}/metadata"),
                    client.post(f"{FLIGHTS}/query"),
                    client.post(f"{FLIGHTS}/query", json={"timestamp": "2100-01-01T00:00:00Z"}),
                ):
                    refused(answer, reason)
                # No number was given, and the last good publication is readable by its own.
                assert pinned(provider) == [entry.snapshot_id for entry in table.table.history()[:-1]]
                assert count_of(client, version=number) == number + 1
                assert client.get(f"{FLIGHTS}/metadata", params={"version": number}).status_code == 200
                repair()
                assert (version_of(client), count_of(client)) == (number + 1, number + 2)


def test_a_table_keeps_its_last_state_while_its_next_metadata_file_is_written(
    provider: Provider, table: OwnedTable
) -> None:
    """Writers on a disk are seen at work: a commit ends when its metadata file is whole."""
    with a_reader(provider) as client:
        assert count_of(client) == 1
        table.append_days(1)
        finish = begin(table.newest_file)
        assert (version_of(client), count_of(client)) == (0, 1)
        finish()
        assert (version_of(client), count_of(client)) == (1, 2)


def test_the_first_metadata_file_is_waited_for_while_it_is_written(
    provider: Provider, table: OwnedTable
) -> None:
    finish = begin(table.newest_file)
    # The second read of the file finds it whole.
    writer = threading.Timer(followed_iceberg.READ_AGAIN_S, finish)
    writer.start()
    assert a_worker(provider).latest().number == 0
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


def edited(**fields: Any) -> Callable[[Metadata], object]:
    return lambda metadata: metadata.update(fields)


def with_an_unknown_transform(metadata: Metadata) -> None:
    metadata["partition-specs"][0]["fields"] = [
        {"source-id": 1, "field-id": 1000, "name": "day_zorder", "transform": "zorder[7]"}
    ]
    metadata["default-spec-id"] = 0


def with_an_unknown_type(metadata: Metadata) -> None:
    metadata["schemas"][0]["fields"][1]["type"] = "geometry"


REFUSED: dict[str, tuple[Callable[[Metadata], object], str]] = {
    "format version": (edited(**{"format-version": 4}), "of format version 4; this server reads"),
    "type": (with_an_unknown_type, "the type geometry"),
    "uuid": (edited(**{"table-uuid": "11111111-1111-4111-8111-111111111111"}), "has another table now"),
    "location": (edited(location="file:///elsewhere/flights"), "has moved"),
    "store": (edited(location="hdfs://nn/flights"), "no store of ours"),
    "no uuid": (edited(**{"table-uuid": None}), "has no table UUID"),
    "no snapshot": (edited(**{"current-snapshot-id": -1}), "has no current snapshot, but a main branch"),
    "unknown snapshot": (edited(**{"current-snapshot-id": 17}), "is not whole"),
    "snapshots": (edited(snapshots="many"), "is not whole"),
    "log": (edited(**{"snapshot-log": [{"timestamp-ms": None}]}), "is not whole"),
    "no location": (lambda metadata: metadata.pop("location"), "is not whole"),
}


def test_metadata_that_cannot_be_served_is_refused_by_name(
    provider: Provider, table: OwnedTable, subtests: pytest.Subtests
) -> None:
    """One table, with metadata of each kind after one more commit, which is served once that file is gone."""
    with a_reader(provider) as client:
        assert count_of(client) == 1
        for number, (kind, (edit, reason)) in enumerate(REFUSED.items()):
            with subtests.test(kind):
                table.append_days(1)
                made = table.rewrite(edit)
                for answer in (client.get(f"{FLIGHTS}/version"), client.post(f"{FLIGHTS}/query")):
                    refused(answer, reason)
                by_iceberg = client.get(str(client.base_url.join("/iceberg")) + TABLE)
                assert by_iceberg.status_code == 400
                assert reason in by_iceberg.json()["error"]["message"]
                assert count_of(client, version=number) == number + 1
                assert len(pinned(provider)) == number + 1
                made.unlink()
                assert (version_of(client), count_of(client)) == (number + 1, number + 2)
                assert len(pinned(provider)) == number + 2


def test_metadata_that_cannot_be_served_is_not_followed(
    tmp_path: Path, table: OwnedTable, subtests: pytest.Subtests
) -> None:
    provider = a_provider(tmp_path)
    for kind in REFUSED.keys() - {"uuid"}:
        edit, reason = REFUSED[kind]
        with subtests.test(kind):
            made = table.rewrite(edit)
            with pytest.raises((Unserveable, TableFilesMissing), match=reason):
                provider.follow_iceberg(NAME, table.folder)
            assert FollowedTables(provider.catalog).list() == []
            made.unlink()


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
        made = table.rewrite(edited(owner="x" * (followed_iceberg.MAX_METADATA_BYTES + 1)))
        # Only there: the audit log reads JSON, too.
        not_called = SimpleNamespace(loads=lambda _: pytest.fail("it was taken apart"))
        monkeypatch.setattr(followed_iceberg, "orjson", not_called)
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
        table.rewrite(edited(owner="x" * (followed_iceberg.MAX_METADATA_BYTES - (1 << 20))))
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


def test_a_table_that_is_gone_is_refused_and_found_again(
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
