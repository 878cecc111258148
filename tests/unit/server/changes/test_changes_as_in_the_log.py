"""What versions changed is told as the log has it, action by action."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakeshare_server.errors import BadRequest, TableFilesMissing
from lakeshare_server.protocol.lines import ResponseFormat, require_recorded
from tests.builders import delta_log
from tests.builders.change_responses import FORMATS, CountingStores, answer, expected, in_order, told
from tests.builders.written_log import FIRST_MS, WrittenLog, add, info, metadata, protocol, remove


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


def test_in_commit_times_count_from_the_version_that_switches_them_on(log: WrittenLog, read: Any) -> None:
    """§11 in-commit timestamps, protocol §1.8: `_commit_timestamp` is the line's timestamp."""
    switched = {"delta.enableChangeDataFeed": "true", "delta.enableInCommitTimestamps": "true"}
    log.commit(info("CREATE", inCommitTimestamp=1), protocol(), metadata())
    log.commit(info("SET", inCommitTimestamp=FIRST_MS + 777_000), metadata(switched))
    log.commit(info("WRITE", inCommitTimestamp=FIRST_MS + 888_000), add("1"))
    changes = read(log.location, 0, 2)
    assert [(one.timestamp_ms, one.has_own_time) for one in changes] == [
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
