"""A followed table is what its log says, at any time and whatever happens to it; test_followed_versions.py has more."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import pytest

from lakeshare_server.catalog import FollowedTables, Ledger, open_catalog
from lakeshare_server.errors import CatalogConflict
from lakeshare_server.protocol.requests import format_iso
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions
from tests.builders.followed_logs import (
    BEGIN_MS,
    NAME,
    a_client,
    a_sharing_provider,
    count_of,
    dated,
    refused,
    some_commits,
    started,
    version_of,
)
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.log_files import PROTOCOL, WrittenLog, add, metadata, remove
from tests.builders.publications import a_publication
from tests.builders.sharing import FLIGHTS, Provider, files, lines


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_sharing_provider(tmp_path)


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "table")


def test_the_ledger_knows_a_version_before_any_recipient(provider: Provider, log: WrittenLog) -> None:
    some_commits(log, 1)
    provider.follow(NAME, log.root)
    ledger = Ledger(provider.catalog)
    with a_client(provider) as client:
        assert ledger.latest(NAME) is None
        assert version_of(client) == 0
        entered = ledger.latest(NAME)
        assert entered is not None
        assert (entered.version, entered.files, entered.audited) == (0, 1, False)
        log.commit(1, add("1", stats='{"numRecords":5}'))
        log.commit(2, remove("0"))
        assert version_of(client) == 2
    assert [(one.version, one.files, one.rows) for one in ledger.history(NAME)] == [(2, 1, 5), (0, 1, 0)]


def test_whoever_finds_a_version_after_another_worker_found_the_next_one_serves_it(
    provider: Provider, log: WrittenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's numbers only grow: what it has no place for any more is no fault of the reader's."""
    some_commits(log, 1)
    provider.follow(NAME, log.root)
    settings = provider.settings
    mine, others = (
        Versions(open_catalog(settings.catalog_url), settings, Stores(settings)).of(NAME) for _ in range(2)
    )
    assert mine.latest().number == 0
    log.commit(1, add("1"))
    append = Ledger.append

    def append_late(self: Ledger, publications: Any) -> Any:
        monkeypatch.undo()
        log.commit(2, add("2"))
        assert others.latest().number == 2
        return append(self, publications)

    monkeypatch.setattr(Ledger, "append", append_late)
    assert mine.latest().number == 1
    assert mine.latest().number == 2
    assert [one.version for one in Ledger(provider.catalog).history(NAME)] == [2, 0]


def test_a_log_that_is_cleaned_up_while_it_is_known_is_read_from_its_new_checkpoint(
    provider: Provider, log: WrittenLog
) -> None:
    """The checkpoint of a version comes after its commit, and its clean-up takes what a worker has listed."""
    some_commits(log, 6)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert version_of(client) == 5
        log.checkpoint(5, PROTOCOL, metadata(), *map(add, "012345"))
        for version in range(5):
            (log.folder / f"{version:020}.json").unlink()
        log.commit(6, add("6"))
        assert version_of(client) == 6
        assert count_of(client) == 7
        assert count_of(client, version=5) == 6
        refused(client.post(f"{FLIGHTS}/query", json={"version": 2}), "since version 5")
        answer = client.get(f"{FLIGHTS}/version", params={"startingTimestamp": format_iso(BEGIN_MS)})
        assert answer.headers["delta-table-version"] == "5"


def test_a_log_that_loses_a_commit_in_the_middle_is_listed_anew(provider: Provider, log: WrittenLog) -> None:
    some_commits(log, 6)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert version_of(client) == 5
        log.checkpoint(4, PROTOCOL, metadata(), *map(add, "01234"))
        (log.folder / f"{3:020}.json").unlink()
        log.commit(6, add("6"))
        assert version_of(client) == 6
        assert count_of(client) == 7


def test_a_conflict_that_is_no_other_workers_doing_is_told(provider: Provider, log: WrittenLog) -> None:
    some_commits(log, 2)
    provider.follow(NAME, log.root)
    Ledger(provider.catalog).append([a_publication(table=NAME, format="iceberg", audited=False)])
    with pytest.raises(CatalogConflict, match="published as iceberg"):
        Versions(provider.catalog, provider.settings, Stores(provider.settings)).of(NAME).latest()


def test_a_poll_within_the_interval_reads_nothing(
    provider: Provider, log: WrittenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered on the event loop, also when nobody has asked for the latest version's own time before."""
    log.first(add("0"))
    enabled = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "1"}
    info = {"commitInfo": {"inCommitTimestamp": BEGIN_MS}}
    log.commit(1, info, metadata(configuration=enabled), add("1"))
    provider.follow(NAME, log.root, check_every_s=3600)
    with a_client(provider) as client:
        assert count_of(client, version=0) == 1
        for reads in ("read", "open", "head", "list"):
            monkeypatch.setattr(Stores, reads, lambda *_: pytest.fail("a poll looked into the store"))
        assert version_of(client) == 1


@pytest.mark.parametrize(("start", "oldest"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_versions_below_the_start_are_not_shown(
    provider: Provider, log: WrittenLog, start: int, oldest: int
) -> None:
    """protocol §1.7: `You can only query table data since version N`; the newest is always there."""
    some_commits(log, 4)
    provider.follow(NAME, log.root, start_version=start)
    with a_client(provider) as client:
        assert count_of(client) == 4
        for version in range(4):
            answer = client.post(f"{FLIGHTS}/query", json={"version": version})
            if version < oldest:
                refused(answer, f"You can only query table data since version {oldest}")
            else:
                assert len(files(answer)) == version + 1
        early = client.post(f"{FLIGHTS}/query", json={"timestamp": format_iso(BEGIN_MS - 1)})
        refused(early, "before the earliest available version", f"version {oldest}")


def test_versions_whose_log_is_cleaned_up_are_not_there_any_more(provider: Provider, log: WrittenLog) -> None:
    some_commits(log, 6)
    dated(log.checkpoint(3, PROTOCOL, metadata(), *map(add, "0123")), BEGIN_MS + 3000)
    for version in range(3):
        (log.folder / f"{version:020}.json").unlink()
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert [count_of(client, version=version) for version in (3, 4, 5)] == [4, 5, 6]
        refused(client.post(f"{FLIGHTS}/query", json={"version": 2}), "since version 3")
        assert started(client, format_iso(BEGIN_MS)) == 3


@pytest.mark.parametrize(
    ("left", "there", "broken"), [([0], {0}, ()), ([0, 1], {0, 1}, ()), ([1], set(), ()), ([0, 2], {0}, (2,))]
)
def test_of_what_lies_before_a_gap_only_whole_versions_are_there(
    provider: Provider, log: WrittenLog, left: list[int], there: set[int], broken: tuple[int, ...]
) -> None:
    some_commits(log, 6)
    dated(log.checkpoint(3, PROTOCOL, metadata(), *map(add, "0123")), BEGIN_MS + 3000)
    for version in {0, 1, 2} - set(left):
        (log.folder / f"{version:020}.json").unlink()
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        for version in range(6):
            answer = client.post(f"{FLIGHTS}/query", json={"version": version})
            if version in there or version > 2:
                assert len(files(answer)) == version + 1
            else:
                refused(answer, "has no such version" if version not in broken else "is not whole")
        assert started(client, format_iso(BEGIN_MS)) == min(there, default=3)
        assert count_of(client, timestamp=format_iso(BEGIN_MS + 3000)) == 4


def test_a_page_goes_not_on_in_another_table(provider: Provider, tmp_path: Path) -> None:
    """protocol §0.10, §1.7: all pages are of one snapshot, also when the table is replaced at its place meanwhile."""
    location = a_delta_table(tmp_path / "table")
    provider.follow(NAME, location)
    with a_client(provider) as client:
        first = client.post(f"{FLIGHTS}/query", json={"maxFiles": 1, "includeRefreshToken": True})
        said = lines(first)[-1]["endStreamAction"]
        rmtree(location)
        a_delta_table(location)
        following = client.post(f"{FLIGHTS}/query", json={"maxFiles": 1, "pageToken": said["nextPageToken"]})
        refused(following, "The table specified in the page token does not match the table being queried")
        again = client.post(f"{FLIGHTS}/query", json={"refreshToken": said["refreshToken"]})
        refused(again, "The table specified in the refresh token does not match the table being queried")
        assert count_of(client) == 3


def test_a_table_that_is_gone_is_said_and_found_again(provider: Provider, tmp_path: Path) -> None:
    """protocol §0.19: a lasting fault is a 4xx."""
    location = a_delta_table(tmp_path / "table")
    provider.follow(NAME, location)
    with a_client(provider) as client:
        assert count_of(client) == 3
        aside = location.rename(tmp_path / "aside")
        for answer in (
            client.get(f"{FLIGHTS}/version"),
            client.get(f"{FLIGHTS}/metadata"),
            client.post(f"{FLIGHTS}/query"),
            client.post(f"{FLIGHTS}/query", json={"version": 0}),
        ):
            refused(answer, "table files missing")
        aside.rename(location)
        assert count_of(client) == 3


def test_a_version_that_cannot_be_served_is_not_passed_over(provider: Provider, log: WrittenLog) -> None:
    """An older version would be taken for the newest one."""
    some_commits(log, 2)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert count_of(client) == 2
        features = {"readerFeatures": ["tomorrow"], "writerFeatures": ["tomorrow"]}
        broken = log.commit(2, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
        for answer in (client.get(f"{FLIGHTS}/version"), client.post(f"{FLIGHTS}/query")):
            refused(answer, "needs the reader features tomorrow")
        broken.write_text('{"add":')
        refused(client.post(f"{FLIGHTS}/query"), "table files missing")
        broken.unlink()
        log.commit(2, add("2"))
        assert (version_of(client), count_of(client)) == (2, 3)


def test_versions_come_and_go_while_many_ask(provider: Provider, log: WrittenLog) -> None:
    """Whoever asks gets one version, whole: as many files as its number says."""
    some_commits(log, 1)
    provider.follow(NAME, log.root)
    stop = threading.Event()
    wrong: list[object] = []

    def ask(client: httpx.Client) -> int:
        asked = 0
        while not stop.is_set():
            asked += 1
            answer = client.post(f"{FLIGHTS}/query")
            expected = int(answer.headers.get("delta-table-version", -2)) + 1
            if answer.status_code != 200 or len(files(answer)) != expected:
                wrong.append((answer.status_code, answer.text[:500]))
        return asked

    with a_client(provider) as client, ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, client) for _ in range(4)]
        try:
            for version in range(1, 25):
                written = log.folder / f".{version}.tmp"
                written.write_text(json.dumps(add(str(version))) + "\n")
                written.rename(log.folder / f"{version:020}.json")
                assert count_of(client) == version + 1
        finally:
            stop.set()
        assert min(one.result() for one in asking) > 0
    assert wrong == []


def test_a_table_that_is_followed_no_more_is_not_found(provider: Provider, log: WrittenLog) -> None:
    some_commits(log, 1)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert count_of(client) == 1
        FollowedTables(provider.catalog).remove(NAME)
        assert client.get("/shares/flights/all-tables").json()["items"] != []
        for answer in (client.get(f"{FLIGHTS}/version"), client.post(f"{FLIGHTS}/query")):
            assert answer.status_code == 404


def test_what_was_followed_is_not_passed_off_as_published(provider: Provider, tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    provider.follow(NAME, location)
    with a_client(provider) as client:
        assert version_of(client) == 0
        FollowedTables(provider.catalog).remove(NAME)
        append_delta(location, some_rows(days=1))
        provider.publish_delta(NAME, location)
        assert (version_of(client), count_of(client)) == (1, 4)
        refused(client.post(f"{FLIGHTS}/query", json={"version": 0}), "since version 1")
        assert started(client, "2000-01-01T00:00:00Z") == 1
