"""Predicates and limits, and the sentences of refusals that clients expect."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import invert

from lakeshare_conformance.case import Group, NotApplicable, require
from lakeshare_conformance.client import FAR_AHEAD, LONG_AGO, NOON, Response
from lakeshare_conformance.rows import Hint, TableRows
from lakeshare_conformance.targets import Table, View

# Types whose literals have no common form in SQL.
NOT_IN_SQL = ("float", "double", "timestamp")
DEPTH, MAX_LENGTH = 5000, 1_100_000
COLUMN = {"op": "column", "name": "lakeshare_no_such_column", "valueType": "int"}
LITERAL = {"op": "literal", "value": "1", "valueType": "int"}
TEST = json.dumps({"op": "isNull", "children": [COLUMN]})
STRANGE_JSON = (
    *("bad-predicates", "", "[]", "null", "1", "{}", '{"op": "equal"', '{"op": [], "children": {}}'),
    json.dumps({"op": "equal", "children": [COLUMN]}),
    json.dumps({"op": "equal", "children": [COLUMN, LITERAL]}),
    json.dumps({"op": "like", "children": [COLUMN, LITERAL]}),
    json.dumps({"op": "equal", "children": [1, 2]}),
    json.dumps({"op": "equal", "children": [{**COLUMN, "valueType": "wat"}, {**LITERAL, "value": []}]}),
    '{"op": "not", "children": [' * DEPTH + TEST + "]}" * DEPTH,
    json.dumps({"op": "equal", "children": [COLUMN, {**LITERAL, "value": "9" * MAX_LENGTH}]}),
)
STRANGE_SQL: tuple[list[str], ...] = (
    *(["this is not SQL ("], ["lakeshare_no_such_column = 1"], ["a.b.c = 1", "rlike(x, 'y')"]),
    *(["", "\u0000"], [], ["1 = 1 OR " * 200 + "1 = 1"]),
)


class Predicates(Group):
    """Predicates as hints: whatever they leave out, no row that matches is lost."""

    def comparisons_lose_no_rows(self, view: View) -> None:
        """must §1.14, §1.7: Every file with a row that matches a JSON comparison is answered: each operator, on
        columns of all kinds."""
        _expect_nothing_lost(view, TableRows.list_comparisons)

    def negations_lose_no_rows(self, view: View) -> None:
        """must §1.14, §0.15: not() of a comparison loses no row: that a file may match does not mean that its
        opposite may not."""
        _expect_nothing_lost(view, lambda table: map(invert, table.list_comparisons()))

    def tests_for_null_lose_no_rows(self, view: View) -> None:
        """must §1.14, §0.15: isNull() and its negation lose no row: files with some nulls, with bounds, and
        without statistics."""
        _expect_nothing_lost(view, TableRows.list_null_tests)
        _expect_nothing_lost(view, lambda table: map(invert, table.list_null_tests()))

    def combinations_lose_no_rows(self, view: View) -> None:
        """must §1.14, §0.15: AND, OR and NOT over several columns lose no row."""
        _expect_nothing_lost(view, TableRows.list_combinations)

    def other_declared_types_lose_no_rows(self, view: View) -> None:
        """must §1.14, §6.2: A column declared with another type than it has, as Spark folds casts, loses no row."""
        _expect_nothing_lost(view, TableRows.list_casts)

    def sql_comparisons_lose_no_rows(self, view: View) -> None:
        """must §1.14, §1.7: predicateHints in SQL lose no row: =, <>, <, <=, >, >=, IS NULL, IS NOT NULL, the
        column first or last."""
        table, tried = TableRows(view), list[tuple[Hint, str]]()
        for hint in table.list_comparisons():
            if hint.kind not in NOT_IN_SQL:
                tried += [(hint, hint.sql()), (hint, hint.sql(is_mirrored=True))]
                if hint.operator == "equal":
                    tried.append((~hint, hint.sql().replace(" = ", " <> ", 1)))
        for (name, _), test in zip(table.columns, table.list_null_tests(), strict=True):
            tried += [(test, f"{name} IS NULL"), (~test, f"{name} IS NOT NULL")]
        _expect_nothing_lost_by(view, table, [(hint, {"predicateHints": [text]}) for hint, text in tried])

    def json_that_makes_no_sense_gets_all_files(self, view: View) -> None:
        """must §1.14, §0.19: A JSON predicate that cannot be understood (no JSON, wrong shapes, unknown
        columns, too deep) gets all files."""
        for text in STRANGE_JSON:
            response = view.ask({"jsonPredicateHints": text})
            # A server may bound the size of a body.
            if len(text) <= MAX_LENGTH or response.status not in (400, 413):
                response.read().expect_ids(view.snapshot.ids, "all files")

    def sql_that_makes_no_sense_gets_all_files(self, view: View) -> None:
        """must §1.14, §0.19: SQL that cannot be understood gets all files."""
        view.expect_all_files(*({"predicateHints": texts} for texts in STRANGE_SQL))

    def partition_values_leave_files_out(self, view: View) -> None:
        """optional §1.14: A comparison with one partition value leaves out the files of other partitions, in
        JSON and in SQL."""
        table = TableRows(view)
        for hint in table.list_comparisons():
            if hint.column in table.partition_columns and hint.operator == "equal":
                _expect_files_left_out(view, table, hint, {"jsonPredicateHints": hint.json})
                if hint.kind not in (*NOT_IN_SQL, "boolean"):
                    _expect_files_left_out(view, table, hint, {"predicateHints": [hint.sql()]})
                return
        raise NotApplicable("no table is partitioned by a column to compare")

    def statistics_leave_files_out(self, view: View) -> None:
        """optional §1.14: A comparison with the least value of a column leaves out files whose bounds exclude it."""
        table = TableRows(view)
        stats = [file.action.stats for file in table.files]
        bounded = set.intersection(*(set(one.min_values) if one else set() for one in stats))
        for hint in table.list_comparisons():
            is_tried = hint.operator == "equal" and hint.kind in ("integer", "long", "date")
            has_bounds = hint.column in bounded and hint.column not in table.partition_columns
            if is_tried and has_bounds and not all(table.count_matches(hint)):
                _expect_files_left_out(view, table, hint, {"jsonPredicateHints": hint.json})
                return
        raise NotApplicable("no table has statistics that distinguish its files")


def _expect_nothing_lost(view: View, list_hints: Callable[[TableRows], Iterable[Hint]]) -> None:
    table = TableRows(view)
    asked = [(hint, {"jsonPredicateHints": hint.json}) for hint in list_hints(table)]
    _expect_nothing_lost_by(view, table, require(asked, "no table has a column to compare"))


def _expect_nothing_lost_by(
    view: View, table: TableRows, asked: Iterable[tuple[Hint, Mapping[str, object]]]
) -> None:
    for hint, body in asked:
        reply = view.ask(body).read()
        table.expect_no_row_lost(hint, reply.where, reply.ids)


def _expect_files_left_out(view: View, table: TableRows, hint: Hint, body: dict[str, object]) -> None:
    require(not all(table.count_matches(hint)), "every file has a row that matches")
    reply = view.ask(body).read()
    found, total = len(reply.actions), len(view.snapshot.actions)
    reply.expect(found < total, f"fewer than all {total} files", found)


class Limits(Group):
    """limitHint: how many rows the client wants."""

    def a_limit_leaves_enough_rows(self, view: View) -> None:
        """must §1.7, §2.3: limitHint leaves files with at least as many rows as asked for, deleted rows not counted."""
        counts = _get_row_counts(view)
        total = sum(counts.values())
        for limit in sorted({1, 2, total // 2, max(0, total - 1), total, total + 1}):
            _expect_rows(view.query(limitHint=limit), counts, min(limit, total))

    def a_limit_leaves_files_out(self, view: View) -> None:
        """optional §1.7: limitHint leaves out files that are not needed for that many rows."""
        counts = _get_row_counts(view)
        require(len(counts) >= 2 and min(counts.values()) >= 1, "no table has two files with rows")
        reply = view.query(limitHint=1)
        found = len(reply.actions)
        reply.expect(found < len(counts), f"fewer than all {len(counts)} files", found)

    def a_limit_of_none_has_a_head(self, view: View) -> None:
        """must §1.7, §6.1: limitHint 0 is answered with protocol and metaData: clients read the schema from it."""
        reply = view.query(limitHint=0)
        size, wanted = reply.shared.size, view.snapshot.shared.size
        reply.expect(size == wanted, f"the head of a query, with size {wanted}", size)

    def a_limit_counts_rows_that_match(self, view: View) -> None:
        """must §1.7, §1.14: With a predicate and limitHint, the files left hold that many rows that match, if
        there are so many."""
        table = TableRows(view)
        require(not view.snapshot.has_vectors, "all tables have deletion vectors")
        tried = [hint for hint in table.list_comparisons() if hint.operator in ("equal", "lessThanOrEqual")]
        for hint in require(tried, "no table has a column to compare"):
            _expect_limits_kept(view, table, hint)

    def limits_that_are_none_are_400(self, view: View) -> None:
        """should §1.7, §0.19: A limitHint that is negative, no whole number, or larger than 32 bits, is 400."""
        view.refuse(*({"limitHint": limit} for limit in (-1, "x", 1.5, 2**40, [1])))


def _expect_limits_kept(view: View, table: TableRows, hint: Hint) -> None:
    counts = {
        file.action.id: count for file, count in zip(table.files, table.count_matches(hint), strict=True)
    }
    total = sum(counts.values())
    for limit in (1, max(1, total)):
        reply = view.ask({"limitHint": limit, "jsonPredicateHints": hint.json}).read()
        _expect_rows(reply, counts, min(limit, total))


def _expect_rows(reply: Response, counts: Mapping[str, int], wanted: int) -> None:
    found = sum(counts.get(action.id, 0) for action in reply.actions)
    reply.expect(found >= wanted, f"files with {wanted} rows", found)


def _get_row_counts(view: View) -> dict[str, int]:
    """The rows of every file that its deletion vector leaves; `NotApplicable` without."""
    counts = {action.id: action.rows for action in view.snapshot.actions}
    require(None not in counts.values(), "statistics do not have the rows of every file")
    require(any(counts.values()), "no table has rows")
    return {id: count or 0 for id, count in counts.items()}


Body = dict[str, object]


class Fragments(Group):
    """Sentences that the test suites of the shipped clients look for, in refusals that other cases judge."""

    def a_history_that_is_not_shared(self, table: Table) -> None:
        """optional §1.7, §7.3: A refusal says “history sharing is not enabled on table: ” and the table's name."""
        response = table.first_view.ask({"version": table.latest})
        require(response.is_refusal, "every table shares its history")
        message = response.refusal(400).message.lower()
        sentence = (
            "reading table by version or timestamp is not supported because history sharing is not enabled"
        )
        wanted = f"{sentence} on table: {table.name.lower()}"
        response.expect(wanted in message, f"a refusal with “{wanted}”", message)

    def features_that_parquet_lacks(self, table: Table) -> None:
        """optional §2.5, §7.3: A refusal says “Unsupported Delta Table Properties”."""
        table.require_delta_only()
        _expect_sentence("Unsupported Delta Table Properties", table.metadata(), table.query({}))

    def a_table_that_is_not_there(self, table: Table) -> None:
        """optional §4, §7.3: A refusal says “does not exist, please contact your share provider for further
        information.”"""
        response = table.client.get(f"{table.path}_lakeshare/version")
        sentence = "does not exist, please contact your share provider for further information."
        _expect_sentence(sentence, response, status=404)

    def an_unknown_scheme_of_ids(self, view: View) -> None:
        """optional §1.7, §7.3: A refusal says “Unsupported fileidhash: '”."""
        _expect_sentence("Unsupported fileidhash: '", view.ask({}, fileidhash="md5"))


def _expect_sentence(sentence: str, *refusals: Response, status: int = 400) -> None:
    for response in refusals:
        message = response.refusal(status).message
        response.expect(sentence in message, f"a refusal with “{sentence}”", message)


def _expect_refusal_with(sentence: str, needs: str, body: Body, view: View) -> None:
    """Expect the sentence for a body; `NotApplicable` without what is needed. `$latest` is its latest version."""
    needed = getattr(view, needs)
    latest = needed[-1] if needs == "versions" else 0
    values: Body = {"$latest": latest, "$beyond": latest + 1000, "$token": needed}
    sent = {name: values.get(str(value), value) for name, value in body.items()}
    _expect_sentence(sentence, view.ask_changes(sent) if needs == "feed" else view.ask(sent))


ONE_OF = "Please only provide one of: version,timestamp,startingVersion"
REFRESH_OF_VERSION = "includeRefreshToken cannot be used when querying a specific version"
TOKEN_OF_PAGE: Body = {"maxFiles": 1, "pageToken": "$token", "includeRefreshToken": True}
UNKNOWN_PAGE: Body = {"maxFiles": 1, "pageToken": "nonsense"}
TOKEN_OF_VERSION: Body = {"includeRefreshToken": True, "version": "$latest"}
FIRST_PAGE_ONLY, NO_NUMBER = "must be used in the first page request", "startingVersion is not a valid number"
WINDOW = "startingVersion(3) must be smaller than or equal to endingVersion(2)"
TOO_LATE = "End version cannot be greater than the latest version"
NO_START = "No startingVersion or startingTimestamp provided for CDF read"
TURNED = "CDF range from start 1 to end 0 was invalid. End cannot be before start"
TWO_STARTS, TWO_ENDS = "Multiple starting arguments provided for CDF read", "Multiple ending arguments"
STARTS: Body = {"startingVersion": 0, "startingTimestamp": NOON}
ENDS: Body = {"startingVersion": 0, "endingVersion": 0, "endingTimestamp": NOON}
# The name, what the view must have, the body of the query (or the range of changes), and the sentence.
SENTENCES: tuple[tuple[str, str, Body, str], ...] = (
    ("two_versions", "format", {"version": 0, "startingVersion": 0}, ONE_OF),
    ("negative_version", "versions", {"version": -1}, "table version cannot be negative"),
    ("negative_start", "versions", {"startingVersion": -1}, "startingVersion cannot be negative"),
    ("no_files_on_a_page", "format", {"maxFiles": 0}, "maxFiles must be positive"),
    ("a_window_turned_round", "versions", {"startingVersion": 3, "endingVersion": 2}, WINDOW),
    ("an_end_too_late", "versions", {"startingVersion": "$latest", "endingVersion": "$beyond"}, TOO_LATE),
    ("a_time_that_is_none", "versions", {"timestamp": "2022"}, "Invalid startingTimestamp:"),
    ("a_time_too_early", "versions", {"timestamp": LONG_AGO}, "before the earliest available version"),
    ("a_time_too_late", "versions", {"timestamp": FAR_AHEAD}, "is after the latest available version"),
    ("a_refresh_token_of_a_version", "versions", TOKEN_OF_VERSION, REFRESH_OF_VERSION),
    ("a_refresh_token_asked_for_later", "page_token", TOKEN_OF_PAGE, FIRST_PAGE_ONLY),
    ("an_unknown_page_token", "page_token", UNKNOWN_PAGE, "Error decoding the page token"),
    (
        "an_unknown_refresh_token",
        "refresh_token",
        {"refreshToken": "nonsense"},
        "Error decoding refresh token",
    ),
    ("changes_without_a_start", "feed", {}, NO_START),
    ("changes_with_two_starts", "feed", STARTS, TWO_STARTS),
    ("changes_with_two_ends", "feed", ENDS, TWO_ENDS),
    ("changes_turned_round", "feed", {"startingVersion": 1, "endingVersion": 0}, TURNED),
    ("changes_from_no_number", "feed", {"startingVersion": "x"}, NO_NUMBER),
)
for name, needs, body, sentence in SENTENCES:
    check, section = partial(_expect_refusal_with, sentence, needs, body), "1.8" if needs == "feed" else "1.7"
    Fragments.add(name, check, f"optional §{section}, §7.3: A refusal says “{sentence}”.")
