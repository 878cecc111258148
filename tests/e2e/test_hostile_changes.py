"""Changes, streams and times of the hostile tables through the server are those that Spark reads and the log has.

All tables on the disk in both formats, and some of every family in an S3 store in one. The change data feed by the
Python client and by our own reader; streaming windows, which only our own reader asks for. The matrix of tables:
tests/builders/hostile. Snapshots: test_hostile_tables.py.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import delta_sharing
import pandas as pd
import pytest

from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.delta_log import commit, read_state
from tests.builders.hostile.families import TABLES
from tests.builders.hostile.log_lines import feed_of, later_heads, window_of
from tests.builders.hostile.served import CLIENT_FEATURES, ServedTable, quietly
from tests.builders.hostile.types import UNANNOUNCED
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import refusal

FORMATS: tuple[Format, ...] = ("parquet", "delta")
PLACES = [*(("disk", name) for name in TABLES), *(("s3", p.name) for p in TABLES.values() if p.on_stores)]
READABLE = [(store, name) for store, name in PLACES if TABLES[name].refused is None]
WITH_CHANGES = [
    (store, name) for store, name in READABLE if TABLES[name].cdf or len(TABLES[name].versions) > 1
]

pytestmark = [
    # The client's own: it concatenates empty frames, and forgets a folder when a table has no files.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


@pytest.mark.parametrize("table", WITH_CHANGES, indirect=True, ids="-".join)
def test_changes_and_windows_are_those_of_spark_and_of_the_log(
    table: ServedTable, subtests: pytest.Subtests
) -> None:
    versions = table.plan.versions
    formats, ranges = table.plan.formats(*versions), table.plan.cdf
    if table.served.store != "disk":
        # The formats and the ranges are chosen before files are: they have no part in how a store is read.
        formats, ranges = formats[-1:], ranges[:1]
    for place, fmt in enumerate(formats):
        if len(versions) > 1:
            with subtests.test("a copy kept by windows", format=fmt):
                require_copy_by_windows(table, fmt)
            with subtests.test("the lines of a window", format=fmt):
                require_window_of_log(table, fmt)
        # The first range in each format, the others in turn.
        for start, end in (*ranges[:1], *ranges[1 + place :: len(formats)]):
            with subtests.test("the change data feed", start=start, end=end, format=fmt):
                require_feed(table, start, end, fmt)
                require_client_changes(table, start, end, fmt)


def require_copy_by_windows(table: ServedTable, fmt: Format) -> None:
    """Protocol §1.7: a snapshot, then the data changes of two windows, the second one in pages of three files."""
    reader, versions = table.reader(fmt), table.plan.versions
    first, last = versions[0], versions[-1]
    middle = (first + last) // 2
    answers = [reader.window(first + 1, middle)] if middle > first else []
    answers.append(reader.window(middle + 1, last, maxFiles=3))
    shape = reader.metadata(version=last).head.shape
    copy = reader.replica(reader.snapshot(version=first), answers, shape)
    same_rows(copy, table.judged.rows(last))


def require_window_of_log(table: ServedTable, fmt: Format) -> None:
    """Protocol §1.7: data changes only, and every later metadata and protocol with its version."""
    start, end = table.plan.versions[0] + 1, table.plan.versions[-1]
    given = {"includeHistoricalProtocol": True} if fmt == "delta" else {}
    answer = table.reader(fmt).window(start, end, **given)
    found = sorted((file.version, file.kind, file.id) for file in answer.files)
    assert found == sorted(window_of(table.place, start, end, fmt, table.relocated))
    heads = [(kind, head["version"]) for line in answer.body.later for kind, head in line.items()]
    wanted = later_heads(table.place, start, end)
    assert sorted(heads) == sorted(wanted if fmt == "delta" else [h for h in wanted if h[0] == "metaData"])
    assert answer.head.protocol_version == (start if fmt == "delta" else None)


def require_feed(table: ServedTable, start: int, end: int, fmt: Format) -> None:
    """Protocol §1.8: cdc files where a commit has them, else its data changes; nothing of a merge of nothing."""
    reader, expected = table.reader(fmt), table.judged.changes(start, end)
    lines = sorted((file.version, file.kind, file.id) for file in reader.changes(start, end).files)
    assert lines == sorted(feed_of(table.place, start, end, fmt, table.relocated))
    # Spark names the columns of a mapped table's changes as they were named at the time.
    then = {"includeHistoricalMetadata": "columnMapping" in table.plan.needs}
    whole = reader.changes(start, end, **then)
    paged = reader.changes(start, end, **then, maxFiles=max(1, len(lines) // 5))
    assert (paged.head.raw, paged.ids) == (whole.head.raw, whole.ids)
    hidden = () if table.keeps_commit_times else ("_commit_timestamp",)
    same_rows(reader.change_rows(whole).without(*hidden), expected.without(*hidden))


def require_client_changes(table: ServedTable, start: int, end: int, fmt: Format) -> None:
    """The Python client reads the changes that Spark reads, or cannot because of a limit of its own."""
    limit = table.plan.client_limit(f"changes {fmt}", f"{start}-{end}")
    if limit is not None:
        assert fmt == "delta"
    if limit is None:
        require_client_frame(table, start, end, fmt)
    elif limit == UNANNOUNCED:
        reader = table.reader(fmt, CLIENT_FEATURES - {"timestampNtz"})
        given = {"startingVersion": start}
        answer = table.client.get(f"{reader.path}/changes", params=given, headers=reader.headers())
        assert any(need in refusal(answer, 400)["message"] for need in table.plan.needs)
    else:
        with pytest.raises(ValueError, match="Start and end version schemas are different"):
            changes_by_the_kernel(table.place, start, end)


def require_client_frame(table: ServedTable, start: int, end: int, fmt: Format) -> None:
    frame = quietly(
        delta_sharing.load_table_changes_as_pandas,
        table.url,
        starting_version=start,
        ending_version=end,
        use_delta_format=fmt == "delta",
    )
    expected = table.judged.changes(start, end)
    if fmt == "delta":
        # It asks for the schema of the time; Spark has the newest, with null for what came later.
        later = set(read_state(table.place).columns) - set(read_state(table.place, end).columns)
        expected = expected.without(*later)
    rows = expected.without("_commit_timestamp")
    same_frame(frame[rows.names], rows)
    if table.keeps_commit_times:
        same_times(frame, expected, unit_ms=1000 if fmt == "delta" else 1)


def same_times(frame: pd.DataFrame, expected: Rows, unit_ms: int) -> None:
    """Each version's commit time; in delta format the client keeps seconds (it sets them on files)."""
    rows = [dict(zip(expected.names, json.loads(row), strict=True)) for row in expected.rows]
    meant = {row["_commit_version"]: pd.Timestamp(row["_commit_timestamp"]) for row in rows}
    found = dict(zip(frame["_commit_version"], frame["_commit_timestamp"], strict=True))
    in_ms = {v: t if isinstance(t, int) else pd.Timestamp(t).value // 10**6 for v, t in found.items()}
    assert {v: t // unit_ms for v, t in in_ms.items()} == {
        v: t.value // 10**6 // unit_ms for v, t in meant.items()
    }


NOT_RECORDED = "change data was not recorded for version"
REFUSED_RANGES = {
    "cdf_table_cdf_enabled": (
        (0, 5, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [4]"),
        (4, 4, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [4]"),
    ),
    "cdf_table_with_partition": ((0, 3, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [0]"),),
    "table1": ((0, 2, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [0]"),),
    "cdf_table_missing_log": ((1, 5, "RESOURCE_DOES_NOT_EXIST", "table files missing"),),
    "cdf_plain": (
        (5, 4, "INVALID_PARAMETER_VALUE", "CDF range from start 5 to end 4 was invalid"),
        (11, 11, "INVALID_PARAMETER_VALUE", "Provided Start version(11) for reading change data is invalid"),
    ),
}


@pytest.mark.parametrize("table", [("disk", name) for name in REFUSED_RANGES], indirect=True, ids="-".join)
def test_a_range_without_changes_is_refused(table: ServedTable, subtests: pytest.Subtests) -> None:
    for start, end, code, fragment in REFUSED_RANGES[table.plan.name]:
        for fmt in FORMATS:
            with subtests.test(start=start, end=end, format=fmt):
                reader, given = table.reader(fmt), {"startingVersion": start, "endingVersion": end}
                answer = table.client.get(f"{reader.path}/changes", params=given, headers=reader.headers())
                refused = refusal(answer, 400)
                assert refused["errorCode"] == code
                assert fragment in refused["message"]


@pytest.mark.parametrize("table", [("disk", "table_data_loss_with_checkpoint")], indirect=True, ids="-".join)
def test_a_window_over_a_lost_commit_is_refused(table: ServedTable) -> None:
    """Protocol §7.2, table_data_loss_with_checkpoint: the version is readable, the stream before it is not."""
    reader = table.reader("parquet")
    answer = table.client.post(f"{reader.path}/query", json={"startingVersion": 1}, headers=reader.headers())
    assert refusal(answer, 400)["errorCode"] == "RESOURCE_DOES_NOT_EXIST"


@pytest.mark.parametrize(
    "table", [("disk", "cdf_table_with_vacuum"), ("s3", "cdf_table_with_vacuum")], indirect=True, ids="-".join
)
def test_the_feed_lists_files_that_a_clean_up_took(table: ServedTable) -> None:
    """Protocol §7.2, cdf_table_with_vacuum: two files added, two cdc files; what is gone fails at its URL."""
    for fmt in FORMATS:
        answer = table.reader(fmt).changes(0)
        kinds = [(file.version, file.kind) for file in answer.files]
        assert kinds == [(1, "add"), (1, "add"), (2, "cdc"), (3, "cdc")]
        statuses = {file.kind: table.served.data.get(file.url).status_code for file in answer.files}
        assert statuses["cdc"] in (403, 404)


@pytest.mark.parametrize("table", [("disk", "streaming_table_with_optimize")], indirect=True, ids="-".join)
def test_a_stream_never_sees_an_optimize(table: ServedTable) -> None:
    """Protocol §7.2, streaming_table_with_optimize: seven file lines from version 0, none of version 4."""
    for fmt in FORMATS:
        lines = sorted((file.version, file.kind) for file in table.reader(fmt).window(0).files)
        changed = [(version, kind) for version in (5, 6) for kind in ("add", "remove")]
        assert lines == [(1, "add"), (2, "add"), (3, "add"), *changed]


@pytest.mark.parametrize(
    "table", [("disk", "in_commit_timestamps"), ("s3", "in_commit_timestamps")], indirect=True, ids="-".join
)
def test_commit_times_in_the_log_are_the_times(table: ServedTable, subtests: pytest.Subtests) -> None:
    """Protocol §1.5, §1.7, §1.8: a snapshot is the last one by then, a start the first one from then on."""
    times, step = commit_times(table.place), timedelta(milliseconds=1)
    for fmt in FORMATS:
        reader = table.reader(fmt)
        for version in (2, 3):
            moment = times[version]
            with subtests.test(version=version, format=fmt):
                for at, wanted in ((moment, version), (moment + step, version), (moment - step, version - 1)):
                    assert reader.snapshot(timestamp=iso(at)).version == wanted
                    assert reader.metadata(timestamp=iso(at)).version == wanted
                assert reader.version(iso(moment)) == version
                assert reader.version(iso(moment + step)) == version + 1
                feed = reader.changes(startingTimestamp=iso(moment), endingTimestamp=iso(times[4]))
                assert sorted({file.version for file in feed.files}) == list(range(version, 5))
        with subtests.test("times outside of the history", format=fmt):
            late, early = iso(times[4] + step), iso(times[0] - step)
            for at, reason in (
                (late, "is after the latest available version"),
                (early, "before the earliest available version"),
            ):
                given = {"timestamp": at}
                answer = table.client.post(f"{reader.path}/query", json=given, headers=reader.headers())
                assert reason in refusal(answer, 400)["message"]
            assert reader.version(early) == 0
    for version in (2, 3):
        with subtests.test("the Python client", version=version):
            frame = quietly(delta_sharing.load_as_pandas, table.url, timestamp=iso(times[version]))
            same_frame(frame, table.judged.rows(version))


def commit_times(place: Path) -> list[datetime]:
    """The times that the commits of a table have in the log."""
    first = datetime(1970, 1, 1, tzinfo=UTC)
    infos = [commit(place, version)[0]["commitInfo"] for version in range(5)]
    return [first + timedelta(milliseconds=info["inCommitTimestamp"]) for info in infos]


def iso(moment: datetime) -> str:
    """A time as requests have it."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def changes_by_the_kernel(place: Path, start: int, end: int) -> None:
    """Changes of a local table as the kernel in the Python client plans to read them."""
    import delta_kernel_rust_sharing_wrapper as kernel

    interface = kernel.PythonInterface(place.as_uri())
    kernel.TableChangesScanBuilder(kernel.Table(place.as_uri()), interface, start, end).build()
