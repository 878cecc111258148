"""Predicates and limits, and the sentences of refusals that clients look for."""

import json
from collections.abc import Callable, Iterable, Mapping

from lakeshare_conformance.case import (
    DELTA,
    MUST,
    OPTIONAL,
    PARQUET,
    SHOULD,
    Case,
    Group,
    NotApplicable,
    expect,
)
from lakeshare_conformance.client import Response
from lakeshare_conformance.reply import Action, Reply
from lakeshare_conformance.rows import (
    Compare,
    FileRows,
    Hint,
    IsNull,
    Not,
    as_json,
    count_matches,
    list_casts,
    list_combinations,
    list_comparable_columns,
    list_comparisons,
    read_all,
)
from lakeshare_conformance.targets import Table, View

PREDICATES = Group("predicates", "Predicates as hints: whatever they leave out, no row that matches is lost")

DEEP, LONG = 5000, 1_100_000


@PREDICATES.on_views(MUST, "1.14", "1.7")
def comparisons_lose_no_rows(view: View) -> None:
    """Every file with a row that matches a JSON comparison is answered: each operator, on columns of all kinds."""
    files = _files(view)
    _lose_nothing(view, files, list_comparisons(view.snapshot, files))


@PREDICATES.on_views(MUST, "1.14", "0.15")
def negations_lose_no_rows(view: View) -> None:
    """not() of a comparison loses no row: that a file may match does not mean that its opposite may not."""
    files = _files(view)
    _lose_nothing(view, files, (Not(one) for one in list_comparisons(view.snapshot, files)))


@PREDICATES.on_views(MUST, "1.14", "0.15")
def tests_for_null_lose_no_rows(view: View) -> None:
    """isNull() and its negation lose no row: files with some nulls, with bounds, and without statistics."""
    files = _files(view)
    tests = [IsNull(name, kind) for name, kind in list_comparable_columns(view.snapshot)]
    _lose_nothing(view, files, [*tests, *map(Not, tests)])


@PREDICATES.on_views(MUST, "1.14", "0.15")
def combinations_lose_no_rows(view: View) -> None:
    """AND, OR and NOT over several columns lose no row."""
    files = _files(view)
    _lose_nothing(view, files, list_combinations(view.snapshot, files))


@PREDICATES.on_views(MUST, "1.14", "6.2")
def other_declared_types_lose_no_rows(view: View) -> None:
    """A column declared with another type than it has, as Spark folds casts, loses no row."""
    files = _files(view)
    tried = list(list_casts(view.snapshot, files))
    if not tried:
        raise NotApplicable("no table has a column of whole numbers or dates")
    _lose_nothing(view, files, tried)


@PREDICATES.on_views(MUST, "1.14", "1.7")
def sql_comparisons_lose_no_rows(view: View) -> None:
    """predicateHints in SQL lose no row: =, <>, <, <=, >, >=, IS NULL, IS NOT NULL, the column first or last."""
    files = _files(view)
    tried: list[tuple[Hint, str]] = []
    for one in list_comparisons(view.snapshot, files):
        if one.kind in ("float", "double", "timestamp"):
            continue
        tried += [(one, one.sql()), (one, one.sql(mirrored=True))]
        if one.operator == "equal":
            tried.append((Not(one), one.sql().replace(" = ", " <> ", 1)))
    for name, kind in list_comparable_columns(view.snapshot):
        test = IsNull(name, kind)
        tried += [(test, f"{name} IS NULL"), (Not(test), f"{name} IS NOT NULL")]
    for hint, text in tried:
        _loses_nothing(files, hint, Reply(view.ask({"predicateHints": [text]})))


@PREDICATES.on_views(MUST, "1.14", "0.19")
def json_that_makes_no_sense_gets_all_files(view: View) -> None:
    """A JSON predicate that cannot be understood (no JSON, wrong shapes, unknown columns, too deep) gets all files."""
    column = {"op": "column", "name": "lakeshare_no_such_column", "valueType": "int"}
    literal = {"op": "literal", "value": "1", "valueType": "int"}
    test = json.dumps({"op": "isNull", "children": [column]})
    texts = [
        "bad-predicates",
        "",
        "[]",
        "null",
        "1",
        "{}",
        '{"op": "equal"',
        '{"op": [], "children": {}}',
        json.dumps({"op": "equal", "children": [column]}),
        json.dumps({"op": "equal", "children": [column, literal]}),
        json.dumps({"op": "like", "children": [column, literal]}),
        json.dumps({"op": "equal", "children": [1, 2]}),
        json.dumps({"op": "equal", "children": [{**column, "valueType": "wat"}, {**literal, "value": []}]}),
        '{"op": "not", "children": [' * DEEP + test + "]}" * DEEP,
        json.dumps({"op": "equal", "children": [column, {**literal, "value": "9" * LONG}]}),
    ]
    for text in texts:
        response = view.ask({"jsonPredicateHints": text})
        if len(text) > LONG and response.status in (400, 413):
            continue  # a server may bound the size of a body
        _all_files(view, Reply(response))


@PREDICATES.on_views(MUST, "1.14", "0.19")
def sql_that_makes_no_sense_gets_all_files(view: View) -> None:
    """SQL that cannot be understood gets all files."""
    for texts in (
        ["this is not SQL ("],
        ["lakeshare_no_such_column = 1"],
        ["a.b.c = 1", "rlike(x, 'y')"],
        ["", "\u0000"],
        [],
        ["1 = 1 OR " * 200 + "1 = 1"],
    ):
        _all_files(view, Reply(view.ask({"predicateHints": texts})))


@PREDICATES.on_views(OPTIONAL, "1.14")
def partition_values_leave_files_out(view: View) -> None:
    """A comparison with one partition value leaves out the files of other partitions, in JSON and in SQL."""
    files = _files(view)
    for one in list_comparisons(view.snapshot, files):
        if one.column in view.snapshot.partition_columns and one.operator == "equal":
            _leaves_out(view, files, one, {"jsonPredicateHints": as_json(one)})
            if one.kind not in ("float", "double", "timestamp", "boolean"):
                _leaves_out(view, files, one, {"predicateHints": [one.sql()]})
            return
    raise NotApplicable("no table is partitioned by a column to compare")


@PREDICATES.on_views(OPTIONAL, "1.14")
def statistics_leave_files_out(view: View) -> None:
    """A comparison with the least value of a column leaves out files whose bounds exclude it."""
    files = _files(view)
    by_id = {one.action.id: one for one in files}
    columns = {
        name for name, kind in list_comparable_columns(view.snapshot) if kind in ("integer", "long", "date")
    }
    for one in list_comparisons(view.snapshot, files):
        has_bounds = one.column in columns - set(view.snapshot.partition_columns) and all(
            one.column in ((file.action.stats or {}).get("minValues") or {}) for file in by_id.values()
        )
        if (
            has_bounds
            and one.operator == "equal"
            and sum(bool(count_matches(one, file)) for file in files) < len(files)
        ):
            _leaves_out(view, files, one, {"jsonPredicateHints": as_json(one)})
            return
    raise NotApplicable("no table has statistics that tell its files apart")


def _files(view: View) -> list[FileRows]:
    return read_all(view, view.snapshot)


def _lose_nothing(view: View, files: list[FileRows], hints: Iterable[Hint]) -> None:
    is_tried = False
    for hint in hints:
        is_tried = True
        _loses_nothing(files, hint, Reply(view.ask({"jsonPredicateHints": as_json(hint)})))
    if not is_tried:
        raise NotApplicable("no table has a column to compare")


def _loses_nothing(files: list[FileRows], hint: Hint, reply: Reply) -> None:
    reply.head  # noqa: B018 - raises when the first lines are others
    expect_no_row_lost(files, hint, reply.where, reply.ids)


def expect_no_row_lost(files: list[FileRows], hint: Hint, where: str, ids: frozenset[str]) -> None:
    """Expect every file with a row that matches among the files answered.

    Raises:
        Broken: one is missing.
    """
    for one in files:
        if one.action.id not in ids:
            found = count_matches(hint, one)
            expect(
                found == 0, where, f"file {one.action.id}, which has {found} rows that match", "no such file"
            )


def _all_files(view: View, reply: Reply) -> None:
    expect(reply.ids == view.snapshot.ids, reply.where, f"all {len(view.snapshot.ids)} files", len(reply.ids))


def _leaves_out(view: View, files: list[FileRows], one: Compare, body: dict[str, object]) -> None:
    if all(count_matches(one, file) for file in files):
        raise NotApplicable("every file has a row that matches")
    reply = Reply(view.ask(body))
    found, every = len(reply.actions), len(view.snapshot.actions)
    expect(found < every, reply.where, f"fewer than all {every} files", found)


LIMITS = Group("limits", "limitHint: how many rows the client wants")


@LIMITS.on_views(MUST, "1.7", "2.3")
def a_limit_leaves_enough_rows(view: View) -> None:
    """limitHint leaves files with at least as many rows as asked for, deleted rows not counted."""
    rows = _rows(view)
    total = sum(rows.values())
    for limit in sorted({1, 2, total // 2, max(0, total - 1), total, total + 1}):
        reply = view.query(limitHint=limit)
        found = sum(rows.get(action.id, 0) for action in reply.actions)
        expect(found >= min(limit, total), reply.where, f"files with {min(limit, total)} rows", found)


@LIMITS.on_views(OPTIONAL, "1.7")
def a_limit_leaves_files_out(view: View) -> None:
    """limitHint leaves out files that are not needed for that many rows."""
    rows = _rows(view)
    if len(rows) < 2 or min(rows.values()) < 1:
        raise NotApplicable("no table has two files with rows")
    reply = view.query(limitHint=1)
    expect(
        len(reply.actions) < len(rows), reply.where, f"fewer than all {len(rows)} files", len(reply.actions)
    )


@LIMITS.on_views(MUST, "1.7", "6.1")
def a_limit_of_none_has_a_head(view: View) -> None:
    """limitHint 0 is answered with protocol and metaData: clients read the schema from it."""
    reply = view.query(limitHint=0)
    reported = [line.value for line in reply.head]
    expect(
        reported[1].get("size") == view.snapshot.head[1].value.get("size"),
        reply.where,
        "the head of a query",
        reported,
    )


@LIMITS.on_views(MUST, "1.7", "1.14")
def a_limit_counts_rows_that_match(view: View) -> None:
    """With a predicate and limitHint, the files left hold that many rows that match, if there are so many."""
    files = read_all(view, view.snapshot)
    if any(action.vector for action in view.snapshot.actions):
        raise NotApplicable("only tables with deletion vectors are there")
    tried = [
        one for one in list_comparisons(view.snapshot, files) if one.operator in ("equal", "lessThanOrEqual")
    ]
    if not tried:
        raise NotApplicable("no table has a column to compare")
    for hint in tried:
        counts = {one.action.id: count_matches(hint, one) for one in files}
        for limit in (1, max(1, sum(counts.values()))):
            reply = Reply(view.ask({"limitHint": limit, "jsonPredicateHints": as_json(hint)}))
            found = sum(counts.get(action.id, 0) for action in reply.actions)
            wanted = min(limit, sum(counts.values()))
            expect(found >= wanted, reply.where, f"files with {wanted} rows that match", found)


@LIMITS.on_views(SHOULD, "1.7", "0.19")
def limits_that_are_none_are_400(view: View) -> None:
    """A limitHint that is negative, no whole number, or larger than 32 bits, is 400."""
    for limit in (-1, "x", 1.5, 2**40, [1]):
        view.ask({"limitHint": limit}).refusal(400)


def _rows(view: View) -> dict[str, int]:
    """The live rows of every file.

    Raises:
        NothingToTry: statistics do not tell them.
    """
    found = {action.id: _live(action) for action in view.snapshot.actions}
    if not sum(found.values()):
        raise NotApplicable("no table has rows")
    return found


def _live(action: Action) -> int:
    if action.rows is None:
        raise NotApplicable("statistics do not tell the rows of every file")
    return action.rows


FRAGMENTS = Group(
    "fragments",
    "Sentences that the test suites of the shipped clients look for, in refusals that other cases judge",
)

Ask = Callable[[View], Response]
NOON = "2022-01-01T12:00:00Z"


def _query(**body: object) -> Ask:
    return lambda view: view.ask(body)


def _changes(**params: object) -> Ask:
    return lambda view: view.ask_changes(params)


def _beyond(name: str) -> Ask:
    return lambda view: view.ask({**_history(view), name: view.table.latest + 1000})


def _of_history(ask: Ask) -> Ask:
    """A request that only a table with history refuses for this reason."""

    def of_history(view: View) -> Response:
        _history(view)
        return ask(view)

    return of_history


def _of_changes(ask: Ask) -> Ask:
    def of_changes(view: View) -> Response:
        view.change_start  # noqa: B018 - raises when changes are not served
        return ask(view)

    return of_changes


def _history(view: View) -> Mapping[str, object]:
    return {"startingVersion": view.versions[-1]}


def _page_token(view: View) -> str:
    token = (view.query(maxFiles=1).end or {}).get("nextPageToken")
    if not token:
        raise NotApplicable("no answer comes in two pages")
    return str(token)


def _page(view: View) -> Response:
    _page_token(view)
    return view.ask({"maxFiles": 1, "pageToken": "nonsense"})


def _refresh(view: View) -> Response:
    if not (view.query(includeRefreshToken=True).end or {}).get("refreshToken"):
        raise NotApplicable("the server gives no refresh tokens")
    return view.ask({"refreshToken": "nonsense"})


SENTENCES: Mapping[str, tuple[str, Ask]] = {
    "two_versions": (
        "Please only provide one of: version,timestamp,startingVersion",
        _query(version=0, startingVersion=0),
    ),
    "negative_version": ("table version cannot be negative", _of_history(_query(version=-1))),
    "negative_start": ("startingVersion cannot be negative", _of_history(_query(startingVersion=-1))),
    "no_files_on_a_page": ("maxFiles must be positive", _query(maxFiles=0)),
    "a_window_turned_round": (
        "startingVersion(3) must be smaller than or equal to endingVersion(2)",
        _of_history(_query(startingVersion=3, endingVersion=2)),
    ),
    "an_end_too_late": ("End version cannot be greater than the latest version", _beyond("endingVersion")),
    "a_time_that_is_none": ("Invalid startingTimestamp:", _of_history(_query(timestamp="2022"))),
    "a_time_too_early": (
        "before the earliest available version",
        _of_history(_query(timestamp="1970-01-02T00:00:00Z")),
    ),
    "a_time_too_late": (
        "is after the latest available version",
        _of_history(_query(timestamp="2999-01-01T00:00:00Z")),
    ),
    "a_refresh_token_of_a_version": (
        "includeRefreshToken cannot be used when querying a specific version",
        _of_history(lambda view: view.ask({"includeRefreshToken": True, "version": view.versions[-1]})),
    ),
    "a_refresh_token_asked_for_later": (
        "must be used in the first page request",
        lambda view: view.ask({"maxFiles": 1, "pageToken": _page_token(view), "includeRefreshToken": True}),
    ),
    "a_page_token_nobody_gave": ("Error decoding the page token", _page),
    "a_refresh_token_nobody_gave": ("Error decoding refresh token", _refresh),
    "an_unknown_scheme_of_ids": ("Unsupported fileidhash: '", lambda view: view.ask({}, fileidhash="md5")),
    "changes_without_a_start": (
        "No startingVersion or startingTimestamp provided for CDF read",
        _of_changes(_changes()),
    ),
    "changes_with_two_starts": (
        "Multiple starting arguments provided for CDF read",
        _of_changes(_changes(startingVersion=0, startingTimestamp=NOON)),
    ),
    "changes_with_two_ends": (
        "Multiple ending arguments",
        _of_changes(_changes(startingVersion=0, endingVersion=0, endingTimestamp=NOON)),
    ),
    "changes_turned_round": (
        "CDF range from start 1 to end 0 was invalid. End cannot be before start",
        _of_changes(_changes(startingVersion=1, endingVersion=0)),
    ),
    "changes_from_no_number": (
        "startingVersion is not a valid number",
        _of_changes(_changes(startingVersion="x")),
    ),
}


def _case(name: str, sentence: str, ask: Ask) -> Case:
    def judge(view: View) -> None:
        response = ask(view)
        message = response.refusal(400)
        expect(sentence in message, response.request, f"a refusal with “{sentence}”", message)

    judge.__name__, judge.__module__ = name, __name__
    judge.__doc__ = f"A refusal says “{sentence}”."
    return FRAGMENTS.on_views(OPTIONAL, "1.7" if not name.startswith("changes") else "1.8", "7.3")(judge)


@FRAGMENTS.on_tables(OPTIONAL, "1.7", "7.3")
def a_history_that_is_not_shared(table: Table) -> None:
    """A refusal says “history sharing is not enabled on table: ” and the table's name."""
    view = table.first_view
    try:
        shared = bool(view.versions)
    except NotApplicable:
        shared = False
    if shared:
        raise NotApplicable("every table shares its history")
    response = view.ask({"version": table.latest})
    sentence = (
        "Reading table by version or timestamp is not supported because history sharing is not enabled "
        f"on table: {table.name}"
    )
    message = response.refusal(400)
    expect(sentence.lower() in message.lower(), response.request, f"“{sentence}”", message)


@FRAGMENTS.on_tables(OPTIONAL, "2.5", "7.3")
def features_that_parquet_lacks(table: Table) -> None:
    """A refusal says “Unsupported Delta Table Properties”."""
    if table.view(PARQUET) is not None or table.view(DELTA) is None:
        raise NotApplicable("no table is served in delta format only")
    sentence = "Unsupported Delta Table Properties"
    for response in (table.metadata(), table.query({})):
        message = response.refusal(400)
        expect(sentence in message, response.request, f"“{sentence}”", message)


@FRAGMENTS.on_tables(OPTIONAL, "4", "7.3")
def a_table_that_is_not_there(table: Table) -> None:
    """A refusal says “does not exist, please contact your share provider for further information.”"""
    response = table.client.ask("GET", f"{table.path}_lakeshare/version")
    sentence = "does not exist, please contact your share provider for further information."
    message = response.refusal(404)
    expect(sentence in message, response.request, f"“{sentence}”", message)


for name, what in SENTENCES.items():
    _case(name, *what)
