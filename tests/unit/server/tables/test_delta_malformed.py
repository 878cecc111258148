"""Whatever a log says in place of what the specification says: the table is read or refused, the server never fails.

Each case is one commit with one value taken out or replaced, somewhere in its protocol, metadata or file.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.errors import LakeshareError, TableFilesMissing, Unserveable
from lakeshare_server.protocol.lines import HeadLines
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import read_delta
from lakeshare_server.tables.delta.changes import ChangeLog, read_changes, segment_cache
from lakeshare_server.tables.index import write_index_file
from tests.builders.campaign import campaign_size
from tests.builders.change_responses import FORMATS, answer, told
from tests.builders.log_files import Action, WrittenLog, add, metadata

STORES = Stores(ServerSettings(_env_file=None))
SEEDS = range(campaign_size(in_ci=8, in_campaign=100))
CASES_PER_SEED = 20
GONE = object()
ODD: list[Any] = [GONE, None, True, -1, 1.5, "x", "", "1e5", "3", "true", "\ud800", [], {}, ["a"], {"a": 1}]
ODD += [10**30, 2**64 - 1, float(2**40)]
FEATURES = ["deletionVectors", "columnMapping"]
VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*",
    "offset": 1,
    "sizeInBytes": 36,
    "cardinality": 2,
}
INNER = [{"name": "x", "type": "string", "nullable": True, "metadata": {}}]
COLUMNS = {
    "day": "date",
    "n": "long",
    "d": "decimal(5,2)",
    "t": "timestamp",
    "s": {"type": "struct", "fields": INNER},
}
STATS = {
    "numRecords": 3,
    "minValues": {"n": 1, "d": 1.5, "t": "2020-01-01T00:00:00Z", "s": {"x": "a"}},
    "maxValues": {"n": 5},
    "nullCount": {"n": 0, "s": {"x": 0}},
}
PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.inCommitTimestampEnablementVersion": "0",
}


def a_commit() -> list[Action]:
    """What every kind of entry may say; schema and statistics are still objects, so that they can be changed."""
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    head = metadata(COLUMNS, "day", configuration=PROPERTIES, createdTime=1, name="n")
    head["metaData"]["schemaString"] = json.loads(head["metaData"]["schemaString"])
    info = {"inCommitTimestamp": 5, "operation": "MERGE", "operationMetrics": {"a": "0"}}
    said = {"partitionValues": {"day": "2020-01-01"}, "deletionVector": VECTOR, "tags": {"a": "b"}}
    protocol = {"protocol": {**versions, "readerFeatures": FEATURES, "writerFeatures": FEATURES}}
    commit = [{"commitInfo": info}, protocol, head, add("a", **said, baseRowId=1, stats=STATS)]
    copied: list[Action] = json.loads(json.dumps(commit))
    return copied


def places(inside: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a commit has a value, at any depth."""
    members = inside.items() if isinstance(inside, dict) else enumerate(inside)
    for key, value in members:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))


def put(commit: list[Action], place: tuple[Any, ...], value: Any) -> None:
    inside: Any = commit
    for key in place[:-1]:
        inside = inside[key]
    if value is GONE:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value


def as_logged(action: Action) -> str:
    """The action as a line: schema and statistics are texts there."""
    for kind, name in (("metaData", "schemaString"), ("add", "stats")):
        inside = action.get(kind)
        if isinstance(inside, dict) and isinstance(inside.get(name), dict):
            inside[name] = json.dumps(inside[name])
    return json.dumps(action) + "\n"


def written(folder: Path, commit: list[Action]) -> Path:
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020}.json").write_text("".join(map(as_logged, commit)))
    return folder


def snapshot(table: Path) -> None:
    write_index_file(read_delta(str(table)), table / "index")


def changes(table: Path) -> None:
    found = read_changes(ChangeLog(STORES, str(table)), segment_cache(table / "segments", 10**9), 0, 0)
    for response_format in FORMATS:
        heads = HeadLines(response_format=response_format, protocol=found[0].head.protocol, version=0)
        heads.metadata_line(found[0].head)
        told(answer(found, feed=True), response_format)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_with_an_odd_value_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    inside = [place for place in places(a_commit()) if len(place) > 1]
    for number in range(CASES_PER_SEED):
        commit, place, value = a_commit(), chance.choice(inside), chance.choice(ODD)
        put(commit, place, value)
        table = written(tmp_path / str(number), commit)
        for read in (snapshot, changes):
            try:
                read(table)
            except LakeshareError:
                pass
            except Exception as error:
                error.add_note(f"{read.__name__} with {value!r} at {place}")
                raise


HEADS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a feature that is none": ((1, "protocol", "readerFeatures"), [None]),
    "features that are none": ((1, "protocol", "writerFeatures"), 5),
    "a column without a type": ((2, "metaData", "schemaString", "fields", 1, "type"), GONE),
    "a comment that is no text": (
        (2, "metaData", "schemaString", "fields", 1, "metadata"),
        {"comment": "\ud800"},
    ),
    "a property that is no number": ((2, "metaData", "configuration", list(PROPERTIES)[2]), "1e5"),
    "a schema too deep": ((2, "metaData", "schemaString"), '{"type":' * 20_000),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_head_that_is_not_whole_is_the_tables_fault(tmp_path: Path, case: str) -> None:
    """protocol §0.19: a fault that stays is no 5xx."""
    commit = a_commit()
    put(commit, *HEADS[case])
    table = written(tmp_path / "table", commit)
    with pytest.raises(Unserveable, match="not whole"):
        snapshot(table)
    with pytest.raises(TableFilesMissing, match="not whole"):
        changes(table)


def test_a_statistic_that_is_no_text_is_unknown(tmp_path: Path) -> None:
    """Half a surrogate pair, which a writer that cuts texts may leave: the others are known all the same."""
    log = WrittenLog(tmp_path / "table")
    half = '{"numRecords":1,"minValues":{"s":"\\ud83d","n":1}}'
    columns = metadata({"s": "string", "n": "long"})
    whole = '{"numRecords":2,"minValues":{"s":"a","n":2}}'
    log.commit(0, {"protocol": {"minReaderVersion": 1}}, columns, add("a", stats=whole), add("b", stats=half))
    files = read_delta(str(log.root)).files.sort_by("path")
    assert files.column("rows").to_pylist() == [2, 1]
    assert files.column("min").to_pylist() == [{"s": "a", "n": 2}, {"s": None, "n": 1}]
