"""Defects of async queries, predicates and limits.

Each mapping has a defect for every case of its group; `FURTHER` has those of cases that hold several rules.
"""

import json
import uuid
from collections.abc import Mapping

from tests.fakes.defects.tools import (
    CAPABILITIES,
    POLL,
    QUERY,
    TABLE,
    Defect,
    Json,
    Named,
    When,
    answer,
    asked,
    at,
    body,
    each,
    given,
    header,
    is_async,
    later_page,
    lines,
    put,
    without_files,
)
from tests.fakes.model_requests import Reply, Request


def _every_file(found: list[Json]) -> list[Json]:
    """As many files as if nothing had been left out."""
    return found * 6


def _json_hint(*ops: str) -> When:
    """Requests whose predicate has these operators."""
    return lambda request: all(f'"{op}"' in str(body(request).get("jsonPredicateHints")) for op in ops)


def _compared_as(request: Request) -> bool:
    hint = str(body(request).get("jsonPredicateHints"))
    return '"valueType": "string"' in hint and '"born"' in hint


def _failed(reply: Reply) -> None:
    """The status that nobody reads, instead of an error."""
    if reply.status >= 400:
        reply.status = 200
        reply.body = json.dumps({"queryStatus": {"queryId": "x", "status": "failed"}}).encode()


def _hint(text: str) -> When:
    """Requests with this in their predicate, of either kind."""
    return lambda request: (
        text in f"{body(request).get('jsonPredicateHints')}{body(request).get('predicateHints')}"
    )


ASYNC_QUERIES: Mapping[str, Defect] = {
    "queries-are-answered-later": at(QUERY, answer(400), when=is_async),
    "the-key-goes-by-both-names": at(
        QUERY, answer(400), when=lambda request: "idempotency_key" in body(request)
    ),
    "pending-answers-have-the-version": at(QUERY, header("Delta-Table-Version", None), when=is_async),
    "the-answer-comes-as-if-at-once": at(POLL, header("Delta-Table-Version", None)),
    "pages-come-from-the-same-query": at(POLL, without_files(), when=later_page),
    "a-query-sent-twice-is-one": at(
        QUERY, each("queryStatus", lambda status: status.update(queryId=uuid.uuid4().hex)), when=is_async
    ),
    "a-query-without-a-key-is-400": at(
        QUERY, answer(500), when=lambda request: is_async(request) and not body(request)
    ),
    "an-unknown-query-is-404": at(f"{TABLE}/queries/nonsense", answer(500)),
    "a-query-belongs-to-its-table": at("/shares/beta/.*/queries/.*", answer(200)),
    "a-query-that-fails-is-an-error": at(f"({QUERY}|{POLL})", _failed, when=is_async),
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
        QUERY, answer(400), when=given("jsonPredicateHints", "bad-predicates")
    ),
    "sql-that-makes-no-sense-gets-all-files": at(
        QUERY, without_files(9), when=lambda request: "rlike" in str(body(request).get("predicateHints"))
    ),
    "partition-values-leave-files-out": at(QUERY, lines(_every_file), when=asked("predicateHints")),
    "statistics-leave-files-out": at(QUERY, lines(_every_file), when=_json_hint("id")),
}
LIMITS: Mapping[str, Defect] = {
    "a-limit-leaves-enough-rows": at(QUERY, without_files(), when=asked("limitHint")),
    "a-limit-leaves-files-out": at(QUERY, lines(lambda found: found * 9), when=given("limitHint", 1)),
    "a-limit-of-none-has-a-head": at(
        QUERY, answer(200), when=lambda request: body(request) == {"limitHint": 0}
    ),
    "a-limit-counts-rows-that-match": at(
        QUERY,
        without_files(9),
        when=lambda request: {"limitHint", "jsonPredicateHints"} <= set(body(request)),
    ),
    "limits-that-are-none-are-400": at(QUERY, answer(500), when=given("limitHint", -1)),
}
FURTHER: tuple[Named, ...] = (
    ("async-queries.pending-answers-have-the-version", at(QUERY, header(CAPABILITIES, None), when=is_async)),
    (
        "async-queries.pending-answers-have-the-version",
        at(QUERY, each("queryStatus", put(status="waiting")), when=is_async),
    ),
    (
        "async-queries.pending-answers-have-the-version",
        at(QUERY, lines(lambda found: found * 2), when=is_async),
    ),
    ("async-queries.the-answer-comes-as-if-at-once", at(POLL, each("queryStatus", put(queryId="other")))),
    ("async-queries.the-answer-comes-as-if-at-once", at(POLL, without_files())),
    ("async-queries.the-answer-comes-as-if-at-once", at(POLL, header("Delta-Table-Version", "77"))),
    ("async-queries.an-unknown-query-is-404", at(POLL, answer(400))),
    (
        "async-queries.a-query-that-fails-is-an-error",
        at(QUERY, answer(500), when=lambda r: is_async(r) and "version" in body(r)),
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
        at(QUERY, lines(lambda found: found[:1]), when=given("limitHint", 0)),
    ),
    ("limits.limits-that-are-none-are-400", at(QUERY, answer(200), when=given("limitHint", "x"))),
)
