"""Defects of pages, of refresh tokens, of what ends an answer, and of the ids of files.

Each mapping has a defect for every case of its group; `FURTHER` has those of cases that hold several rules.
"""

from collections.abc import Mapping

from tests.fakes.defects.tools import (
    CAPABILITIES,
    CHANGES,
    QUERY,
    Defect,
    Json,
    Named,
    When,
    announced,
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
    later_page,
    lines,
    put,
    refreshing,
    twice,
    with_end,
    without,
    without_files,
)


def _end_first(found: list[Json]) -> list[Json]:
    ends = [line for line in found if "endStreamAction" in line]
    return [*found[:2], *ends, *(line for line in found if is_file(line))]


def _alone(*names: str) -> When:
    return lambda request: set(names) < set(body(request))


def _wrong(name: str) -> When:
    """Requests with a token that is not as it was given, or not alone."""
    return lambda request: len(str(body(request).get(name, "0" * 32))) != 32


PAGING: Mapping[str, Defect] = {
    "answers-come-in-pages": at(QUERY, each("endStreamAction", drop("nextPageToken"))),
    "every-page-has-an-end": at(QUERY, lines(without("endStreamAction")), when=later_page),
    "pages-of-a-snapshot-are-the-snapshot": at(QUERY, without_files(), when=later_page),
    "heads-of-pages-are-the-same-bytes": at(
        QUERY, content(lambda text: text.replace(b'{"minReader', b'{ "minReader', 1)), when=later_page
    ),
    "pages-of-a-window-are-the-window": at(QUERY, lines(without("metaData")), when=asked("maxFiles")),
    "hints-count-over-all-pages": at(
        QUERY, without_files(), when=lambda request: {"limitHint", "maxFiles"} <= set(body(request))
    ),
    "predicates-lose-no-rows-over-pages": at(
        QUERY, without_files(), when=lambda request: {"jsonPredicateHints", "pageToken"} <= set(body(request))
    ),
    "pages-of-changes-are-the-changes": at(CHANGES, without_files(), when=asked("pageToken")),
    "unknown-page-tokens-are-400": at(QUERY, answer(500), when=given("pageToken", "nonsense")),
    "a-page-token-belongs-to-its-request": at(QUERY, answer(200), when=_alone("pageToken", "maxFiles")),
    "a-page-token-belongs-to-its-table": at("/shares/beta/.*/query", answer(200), when=later_page),
    "sizes-of-pages-are-positive": at(QUERY, answer(500), when=given("maxFiles", 1.5)),
    "an-end-has-the-earliest-expiry": at(
        QUERY, each("endStreamAction", put(minUrlExpirationTimestamp=32_503_680_000_000))
    ),
}
REFRESH: Mapping[str, Defect] = {
    "a-refresh-token-is-given": at(QUERY, each("endStreamAction", drop("refreshToken"))),
    "an-end-comes-last-and-once": at(QUERY, lines(_end_first)),
    "a-refreshed-answer-has-the-same-files": at(QUERY, without_files(), when=refreshing),
    "unknown-refresh-tokens-are-400": at(QUERY, answer(200), when=given("refreshToken", "nonsense")),
    "a-refresh-token-stands-alone": at(
        QUERY, answer(200), when=lambda request: refreshing(request) and in_window(request)
    ),
    "a-refresh-token-belongs-to-its-table": at("/shares/beta/.*/query", answer(200), when=refreshing),
}
END_STREAM: Mapping[str, Defect] = {
    "an-end-can-be-asked-for": at(QUERY, header(CAPABILITIES, "responseformat=parquet")),
    "an-end-that-is-announced-comes": at(CHANGES, lines(without("endStreamAction"))),
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
FURTHER: tuple[Named, ...] = (
    ("paging.answers-come-in-pages", at(QUERY, lines(twice), when=asked("maxFiles"))),
    (
        "paging.every-page-has-an-end",
        at(QUERY, each("endStreamAction", put(nextPageToken="x")), when=given("maxFiles", 1_000_000)),
    ),
    (
        "paging.every-page-has-an-end",
        at(QUERY, lines(lambda found: [found[-1], *found[:-1]]), when=given("maxFiles", 1_000_000)),
    ),
    (
        "paging.every-page-has-an-end",
        at(QUERY, lines(without("endStreamAction")), when=given("maxFiles", 1_000_000)),
    ),
    ("paging.pages-of-a-snapshot-are-the-snapshot", at(QUERY, lines(twice), when=later_page)),
    (
        "paging.pages-of-a-snapshot-are-the-snapshot",
        at(
            QUERY,
            lines(without("endStreamAction")),
            when=lambda r: asked("maxFiles")(r) and not later_page(r),
        ),
    ),
    (
        "paging.heads-of-pages-are-the-same-bytes",
        at(QUERY, header("Delta-Table-Version", "77"), when=later_page),
    ),
    (
        "paging.heads-of-pages-are-the-same-bytes",
        at(QUERY, header(CAPABILITIES, "responseformat=parquet;x"), when=later_page),
    ),
    (
        "paging.heads-of-pages-are-the-same-bytes",
        at(QUERY, each("metaData", put(numFiles=77)), when=later_page),
    ),
    (
        "paging.pages-of-a-window-are-the-window",
        at(QUERY, without_files(), when=lambda r: in_window(r) and later_page(r)),
    ),
    (
        "paging.pages-of-changes-are-the-changes",
        at(CHANGES, lines(without("endStreamAction")), when=asked("pageToken")),
    ),
    (
        "paging.pages-of-changes-are-the-changes",
        at(CHANGES, each("metaData", put(name="x")), when=asked("pageToken")),
    ),
    ("paging.unknown-page-tokens-are-400", at(QUERY, answer(200), when=_wrong("pageToken"))),
    ("paging.a-page-token-belongs-to-its-request", at(CHANGES, answer(200), when=asked("pageToken"))),
    (
        "paging.a-page-token-belongs-to-its-request",
        at(QUERY, answer(200), when=lambda r: {"pageToken", "limitHint"} <= set(body(r))),
    ),
    ("paging.sizes-of-pages-are-positive", at(QUERY, answer(200), when=given("maxFiles", 0))),
    ("refresh.an-end-comes-last-and-once", at(QUERY, lines(with_end), when=asked("includeRefreshToken"))),
    (
        "refresh.a-refreshed-answer-has-the-same-files",
        at(QUERY, header("Delta-Table-Version", "77"), when=asked("refreshToken")),
    ),
    (
        "refresh.a-refreshed-answer-has-the-same-files",
        at(QUERY, each("endStreamAction", drop("refreshToken")), when=asked("refreshToken")),
    ),
    ("refresh.unknown-refresh-tokens-are-400", at(QUERY, answer(500), when=given("refreshToken", 1))),
    (
        "refresh.a-refresh-token-stands-alone",
        at(QUERY, answer(200), when=lambda r: {"refreshToken", "version"} <= set(body(r))),
    ),
    (
        "end-stream.an-end-that-is-announced-comes",
        at(QUERY, lines(with_end), when=announced("includeendstreamaction=false")),
    ),
    (
        "end-stream.an-end-that-is-announced-comes",
        at(QUERY, lines(without("endStreamAction")), when=announced("includeendstreamaction=true")),
    ),
    (
        "end-stream.an-end-that-is-announced-comes",
        at(QUERY, lines(with_end), when=announced("includeendstreamaction=true")),
    ),
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
