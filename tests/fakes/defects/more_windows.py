"""More defects for cases that hold several rules: of windows, changes, pages, tokens, async queries and predicates."""

from collections.abc import Callable

from tests.fakes.defects.tools import (
    CAPABILITIES,
    CHANGES,
    METADATA,
    POLL,
    QUERY,
    VERSION,
    Defect,
    Json,
    answer,
    asked,
    at,
    body,
    drop,
    each,
    files,
    header,
    is_file,
    lines,
    put,
    without_files,
)
from tests.fakes.model_requests import Request

Named = tuple[str, Defect]


def _window(request: Request) -> bool:
    return "startingVersion" in body(request)


def _later_page(request: Request) -> bool:
    return "pageToken" in body(request)


def _is_async(request: Request) -> bool:
    return "asyncquery=true" in request.headers.get(CAPABILITIES, "")


def _ends(announced: str) -> Callable[[Request], bool]:
    return lambda request: f"includeendstreamaction={announced}" in request.headers.get(CAPABILITIES, "")


def _is(name: str, value: object) -> Callable[[Request], bool]:
    return lambda request: body(request).get(name) == value


def _hint(text: str) -> Callable[[Request], bool]:
    """Requests with this in their predicate, of either kind."""
    return lambda request: (
        text in f"{body(request).get('jsonPredicateHints')}{body(request).get('predicateHints')}"
    )


def _wrong(name: str) -> Callable[[Request], bool]:
    """Requests with a token that is not as it was given, or not alone."""
    return lambda request: len(str(body(request).get(name, "0" * 32))) != 32


def _twice(found: list[Json]) -> list[Json]:
    return [*found[:2], *(line for line in found[2:] if is_file(line)), *found[2:]]


def _later_schema(found: list[Json]) -> list[Json]:
    for line in found[1:2]:
        inner = line["metaData"].get("deltaMetadata", line["metaData"])
        inner["schemaString"] = inner["schemaString"].replace('"note"', '"other"')
    return found


def _unstamped(found: list[Json]) -> list[Json]:
    for line in found[2:]:
        line.get("metaData", {}).pop("version", None)
    return found


def _end(found: list[Json]) -> list[Json]:
    return [*found, {"endStreamAction": {}}]


def _without_end(found: list[Json]) -> list[Json]:
    return [line for line in found if "endStreamAction" not in line]


OF_WINDOWS: tuple[Named, ...] = (
    (
        "time-travel.a-version-is-answered-as-asked",
        at(QUERY, each("metaData", put(version=77)), when=asked("version")),
    ),
    (
        "time-travel.a-time-gives-the-version-of-that-time",
        at(QUERY, header("Delta-Table-Version", "6"), when=asked("timestamp")),
    ),
    (
        "time-travel.a-time-gives-the-version-of-that-time",
        at(VERSION, header("Delta-Table-Version", "0"), when=asked("startingTimestamp")),
    ),
    (
        "time-travel.a-time-out-of-reach-is-400",
        at(QUERY, answer(200), when=lambda r: "2999" in str(body(r).get("timestamp"))),
    ),
    (
        "windows.a-window-begins-with-its-first-version",
        at(QUERY, each("metaData", drop("version")), when=_window),
    ),
    ("windows.a-window-begins-with-its-first-version", at(QUERY, lines(_later_schema), when=_window)),
    ("windows.a-window-has-adds-and-removes", at(QUERY, lines(_end), when=_window)),
    (
        "windows.files-of-a-window-tell-version-and-time",
        at(QUERY, files(lambda outer, _: outer.pop("version")), when=_window),
    ),
    (
        "windows.files-of-a-window-tell-version-and-time",
        at(QUERY, files(lambda _, inner: inner.pop("size"), only="remove"), when=_window),
    ),
    (
        "windows.a-window-keeps-its-bounds",
        at(QUERY, files(lambda outer, _: outer.update(version=77)), when=asked("endingVersion")),
    ),
    ("windows.a-change-of-the-schema-is-told-where-it-happens", at(QUERY, lines(_unstamped), when=_window)),
    ("windows.protocols-are-told-when-asked-for", at(QUERY, each("protocol", put(version=0)), when=_window)),
    ("windows.windows-that-are-none-are-400", at(QUERY, answer(200), when=_is("startingVersion", -1))),
    ("windows.windows-that-are-none-are-400", at(QUERY, answer(500), when=_is("startingVersion", "x"))),
    ("windows.a-window-adds-up", at(QUERY, lines(_twice), when=_window)),
    ("changes.changes-begin-with-a-head", at(CHANGES, header("Content-Type", "application/json"))),
    ("changes.changes-begin-with-a-head", at(CHANGES, lines(lambda found: found[1:]))),
    ("changes.changes-begin-with-a-head", at(CHANGES, header(CAPABILITIES, None))),
    ("changes.changes-are-added-removed-and-changed-files", at(CHANGES, lines(_end))),
    (
        "changes.changes-tell-version-and-time",
        at(CHANGES, files(lambda outer, _: outer.update(timestamp="now"))),
    ),
    ("changes.metadata-of-changes-tells-its-version", at(CHANGES, each("metaData", put(version=6)))),
    (
        "changes.changes-in-delta-format-say-that-they-are-recorded",
        at(
            CHANGES,
            each("metaData", lambda outer: outer.get("deltaMetadata", outer).update(configuration={})),
        ),
    ),
    ("changes.changes-add-up", at(CHANGES, lines(_twice))),
    ("change-bounds.both-ends-belong-to-the-range", at(CHANGES, header("Delta-Table-Version", "0"))),
    ("change-bounds.times-bound-a-range-too", at(CHANGES, answer(400), when=asked("endingTimestamp"))),
    ("change-bounds.ranges-that-are-none-are-400", at(CHANGES, answer(200), when=lambda r: not r.params)),
    (
        "change-bounds.ranges-that-are-none-are-400",
        at(CHANGES, answer(500), when=lambda r: r.params.get("startingVersion") == "x"),
    ),
)
OF_PAGES: tuple[Named, ...] = (
    ("paging.answers-come-in-pages", at(QUERY, lines(_twice), when=asked("maxFiles"))),
    (
        "paging.every-page-has-an-end",
        at(QUERY, each("endStreamAction", put(nextPageToken="x")), when=_is("maxFiles", 1_000_000)),
    ),
    (
        "paging.every-page-has-an-end",
        at(QUERY, lines(lambda found: [found[-1], *found[:-1]]), when=_is("maxFiles", 1_000_000)),
    ),
    ("paging.every-page-has-an-end", at(QUERY, lines(_without_end), when=_is("maxFiles", 1_000_000))),
    ("paging.pages-of-a-snapshot-are-the-snapshot", at(QUERY, lines(_twice), when=_later_page)),
    (
        "paging.heads-of-pages-are-the-same-bytes",
        at(QUERY, header("Delta-Table-Version", "77"), when=_later_page),
    ),
    (
        "paging.heads-of-pages-are-the-same-bytes",
        at(QUERY, header(CAPABILITIES, "responseformat=parquet;x"), when=_later_page),
    ),
    (
        "paging.heads-of-pages-are-the-same-bytes",
        at(QUERY, each("metaData", put(numFiles=77)), when=_later_page),
    ),
    (
        "paging.pages-of-a-window-are-the-window",
        at(QUERY, without_files(), when=lambda r: _window(r) and _later_page(r)),
    ),
    ("paging.pages-of-changes-are-the-changes", at(CHANGES, lines(_without_end), when=asked("pageToken"))),
    (
        "paging.pages-of-changes-are-the-changes",
        at(CHANGES, each("metaData", put(name="x")), when=asked("pageToken")),
    ),
    ("paging.page-tokens-nobody-gave-are-400", at(QUERY, answer(200), when=_wrong("pageToken"))),
    ("paging.a-page-token-belongs-to-its-request", at(CHANGES, answer(200), when=asked("pageToken"))),
    (
        "paging.a-page-token-belongs-to-its-request",
        at(QUERY, answer(200), when=lambda r: {"pageToken", "limitHint"} <= set(body(r))),
    ),
    ("paging.sizes-of-pages-are-positive", at(QUERY, answer(200), when=_is("maxFiles", 0))),
    ("refresh.an-end-comes-last-and-once", at(QUERY, lines(_end), when=asked("includeRefreshToken"))),
    (
        "refresh.a-refreshed-answer-has-the-same-files",
        at(QUERY, header("Delta-Table-Version", "77"), when=asked("refreshToken")),
    ),
    (
        "refresh.a-refreshed-answer-has-the-same-files",
        at(QUERY, each("endStreamAction", drop("refreshToken")), when=asked("refreshToken")),
    ),
    ("refresh.refresh-tokens-nobody-gave-are-400", at(QUERY, answer(500), when=_is("refreshToken", 1))),
    (
        "refresh.a-refresh-token-stands-alone",
        at(QUERY, answer(200), when=lambda r: {"refreshToken", "version"} <= set(body(r))),
    ),
    ("end-stream.an-end-that-is-announced-comes", at(QUERY, lines(_end), when=_ends("false"))),
    ("end-stream.an-end-that-is-announced-comes", at(QUERY, lines(_without_end), when=_ends("true"))),
    ("end-stream.an-end-that-is-announced-comes", at(QUERY, lines(_end), when=_ends("true"))),
    (
        "end-stream.an-end-has-the-documented-fields",
        at(QUERY, each("endStreamAction", put(errorMessage="x"))),
    ),
    ("end-stream.an-end-has-the-documented-fields", at(QUERY, each("endStreamAction", put(nextPageToken=5)))),
    ("file-ids.the-scheme-of-ids-is-echoed", at(QUERY, header("fileidhash", None))),
    (
        "file-ids.other-schemes-are-400",
        at(QUERY, answer(500), when=lambda r: r.headers.get("fileidhash") == "md5"),
    ),
    (
        "file-ids.the-scheme-chooses-the-ids",
        at(
            QUERY,
            files(lambda outer, _: outer.update(id=f"{outer['id']}x")),
            when=lambda r: r.headers.get("fileidhash") == "delta",
        ),
    ),
)
OF_QUERIES: tuple[Named, ...] = (
    ("async-queries.pending-answers-tell-the-version", at(QUERY, header(CAPABILITIES, None), when=_is_async)),
    (
        "async-queries.pending-answers-tell-the-version",
        at(QUERY, each("queryStatus", put(status="waiting")), when=_is_async),
    ),
    (
        "async-queries.pending-answers-tell-the-version",
        at(QUERY, lines(lambda found: found * 2), when=_is_async),
    ),
    ("async-queries.the-answer-comes-as-if-at-once", at(POLL, each("queryStatus", put(queryId="other")))),
    ("async-queries.the-answer-comes-as-if-at-once", at(POLL, without_files())),
    ("async-queries.the-answer-comes-as-if-at-once", at(POLL, header("Delta-Table-Version", "77"))),
    ("async-queries.an-unknown-query-is-404", at(POLL, answer(400))),
    (
        "async-queries.a-query-that-fails-is-an-error",
        at(QUERY, answer(500), when=lambda r: _is_async(r) and "version" in body(r)),
    ),
    *(
        (f"predicates.{case}", at(QUERY, without_files(9), when=_hint(text)))
        for case, text in (
            ("comparisons-lose-no-rows", '{"op": "equal"'),
            ("comparisons-lose-no-rows", '{"op": "lessThanOrEqual"'),
            ("comparisons-lose-no-rows", '{"op": "greaterThan"'),
            ("comparisons-lose-no-rows", '"valueType": "timestamp"'),
            ("comparisons-lose-no-rows", '"valueType": "double"'),
            ("comparisons-lose-no-rows", '"valueType": "bool"'),
            ("negations-lose-no-rows", '{"op": "not"'),
            ("tests-for-null-lose-no-rows", '{"op": "not"'),
            ("tests-for-null-lose-no-rows", '{"op": "isNull", "children": [{"op": "column", "name": "day"'),
            ("combinations-lose-no-rows", '{"op": "and"'),
            ("combinations-lose-no-rows", '{"op": "not"'),
            ("other-declared-types-lose-no-rows", '"name": "small", "valueType": "double"'),
            ("sql-comparisons-lose-no-rows", "day = "),
            ("sql-comparisons-lose-no-rows", "IS NULL"),
            ("sql-comparisons-lose-no-rows", "small IS NOT NULL"),
            ("sql-comparisons-lose-no-rows", "16 >= id"),
            ("json-that-makes-no-sense-gets-all-files", "wat"),
            ("json-that-makes-no-sense-gets-all-files", "like"),
            ("sql-that-makes-no-sense-gets-all-files", "lakeshare_no_such_column"),
        )
    ),
    ("limits.a-limit-leaves-enough-rows", at(QUERY, without_files(2), when=asked("limitHint"))),
    (
        "limits.a-limit-of-none-has-a-head",
        at(QUERY, lines(lambda found: found[:1]), when=_is("limitHint", 0)),
    ),
    ("limits.limits-that-are-none-are-400", at(QUERY, answer(200), when=_is("limitHint", "x"))),
    (
        "bad-requests.bodies-that-are-no-object-are-400",
        at(QUERY, answer(200), when=lambda r: r.body == b"null"),
    ),
    (
        "bad-requests.fields-of-other-types-are-400",
        at(QUERY, answer(200), when=_is("predicateHints", "a = 1")),
    ),
    ("bad-requests.strange-names-are-no-fault-of-the-server", at("/shares/a+", answer(414), answer(500))),
    (
        "bad-requests.strange-parameters-are-no-fault-of-the-server",
        at(CHANGES, answer(500), when=lambda r: len(r.params.get("startingVersion", "")) > 300),
    ),
    (
        "bad-requests.strange-parameters-are-no-fault-of-the-server",
        at(METADATA, answer(200), when=asked("timestamp")),
    ),
)
MORE_OF_WINDOWS = (*OF_WINDOWS, *OF_PAGES, *OF_QUERIES)
