"""Action reconciliation: of each path with its deletion vector the newest action counts, however the log is kept.

Delta's PROTOCOL.md, "Action Reconciliation". A dictionary is the model; commits, compactions and all kinds of
checkpoints must tell the same as it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import TableSnapshot, read_delta
from lakeshare_server.tables.delta.log import TableState, list_log, replay
from tests.builders.campaign import campaign_size
from tests.builders.log_files import PROTOCOL, Action, WrittenLog, add, metadata, remove

STORES = Stores(ServerSettings(_env_file=None))
INLINE = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
INLINE |= {"sizeInBytes": 40, "cardinality": 6}
STORED = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
STORED |= {"sizeInBytes": 40, "cardinality": 2}
LATER = {**STORED, "offset": 99, "cardinality": 3}
VECTORS: list[dict[str, Any] | None] = [None, INLINE, STORED, LATER]
TABLE = metadata({"p": "string", "n": "long"}, "p")


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "table")


def with_vector(action: Action, vector: dict[str, Any] | None) -> Action:
    [(kind, told)] = action.items()
    return {kind: told if vector is None else told | {"deletionVector": vector}}


def state(log: WrittenLog) -> TableState:
    listing = list_log(STORES, str(log.root))
    return replay(STORES, listing, listing.latest)


def contents(snapshot: TableSnapshot) -> list[dict[str, Any]]:
    rows = snapshot.files.to_pylist()
    return sorted(rows, key=lambda row: (row["path"], str(row["dv_id"])))


def names(log: WrittenLog) -> list[tuple[str, int]]:
    files = read_delta(str(log.root)).files
    return sorted(
        zip(files.column("name").to_pylist(), files.column("dv_cardinality").to_pylist(), strict=True)
    )


def test_a_vector_makes_another_file_of_the_same_path(log: WrittenLog) -> None:
    """Deleting rows removes the path with its old vector and adds it with the new one, in one commit."""
    log.first(add("a"), add("b"))
    log.commit(1, remove("a"), with_vector(add("a"), INLINE))
    assert names(log) == [("a", 6), ("b", 0)]
    log.commit(2, with_vector(remove("a"), INLINE), with_vector(add("a"), STORED))
    assert names(log) == [("a", 2), ("b", 0)]
    log.commit(3, with_vector(remove("a"), STORED), with_vector(add("a"), LATER))
    assert names(log) == [("a", 3), ("b", 0)]
    log.commit(4, with_vector(remove("a"), LATER))
    assert names(log) == [("b", 0)]


def test_a_removal_with_another_vector_removes_nothing(log: WrittenLog) -> None:
    log.first(with_vector(add("a"), INLINE))
    log.commit(1, remove("a"), with_vector(remove("a"), STORED))
    assert names(log) == [("a", 6)]


def test_vectors_of_one_file_at_different_places_are_different(log: WrittenLog) -> None:
    log.first(with_vector(add("a"), STORED))
    log.commit(1, with_vector(remove("a"), LATER))
    assert names(log) == [("a", 2)]


def test_a_file_that_comes_back_is_there_again(log: WrittenLog) -> None:
    log.first(add("a", size=1))
    log.commit(1, remove("a"))
    assert names(log) == []
    log.commit(2, add("a", size=2))
    assert read_delta(str(log.root)).files.column("size").to_pylist() == [2]


def test_the_newest_add_of_a_file_is_the_one_that_counts(log: WrittenLog) -> None:
    """Writers add live files again, to give them statistics or tags."""
    log.first(add("a"), add("b"))
    log.checkpoint(0, PROTOCOL, metadata(), add("a"), add("b"))
    log.commit(1, add("a", stats='{"numRecords":5}', tags={"k": "v"}))
    files = read_delta(str(log.root)).files.sort_by("path").to_pylist()
    assert [(file["rows"], file["tags"]) for file in files] == [(5, '{"k":"v"}'), (None, None)]


def test_a_file_added_twice_in_one_commit_is_one_file(log: WrittenLog) -> None:
    log.first(add("a"), add("a"))
    assert names(log) == [("a", 0)]


def test_absolute_paths_are_one_file_in_any_spelling(log: WrittenLog) -> None:
    log.first(add("file:/x/a%20b"), add("file:///x/c"), add("/x/d"))
    log.checkpoint(0, PROTOCOL, metadata(), add("file:/x/a%20b"), add("file:///x/c"), add("/x/d"))
    log.commit(1, remove("file:///x/a b"), remove("/x/c"), remove("file:/x/d"))
    assert names(log) == []


def test_the_newest_protocol_and_metadata_count(log: WrittenLog) -> None:
    log.first()
    log.commit(1, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}})
    log.commit(2, metadata(name="later"))
    log.commit(3, add("a"))
    told = state(log)
    assert (told.protocol["minWriterVersion"], told.metadata["name"]) == (4, "later")
    assert told.commit is not None
    assert (told.commit.first, told.version) == (3, 3)
    log.checkpoint(3, PROTOCOL, metadata(name="of the checkpoint"))
    told = state(log)
    assert (told.protocol["minWriterVersion"], told.metadata["name"]) == (2, "of the checkpoint")
    assert told.commit is None


def test_a_head_in_a_checkpoint_is_told_as_in_a_commit(log: WrittenLog) -> None:
    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    features |= {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping", "appendOnly"]}
    told = metadata(
        {"p": "string"}, "p", name="n", createdTime=5, configuration={"a": "b", "delta.x": "", "c": None}
    )
    log.commit(0, {"protocol": features}, told)
    by_commit = read_delta(str(log.root)).head
    log.checkpoint(0, {"protocol": features}, told)
    (log.folder / f"{0:020}.json").unlink()
    assert read_delta(str(log.root)).head == by_commit
    assert by_commit.configuration == {"a": "b", "delta.x": ""}


EXTRAS = {
    "baseRowId": 10,
    "defaultRowCommitVersion": 2,
    "clusteringProvider": "liquid",
    "tags": {"k": 'v"ü', "empty": ""},
    "stats": '{"numRecords":3,"minValues":{"n":1},"maxValues":{"n":9},"nullCount":{"n":0}}',
    "partitionValues": {"p": "x y"},
    "deletionVector": STORED,
}


@pytest.mark.parametrize("kind", ["classic", "json", "parquet"])
def test_all_that_is_said_of_a_file_comes_through_a_checkpoint(log: WrittenLog, kind: str) -> None:
    """protocol §0.18, §2.2, §2.3: row tracking, tags, statistics and vectors."""
    files = [add("a", **EXTRAS), add("b", partitionValues={"p": None}), add("c", partitionValues={"p": ""})]
    log.commit(0, PROTOCOL, TABLE, *files)
    by_commit = contents(read_delta(str(log.root)))
    if kind == "classic":
        log.checkpoint(0, PROTOCOL, TABLE, *files)
    else:
        log.v2(0, kind, PROTOCOL, TABLE, sidecars=[files[:1], files[1:]])
    (log.folder / f"{0:020}.json").unlink()
    assert contents(read_delta(str(log.root))) == by_commit
    assert by_commit[0]["base_row_id"] == 10
    assert [file["partition"]["p"] for file in by_commit] == ["x y", None, ""]


PARSED = pa.struct(
    [
        ("numRecords", pa.int64()),
        ("tightBounds", pa.bool_()),
        ("minValues", pa.struct([("day", pa.date32()), ("n", pa.int64()), ("d", pa.decimal128(5, 2))])),
        ("maxValues", pa.struct([("day", pa.date32()), ("n", pa.int64()), ("d", pa.decimal128(5, 2))])),
        ("nullCount", pa.struct([("day", pa.int64()), ("n", pa.int64()), ("d", pa.int64())])),
    ]
)


def test_statistics_that_are_columns_only_are_told_as_text(tmp_path: Path) -> None:
    """A checkpoint may leave the text out (`delta.checkpoint.writeStatsAsJson`); recipients know text only."""
    from datetime import date
    from decimal import Decimal

    log = WrittenLog(tmp_path / "table", PARSED)
    bounds = {"day": date(2013, 1, 2), "n": 3, "d": Decimal("1.50")}
    said = {
        "numRecords": 4,
        "tightBounds": True,
        "minValues": bounds,
        "maxValues": {**bounds, "n": None},
        "nullCount": {"day": 0, "n": 1, "d": 2},
    }
    columns = metadata({"day": "date", "n": "long", "d": "decimal(5,2)"})
    text = '{"numRecords":7}'
    log.checkpoint(
        0,
        PROTOCOL,
        columns,
        add("a", stats_parsed=said),
        add("b"),
        add("c", stats=text, stats_parsed={**said, "numRecords": 8}),
    )
    first, second, third = contents(read_delta(str(log.root)))
    assert json.loads(first["stats"]) == {
        "numRecords": 4,
        "tightBounds": True,
        "minValues": {"day": "2013-01-02", "n": 3, "d": 1.50},
        "maxValues": {"day": "2013-01-02", "d": 1.50},
        "nullCount": {"day": 0, "n": 1, "d": 2},
    }
    assert (first["rows"], first["min"]["n"], first["max"].get("n")) == (4, 3, None)
    assert first["min"]["day"] == date(2013, 1, 2)
    assert (second["rows"], second["stats"]) == (None, None)
    assert (third["rows"], third["stats"]) == (7, text)


Move = tuple[str, str, int]
MOVES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from("abcd"), st.integers(0, 3)), max_size=4
    ),
    min_size=1,
    max_size=6,
)


def commits_of(moves: list[list[Move]]) -> Iterator[list[Action]]:
    """Commits in which no file is both added and removed: Delta has none of those."""
    for version, commit in enumerate(moves):
        actions: dict[tuple[str, int], Action] = {}
        for kind, path, vector in commit:
            action = (
                add(path, size=version + 1, partitionValues={"p": path}, stats=f'{{"numRecords":{version}}}')
                if kind == "add"
                else remove(path)
            )
            actions[path, vector] = with_vector(action, VECTORS[vector])
        yield list(actions.values())


def live_after(commits: list[list[Action]]) -> list[Action]:
    """The model: the last word on each path with its vector."""
    files: dict[tuple[str, str], Action | None] = {}
    for commit in commits:
        for action in commit:
            [(kind, told)] = action.items()
            files[told["path"], json.dumps(told.get("deletionVector"))] = action if kind == "add" else None
    return [action for action in files.values() if action is not None]


def latest_of_each(commits: list[list[Action]]) -> list[Action]:
    """What a compaction of these commits says."""
    files: dict[tuple[str, str], Action] = {}
    for commit in commits:
        for action in commit:
            [(_, told)] = action.items()
            files[told["path"], json.dumps(told.get("deletionVector"))] = action
    return list(files.values())


def expected(actions: list[Action]) -> list[tuple[str, int, int, int]]:
    rows = [next(iter(action.values())) for action in actions]
    return sorted(
        (row["path"], (row.get("deletionVector") or {}).get("cardinality", 0), row["size"], row["size"] - 1)
        for row in rows
    )


def written(folder: Path, commits: list[list[Action]]) -> WrittenLog:
    log = WrittenLog(folder)
    for version, actions in enumerate(commits):
        log.commit(version, {"commitInfo": {}}, *([PROTOCOL, TABLE] if version == 0 else []), *actions)
    return log


@pytest.mark.campaign
@given(moves=MOVES, data=st.data())
@settings(deadline=None, max_examples=campaign_size(in_ci=25, in_campaign=1_000))
def test_every_way_to_keep_a_log_tells_the_same(moves: list[list[Move]], data: st.DataObject) -> None:
    commits = list(commits_of(moves))
    last = len(commits) - 1
    at = data.draw(st.integers(0, last), label="checkpoint at")
    first = data.draw(st.integers(1, max(last, 1)), label="compaction from")
    with TemporaryDirectory() as folder:
        log = written(Path(folder) / "table", commits)
        by_commits = contents(read_delta(str(log.root)))
        told = [(file["name"], file["dv_cardinality"], file["size"], file["rows"]) for file in by_commits]
        assert sorted(told) == expected(live_after(commits))
        if first < last:
            log.compacted(first, last, *latest_of_each(commits[first:]))
            assert contents(read_delta(str(log.root))) == by_commits
        head, files = [PROTOCOL, TABLE], live_after(commits[: at + 1])
        half = len(files) // 2
        kinds = {
            "classic": lambda: [log.checkpoint(at, *head, *files)],
            "parts": lambda: [log.part(at, 1, 2, *head, *files[:half]), log.part(at, 2, 2, *files[half:])],
            "json": lambda: [log.v2(at, "json", *head, sidecars=[files[:half], files[half:]])],
            "json without sidecars": lambda: [log.v2(at, "json", *head, *files)],
            "parquet": lambda: [log.v2(at, "parquet", *head, sidecars=[files])],
            "parquet without sidecars": lambda: [log.v2(at, "parquet", *head, *files)],
        }
        for version in range(at + 1):
            (log.folder / f"{version:020}.json").unlink()
        for write in kinds.values():
            checkpoint = write()
            assert contents(read_delta(str(log.root))) == by_commits
            for part in checkpoint:
                part.unlink()
