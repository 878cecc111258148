"""Pruning never drops a file with a match, and a limit never stops short, whatever the rows, statistics and hints.

Judged by brute force: the same predicate, row by row, in SQL's three-valued logic.
"""

import json
import operator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.protocol.answer import FileAnswer
from lakeshare_server.protocol.json_predicate import parse_json_predicate
from lakeshare_server.protocol.requests import QueryRequest, parse_query
from lakeshare_server.protocol.sql_predicate import parse_sql_predicates
from lakeshare_server.tables import open_index, write_index
from lakeshare_server.tables.predicate import (
    EVERYTHING,
    And,
    Compare,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
)
from lakeshare_server.tables.pruning import evaluate
from lakeshare_server.tables.snapshot import TableSnapshot

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# name: (Arrow type, the protocol's type, values). Few different values, so that comparisons meet.
COLUMNS: dict[str, tuple[pa.DataType, str, st.SearchStrategy[Any]]] = {
    "i": (pa.int32(), "int", st.integers(-3, 3)),
    "l": (pa.int64(), "long", st.sampled_from([-(2**40), -1, 0, 1, 2**40])),
    "s": (pa.string(), "string", st.sampled_from(["", "a", "ab", "abc", "b", "é", "z'\"\\"])),
    "b": (pa.bool_(), "bool", st.booleans()),
    "d": (pa.date32(), "date", st.dates(date(2013, 1, 1), date(2013, 1, 4))),
    "t": (
        pa.timestamp("us", "UTC"),
        "timestamp",
        st.integers(-3000, 3000).map(lambda us: EPOCH + timedelta(microseconds=us)),
    ),
    "f": (pa.float64(), "double", st.floats(width=16)),
}
PARTITIONS = {"pd": "d", "ps": "s", "pi": "i"}
OPERATORS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
JSON_NAMES = {
    "=": "equal",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
}

Row = dict[str, Any]


def kind_of(column: str) -> tuple[pa.DataType, str, st.SearchStrategy[Any]]:
    return COLUMNS[PARTITIONS.get(column, column)]


@st.composite
def files(draw: st.DrawFn) -> list[Row]:
    """One file: rows that agree on the partition columns."""
    partition = {name: draw(st.none() | kind_of(name)[2]) for name in PARTITIONS}
    row = st.fixed_dictionaries({name: st.none() | values for name, (_, _, values) in COLUMNS.items()})
    return [{**partition, **values} for values in draw(st.lists(row, max_size=4))]


def comparisons() -> st.SearchStrategy[Predicate]:
    names = [name for name in (*COLUMNS, *PARTITIONS) if name != "f"]
    return st.one_of(
        *(
            st.builds(
                Compare,
                st.just(name),
                st.sampled_from(list(OPERATORS)),
                kind_of(name)[2],
                st.just(kind_of(name)[1]),
            )
            for name in names
        )
    )


LEAVES = st.one_of(
    comparisons(),
    st.sampled_from([*COLUMNS, *PARTITIONS]).map(lambda name: IsNull(name, kind_of(name)[1])),
    st.builds(Constant, st.booleans()),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


def truth(predicate: Predicate, row: Row) -> bool | None:
    match predicate:
        case Constant(value):
            return value
        case IsNull(column, _):
            return row[column] is None
        case Compare(column, op, value, _):
            return None if row[column] is None else OPERATORS[op](row[column], value)
        case Not(operand):
            inner = truth(operand, row)
            return None if inner is None else not inner
        case And(operands):
            parts = [truth(operand, row) for operand in operands]
            return False if False in parts else None if None in parts else True
        case Or(operands):
            parts = [truth(operand, row) for operand in operands]
            return True if True in parts else None if None in parts else False
        case Unknown():
            raise AssertionError("brute force knows everything")


def milliseconds_cut(value: Any, missing: bool) -> Any:
    """Bounds as Delta logs write them: timestamps cut to milliseconds."""
    if missing or not isinstance(value, datetime):
        return None if missing else value
    return EPOCH + timedelta(milliseconds=int((value - EPOCH) / timedelta(milliseconds=1)))


def a_snapshot(rows_of: list[list[Row]], missing: set[tuple[str, str]]) -> TableSnapshot:
    """Files with truthful statistics, some of them left out."""

    def bound(rows: list[Row], name: str, which: str) -> Any:
        values = [row[name] for row in rows if row[name] is not None and row[name] == row[name]]
        if not values:
            return None
        return milliseconds_cut(min(values) if which == "min" else max(values), (name, which) in missing)

    def counted(rows: list[Row], name: str) -> int | None:
        return None if (name, "null_count") in missing else sum(row[name] is None for row in rows)

    def struct(which: str) -> pa.StructArray:
        arrays = [
            pa.array([bound(rows, name, which) for rows in rows_of], kind)
            for name, (kind, _, _) in COLUMNS.items()
        ]
        return pa.StructArray.from_arrays(arrays, list(COLUMNS))

    partition = [
        pa.array([rows[0][name] if rows else None for rows in rows_of], kind_of(name)[0])
        for name in PARTITIONS
    ]
    counts = [pa.array([counted(rows, name) for rows in rows_of], pa.int64()) for name in COLUMNS]
    unknown_rows = ("rows", "rows") in missing
    table = pa.table(
        {
            "path": [f"/{number}" for number in range(len(rows_of))],
            "name": [f"{number}" for number in range(len(rows_of))],
            "size": pa.array([1] * len(rows_of), pa.int64()),
            "modification_time": pa.array([1] * len(rows_of), pa.int64()),
            "rows": pa.array([None if unknown_rows else len(rows) for rows in rows_of], pa.int64()),
            "partition": pa.StructArray.from_arrays(partition, list(PARTITIONS)),
            "min": struct("min"),
            "max": struct("max"),
            "null_count": pa.StructArray.from_arrays(counts, list(COLUMNS)),
        }
    )
    return TableSnapshot(
        format="delta",
        location="/",
        table_id="id",
        schema_string='{"type":"struct","fields":[]}',
        partition_columns=tuple(PARTITIONS),
        files=table,
    )


MISSING = st.sets(
    st.tuples(st.sampled_from([*COLUMNS, "rows"]), st.sampled_from(["min", "max", "null_count", "rows"]))
)


@given(st.lists(files(), min_size=1, max_size=4), PREDICATES, MISSING)
@settings(max_examples=300, deadline=None)
def test_what_rows_can_be_is_never_ruled_out(
    rows_of: list[list[Row]], predicate: Predicate, missing: set[tuple[str, str]]
) -> None:
    [batch] = a_snapshot(rows_of, missing).files.combine_chunks().to_batches()
    maybe = evaluate(predicate, batch)
    for number, rows in enumerate(rows_of):
        found = {truth(predicate, row) for row in rows}
        assert maybe.true[number].as_py() or True not in found
        assert maybe.false[number].as_py() or False not in found
        assert maybe.null[number].as_py() or None not in found


@given(st.lists(files(), min_size=1, max_size=5), PREDICATES, MISSING, st.none() | st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_an_answer_holds_every_match_up_to_the_limit(
    rows_of: list[list[Row]], predicate: Predicate, missing: set[tuple[str, str]], limit: int | None
) -> None:
    with TemporaryDirectory() as folder:
        index_dir = Path(folder)
        index = open_index(index_dir, write_index(a_snapshot(rows_of, missing), index_dir).digest)
        answer = FileAnswer(index, QueryRequest(predicate=predicate, limit=limit), 0, ends_with_action=False)
        parts = answer.parts(lambda paths: [path.encode() for path in paths.to_pylist()], lambda _: None)
        urls = [json.loads(line)["file"]["url"] for part in parts for line in part.splitlines()]
    matches = [sum(truth(predicate, row) is True for row in rows) for rows in rows_of]
    answered = sum(matches[int(url[1:])] for url in urls)
    assert answered >= (sum(matches) if limit is None else min(limit, sum(matches)))


def test_files_are_really_left_out() -> None:
    rows_of = [
        [{**dict.fromkeys((*COLUMNS, *PARTITIONS)), "i": n, "pd": date(2013, 1, 1 + n)}] for n in range(3)
    ]
    [batch] = a_snapshot(rows_of, set()).files.combine_chunks().to_batches()
    for predicate in (
        Compare("i", "=", 1, "int"),
        Compare("I", "=", 1, None),
        Compare("pd", "=", date(2013, 1, 2), "date"),
        Compare("pd", "=", "2013-01-02", None),
        And((Compare("i", ">", 0, "int"), Compare("i", "<", 2, "int"))),
        Not(Or((Compare("i", "<", 1, "int"), Compare("pd", ">", "2013-01-02", None)))),
        And((Not(IsNull("i")), Compare("i", "=", 1, "int"))),
    ):
        assert evaluate(predicate, batch).true.to_pylist() == [False, True, False], predicate
    assert evaluate(IsNull("l"), batch).true.to_pylist() == [True] * 3
    assert evaluate(Not(IsNull("l")), batch).true.to_pylist() == [False] * 3


def test_a_limit_stops_at_the_file_that_fills_it(tmp_path: Path) -> None:
    rows_of = [[dict.fromkeys((*COLUMNS, *PARTITIONS))] * 10 for _ in range(5)]
    index = open_index(tmp_path, write_index(a_snapshot(rows_of, set()), tmp_path).digest)
    counts: list[int] = []
    answer = FileAnswer(index, QueryRequest(limit=11), 0, ends_with_action=False)
    list(answer.parts(lambda paths: [b""] * len(paths), counts.append))
    assert counts == [2]


def test_rows_that_may_be_null_do_not_count_towards_a_limit(tmp_path: Path) -> None:
    nothing = dict.fromkeys((*COLUMNS, *PARTITIONS))
    rows_of = [[{**nothing, "i": 1}, nothing], [{**nothing, "i": 1}, {**nothing, "i": 1}]]
    index = open_index(tmp_path, write_index(a_snapshot(rows_of, set()), tmp_path).digest)
    counts: list[int] = []
    asked = QueryRequest(predicate=Compare("i", "=", 1, "int"), limit=2)
    list(
        FileAnswer(index, asked, 0, ends_with_action=False).parts(
            lambda paths: [b""] * len(paths), counts.append
        )
    )
    assert counts == [2]


def as_json(predicate: Predicate) -> dict[str, Any]:
    match predicate:
        case Constant(value):
            return {"op": "literal", "value": str(value).lower(), "valueType": "bool"}
        case IsNull(column, _):
            return {"op": "isNull", "children": [a_column(column)]}
        case Compare(column, op, value, kind):
            text = (
                value.isoformat()
                if isinstance(value, date)
                else str(value).lower()
                if kind == "bool"
                else str(value)
            )
            literal = {"op": "literal", "value": text, "valueType": kind}
            return {"op": JSON_NAMES[op], "children": [a_column(column), literal]}
        case Not(operand):
            return {"op": "not", "children": [as_json(operand)]}
        case And(operands) | Or(operands):
            name = "and" if isinstance(predicate, And) else "or"
            return {"op": name, "children": [as_json(operand) for operand in operands]}
        case Unknown():
            return {"op": "nonsense"}


def a_column(name: str) -> dict[str, str]:
    return {"op": "column", "name": name, "valueType": kind_of(name)[1]}


@given(PREDICATES)
@settings(deadline=None)
def test_json_hints_mean_what_they_say(predicate: Predicate) -> None:
    assert parse_json_predicate(json.dumps(as_json(predicate))) == predicate


def as_sql(predicate: Predicate) -> str:
    match predicate:
        case Constant(value):
            return str(value).upper()
        case IsNull(column, _):
            return f"`{column}` IS NULL"
        case Compare(column, op, value, _):
            return f"{column} {op} {sql_value(value)}"
        case Not(operand):
            return f"(NOT {as_sql(operand)})"
        case And(operands):
            return "(" + " AND ".join(map(as_sql, operands)) + ")"
        case Or(operands):
            return "(" + " OR ".join(map(as_sql, operands)) + ")"
        case Unknown():
            return "rlike(s, 'x')"


def sql_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    return (
        str(value) if isinstance(value, int) else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    )


SQL_PREDICATES = PREDICATES.filter(lambda predicate: '"t"' not in json.dumps(as_json(predicate)))


@given(st.lists(files(), min_size=1, max_size=3), SQL_PREDICATES)
@settings(deadline=None)
def test_sql_hints_never_drop_a_match(rows_of: list[list[Row]], predicate: Predicate) -> None:
    [batch] = a_snapshot(rows_of, set()).files.combine_chunks().to_batches()
    parsed = parse_sql_predicates([as_sql(predicate)])
    kept = evaluate(parsed, batch).true.to_pylist()
    for rows, is_kept in zip(rows_of, kept, strict=True):
        assert is_kept or True not in {truth(predicate, row) for row in rows}


def one_file(**values: Any) -> pa.RecordBatch:
    [batch] = a_snapshot([[{**dict.fromkeys((*COLUMNS, *PARTITIONS)), **values}]], set()).files.to_batches()
    return batch


CASTS = [
    Compare("s", "=", 5, "int"),
    Compare("s", "=", 5, None),
    Compare("l", "=", 5, "int"),
    Compare("i", "=", "5", "string"),
    Compare("d", "=", "2020-01-01", "string"),
    Compare("t", "=", date(2020, 1, 1), "date"),
    Compare("b", "=", "x", None),
    Compare("i", ">", 1 << 40, "long"),
    Compare("f", "=", 99, "int"),
    IsNull("s", "int"),
    IsNull("l", "int"),
    Compare("nowhere", "=", 1, "int"),
    IsNull("nowhere"),
    Unknown(),
]


@pytest.mark.parametrize("predicate", CASTS, ids=str)
def test_casts_that_the_client_folded_away_leave_nothing_out(predicate: Predicate) -> None:
    values = {"s": "a", "l": 1, "i": 1, "d": date(2013, 1, 1), "t": EPOCH, "b": True, "f": 1.0}
    assert evaluate(predicate, one_file(**values)).true.to_pylist() == [True]
    assert evaluate(Not(predicate), one_file(**values)).true.to_pylist() == [True]


def test_casts_that_change_no_value_are_seen_through() -> None:
    assert evaluate(Compare("i", "=", 5, "long"), one_file(i=1)).true.to_pylist() == [False]
    assert evaluate(IsNull("i", "long"), one_file(i=1)).true.to_pylist() == [False]


def test_times_in_partitions_are_left_to_the_client() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.StructArray.from_arrays([pa.array([EPOCH], pa.timestamp("us", "UTC"))], ["at"])], ["partition"]
    )
    assert evaluate(Compare("at", ">", EPOCH + timedelta(days=9), "timestamp"), batch).true.to_pylist() == [
        True
    ]


def test_not_a_number_has_no_place_between_bounds() -> None:
    assert evaluate(Compare("f", ">", 5, "double"), one_file(f=1.0)).true.to_pylist() == [True]


def test_predicates_as_deep_as_they_are_read_can_be_evaluated() -> None:
    deep: Predicate = IsNull("i", "int")
    for turn in range(98):
        deep = (Or if turn % 2 else And)((Not(deep), Constant(turn % 2 == 0)))
    parsed = parse_json_predicate(json.dumps(as_json(deep)))
    assert len(evaluate(parsed, one_file(i=1)).true) == 1


def test_predicates_that_cost_more_than_they_save_are_not_evaluated() -> None:
    hint = " OR ".join(["i = 99"] * 5000)
    assert parse_query(json.dumps({"predicateHints": [hint]}).encode()).predicate == EVERYTHING
    cheap = " OR ".join(["i = 99"] * 500)
    assert parse_query(json.dumps({"predicateHints": [cheap]}).encode()).predicate != EVERYTHING
