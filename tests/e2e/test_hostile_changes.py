"""Changes, streams and times of the hostile tables through the server are those that Spark reads and the log has.

The change data feed by the Python client and by our own reader; streaming windows, which only our own reader asks for.
The matrix of tables: tests/builders/hostile. Snapshots: test_hostile_tables.py.
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
from tests.builders.hostile.served import CLIENT_FEATURES, Served, quietly
from tests.builders.hostile.types import UNANNOUNCED
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import refusal

FORMATS: tuple[Format, ...] = ("parquet", "delta")
READABLE = [plan for plan in TABLES.values() if plan.refused is None]
EVOLVING = [(p.name, f) for p in READABLE if len(p.versions) > 1 for f in p.formats(*p.versions)]

# What can be asked of which table: (name, start, end, format).
RANGES = [(p.name, *r, f) for p in READABLE for r in p.cdf for f in p.formats(*p.versions)]
CLIENT_RANGES = [r for r in RANGES if not TABLES[r[0]].client_limit(f"changes {r[3]}", f"{r[1]}-{r[2]}")]
CLIENT_RANGE_LIMITS = [read for read in RANGES if read not in CLIENT_RANGES]

pytestmark = [
    pytest.mark.timeout(1200),
    # The client's own: it concatenates empty frames, and forgets a folder when a table has no files.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


@pytest.mark.parametrize(("name", "fmt"), EVOLVING)
def test_a_copy_kept_by_windows_is_the_table(lake: Served, name: str, fmt: Format) -> None:
    """Protocol §1.7: a snapshot, then the data changes of two windows, the second one in pages of one file."""
    reader, versions = lake.reader(name, fmt), TABLES[name].versions
    first, last = versions[0], versions[-1]
    middle = (first + last) // 2
    answers = [reader.window(first + 1, middle)] if middle > first else []
    answers.append(reader.window(middle + 1, last, maxFiles=1))
    shape = reader.metadata(version=last).head.shape
    copy = reader.replica(reader.snapshot(version=first), answers, shape)
    same_rows(copy, lake.tables[name].rows(last))


@pytest.mark.parametrize(("name", "start", "end", "fmt"), CLIENT_RANGES)
def test_the_python_client_reads_the_changes_that_spark_reads(
    lake: Served, name: str, start: int, end: int, fmt: Format
) -> None:
    frame = quietly(
        delta_sharing.load_table_changes_as_pandas,
        lake.url(name),
        starting_version=start,
        ending_version=end,
        use_delta_format=fmt == "delta",
    )
    expected = lake.tables[name].changes(start, end)
    if fmt == "delta":
        # It asks for the schema of the time; Spark tells the newest, with null for what came later.
        later = set(read_state(lake.local[name]).columns) - set(read_state(lake.local[name], end).columns)
        expected = expected.without(*later)
    told = expected.without("_commit_timestamp")
    same_frame(frame[told.names], told)
    if lake.keeps_commit_times(name):
        same_times(frame, expected, unit_ms=1000 if fmt == "delta" else 1)


def same_times(frame: pd.DataFrame, expected: Rows, unit_ms: int) -> None:
    """Each version's commit time; in delta format the client keeps seconds (it sets them on files)."""
    rows = [dict(zip(expected.names, json.loads(row), strict=True)) for row in expected.rows]
    meant = {row["_commit_version"]: pd.Timestamp(row["_commit_timestamp"]) for row in rows}
    told = dict(zip(frame["_commit_version"], frame["_commit_timestamp"], strict=True))
    in_ms = {v: t if isinstance(t, int) else pd.Timestamp(t).value // 10**6 for v, t in told.items()}
    assert {v: t // unit_ms for v, t in in_ms.items()} == {
        v: t.value // 10**6 // unit_ms for v, t in meant.items()
    }


@pytest.mark.parametrize(("name", "start", "end", "fmt"), CLIENT_RANGE_LIMITS)
def test_what_changes_the_python_client_cannot_read_is_its_own_limit(
    lake: Served, name: str, start: int, end: int, fmt: Format
) -> None:
    assert fmt == "delta"
    if TABLES[name].client_limit("changes delta", f"{start}-{end}") == UNANNOUNCED:
        reader = lake.reader(name, fmt, CLIENT_FEATURES - {"timestampNtz"})
        given = {"startingVersion": start}
        answer = lake.client.get(f"{reader.path}/changes", params=given, headers=reader.headers())
        assert any(need in refusal(answer, 400)["message"] for need in TABLES[name].needs)
        return
    with pytest.raises(ValueError, match="Start and end version schemas are different"):
        changes_by_the_kernel(lake.local[name], start, end)


@pytest.mark.parametrize(("name", "start", "end", "fmt"), RANGES)
def test_our_reader_reads_the_changes_that_spark_reads(
    lake: Served, name: str, start: int, end: int, fmt: Format
) -> None:
    reader, expected = lake.reader(name, fmt), lake.tables[name].changes(start, end)
    # Spark tells the changes of a mapped table under the names that its columns had then.
    then = {"includeHistoricalMetadata": "columnMapping" in TABLES[name].needs}
    whole = reader.changes(start, end, **then)
    paged = reader.changes(start, end, **then, maxFiles=1)
    assert (paged.head.raw, paged.ids) == (whole.head.raw, whole.ids)
    found = reader.change_rows(whole)
    hidden = () if lake.keeps_commit_times(name) else ("_commit_timestamp",)
    same_rows(found.without(*hidden), expected.without(*hidden))


@pytest.mark.parametrize(("name", "fmt"), EVOLVING)
def test_the_lines_of_a_window_are_those_of_the_log(lake: Served, name: str, fmt: Format) -> None:
    """Protocol §1.7: data changes only, and every later metadata and protocol with its version."""
    reader, versions, place = lake.reader(name, fmt), TABLES[name].versions, lake.local[name]
    start, end = versions[0] + 1, versions[-1]
    asked = {"includeHistoricalProtocol": True} if fmt == "delta" else {}
    answer = reader.window(start, end, **asked)
    told = sorted((file.version, file.kind, file.id) for file in answer.files)
    assert told == sorted(window_of(place, start, end, fmt, lake.relocation(name)))
    heads = [(kind, told["version"]) for line in answer.body.later for kind, told in line.items()]
    wanted = later_heads(place, start, end)
    assert sorted(heads) == sorted(wanted if fmt == "delta" else [h for h in wanted if h[0] == "metaData"])
    assert answer.head.protocol_version == (start if fmt == "delta" else None)


@pytest.mark.parametrize(("name", "start", "end", "fmt"), RANGES)
def test_the_lines_of_the_feed_are_those_of_the_log(
    lake: Served, name: str, start: int, end: int, fmt: Format
) -> None:
    """Protocol §1.8: cdc files where a commit has them, else its data changes; nothing of a merge of nothing."""
    answer = lake.reader(name, fmt).changes(start, end)
    told = sorted((file.version, file.kind, file.id) for file in answer.files)
    assert told == sorted(feed_of(lake.local[name], start, end, fmt, lake.relocation(name)))


NOT_RECORDED = "change data was not recorded for version"
REFUSED_RANGES = [
    ("cdf_table_cdf_enabled", 0, 5, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [4]"),
    ("cdf_table_cdf_enabled", 4, 4, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [4]"),
    ("cdf_table_with_partition", 0, 3, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [0]"),
    ("table1", 0, 2, "INVALID_PARAMETER_VALUE", f"{NOT_RECORDED} [0]"),
    ("cdf_table_missing_log", 1, 5, "RESOURCE_DOES_NOT_EXIST", "table files missing"),
    ("cdf_plain", 5, 4, "INVALID_PARAMETER_VALUE", "CDF range from start 5 to end 4 was invalid"),
    (
        "cdf_plain",
        11,
        11,
        "INVALID_PARAMETER_VALUE",
        "Provided Start version(11) for reading change data is invalid",
    ),
]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("name", "start", "end", "code", "fragment"), REFUSED_RANGES)
def test_a_range_that_cannot_be_told_is_refused(
    lake: Served, name: str, start: int, end: int, code: str, fragment: str, fmt: Format
) -> None:
    reader = lake.reader(name, fmt)
    given = {"startingVersion": start, "endingVersion": end}
    told = refusal(lake.client.get(f"{reader.path}/changes", params=given, headers=reader.headers()), 400)
    assert told["errorCode"] == code
    assert fragment in told["message"]


def test_a_window_over_a_lost_commit_is_refused(lake: Served) -> None:
    """Protocol §7.2, table_data_loss_with_checkpoint: the version is readable, the stream before it is not."""
    reader = lake.reader("table_data_loss_with_checkpoint", "parquet")
    answer = lake.client.post(f"{reader.path}/query", json={"startingVersion": 1}, headers=reader.headers())
    assert refusal(answer, 400)["errorCode"] == "RESOURCE_DOES_NOT_EXIST"


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_feed_lists_files_that_a_clean_up_took(lake: Served, fmt: Format) -> None:
    """Protocol §7.2, cdf_table_with_vacuum: two files added, two cdc files; what is gone fails at its URL."""
    answer = lake.reader("cdf_table_with_vacuum", fmt).changes(0)
    assert [(file.version, file.kind) for file in answer.files] == [
        (1, "add"),
        (1, "add"),
        (2, "cdc"),
        (3, "cdc"),
    ]
    statuses = {file.kind: lake.data.get(file.url).status_code for file in answer.files}
    assert statuses["cdc"] in (403, 404)


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_stream_never_sees_an_optimize(lake: Served, fmt: Format) -> None:
    """Protocol §7.2, streaming_table_with_optimize: seven file lines from version 0, none of version 4."""
    answer = lake.reader("streaming_table_with_optimize", fmt).window(0)
    told = sorted((file.version, file.kind) for file in answer.files)
    changed = [(version, kind) for version in (5, 6) for kind in ("add", "remove")]
    assert told == [(1, "add"), (2, "add"), (3, "add"), *changed]


@pytest.mark.parametrize("fmt", FORMATS)
def test_commit_times_in_the_log_are_the_times(lake: Served, fmt: Format) -> None:
    """Protocol §1.5, §1.7, §1.8: a snapshot is the last one by then, a start the first one from then on."""
    name = "in_commit_timestamps"
    reader, table, times = lake.reader(name, fmt), lake.tables[name], commit_times(lake.local[name])
    for version in (2, 3):
        moment, later = times[version], times[version] + timedelta(milliseconds=1)
        for at, wanted in (
            (moment, version),
            (later, version),
            (moment - timedelta(milliseconds=1), version - 1),
        ):
            assert reader.snapshot(timestamp=iso(at)).version == wanted
            assert reader.metadata(timestamp=iso(at)).version == wanted
        assert reader.version(iso(moment)) == version
        assert reader.version(iso(later)) == version + 1
        frame = quietly(delta_sharing.load_as_pandas, lake.url(name), timestamp=iso(moment))
        same_frame(frame, table.rows(version))
        feed = reader.changes(startingTimestamp=iso(moment), endingTimestamp=iso(times[4]))
        assert sorted({file.version for file in feed.files}) == list(range(version, 5))
    late = iso(times[4] + timedelta(milliseconds=1))
    answer = lake.client.post(f"{reader.path}/query", json={"timestamp": late}, headers=reader.headers())
    assert "is after the latest available version" in refusal(answer, 400)["message"]
    early = iso(times[0] - timedelta(milliseconds=1))
    answer = lake.client.post(f"{reader.path}/query", json={"timestamp": early}, headers=reader.headers())
    assert "before the earliest available version" in refusal(answer, 400)["message"]
    assert reader.version(early) == 0


def commit_times(place: Path) -> list[datetime]:
    """The times that the commits of a table have in the log."""
    first = datetime(1970, 1, 1, tzinfo=UTC)
    infos = [commit(place, version)[0]["commitInfo"] for version in range(5)]
    return [first + timedelta(milliseconds=info["inCommitTimestamp"]) for info in infos]


def iso(moment: datetime) -> str:
    """A time as requests tell it."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def changes_by_the_kernel(place: Path, start: int, end: int) -> None:
    """Changes of a local table as the kernel in the Python client plans to read them."""
    import delta_kernel_rust_sharing_wrapper as kernel

    interface = kernel.PythonInterface(place.as_uri())
    kernel.TableChangesScanBuilder(kernel.Table(place.as_uri()), interface, start, end).build()
