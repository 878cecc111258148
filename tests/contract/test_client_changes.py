"""The official Python client reads the change data feed, in both formats, as deltalake reads it from the table."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import delta_sharing
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.builders import delta_log
from tests.builders.deletion_vector import inline_descriptor
from tests.builders.sharing import Provider, a_server

TABLE = "lake.people"
COLUMNS = ["id", "p", "_change_type", "_commit_version"]
SWITCHED = {"delta.enableChangeDataFeed": "true"}


@contextmanager
def served(provider: Provider, location: Path) -> Iterator[Callable[..., pd.DataFrame]]:
    """Reads the feed of a table that a running server follows."""
    provider.follow(TABLE, location)
    provider.share(TABLE, history=True)
    with a_server(provider) as server:
        url = f"{server.profile(provider.recipient())}#flights.{TABLE}"

        def read(first: int, last: int, *, delta: bool) -> pd.DataFrame:
            return delta_sharing.load_table_changes_as_pandas(
                url, starting_version=first, ending_version=last, use_delta_format=delta
            )

        yield read


def rows_of(frame: pd.DataFrame) -> list[str]:
    kept = frame[COLUMNS].astype(object)
    return sorted(json.dumps(row, default=str) for row in kept.where(kept.notna(), None).to_numpy().tolist())


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Inserts, an update, a delete and a merge with cdc files, an append without, and a new column."""
    location = tmp_path / "people"
    people = pa.table({"id": [1, 2, 3, 4], "p": ["a", "b", None, "d"]})
    write_deltalake(location, people, partition_by=["p"], configuration=SWITCHED)
    DeltaTable(location).update(updates={"id": "10"}, predicate="id = 1")
    DeltaTable(location).delete("id = 3")
    news = pa.table({"id": [2, 9], "p": ["b", "n"]})
    merge = DeltaTable(location).merge(news, "t.id = u.id", source_alias="u", target_alias="t")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    write_deltalake(location, people, mode="append")
    more = pa.table({"id": [77], "p": ["x"], "extra": [1.5]})
    write_deltalake(location, more, mode="append", schema_mode="merge")
    return location


# The client puts frames with and without the new column together in a way that pandas 2 warns of.
@pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning")
def test_the_feed_is_that_of_the_table(provider: Provider, location: Path, subtests: pytest.Subtests) -> None:
    """protocol §1.8, §0.13, §11 CDF. The client's kernel reads no range in which the schema changes."""
    with served(provider, location) as read:
        for first, last, delta in ((0, 5, False), (4, 5, False), (0, 4, False), (0, 4, True), (1, 3, True)):
            with subtests.test(first=first, last=last, delta=delta):
                wanted = pa.table(DeltaTable(location).load_cdf(first, last).read_all()).to_pandas()
                found = read(first, last, delta=delta)
                assert rows_of(found) == rows_of(wanted)
                assert "extra" in found.columns or delta


def test_a_delete_by_deletion_vector_is_read_from_the_pair(provider: Provider, tmp_path: Path) -> None:
    """protocol §2.3, §11 DV in CDF: remove and add of one file, of which the client takes the difference."""
    location = tmp_path / "marked"
    write_deltalake(location, pa.table({"id": [1, 2, 3, 4], "p": list("abcd")}), configuration=SWITCHED)
    [before] = [action["add"] for action in delta_log.commit(location, 0) if "add" in action]
    commit_by_hand(location, features(), metadata_of(location))
    shared = {"path": before["path"], "size": before["size"], "partitionValues": {}, "dataChange": True}
    commit_by_hand(
        location,
        {"remove": {**shared, "deletionTimestamp": 1, "extendedFileMetadata": True}},
        {"add": {**before, "deletionVector": inline_descriptor([1, 3])}},
    )
    with served(provider, location) as read:
        found = read(2, 2, delta=True)
    assert found[COLUMNS].sort_values("id").to_numpy().tolist() == [
        [2, "b", "delete", 2],
        [4, "d", "delete", 2],
    ]


def features() -> dict[str, Any]:
    named = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "changeDataFeed"]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **named}}


def metadata_of(location: Path) -> dict[str, Any]:
    metadata = dict(delta_log.read_state(location).metadata)
    configuration = {**metadata["configuration"], "delta.enableDeletionVectors": "true"}
    return {"metaData": {**metadata, "configuration": configuration}}


def commit_by_hand(location: Path, *actions: dict[str, Any]) -> None:
    version = delta_log.latest_version(location) + 1
    path = location / "_delta_log" / f"{version:020}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
