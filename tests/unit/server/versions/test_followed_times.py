"""When the versions of a followed table came about: as its commits say, whatever clocks and copies did to the files."""

from pathlib import Path

import pytest

from lakeshare_server.protocol.requests import format_iso
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
)
from tests.builders.log_files import PROTOCOL, WrittenLog, add, metadata
from tests.builders.sharing import FLIGHTS, Provider


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_sharing_provider(tmp_path)


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "table")


def test_times_that_a_copy_made_younger_than_the_commits_say_are_before_theirs(
    provider: Provider, log: WrittenLog
) -> None:
    """A copied log has the copy's times; from version 3 on the commits tell their own."""
    copied_ms = BEGIN_MS + 10**9
    dated(log.first(add("0")), copied_ms)
    told = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "3"}
    for version in range(1, 6):
        head = [metadata(configuration=told)] if version == 3 else []
        info = {"commitInfo": {"inCommitTimestamp": BEGIN_MS + 1000 * version}}
        dated(log.commit(version, info, *head, add(str(version))), copied_ms)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        for version in (3, 4, 5):
            assert count_of(client, timestamp=format_iso(BEGIN_MS + 1000 * version)) == version + 1
        for version in (0, 1, 2):
            assert count_of(client, timestamp=format_iso(BEGIN_MS + 3000 - (3 - version))) == version + 1


def test_a_version_of_which_only_a_checkpoint_is_left_was_before_the_next_one(
    provider: Provider, log: WrittenLog
) -> None:
    some_commits(log, 3)
    dated(log.checkpoint(1, PROTOCOL, metadata(), add("0"), add("1")), BEGIN_MS + 60_000)
    for version in range(2):
        (log.folder / f"{version:020}.json").unlink()
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert count_of(client, timestamp=format_iso(BEGIN_MS + 1999)) == 2
        assert count_of(client, timestamp=format_iso(BEGIN_MS + 2000)) == 3


def test_times_are_those_of_the_commits(provider: Provider, log: WrittenLog) -> None:
    """protocol §1.5, §1.7: at or before for snapshots, at or after for the version."""
    some_commits(log, 3)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        for version in range(3):
            exactly, before = format_iso(BEGIN_MS + 1000 * version), format_iso(BEGIN_MS + 1000 * version - 1)
            assert count_of(client, timestamp=exactly) == version + 1
            assert started(client, exactly) == started(client, before) == version
            if version:
                assert count_of(client, timestamp=before) == version
        refused(
            client.post(f"{FLIGHTS}/query", json={"timestamp": format_iso(BEGIN_MS - 1)}),
            "before the earliest",
        )
        refused(
            client.post(f"{FLIGHTS}/query", json={"timestamp": format_iso(BEGIN_MS + 2001)}),
            "after the latest",
        )


def test_times_grow_with_the_versions_whatever_the_files_say(provider: Provider, log: WrittenLog) -> None:
    """protocol §1.7: commit times made strictly increasing; copies give all files of a log one time."""
    for path in (log.first(add("0")), *(log.commit(version, add(str(version))) for version in range(1, 4))):
        dated(path, BEGIN_MS)
    dated(log.folder / f"{2:020}.json", BEGIN_MS - 5000)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert [count_of(client, timestamp=format_iso(BEGIN_MS + later)) for later in range(4)] == [
            1,
            2,
            3,
            4,
        ]


def test_times_in_the_commits_count_from_when_they_are_there(provider: Provider, log: WrittenLog) -> None:
    """Delta's in-commit timestamps: the files' own times say when they were copied."""
    dated(log.first(add("0")), BEGIN_MS)
    enabled = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "1"}
    for version in (1, 2):
        info = {"commitInfo": {"inCommitTimestamp": BEGIN_MS + version * 1000}}
        more = [metadata(configuration=enabled)] if version == 1 else []
        dated(log.commit(version, info, *more, add(str(version))), BEGIN_MS + 10**9)
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        found = [
            count_of(client, timestamp=format_iso(BEGIN_MS + later)) for later in (0, 999, 1000, 1999, 2000)
        ]
    assert found == [1, 1, 2, 2, 3]
