"""A few files of an index tell what a thousand versions changed, page by page if asked."""

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.protocol.lines import Progress
from lakeshare_server.tables.delta.changes import (
    ChangeLog,
    SegmentCache,
    list_spans,
    read_changes,
    segment_cache,
)
from lakeshare_server.tables.delta.log import list_log
from tests.builders import log_files
from tests.builders.change_responses import CountingStores, Line, answer, told, url
from tests.builders.written_log import FIRST_MS, WrittenLog, add, cdc, metadata, protocol, remove


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


def test_a_head_from_a_checkpoint_is_the_one_of_the_commits(
    tmp_path: Path, stores: CountingStores, cache: SegmentCache
) -> None:
    """protocol §1.7: a `metaData` line is one of a change, whatever part of the log was read first."""
    log = log_files.WrittenLog(tmp_path / "table")
    head = log_files.metadata(description=None)
    log.commit(0, log_files.PROTOCOL, head)
    for version in range(1, 25):
        log.commit(version, log_files.add(str(version)))
    log.checkpoint(10, log_files.PROTOCOL, head, *(log_files.add(str(n)) for n in range(1, 11)))
    place = ChangeLog(stores, str(log.root))
    read_changes(place, cache, 12, 24)
    whole = read_changes(place, cache, 0, 24)
    assert len({one.metadata_text for one in whole}) == len({one.protocol_text for one in whole}) == 1


def test_a_fault_is_gone_when_the_log_is_repaired(
    tmp_path: Path, stores: CountingStores, cache: SegmentCache
) -> None:
    log = log_files.WrittenLog(tmp_path / "table")
    first = log.first(log_files.add("0", size=5))
    log.commit(1, log_files.add("1"))
    log.commit(2, log_files.remove("0"))
    aside = first.rename(tmp_path / "aside")
    lacking = log.checkpoint(1, log_files.PROTOCOL, log_files.metadata(), log_files.add("1"))
    place = ChangeLog(stores, str(log.root))
    for _ in range(2):
        with pytest.raises(TableFilesMissing, match="removes 0 without a size, and never added it"):
            read_changes(place, cache, 2, 2)
    assert [one.version for one in read_changes(place, cache, 1, 1)] == [1]
    aside.rename(first)
    lacking.unlink()
    assert [one.window_bytes for one in read_changes(place, cache, 2, 2)] == [5]


def test_spans_cover_each_version_once() -> None:
    for first, last in ((0, 0), (0, 99), (0, 100), (5, 742), (740, 745), (99, 100), (123, 1009)):
        found = list(list_spans(first, last))
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
