"""What versions changed is told as the log has it, action by action, from a few files of an index."""

import hashlib
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_server.errors import BadRequest, TableFilesMissing, Unserveable
from lakeshare_server.protocol.answer import Progress
from lakeshare_server.protocol.change_answer import ChangeAnswer, require_recorded
from lakeshare_server.protocol.change_lines import ChangeLines
from lakeshare_server.protocol.heads import HeadLines
from lakeshare_server.protocol.negotiation import ResponseFormat
from lakeshare_server.settings import StoreSettings
from lakeshare_server.stores import Stores
from lakeshare_server.tables.delta.changes import (
    ChangeLog,
    SegmentCache,
    VersionChanges,
    read_changes,
    segment_cache,
    spans,
)
from lakeshare_server.tables.delta.log import list_log
from tests.builders import delta_log
from tests.builders.deletion_vector import inline_descriptor, relative_path
from tests.builders.written_log import (
    FIRST_MS,
    WrittenLog,
    add,
    bare_remove,
    cdc,
    info,
    metadata,
    protocol,
    remove,
)

Line = dict[str, Any]
FORMATS: tuple[ResponseFormat, ...] = ("parquet", "delta")


class CountingStores(Stores):
    """Real stores that remember what was read and listed."""

    def __init__(self) -> None:
        super().__init__(StoreSettings(_env_file=None))
        self.was_read: list[str] = []
        self.was_listed = 0

    def read(self, location: str) -> bytes:
        self.was_read.append(location)
        return super().read(location)

    def open(self, location: str) -> Any:
        self.was_read.append(location)
        return super().open(location)

    def list(self, prefix_location: str, after: str | None = None) -> Any:
        self.was_listed += 1
        return super().list(prefix_location, after)


@pytest.fixture
def stores() -> CountingStores:
    return CountingStores()


@pytest.fixture
def cache(tmp_path: Path) -> SegmentCache:
    return segment_cache(tmp_path / "index", 10**9)


@pytest.fixture
def read(stores: CountingStores, cache: SegmentCache) -> Callable[..., list[VersionChanges]]:
    def reader(table: Path, first: int, last: int) -> list[VersionChanges]:
        return read_changes(ChangeLog(stores, str(table)), cache, first, last)

    return reader


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "table")


def url(path: str) -> str:
    return f"http://files{path}?sig=1"


def answer(changes: Sequence[VersionChanges], *, feed: bool, **given: Any) -> ChangeAnswer:
    said: dict[str, Any] = {"historical_metadata": True, "historical_protocol": False, **given}
    return ChangeAnswer(changes=changes, feed=feed, announced=lambda head: head.protocol, **said)


def told(
    wanted: ChangeAnswer, response_format: ResponseFormat = "delta", progress: Progress | None = None
) -> list[Line]:
    head = wanted.changes[0].head
    heads = HeadLines(response_format=response_format, protocol=head.protocol, version=0)
    lines = ChangeLines(response_format=response_format, ids=response_format, expires_at_ms=99)

    def sign(paths: pa.StringArray) -> list[bytes]:
        return [url(path).encode() for path in paths.to_pylist()]

    body = b"".join(wanted.parts(lines, heads, sign, progress or Progress()))
    return [json.loads(line) for line in body.splitlines()]


def expected(
    table: Path, version: int, kind: str, action: Line, response_format: ResponseFormat, timestamp_ms: int
) -> Line:
    """The line of an action of the log, made in the plainest way (protocol §2.1, §2.2, §2.6)."""
    digest = hashlib.md5 if response_format == "parquet" else hashlib.sha256
    line: Line = {
        "id": digest(action["path"].encode()).hexdigest(),
        "version": version,
        "timestamp": timestamp_ms,
        "expirationTimestamp": 99,
    }
    path = str(delta_log.local_path(table, action["path"]))
    common: Line = {"size": action["size"], "partitionValues": action["partitionValues"]}
    if kind == "add" and action.get("stats"):
        common["stats"] = action["stats"]
    if response_format == "parquet":
        return {{"cdc": "cdf"}.get(kind, kind): {**line, "url": url(path), **common}}
    passed_on = {
        name: value
        for name, value in action.items()
        if name not in ("path", "deletionVector", "stats") and value is not None
    }
    inner = {**passed_on, **common, "path": url(path)}
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "i":
        inner["deletionVector"] = vector
    elif vector:
        file = f"{table}/{relative_path(vector['pathOrInlineDv'])}"
        inner["deletionVector"] = {**vector, "storageType": "p", "pathOrInlineDv": url(file)}
        unique = f"{vector['storageType']}{vector['pathOrInlineDv']}" + (
            f"@{vector['offset']}" if "offset" in vector else ""
        )
        line["deletionVectorFileId"] = hashlib.sha256(unique.encode()).hexdigest()
    return {"file": {**line, "deltaSingleAction": {kind: inner}}}


def in_order(lines: Sequence[Line]) -> list[str]:
    return sorted(json.dumps(line, sort_keys=True) for line in lines)


@pytest.fixture
def deltalake_table(tmp_path: Path) -> Path:
    """Inserts, an update, deletes and a merge by deltalake, with its own cdc files."""
    table = tmp_path / "deltalake"
    rows = pa.table({"id": [1, 2, 3], "p": ["a", "b c", None]})
    write_deltalake(table, rows, partition_by=["p"], configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(table).update(updates={"id": "10"}, predicate="id = 1")
    DeltaTable(table).delete("id = 3")
    news = pa.table({"id": [2, 9], "p": ["b c", "n%"]})
    merge = DeltaTable(table).merge(news, "t.id = u.id", source_alias="u", target_alias="t")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    write_deltalake(table, rows, mode="append")
    DeltaTable(table).optimize.compact()
    return table


@pytest.mark.parametrize("response_format", FORMATS)
def test_a_feed_is_what_the_log_says(
    deltalake_table: Path, read: Any, response_format: ResponseFormat
) -> None:
    """protocol §1.8: cdc files alone where there are some, else what was added and removed; §11 CDF."""
    last = delta_log.latest_version(deltalake_table)
    changes = read(deltalake_table, 0, last)
    times = {one.version: one.timestamp_ms for one in changes}
    actions = list(delta_log.changes(deltalake_table, 0, last))
    with_cdc = {version for version, kind, _ in actions if kind == "cdc"}
    assert {1, 2, 3} <= with_cdc
    wanted = [
        expected(deltalake_table, version, kind, action, response_format, times[version])
        for version, kind, action in actions
        if kind == "cdc" or (version not in with_cdc and action["dataChange"])
    ]
    assert in_order(told(answer(changes, feed=True), response_format)) == in_order(wanted)


@pytest.mark.parametrize("response_format", FORMATS)
def test_a_window_is_what_the_log_says(
    deltalake_table: Path, read: Any, response_format: ResponseFormat
) -> None:
    """protocol §1.7: adds and removes that change data; cdc files and OPTIMIZE stay out; §11 windows."""
    last = delta_log.latest_version(deltalake_table)
    changes = read(deltalake_table, 1, last)
    times = {one.version: one.timestamp_ms for one in changes}
    wanted = [
        expected(deltalake_table, version, kind, action, response_format, times[version])
        for version, kind, action in delta_log.changes(deltalake_table, 1, last)
        if kind != "cdc" and action["dataChange"]
    ]
    assert wanted
    assert in_order(told(answer(changes, feed=False), response_format)) == in_order(wanted)
    assert not any(
        line.get("add", {}).get("version") == last for line in told(answer(changes, feed=False), "parquet")
    )


def test_times_are_those_of_the_commits_and_grow(log: WrittenLog, read: Any) -> None:
    """protocol §1.7: commit times made strictly increasing, whatever a copy did to the files."""
    log.commit(protocol(), metadata())
    log.commit(add("1"), modified_ms=FIRST_MS)
    log.commit(add("2"), modified_ms=FIRST_MS - 5000)
    log.commit(add("3"), modified_ms=FIRST_MS + 9000)
    changes = read(log.location, 0, 3)
    assert [one.timestamp_ms for one in changes] == [FIRST_MS, FIRST_MS + 1, FIRST_MS + 2, FIRST_MS + 9000]
    assert [line["add"]["timestamp"] for line in told(answer(changes, feed=True), "parquet")] == [
        FIRST_MS + 1,
        FIRST_MS + 2,
        FIRST_MS + 9000,
    ]


def test_in_commit_times_count_from_the_version_that_switches_them_on(log: WrittenLog, read: Any) -> None:
    """§11 in-commit timestamps, protocol §1.8: `_commit_timestamp` is the line's timestamp."""
    switched = {"delta.enableChangeDataFeed": "true", "delta.enableInCommitTimestamps": "true"}
    log.commit(info("CREATE", inCommitTimestamp=1), protocol(), metadata())
    log.commit(info("SET", inCommitTimestamp=FIRST_MS + 777_000), metadata(switched))
    log.commit(info("WRITE", inCommitTimestamp=FIRST_MS + 888_000), add("1"))
    changes = read(log.location, 0, 2)
    assert [(one.timestamp_ms, one.tells_time) for one in changes] == [
        (FIRST_MS, False),
        (FIRST_MS + 777_000, True),
        (FIRST_MS + 888_000, True),
    ]
    assert changes[1].at(5).timestamp_ms == 5


MERGED_NOTHING = {f"numTargetRows{what}": "0" for what in ("Inserted", "Updated", "Deleted")}


@pytest.mark.parametrize(
    ("operation", "metrics", "lines"),
    [
        ("MERGE", MERGED_NOTHING, 0),
        ("MERGE", {**MERGED_NOTHING, "numTargetRowsUpdated": "1"}, 2),
        ("MERGE", {}, 2),
        ("WRITE", MERGED_NOTHING, 2),
    ],
)
def test_a_merge_that_changed_no_row_is_not_in_the_feed(
    log: WrittenLog, read: Any, operation: str, metrics: dict[str, str], lines: int
) -> None:
    """protocol §1.8: the no-op MERGE rule; §11 CDF incl. no-op MERGE rule. Windows are not told of rows."""
    log.commit(protocol(), metadata(), add("1"))
    log.commit(info(operation, operationMetrics=metrics), remove("1"), add("2"))
    changes = read(log.location, 1, 1)
    assert len(told(answer(changes, feed=True))) == lines
    assert len(told(answer(changes, feed=False))) == 2


def test_a_gap_in_the_feed_is_refused_by_range_and_version(log: WrittenLog, read: Any) -> None:
    """protocol §1.8, §11 CDF gaps → 400: recorded at every version of the range, or not told."""
    log.commit(protocol(), metadata(), add("1"))
    log.commit(metadata({"delta.enableChangeDataFeed": "false"}))
    log.commit(metadata({"delta.enableChangeDataFeed": "TRUE"}))
    log.commit(add("3"))
    words = r"Error getting change data for range \[0, 3\] as change data was not recorded for version \[1\]"
    with pytest.raises(BadRequest, match=words):
        require_recorded(read(log.location, 0, 3))
    require_recorded(read(log.location, 2, 3))
    require_recorded(read(log.location, 0, 0))


@pytest.fixture
def five_versions(log: WrittenLog) -> WrittenLog:
    """protocol §5.9: (1,2) with the feed, add, (1,4) with another name, add, add."""
    log.commit(protocol(1, 2), metadata(name="first"))
    log.commit(add("1"))
    log.commit(protocol(1, 4), metadata(name="second"))
    log.commit(add("3"))
    log.commit(add("4"))
    return log


@pytest.mark.parametrize(
    ("first", "flag", "wanted"), [(0, False, []), (0, True, [2]), (2, True, []), (3, True, [])]
)
def test_later_protocols_are_told_when_asked_for(
    five_versions: WrittenLog, read: Any, first: int, flag: bool, wanted: list[int]
) -> None:
    """protocol §1.7 includeHistoricalProtocol, §7.4: strictly after the start, each with its version."""
    changes = read(five_versions.location, first, 4)
    lines = told(answer(changes, feed=False, historical_protocol=flag))
    found = [line["protocol"] for line in lines if "protocol" in line]
    assert [one["version"] for one in found] == wanted
    assert all(one["deltaProtocol"] == {"minReaderVersion": 1, "minWriterVersion": 4} for one in found)
    assert changes[0].head.protocol.min_writer_version == (2 if first < 2 else 4)


@pytest.mark.parametrize("response_format", FORMATS)
def test_later_metadata_stands_between_its_neighbours(
    five_versions: WrittenLog, read: Any, response_format: ResponseFormat
) -> None:
    """protocol §1.7: every later metadata change is a `metaData` line with its version."""
    lines = told(answer(read(five_versions.location, 0, 4), feed=False), response_format)
    found = [line.get("metaData", {}).get("version") for line in lines]
    assert found == [None, 2, None, None]
    inner = lines[1]["metaData"]
    assert (inner if response_format == "parquet" else inner["deltaMetadata"])["name"] == "second"
    assert told(answer(read(five_versions.location, 2, 4), feed=False), response_format) == lines[2:]
    without = answer(read(five_versions.location, 0, 4), feed=True, historical_metadata=False)
    assert [set(line) for line in told(without, response_format)] == [
        set(line) for line in (lines[0], *lines[2:])
    ]


def test_what_changed_in_a_version_left_out_is_told_with_the_next(
    five_versions: WrittenLog, read: Any
) -> None:
    changes = [one for one in read(five_versions.location, 0, 4) if one.version != 2]
    lines = told(answer(changes, feed=False, historical_protocol=True))
    heads = [next(iter(line)) for line in lines]
    assert heads == ["file", "protocol", "metaData", "file", "file"]
    assert lines[1]["protocol"]["version"] == lines[2]["metaData"]["version"] == 3


def test_the_head_in_force_needs_no_files_of_the_table(
    log: WrittenLog, stores: CountingStores, read: Any
) -> None:
    log.commit(protocol(), metadata(name="first"), add("0"))
    for version in range(1, 5):
        log.commit(add(str(version)))
    DeltaTable(log.location).create_checkpoint()
    log.commit(add("5"))
    log.forget(0, 1, 2, 3)
    stores.was_read.clear()
    changes = read(log.location, 4, 5)
    assert changes[0].head.name == "first"
    assert [one.version for one in changes] == [4, 5]
    with pytest.raises(
        TableFilesMissing, match=r"table files missing: .*version 3.* oldest commit is that of version 4"
    ):
        read(log.location, 3, 5)


def test_a_lost_commit_is_refused_where_it_was_and_nowhere_else(log: WrittenLog, read: Any) -> None:
    """§11 log/data files missing → 400, protocol §7.2 cdf_table_missing_log."""
    log.commit(protocol(), metadata())
    for version in range(1, 7):
        log.commit(add(str(version)))
        if version == 4:
            DeltaTable(log.location).create_checkpoint()
    log.forget(2)
    for first, last in ((1, 6), (2, 2), (0, 3)):
        with pytest.raises(TableFilesMissing, match=r"table files missing: .*version 2"):
            read(log.location, first, last)
    assert [one.version for one in read(log.location, 0, 1)] == [0, 1]
    assert [one.version for one in read(log.location, 5, 6)] == [5, 6]
    with pytest.raises(TableFilesMissing, match="version 3"):
        # What was in force then is not known any more.
        read(log.location, 3, 6)


def test_a_commit_cut_short_is_refused_and_not_kept(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata())
    log.commit(add("1"))
    path = log.folder / f"{1:020}.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(TableFilesMissing, match="not whole"):
        read(log.location, 0, 1)
    path.write_text(whole)
    assert len(told(answer(read(log.location, 0, 1), feed=True))) == 1


STORED = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
VECTORS = ("deletionVectors", "changeDataFeed")


def test_deletion_vectors_come_in_pairs_as_the_log_has_them(log: WrittenLog, read: Any) -> None:
    """protocol §2.3, §11 DV in streaming and CDF: without cdc files clients compare the vectors of both lines."""
    inline = inline_descriptor([1, 3])
    log.commit(protocol(features=VECTORS), metadata(), add("1"))
    log.commit(remove("1"), add("1", deletionVector=inline))
    log.commit(remove("1", deletionVector=inline), add("1", deletionVector=STORED))
    changes = read(log.location, 0, 2)
    wanted = [
        expected(log.location, version, kind, action, "delta", changes[version].timestamp_ms)
        for version, kind, action in delta_log.changes(log.location, 0, 2)
    ]
    for feed in (True, False):
        lines = told(answer(changes, feed=feed))
        assert in_order(lines) == in_order(wanted)
    assert sum("deletionVectorFileId" in line["file"] for line in lines) == 1
    [hindrance] = changes[0].head.hindrances
    assert hindrance.feature == "deletionVectors"


def test_what_hinders_one_version_hinders_the_range(log: WrittenLog, read: Any) -> None:
    """protocol §2.5: an answer has one format; parquet cannot carry a range in which a version needs more."""
    log.commit(protocol(), metadata(), add("0"))
    mapped = {**metadata()["metaData"]["configuration"], "delta.columnMapping.mode": "name"}
    log.commit(protocol(2, 5), metadata(mapped))
    assert [one.feature for one in read(log.location, 0, 1)[0].head.hindrances] == ["columnMapping"]
    assert not read(log.location, 0, 0)[0].head.hindrances


def test_partition_values_keep_the_names_of_the_log(log: WrittenLog, read: Any) -> None:
    """protocol §2.2: with column mapping, keys are physical names; §11 column mapping in streaming and CDF."""
    fields = [
        {"name": name, "type": "string", "nullable": True,
         "metadata": {"delta.columnMapping.physicalName": f"col-{name}", "delta.columnMapping.id": place}}
        for place, name in enumerate(("id", "p"), 1)
    ]  # fmt: skip
    mode = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
    given = metadata(mode, schema={"type": "struct", "fields": fields})
    log.commit(protocol(2, 5), given, add("1", partitionValues={"col-p": ""}))
    [line] = told(answer(read(log.location, 0, 0), feed=True))
    # The empty text and null are the same (protocol §2.1).
    assert line["file"]["deltaSingleAction"]["add"]["partitionValues"] == {"col-p": None}


TRACKED = {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"}


def test_row_tracking_is_passed_on_or_not_announced(log: WrittenLog, read: Any) -> None:
    """protocol §0.18, §11 row tracking pass-through: in every add and remove, or nowhere."""
    ids = {"baseRowId": 10, "defaultRowCommitVersion": 0}
    features = ("rowTracking", "domainMetadata", "changeDataFeed")
    log.commit(protocol(features=features), metadata(TRACKED), add("1", **ids))
    log.commit(remove("1", **ids), add("2", baseRowId=20, defaultRowCommitVersion=1))
    log.commit(remove("2"))
    changes = read(log.location, 0, 1)
    assert all(one.head.configuration["delta.enableRowTracking"] == "true" for one in changes)
    for line in told(answer(changes, feed=True)):
        [action] = line["file"]["deltaSingleAction"].values()
        assert {"baseRowId", "defaultRowCommitVersion"} <= set(action)
    for one in read(log.location, 0, 2):
        assert "delta.enableRowTracking" not in one.head.configuration
        assert "rowTracking" not in (one.head.protocol.writer_features or ())


def test_removes_of_older_writers_get_size_and_values_of_their_adds(log: WrittenLog, read: Any) -> None:
    """protocol §2.1, §6.2: `remove` has a size, that of the object."""
    log.commit(protocol(), metadata(), add("early", size=1, partitionValues={"p": None}))
    for version in range(1, 100):
        log.commit(add(f"{version}", size=version))
    log.commit(bare_remove("early"), add("late", size=2))
    log.commit(bare_remove("late"))
    lines = told(answer(read(log.location, 100, 101), feed=True), "parquet")
    removes = [line["remove"] for line in lines if "remove" in line]
    assert [(one["size"], one["partitionValues"]) for one in removes] == [(1, {"p": None}), (2, {"p": "a b"})]
    [_, early, _] = told(answer(read(log.location, 100, 101), feed=True), "delta")
    assert early["file"]["deltaSingleAction"]["remove"]["extendedFileMetadata"] is True


def test_a_remove_of_nothing_known_is_refused_where_it_is_told(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata(), add("1"))
    log.commit(bare_remove("never added"))
    log.commit(add("2"))
    with pytest.raises(TableFilesMissing, match="never added"):
        read(log.location, 0, 2)
    assert [one.version for one in read(log.location, 2, 2)] == [2]
    assert [one.version for one in read(log.location, 0, 0)] == [0]


def test_a_version_of_an_unknown_feature_is_refused(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata())
    known = protocol(features=VECTORS)["protocol"]
    log.commit({"protocol": {**known, "readerFeatures": ["new"]}})
    with pytest.raises(Unserveable, match="new"):
        read(log.location, 0, 1)


def test_files_elsewhere_are_told_with_their_store(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata(), add("s3://bucket/a%20b"), add("1"))
    changes = read(log.location, 0, 0)
    wanted = answer(changes, feed=True)
    assert wanted.roots == ["", "s3://bucket"]
    assert (wanted.files, wanted.size_bytes) == (2, 200)
    assert told(wanted, "parquet")[0]["add"]["url"] == url("s3://bucket/a b")


def many_versions(log: WrittenLog, count: int) -> None:
    log.commit(protocol(), metadata())
    for version in range(1, count):
        log.commit(add(f"{version}"), *([cdc(f"_change_data/{version}")] if version % 7 == 0 else []))


def test_a_thousand_versions_are_read_once(
    log: WrittenLog, stores: CountingStores, cache: SegmentCache, read: Any
) -> None:
    """issue part 5: the changes of a range are indexed, so a thousand versions do not mean a thousand log reads."""
    many_versions(log, 1000)
    first = told(answer(read(log.location, 0, 999), feed=True))
    assert len(stores.was_read) == 1000
    assert stores.was_listed == 1
    assert len(list(cache.folder.glob("*.arrow"))) == 10
    stores.was_read.clear()
    second = told(answer(read(log.location, 0, 999), feed=True))
    assert first == second
    assert len(first) == 999
    assert stores.was_read == []
    assert stores.was_listed == 1
    afresh = segment_cache(cache.folder, 10**9)
    assert len(read_changes(ChangeLog(stores, str(log.location)), afresh, 1, 999)) == 999
    assert stores.was_read == []


def test_one_more_version_costs_a_few_reads(log: WrittenLog, stores: CountingStores, read: Any) -> None:
    many_versions(log, 300)
    read(log.location, 0, 288)
    stores.was_read.clear()
    assert len(read(log.location, 200, 289)) == 90
    assert len(stores.was_read) <= 10


def test_spans_cover_each_version_once() -> None:
    for first, last in ((0, 0), (0, 99), (0, 100), (5, 742), (740, 745), (99, 100), (123, 1009)):
        found = list(spans(first, last))
        assert found[0][0] <= first
        assert found[-1][1] == last
        assert all(end + 1 == begin for (_, end), (begin, _) in pairwise(found))
        assert len(found) <= (last - first) // 100 + 22


def test_another_table_at_the_same_place_is_another(
    tmp_path: Path, stores: CountingStores, cache: SegmentCache
) -> None:
    def lines(table: Path, given: dict[str, Any]) -> list[str]:
        changes = read_changes(ChangeLog(stores, str(table), **given), cache, 0, 0)
        return [line["add"]["id"] for line in told(answer(changes, feed=True), "parquet")]

    for number, name in enumerate(("one", "two")):
        table = WrittenLog(tmp_path / name)
        table.commit(protocol(), metadata(), add(name))
        place = tmp_path / "table"
        if place.is_symlink():
            place.unlink()
        place.symlink_to(table.location)
        wanted = [hashlib.md5(name.encode()).hexdigest()]
        assert lines(place, {"table_id": f"id {number}"}) == wanted
        assert lines(place, {"listing": list_log(stores, str(place))}) == wanted


def test_the_folder_stays_within_its_size(log: WrittenLog, stores: CountingStores, tmp_path: Path) -> None:
    many_versions(log, 300)
    small = segment_cache(tmp_path / "small", 1)
    changes = read_changes(ChangeLog(stores, str(log.location)), small, 0, 299)
    assert len(list(small.folder.glob("*.arrow"))) == 1
    # What was removed meanwhile is still open.
    assert len(told(answer(changes, feed=True))) == 299


def test_a_damaged_segment_is_built_anew(
    log: WrittenLog, stores: CountingStores, cache: SegmentCache
) -> None:
    many_versions(log, 3)
    at = ChangeLog(stores, str(log.location))
    before = told(answer(read_changes(at, cache, 0, 2), feed=True))
    [file] = cache.folder.glob("*.arrow")
    file.write_bytes(file.read_bytes()[:50])
    again = read_changes(at, segment_cache(cache.folder, 10**9), 0, 2)
    assert told(answer(again, feed=True)) == before


@pytest.mark.parametrize("feed", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 50, 1000])
def test_pages_have_each_line_once(log: WrittenLog, read: Any, feed: bool, size: int) -> None:
    """protocol §1.7, §11 paging on query and changes: cut by files, head lines go with what follows."""
    many_versions(log, 120)
    log.commit(metadata(name="in between"))
    log.commit(protocol(1, 5), metadata(name="another"), add("x"), remove("x"), add("y", dataChange=False))
    log.commit(metadata(name="at the end"))
    changes = read(log.location, 1, log.versions - 1)
    whole = told(answer(changes, feed=feed, historical_protocol=True))
    paged: list[Line] = []
    start: int | None = 0
    while start is not None:
        progress = Progress()
        wanted = answer(changes, feed=feed, historical_protocol=True, start=start, most=size)
        page = told(wanted, progress=progress)
        assert sum("file" in line for line in page) == progress.files <= size
        paged += page
        start = progress.next_place
    assert paged == whole
    assert len(whole) == 119 + 2 + 3 + 1


def test_versions_left_out_have_no_lines(log: WrittenLog, read: Any) -> None:
    many_versions(log, 30)
    changes = [one for one in read(log.location, 1, 29) if one.version % 3]
    versions = [line["add"]["version"] for line in told(answer(changes, feed=False), "parquet")]
    assert versions == [one.version for one in changes]


def test_large_commits_are_told_in_pieces(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata())
    log.commit(*(add(f"{number}") for number in range(20_000)), modified_ms=FIRST_MS + 1000)
    log.commit(*(remove(f"{number}", dataChange=number % 2 == 0) for number in range(20_000)))
    changes = read(log.location, 0, 2)
    assert [one.window_rows for one in changes] == [0, 20_000, 10_000]
    lines = told(answer(changes, feed=True), "parquet")
    assert len({line["add"]["id"] for line in lines if "add" in line}) == 20_000
    assert sum("remove" in line for line in lines) == 10_000


def test_odd_names_and_values_are_json(log: WrittenLog, read: Any) -> None:
    values = {"p": 'q"\\\x7f\n\u2028ü'}
    log.commit(
        protocol(), metadata(), add("p=%25%20%C3%BC/1#.parquet", partitionValues=values, stats="no json")
    )
    [line] = told(answer(read(log.location, 0, 0), feed=True), "parquet")
    assert line["add"]["partitionValues"] == values
    assert line["add"]["url"] == url(f"{log.location}/p=% ü/1#.parquet")
    assert "stats" not in line["add"]


@pytest.mark.parametrize(
    "broken",
    [{"size": None}, {"path": None}, {"partitionValues": 3}, {"deletionVector": {"storageType": "z"}}],
)
def test_an_entry_that_is_none_is_refused(log: WrittenLog, read: Any, broken: Line) -> None:
    log.commit(protocol(), metadata(), {"add": {**add("1")["add"], **broken}})
    with pytest.raises(TableFilesMissing, match="table files missing"):
        read(log.location, 0, 0)
