"""Defects of windows, changes, pages, tokens, async queries, predicates and limits."""

import io
import json
import uuid
from collections.abc import Callable, Mapping

import pyarrow.parquet as pq

from tests.fakes.defects.tools import (
    CAPABILITIES,
    CHANGES,
    DATA,
    POLL,
    QUERY,
    TABLE,
    Defect,
    Json,
    answer,
    asked,
    at,
    body,
    content,
    drop,
    each,
    files,
    header,
    is_file,
    lines,
    protocol,
    put,
    without_files,
)
from tests.fakes.model_requests import Reply, Request


def _window(request: Request) -> bool:
    return "startingVersion" in body(request)


def _first_page(request: Request) -> bool:
    return "maxFiles" in body(request) and "pageToken" not in body(request)


def _later_page(request: Request) -> bool:
    return "pageToken" in body(request)


def _without(kind: str) -> Callable[[list[Json]], list[Json]]:
    return lambda found: [*found[:2], *(line for line in found[2:] if kind not in line)]


def _end_first(found: list[Json]) -> list[Json]:
    ends = [line for line in found if "endStreamAction" in line]
    return [*found[:2], *ends, *(line for line in found if is_file(line))]


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


def _every_file(found: list[Json]) -> list[Json]:
    """As many files as if nothing had been left out."""
    return found * 6


def _json_hint(*ops: str) -> Callable[[Request], bool]:
    """Requests whose predicate has these operators."""
    return lambda request: all(f'"{op}"' in str(body(request).get("jsonPredicateHints")) for op in ops)


def _compared_as(request: Request) -> bool:
    hint = str(body(request).get("jsonPredicateHints"))
    return '"valueType": "string"' in hint and '"born"' in hint


def _long_ago(request: Request) -> bool:
    return "1970" in request.params.get("endingTimestamp", "")


def _refreshing(request: Request) -> bool:
    return "refreshToken" in body(request)


def _is_async(request: Request) -> bool:
    return "asyncquery=true" in request.headers.get(CAPABILITIES, "")


def _nonsense(name: str) -> Callable[[Request], bool]:
    return lambda request: body(request).get(name) == "nonsense"


def _alone(*names: str) -> Callable[[Request], bool]:
    return lambda request: set(names) < set(body(request))


def _failed(reply: Reply) -> None:
    """The status that nobody reads, instead of an error."""
    if reply.status >= 400:
        reply.status = 200
        reply.body = json.dumps({"queryStatus": {"queryId": "x", "status": "failed"}}).encode()


WINDOWS: Mapping[str, Defect] = {
    "a-window-begins-with-its-first-version": at(QUERY, header("Delta-Table-Version", "6"), when=_window),
    "a-window-has-adds-and-removes": at(QUERY, lines(lambda found: [*found, {"cdf": {}}]), when=_window),
    "files-of-a-window-tell-version-and-time": at(
        QUERY, files(lambda outer, _: outer.pop("timestamp")), when=_window
    ),
    "times-grow-with-versions": at(QUERY, files(lambda outer, _: outer.update(timestamp=5)), when=_window),
    "a-window-keeps-its-bounds": at(QUERY, without_files(), when=asked("endingVersion")),
    "a-window-without-an-end-goes-to-the-latest": at(
        QUERY, without_files(), when=lambda request: _window(request) and "endingVersion" not in body(request)
    ),
    "a-window-has-data-changes-only": at(
        QUERY,
        files(lambda _, inner: inner.update(dataChange=False) if "dataChange" in inner else None),
        when=_window,
    ),
    "a-change-of-the-schema-is-told-where-it-happens": at(QUERY, lines(_without("metaData")), when=_window),
    "protocols-are-told-when-asked-for": at(QUERY, each("protocol", drop("version")), when=_window),
    "windows-that-are-none-are-400": at(QUERY, answer(500), when=asked("endingVersion")),
    "removed-files-can-be-read": at(
        QUERY, files(lambda _, inner: inner.update(size=1), only="remove"), when=_window
    ),
    "a-window-adds-up": at(QUERY, lines(_without("remove")), when=_window),
}
CHANGE: Mapping[str, Defect] = {
    "changes-begin-with-a-head": at(CHANGES, header("Delta-Table-Version", "6")),
    "changes-are-added-removed-and-changed-files": at(
        CHANGES, files(lambda _, inner: inner.update(dataChange=True), only="cdc")
    ),
    "changes-tell-version-and-time": at(CHANGES, files(lambda outer, _: outer.pop("version"))),
    "metadata-of-changes-tells-its-version": at(CHANGES, each("metaData", drop("version"))),
    "changes-in-delta-format-say-that-they-are-recorded": at(CHANGES, protocol(put(minWriterVersion=2))),
    "booleans-are-read-in-any-case": at(
        CHANGES, answer(400), when=lambda request: request.params.get("includeHistoricalMetadata") == "True"
    ),
    "changes-of-the-schema-are-told-when-asked-for": at(CHANGES, lines(_without("metaData"))),
    "changed-rows-stand-alone": at(CHANGES, lines(_and_adds)),
    "files-of-changes-can-be-read": at(DATA, answer(404)),
    "changed-rows-tell-their-kind": at("/data/.*/c", content(_without_kinds)),
    "changes-add-up": at(CHANGES, lines(_without("remove"))),
    "changes-that-were-not-recorded-are-400": at("/shares/beta/.*/changes", answer(500)),
}
CHANGE_BOUNDS: Mapping[str, Defect] = {
    "both-ends-belong-to-the-range": at(CHANGES, without_files(), when=asked("endingVersion")),
    "an-end-beyond-the-latest-is-the-latest": at(
        CHANGES, answer(400), when=lambda request: len(request.params.get("endingVersion", "")) > 3
    ),
    "times-bound-a-range-too": at(CHANGES, without_files(), when=asked("startingTimestamp")),
    "ranges-that-are-none-are-400": at(CHANGES, answer(200), when=_long_ago),
    "changes-end-without-an-action-unless-asked": at(
        CHANGES, lines(lambda found: [*found, {"endStreamAction": {}}])
    ),
}
PAGING: Mapping[str, Defect] = {
    "answers-come-in-pages": at(QUERY, each("endStreamAction", drop("nextPageToken"))),
    "every-page-has-an-end": at(QUERY, lines(_without("endStreamAction")), when=_later_page),
    "pages-of-a-snapshot-are-the-snapshot": at(QUERY, without_files(), when=_later_page),
    "heads-of-pages-are-the-same-bytes": at(
        QUERY, content(lambda text: text.replace(b'{"minReader', b'{ "minReader', 1)), when=_later_page
    ),
    "pages-of-a-window-are-the-window": at(QUERY, lines(_without("metaData")), when=asked("maxFiles")),
    "hints-count-over-all-pages": at(
        QUERY, without_files(), when=lambda request: {"limitHint", "maxFiles"} <= set(body(request))
    ),
    "pages-of-changes-are-the-changes": at(CHANGES, without_files(), when=asked("pageToken")),
    "page-tokens-nobody-gave-are-400": at(QUERY, answer(500), when=_nonsense("pageToken")),
    "a-page-token-belongs-to-its-request": at(QUERY, answer(200), when=_alone("pageToken", "maxFiles")),
    "a-page-token-belongs-to-its-table": at("/shares/beta/.*/query", answer(200), when=_later_page),
    "sizes-of-pages-are-positive": at(
        QUERY, answer(500), when=lambda request: body(request).get("maxFiles") == 1.5
    ),
    "an-end-tells-the-earliest-expiry": at(
        QUERY, each("endStreamAction", put(minUrlExpirationTimestamp=32_503_680_000_000))
    ),
}
REFRESH: Mapping[str, Defect] = {
    "a-refresh-token-is-given": at(QUERY, each("endStreamAction", drop("refreshToken"))),
    "an-end-comes-last-and-once": at(QUERY, lines(_end_first)),
    "a-refreshed-answer-has-the-same-files": at(QUERY, without_files(), when=_refreshing),
    "refresh-tokens-nobody-gave-are-400": at(QUERY, answer(200), when=_nonsense("refreshToken")),
    "a-refresh-token-stands-alone": at(
        QUERY, answer(200), when=lambda request: _refreshing(request) and _window(request)
    ),
    "a-refresh-token-belongs-to-its-table": at("/shares/beta/.*/query", answer(200), when=_refreshing),
}
END_STREAM: Mapping[str, Defect] = {
    "an-end-can-be-asked-for": at(QUERY, header(CAPABILITIES, "responseformat=parquet")),
    "an-end-that-is-announced-comes": at(CHANGES, lines(_without("endStreamAction"))),
    "an-end-has-the-documented-fields": at(
        QUERY, each("endStreamAction", put(minUrlExpirationTimestamp="soon"))
    ),
}
FILE_IDS: Mapping[str, Defect] = {
    "the-scheme-of-ids-is-echoed": at(QUERY, header("fileidhash", "DELTA")),
    "the-scheme-of-ids-is-echoed-with-changes": at(CHANGES, header("fileidhash", None)),
    "other-schemes-are-400": at(
        QUERY, answer(200), when=lambda request: request.headers.get("fileidhash") == ""
    ),
    "the-scheme-chooses-the-ids": at(
        QUERY,
        files(lambda outer, _: outer.update(id=f"{outer['id']}x")),
        when=lambda request: request.headers.get("fileidhash") == "parquet",
    ),
}
ASYNC_QUERIES: Mapping[str, Defect] = {
    "queries-are-answered-later": at(QUERY, answer(400), when=_is_async),
    "the-key-goes-by-both-names": at(
        QUERY, answer(400), when=lambda request: "idempotency_key" in body(request)
    ),
    "pending-answers-tell-the-version": at(QUERY, header("Delta-Table-Version", None), when=_is_async),
    "the-answer-comes-as-if-at-once": at(POLL, header("Delta-Table-Version", None)),
    "pages-come-from-the-same-query": at(POLL, without_files(), when=_later_page),
    "a-query-sent-twice-is-one": at(
        QUERY, each("queryStatus", lambda status: status.update(queryId=uuid.uuid4().hex)), when=_is_async
    ),
    "a-query-without-a-key-is-400": at(
        QUERY, answer(500), when=lambda request: _is_async(request) and not body(request)
    ),
    "an-unknown-query-is-404": at(f"{TABLE}/queries/nonsense", answer(500)),
    "a-query-belongs-to-its-table": at("/shares/beta/.*/queries/.*", answer(200)),
    "a-query-that-fails-is-an-error": at(f"({QUERY}|{POLL})", _failed, when=_is_async),
}
PREDICATES: Mapping[str, Defect] = {
    "comparisons-lose-no-rows": at(QUERY, without_files(), when=_json_hint("lessThan")),
    "negations-lose-no-rows": at(QUERY, without_files(), when=_json_hint("not", "greaterThanOrEqual")),
    "tests-for-null-lose-no-rows": at(QUERY, without_files(9), when=_json_hint("isNull")),
    "combinations-lose-no-rows": at(QUERY, without_files(9), when=_json_hint("or")),
    "other-declared-types-lose-no-rows": at(QUERY, without_files(9), when=_compared_as),
    "sql-comparisons-lose-no-rows": at(
        QUERY, without_files(9), when=lambda request: "<>" in str(body(request).get("predicateHints"))
    ),
    "json-that-makes-no-sense-gets-all-files": at(
        QUERY, answer(400), when=lambda request: body(request).get("jsonPredicateHints") == "bad-predicates"
    ),
    "sql-that-makes-no-sense-gets-all-files": at(
        QUERY, without_files(9), when=lambda request: "rlike" in str(body(request).get("predicateHints"))
    ),
    "partition-values-leave-files-out": at(QUERY, lines(_every_file), when=asked("predicateHints")),
    "statistics-leave-files-out": at(QUERY, lines(_every_file), when=_json_hint("id")),
}
LIMITS: Mapping[str, Defect] = {
    "a-limit-leaves-enough-rows": at(QUERY, without_files(), when=asked("limitHint")),
    "a-limit-leaves-files-out": at(
        QUERY, lines(lambda found: found * 9), when=lambda request: body(request).get("limitHint") == 1
    ),
    "a-limit-of-none-has-a-head": at(
        QUERY, answer(200), when=lambda request: body(request) == {"limitHint": 0}
    ),
    "a-limit-counts-rows-that-match": at(
        QUERY,
        without_files(9),
        when=lambda request: {"limitHint", "jsonPredicateHints"} <= set(body(request)),
    ),
    "limits-that-are-none-are-400": at(
        QUERY, answer(500), when=lambda request: body(request).get("limitHint") == -1
    ),
}
