"""Defects of version windows, and of changes and their bounds.

Each mapping has a defect for every case of its group; `FURTHER` has those of cases that hold several rules.
"""

import io
from collections.abc import Mapping

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.fakes.defects.tools import (
    CAPABILITIES,
    CHANGES,
    DATA,
    QUERY,
    Defect,
    Json,
    Named,
    answer,
    asked,
    at,
    body,
    content,
    drop,
    each,
    files,
    given,
    header,
    in_window,
    is_file,
    lines,
    protocol,
    put,
    twice,
    with_end,
    without,
    without_files,
)
from tests.fakes.model_requests import Reply, Request


def _and_adds(found: list[Json]) -> list[Json]:
    """Changed rows beside the files they came from."""
    for line in found:
        if "cdf" in line:
            return [*found, {"add": line["cdf"]}]
    return found


def _without_kinds(stored: bytes) -> bytes:
    """The file without the column that tells what happened to its rows."""
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(stored)).drop_columns("_change_type"), sink)
    return sink.getvalue()


def _long_ago(request: Request) -> bool:
    return "1970" in request.params.get("endingTimestamp", "")


def _later_schema(found: list[Json]) -> list[Json]:
    for line in found[1:2]:
        inner = line["metaData"].get("deltaMetadata", line["metaData"])
        inner["schemaString"] = inner["schemaString"].replace('"note"', '"other"')
    return found


def _unstamped(found: list[Json]) -> list[Json]:
    for line in found[2:]:
        line.get("metaData", {}).pop("version", None)
    return found


def _exclusive_end(request: Request, reply: Reply) -> None:
    """The last version of a range left out, but of ranges of one version."""
    start, end = (request.params.get(name) for name in ("startingVersion", "endingVersion"))
    if request.path.endswith("/changes") and end is not None and start != end:
        lines(lambda found: [one for one in found if _version_of(one) != end])(reply)


def _version_of(one: Json) -> str | None:
    return str(one[next(iter(one))].get("version")) if is_file(one) else None


def _other_ids(stored: bytes) -> bytes:
    """As many changed rows, with other values."""
    rows, sink = pq.read_table(io.BytesIO(stored)), io.BytesIO()
    pq.write_table(rows.set_column(0, "id", pc.add(rows.column("id"), 1)), sink)
    return sink.getvalue()


WINDOWS: Mapping[str, Defect] = {
    "a-window-begins-with-its-first-version": at(QUERY, header("Delta-Table-Version", "6"), when=in_window),
    "a-window-has-adds-and-removes": at(QUERY, lines(lambda found: [*found, {"cdf": {}}]), when=in_window),
    "files-of-a-window-have-version-and-time": at(
        QUERY, files(lambda outer, _: outer.pop("timestamp")), when=in_window
    ),
    "times-grow-with-versions": at(QUERY, files(lambda outer, _: outer.update(timestamp=5)), when=in_window),
    "a-window-keeps-its-bounds": at(QUERY, without_files(), when=asked("endingVersion")),
    "a-window-without-an-end-goes-to-the-latest": at(
        QUERY,
        without_files(),
        when=lambda request: in_window(request) and "endingVersion" not in body(request),
    ),
    "a-window-has-data-changes-only": at(
        QUERY,
        files(lambda _, inner: inner.update(dataChange=False) if "dataChange" in inner else None),
        when=in_window,
    ),
    "a-change-of-the-schema-is-sent-at-its-version": at(QUERY, lines(without("metaData")), when=in_window),
    "protocols-are-sent-on-request": at(QUERY, each("protocol", drop("version")), when=in_window),
    "windows-that-are-none-are-400": at(QUERY, answer(500), when=asked("endingVersion")),
    "removed-files-can-be-read": at(
        QUERY, files(lambda _, inner: inner.update(size=1), only="remove"), when=in_window
    ),
    "a-window-adds-up": at(QUERY, lines(without("remove")), when=in_window),
}
CHANGE: Mapping[str, Defect] = {
    "changes-begin-with-a-head": at(CHANGES, header("Delta-Table-Version", "6")),
    "changes-are-added-removed-and-changed-files": at(
        CHANGES, files(lambda _, inner: inner.update(dataChange=True), only="cdc")
    ),
    "changes-have-version-and-time": at(CHANGES, files(lambda outer, _: outer.pop("version"))),
    "metadata-of-changes-has-its-version": at(CHANGES, each("metaData", drop("version"))),
    "changes-in-delta-format-say-that-they-are-recorded": at(CHANGES, protocol(put(minWriterVersion=2))),
    "booleans-are-read-in-any-case": at(
        CHANGES, answer(400), when=lambda request: request.params.get("includeHistoricalMetadata") == "True"
    ),
    "changes-of-the-schema-are-sent-on-request": at(CHANGES, lines(without("metaData"))),
    "changed-rows-stand-alone": at(CHANGES, lines(_and_adds)),
    "files-of-changes-can-be-read": at(DATA, answer(404)),
    "changed-rows-have-their-kind": at("/data/.*/c", content(_without_kinds)),
    "changes-add-up": at(CHANGES, lines(without("remove"))),
    "changes-that-were-not-recorded-are-400": at("/shares/beta/.*/changes", answer(500)),
}
CHANGE_BOUNDS: Mapping[str, Defect] = {
    "both-ends-belong-to-the-range": at(CHANGES, without_files(), when=asked("endingVersion")),
    "a-range-has-all-versions-up-to-its-end": _exclusive_end,
    "an-end-beyond-the-latest-is-the-latest": at(
        CHANGES, answer(400), when=lambda request: len(request.params.get("endingVersion", "")) > 3
    ),
    "times-bound-a-range-too": at(CHANGES, without_files(), when=asked("startingTimestamp")),
    "ranges-that-are-none-are-400": at(CHANGES, answer(200), when=_long_ago),
    "changes-end-without-an-action-unless-asked": at(CHANGES, lines(with_end)),
}
FURTHER: tuple[Named, ...] = (
    (
        "windows.a-window-begins-with-its-first-version",
        at(QUERY, each("metaData", drop("version")), when=in_window),
    ),
    ("windows.a-window-begins-with-its-first-version", at(QUERY, lines(_later_schema), when=in_window)),
    ("windows.a-window-has-adds-and-removes", at(QUERY, lines(with_end), when=in_window)),
    (
        "windows.files-of-a-window-have-version-and-time",
        at(QUERY, files(lambda outer, _: outer.pop("version")), when=in_window),
    ),
    (
        "windows.files-of-a-window-have-version-and-time",
        at(QUERY, files(lambda _, inner: inner.pop("size"), only="remove"), when=in_window),
    ),
    (
        "windows.a-window-keeps-its-bounds",
        at(QUERY, files(lambda outer, _: outer.update(version=77)), when=asked("endingVersion")),
    ),
    ("windows.a-change-of-the-schema-is-sent-at-its-version", at(QUERY, lines(_unstamped), when=in_window)),
    ("windows.protocols-are-sent-on-request", at(QUERY, each("protocol", put(version=0)), when=in_window)),
    ("windows.windows-that-are-none-are-400", at(QUERY, answer(200), when=given("startingVersion", -1))),
    ("windows.windows-that-are-none-are-400", at(QUERY, answer(500), when=given("startingVersion", "x"))),
    ("windows.a-window-adds-up", at(QUERY, lines(twice), when=in_window)),
    ("changes.changes-begin-with-a-head", at(CHANGES, header("Content-Type", "application/json"))),
    ("changes.changes-begin-with-a-head", at(CHANGES, lines(lambda found: found[1:]))),
    ("changes.changes-begin-with-a-head", at(CHANGES, header(CAPABILITIES, None))),
    ("changes.changes-are-added-removed-and-changed-files", at(CHANGES, lines(with_end))),
    (
        "changes.changes-have-version-and-time",
        at(CHANGES, files(lambda outer, _: outer.update(timestamp="now"))),
    ),
    ("changes.metadata-of-changes-has-its-version", at(CHANGES, each("metaData", put(version=6)))),
    (
        "changes.changes-in-delta-format-say-that-they-are-recorded",
        at(
            CHANGES,
            each("metaData", lambda outer: outer.get("deltaMetadata", outer).update(configuration={})),
        ),
    ),
    ("changes.changes-add-up", at(CHANGES, lines(twice))),
    ("changes.changes-add-up", at("/data/.*/c", content(_other_ids))),
    ("change-bounds.both-ends-belong-to-the-range", at(CHANGES, header("Delta-Table-Version", "0"))),
    ("change-bounds.times-bound-a-range-too", at(CHANGES, answer(400), when=asked("endingTimestamp"))),
    ("change-bounds.ranges-that-are-none-are-400", at(CHANGES, answer(200), when=lambda r: not r.params)),
    (
        "change-bounds.ranges-that-are-none-are-400",
        at(CHANGES, answer(500), when=lambda r: r.params.get("startingVersion") == "x"),
    ),
)
