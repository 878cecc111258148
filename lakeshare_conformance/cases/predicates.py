"""Predicates as hints: whatever they leave out, no row that matches is lost."""

import json
from collections.abc import Iterable

from lakeshare_conformance.case import MUST, OPTIONAL, NothingToTry, expect, on_views
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Reply
from lakeshare_conformance.rows import (
    Compare,
    FileRows,
    Hint,
    IsNull,
    Not,
    as_json,
    combinations,
    comparable_columns,
    comparisons,
    declared_otherwise,
    matches,
    read_all,
)

DEEP, LONG = 5000, 1_100_000


@on_views(MUST, "1.14", "1.7")
def comparisons_lose_no_rows(view: View) -> None:
    """Every file with a row that matches a JSON comparison is answered: each operator, on columns of all kinds."""
    files = _files(view)
    _lose_nothing(view, files, comparisons(view.snapshot, files))


@on_views(MUST, "1.14", "0.15")
def negations_lose_no_rows(view: View) -> None:
    """not() of a comparison loses no row: that a file may match does not mean that its opposite may not."""
    files = _files(view)
    _lose_nothing(view, files, (Not(one) for one in comparisons(view.snapshot, files)))


@on_views(MUST, "1.14", "0.15")
def tests_for_null_lose_no_rows(view: View) -> None:
    """isNull() and its negation lose no row: files with some nulls, with bounds, and without statistics."""
    files = _files(view)
    tests = [IsNull(name, kind) for name, kind in comparable_columns(view.snapshot)]
    _lose_nothing(view, files, [*tests, *map(Not, tests)])


@on_views(MUST, "1.14", "0.15")
def combinations_lose_no_rows(view: View) -> None:
    """AND, OR and NOT over several columns lose no row."""
    files = _files(view)
    _lose_nothing(view, files, combinations(view.snapshot, files))


@on_views(MUST, "1.14", "6.2")
def other_declared_types_lose_no_rows(view: View) -> None:
    """A column declared with another type than it has, as Spark folds casts, loses no row."""
    files = _files(view)
    tried = list(declared_otherwise(view.snapshot, files))
    if not tried:
        raise NothingToTry("no table has a column of whole numbers or dates")
    _lose_nothing(view, files, tried)


@on_views(MUST, "1.14", "1.7")
def sql_comparisons_lose_no_rows(view: View) -> None:
    """predicateHints in SQL lose no row: =, <>, <, <=, >, >=, IS NULL, IS NOT NULL, the column first or last."""
    files = _files(view)
    tried: list[tuple[Hint, str]] = []
    for one in comparisons(view.snapshot, files):
        if one.kind in ("float", "double", "timestamp"):
            continue
        tried += [(one, one.sql()), (one, one.sql(mirrored=True))]
        if one.operator == "equal":
            tried.append((Not(one), one.sql().replace(" = ", " <> ", 1)))
    for name, kind in comparable_columns(view.snapshot):
        test = IsNull(name, kind)
        tried += [(test, f"{name} IS NULL"), (Not(test), f"{name} IS NOT NULL")]
    for hint, text in tried:
        _loses_nothing(files, hint, Reply(view.ask({"predicateHints": [text]})))


@on_views(MUST, "1.14", "0.19")
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
        answer = view.ask({"jsonPredicateHints": text})
        if len(text) > LONG and answer.status in (400, 413):
            continue  # a server may bound the size of a body
        _all_files(view, Reply(answer))


@on_views(MUST, "1.14", "0.19")
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


@on_views(OPTIONAL, "1.14")
def partition_values_leave_files_out(view: View) -> None:
    """A comparison with one partition value leaves out the files of other partitions, in JSON and in SQL."""
    files = _files(view)
    for one in comparisons(view.snapshot, files):
        if one.column in view.snapshot.partition_columns and one.operator == "equal":
            _leaves_out(view, files, one, {"jsonPredicateHints": as_json(one)})
            if one.kind not in ("float", "double", "timestamp", "boolean"):
                _leaves_out(view, files, one, {"predicateHints": [one.sql()]})
            return
    raise NothingToTry("no table is partitioned by a column to compare")


@on_views(OPTIONAL, "1.14")
def statistics_leave_files_out(view: View) -> None:
    """A comparison with the least value of a column leaves out files whose bounds exclude it."""
    files = _files(view)
    by_id = {one.action.id: one for one in files}
    columns = {
        name for name, kind in comparable_columns(view.snapshot) if kind in ("integer", "long", "date")
    }
    for one in comparisons(view.snapshot, files):
        has_bounds = one.column in columns - set(view.snapshot.partition_columns) and all(
            one.column in ((file.action.stats or {}).get("minValues") or {}) for file in by_id.values()
        )
        if (
            has_bounds
            and one.operator == "equal"
            and sum(bool(matches(one, file)) for file in files) < len(files)
        ):
            _leaves_out(view, files, one, {"jsonPredicateHints": as_json(one)})
            return
    raise NothingToTry("no table has statistics that tell its files apart")


def _files(view: View) -> list[FileRows]:
    return read_all(view, view.snapshot)


def _lose_nothing(view: View, files: list[FileRows], hints: Iterable[Hint]) -> None:
    is_tried = False
    for hint in hints:
        is_tried = True
        _loses_nothing(files, hint, Reply(view.ask({"jsonPredicateHints": as_json(hint)})))
    if not is_tried:
        raise NothingToTry("no table has a column to compare")


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
            found = matches(hint, one)
            expect(
                found == 0, where, f"file {one.action.id}, which has {found} rows that match", "no such file"
            )


def _all_files(view: View, reply: Reply) -> None:
    expect(reply.ids == view.snapshot.ids, reply.where, f"all {len(view.snapshot.ids)} files", len(reply.ids))


def _leaves_out(view: View, files: list[FileRows], one: Compare, body: dict[str, object]) -> None:
    if all(matches(one, file) for file in files):
        raise NothingToTry("every file has a row that matches")
    reply = Reply(view.ask(body))
    found, every = len(reply.actions), len(view.snapshot.actions)
    expect(found < every, reply.where, f"fewer than all {every} files", found)
