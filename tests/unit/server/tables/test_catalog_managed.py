"""Tables whose commits a catalog coordinates are never served at an older state than files of their log show."""

import json
import uuid
from pathlib import Path

import httpx
import pytest

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import read_delta
from tests.builders.followed_logs import NAME, a_client, a_sharing_provider, count_of, refused, version_of
from tests.builders.log_files import Action, WrittenLog, add, metadata
from tests.builders.sharing import FLIGHTS, Provider, files


def a_protocol(*features: str) -> Action:
    """A protocol of table features that readers have to know."""
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": [*features, "inCommitTimestamp"],
        }
    }


COORDINATED = {
    "protocol": {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["coordinatedCommits-preview", "inCommitTimestamp"],
    }
}
MANAGED = {
    "catalogManaged": (a_protocol("catalogManaged"), {}, "_staged_commits"),
    "catalogOwned-preview": (a_protocol("catalogOwned-preview"), {}, "_staged_commits"),
    "coordinatedCommits-preview": (COORDINATED, {}, "_commits"),
    "a coordinator in the properties": (
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}},
        {"delta.coordinatedCommits.commitCoordinator-preview": "dynamodb"},
        "_staged_commits",
    ),
}


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_sharing_provider(tmp_path)


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "table")


def staged(log: WrittenLog, version: int, *actions: Action, folder: str = "_staged_commits") -> Path:
    """A commit that its catalog has not published."""
    path = log.folder / folder / f"{version:020}.{uuid.uuid4()}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions), "utf-8")
    return path


@pytest.mark.parametrize("kind", MANAGED)
def test_a_commit_that_is_not_published_refuses_the_table(log: WrittenLog, kind: str) -> None:
    protocol, properties, folder = MANAGED[kind]
    log.commit(0, protocol, metadata(configuration=properties), add("0"))
    log.commit(1, add("1"))
    staged(log, 1, add("1"), folder=folder)
    assert read_delta(str(log.root)).version == 1
    staged(log, 2, add("2"), folder=folder)
    with pytest.raises(Unserveable) as refusal:
        read_delta(str(log.root))
    assert "version 2" in refusal.value.reason
    assert refusal.value.code == "UNPUBLISHED_COMMITS"
    # What was published before stays what it was.
    assert read_delta(str(log.root), 1).files.num_rows == 2
    log.commit(2, add("2"))
    assert read_delta(str(log.root)).version == 2


def test_staged_files_of_a_table_without_a_catalog_mean_nothing(log: WrittenLog) -> None:
    log.first(add("0"))
    staged(log, 1, add("1"))
    assert read_delta(str(log.root)).version == 0


def test_recipients_are_refused_until_the_catalog_has_published(provider: Provider, log: WrittenLog) -> None:
    log.commit(0, a_protocol("catalogManaged"), metadata(), add("0"))
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert (version_of(client), count_of(client)) == (0, 1)
        staged(log, 1, add("1"))
        for answer in _every_question(client):
            refused(answer, "version 1", "UNPUBLISHED_COMMITS")
        log.commit(1, add("1"))
        assert (version_of(client), count_of(client)) == (1, 2)
        staged(log, 2, add("2"))
        # Many at once, of which none is the next.
        staged(log, 3, add("3"))
        refused(client.post(f"{FLIGHTS}/query", json={}), "version 3")
        log.commit(2, add("2"))
        refused(client.post(f"{FLIGHTS}/query", json={}), "version 3")
        log.commit(3, add("3"))
        assert len(files(client.post(f"{FLIGHTS}/query", json={}))) == 4


def test_a_table_that_comes_under_a_catalog_is_watched_from_then_on(
    provider: Provider, log: WrittenLog
) -> None:
    log.first(add("0"))
    provider.follow(NAME, log.root)
    with a_client(provider) as client:
        assert version_of(client) == 0
        log.commit(1, a_protocol("catalogManaged"))
        assert version_of(client) == 1
        staged(log, 2, add("2"))
        refused(client.get(f"{FLIGHTS}/version"), "version 2")


def _every_question(client: httpx.Client) -> list[httpx.Response]:
    return [
        client.get(f"{FLIGHTS}/version"),
        client.get(f"{FLIGHTS}/metadata"),
        client.post(f"{FLIGHTS}/query", json={}),
        client.post(f"{FLIGHTS}/query", json={"startingVersion": 0}),
        client.post(f"{FLIGHTS}/query", json={"version": 0}),
    ]
