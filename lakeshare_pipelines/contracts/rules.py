"""The rules of a contract (`quality`): expectations with their arguments, classes of the user, and queries in SQL."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lakeshare_pipelines.contracts.column_types import is_nested
from lakeshare_pipelines.contracts.document import (
    OF_ALL,
    PROPERTIES,
    REQUIRED,
    TAGS,
    Computed,
    Custom,
    Faults,
    Name,
    NonEmpty,
    ReadAs,
    Text,
    Written,
    declared,
)
from lakeshare_server.errors import suggest

if TYPE_CHECKING:
    from lakeshare_pipelines.contracts.model import Column, SetContract, Table

Severity = Literal["error", "warning"]
Scope = Literal["delta", "table"]
ENGINE = "greatExpectations"
OF_THE_STANDARD = re.compile(r"\$?\{(object|property)\}")
BEGIN = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


OPERATORS: Mapping[str, Callable[..., bool]] = MappingProxyType(
    {
        "mustBe": lambda number, value: number == value,
        "mustNotBe": lambda number, value: number != value,
        "mustBeGreaterThan": lambda number, value: number > value,
        "mustBeGreaterOrEqualTo": lambda number, value: number >= value,
        "mustBeLessThan": lambda number, value: number < value,
        "mustBeLessOrEqualTo": lambda number, value: number <= value,
        "mustBeBetween": lambda number, low, high: low <= number <= high,
        "mustNotBeBetween": lambda number, low, high: not low <= number <= high,
    }
)
"""The operators of the standard for the number that a query returns."""
_BOUNDS: Mapping[str, Any] = {
    name: (Annotated[list[float], Field(min_length=2, max_length=2)] | None, None)
    if name.endswith("Between")
    else (float | None, None)
    for name in OPERATORS
}


@declared()
class Implementation:
    type: str
    arguments: Annotated[dict[str, Any], Field(alias="kwargs")] = field(default_factory=dict)


@declared(f"{OF_ALL} dimension business_impact method schedule scheduler unit", tags=TAGS, **_BOUNDS)
class Rule:
    """An expectation. Scope `delta` applies to the rows of a run, `table` to the whole table after the run.

    Rules of type `sql` are read as one and become an `Assertion`; rules of type `text` are not executed.
    """

    name: Annotated[str, ReadAs(Name | None, lambda name: name or "")] = ""
    table: Computed[str] = ""
    expectation: Computed[str] = ""
    kwargs: Computed[Mapping[str, Any]] = field(default_factory=dict)
    severity: Severity = "error"
    scope: Custom[Annotated[Scope, ReadAs(Scope | None, lambda scope: scope or "delta")]] = "delta"
    description: Text = ""
    type: Written[Annotated[str, REQUIRED]] = "custom"
    engine: Written[str | None] = None
    implementation: Written[Implementation | None] = None
    query: Written[NonEmpty | None] = None


@dataclass(frozen=True)
class Assertion:
    """A rule in Spark SQL over the tables of the set as they will be after the run, and the inputs of its table.

    `reads` are the tables that it names, by short name. Its query returns no row; with a `bound`, the operator of the
    standard and its values, it returns one number within it.
    """

    name: str
    table: str
    query: str
    reads: tuple[str, ...]
    bound: tuple[str, tuple[float, ...]] | None = None
    severity: Severity = "error"
    description: str = ""

    def holds(self, number: float) -> bool:
        """Whether a number is within the bound."""
        if self.bound is None:
            return False
        operator, values = self.bound
        return OPERATORS[operator](number, *values)

    def describe_bound(self) -> str:
        """What its query returns, like `no row` and `a number that must be between 1 and 5`."""
        if self.bound is None:
            return "no row"
        operator, values = self.bound
        words = re.sub(r"([A-Z])", r" \1", operator).lower()
        return f"a number that {words} {' and '.join(f'{value:g}' for value in values)}"


@dataclass(frozen=True)
class Argument:
    """An argument of an expectation: a test, its description, and whether it names columns of the table."""

    accepts: Callable[[Any], bool]
    expects: str
    names_columns: bool = False


@dataclass(frozen=True)
class Expectation:
    """The arguments of an expectation type; at least one of `one_of` is required."""

    required: Mapping[str, Argument]
    optional: Mapping[str, Argument]
    one_of: tuple[str, ...] = ()
    takes_others: bool = False
    """Whether its class checks further arguments, when it is imported."""

    @property
    def arguments(self) -> Mapping[str, Argument]:
        return {**self.required, **self.optional}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _choice(*words: str) -> Argument:
    return Argument(lambda value: value in words, f"{', '.join(words[:-1])} or {words[-1]}")


COLUMN = Argument(lambda v: isinstance(v, str), "the name of a column", names_columns=True)
COLUMNS = Argument(lambda v: _is_texts(v) and len(v) > 1, "a list of two or more columns", names_columns=True)
COLUMN_LIST = Argument(_is_texts, "a list of columns", names_columns=True)
BOUND = Argument(
    lambda v: _is_number(v) or isinstance(v, str) or hasattr(v, "isoformat"), "a number or a date"
)
NUMBER = Argument(_is_number, "a number")
COUNT = Argument(
    lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0, "a whole number from 0 up"
)
FRACTION = Argument(lambda v: _is_number(v) and 0 <= v <= 1, "a number from 0 to 1")
FLAG = Argument(lambda v: isinstance(v, bool), "true or false")
TEXT = Argument(lambda v: isinstance(v, str), "a text")
TEXTS = Argument(_is_texts, "a list of texts")
VALUES = Argument(lambda v: isinstance(v, list) and bool(v), "a list of values")
PAIRS = Argument(
    lambda v: isinstance(v, list) and bool(v) and all(isinstance(p, list) and len(p) == 2 for p in v),
    "a list of pairs",
)
MATCH = _choice("any", "all")
IGNORE_PAIR = _choice("both_values_are_missing", "either_value_is_missing", "neither")
IGNORE_ROW = _choice("all_values_are_missing", "any_value_is_missing", "never")

_STRICT = {"strict_min": FLAG, "strict_max": FLAG}
_MOSTLY = {"mostly": FRACTION}


def _values(required: Mapping[str, Argument] | None = None, **optional: Argument) -> Expectation:
    return Expectation({"column": COLUMN, **(required or {})}, {**_MOSTLY, **optional})


def _between(bound: Argument = BOUND, *, per_value: bool = False) -> Expectation:
    optional = {"min_value": bound, "max_value": bound, **_STRICT, **(_MOSTLY if per_value else {})}
    return Expectation({"column": COLUMN}, optional, one_of=("min_value", "max_value"))


def _distinct() -> Expectation:
    return Expectation({"column": COLUMN, "value_set": VALUES}, {})


def _pair(required: Mapping[str, Argument] | None = None, **optional: Argument) -> Expectation:
    columns = {"column_A": COLUMN, "column_B": COLUMN}
    return Expectation({**columns, **(required or {})}, {**_MOSTLY, "ignore_row_if": IGNORE_PAIR, **optional})


EXPECTATIONS: Mapping[str, Expectation] = MappingProxyType(
    {
        "expect_column_values_to_not_be_null": _values(),
        "expect_column_values_to_be_null": _values(),
        "expect_column_values_to_be_unique": _values(),
        "expect_column_values_to_be_in_set": _values({"value_set": VALUES}),
        "expect_column_values_to_not_be_in_set": _values({"value_set": VALUES}),
        "expect_column_values_to_be_between": _between(per_value=True),
        "expect_column_value_lengths_to_be_between": _between(COUNT, per_value=True),
        "expect_column_value_lengths_to_equal": _values({"value": COUNT}),
        "expect_column_values_to_match_regex": _values({"regex": TEXT}),
        "expect_column_values_to_not_match_regex": _values({"regex": TEXT}),
        "expect_column_values_to_match_regex_list": _values({"regex_list": TEXTS}, match_on=MATCH),
        "expect_column_min_to_be_between": _between(),
        "expect_column_max_to_be_between": _between(),
        "expect_column_mean_to_be_between": _between(),
        "expect_column_median_to_be_between": _between(),
        "expect_column_sum_to_be_between": _between(),
        "expect_column_stdev_to_be_between": _between(NUMBER),
        "expect_column_unique_value_count_to_be_between": _between(COUNT),
        "expect_column_proportion_of_unique_values_to_be_between": _between(FRACTION),
        "expect_column_proportion_of_non_null_values_to_be_between": _between(FRACTION),
        "expect_column_distinct_values_to_be_in_set": _distinct(),
        "expect_column_distinct_values_to_contain_set": _distinct(),
        "expect_column_distinct_values_to_equal_set": _distinct(),
        "expect_column_most_common_value_to_be_in_set": Expectation(
            {"column": COLUMN, "value_set": VALUES}, {"ties_okay": FLAG}
        ),
        "expect_column_pair_values_a_to_be_greater_than_b": _pair(or_equal=FLAG),
        "expect_column_pair_values_to_be_equal": _pair(),
        "expect_column_pair_values_to_be_in_set": _pair({"value_pairs_set": PAIRS}),
        "expect_compound_columns_to_be_unique": Expectation(
            {"column_list": COLUMNS}, {**_MOSTLY, "ignore_row_if": IGNORE_ROW}
        ),
        "expect_multicolumn_sum_to_equal": Expectation(
            {"column_list": COLUMNS, "sum_total": NUMBER}, {**_MOSTLY, "ignore_row_if": IGNORE_ROW}
        ),
        "expect_table_row_count_to_be_between": Expectation(
            {}, {"min_value": COUNT, "max_value": COUNT, **_STRICT}, one_of=("min_value", "max_value")
        ),
        "expect_table_row_count_to_equal": Expectation({"value": COUNT}, {}),
        "expect_table_column_count_to_equal": Expectation({"value": COUNT}, {}),
        "expect_table_columns_to_match_set": Expectation({"column_set": COLUMN_LIST}, {"exact_match": FLAG}),
    }
)

OF_CLASS = Expectation(
    {},
    {"column": COLUMN, "column_A": COLUMN, "column_B": COLUMN, "column_list": COLUMN_LIST},
    takes_others=True,
)
"""The arguments of a class of the user that lakeshare knows: the columns that a rule reads."""
UNIQUENESS = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")


FOR_NESTED = frozenset(
    {
        "expect_column_values_to_not_be_null",
        "expect_column_values_to_be_null",
        "expect_column_proportion_of_non_null_values_to_be_between",
        "expect_table_columns_to_match_set",
    }
)
"""The expectations that compare no values."""


def is_class(expectation: str) -> bool:
    """Whether an expectation is a class of the user, as `package.module:Class`."""
    return CLASS.fullmatch(expectation) is not None


def find_expectation(name: str) -> Expectation | None:
    """Returns the arguments of an expectation or of a class of the user; None for an unknown name."""
    return OF_CLASS if is_class(name) else EXPECTATIONS.get(name)


def list_rule_columns(expectation: str, kwargs: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the columns that a rule names, as (argument, column)."""
    known = find_expectation(expectation)
    if known is None:
        return ()
    found: list[tuple[str, str]] = []
    for name, argument in known.arguments.items():
        if argument.names_columns and name in kwargs and argument.accepts(kwargs[name]):
            value = kwargs[name]
            found += [(name, column) for column in ([value] if isinstance(value, str) else value)]
    return tuple(found)


def make_rule_name(expectation: str, kwargs: Mapping[str, Any]) -> str:
    """Returns a valid name of a Dagster check: the expectation and its columns."""
    name = expectation.rpartition(":")[2]
    columns = [column for _, column in list_rule_columns(expectation, kwargs)]
    return "__".join([name, "_".join(columns)]) if columns else name


def build_rules(table: "Table", columns: Sequence["Column"], faults: Faults) -> Iterator[Rule]:
    """Yields the rules of a table with the columns `columns`: those that they imply, and those that are written.

    A view has no implied rules: those of its table hold for any selection of its rows.
    """
    implied = tuple(list_implied_rules(table.name, columns)) if table.view is None else ()
    origins = {rule.name: "required, unique and primaryKey" for rule in implied}
    yield from implied
    names = {column.name for column in columns}
    for place, given, column in _list_written(table, faults):
        rule = None if given.type in ("text", "sql") else _build_rule(table, given, column, place)
        if rule is None or not _is_sound_rule(rule, names, place):
            continue
        if rule.name in origins:
            problem = f"rule {rule.name!r} of {table.name} is made by {origins[rule.name]} already"
            place.add(problem, "Remove one of them, or give this one a `name` of its own.")
            continue
        origins[rule.name] = "an earlier rule"
        yield rule


def _list_written(table: "Table", faults: Faults) -> Iterator[tuple[Faults, Rule, str | None]]:
    """Yields the rules of the document with their places: those of a table, then of its columns with their names."""
    for index, rule in enumerate(table.rules):
        yield faults.at("quality", index), rule, None
    for number, column in enumerate(table.columns):
        for index, rule in enumerate(column.quality):
            yield faults.at("properties", number, "quality", index), rule, column.name


def list_implied_rules(table_name: str, columns: Sequence["Column"]) -> Iterator[Rule]:
    """Yields the rules that required, unique and primaryKey imply."""

    def rule(expectation: str, kwargs: Mapping[str, Any], scope: Scope) -> Rule:
        return Rule(make_rule_name(expectation, kwargs), table_name, expectation, kwargs, "error", scope)

    for column in columns:
        if column.required:
            yield rule("expect_column_values_to_not_be_null", {"column": column.name}, "delta")
    key = [column.name for column in columns if column.primary_key]
    singles = [column.name for column in columns if column.unique]
    if len(key) == 1 and key[0] not in singles:
        singles += key
    for name in singles:
        yield rule(UNIQUENESS[0], {"column": name}, "table")
    if len(key) > 1:
        yield rule(UNIQUENESS[1], {"column_list": key}, "table")


def _build_rule(table: "Table", rule: Rule, column: str | None, faults: Faults) -> Rule | None:
    if rule.type != "custom" or rule.engine != ENGINE or rule.implementation is None:
        problem = "only rules of type custom, engine greatExpectations, with an implementation are run, and of type sql"
        hint = f"Write type: custom, engine: {ENGINE}, implementation: {{type: expect_…, kwargs: {{…}}}}."
        faults.add(problem, hint)
        return None
    expectation, kwargs = rule.implementation.type, dict(rule.implementation.arguments)
    known = find_expectation(expectation)
    if known is None:
        hint = suggest(
            expectation, EXPECTATIONS, "Name one of them, or a class of your own as package.module:Class."
        )
        faults.at("implementation", "type").add(f"unknown expectation {expectation!r}", hint)
        return None
    if column is not None and "column" in known.arguments:
        kwargs.setdefault("column", column)
    faults.check_properties(Rule)
    name = rule.name or make_rule_name(expectation, kwargs)
    is_of_table = expectation in UNIQUENESS and faults.get(PROPERTIES, "scope") is None
    scope: Scope = "table" if is_of_table else rule.scope
    return replace(rule, name=name, table=table.name, expectation=expectation, kwargs=kwargs, scope=scope)


def _is_sound_rule(rule: Rule, columns: set[str], faults: Faults) -> bool:
    known = find_expectation(rule.expectation) or OF_CLASS
    before = len(faults.found)
    place = faults.at("implementation", "kwargs")
    for name in rule.kwargs:
        if name not in known.arguments and not known.takes_others:
            hint = suggest(name, known.arguments)
            place.at(name).add(f"{rule.expectation} takes no argument {name!r}", hint)
    for name, argument in known.required.items():
        if name not in rule.kwargs:
            place.add(f"{rule.expectation} needs the argument {name!r}", f"Give {argument.expects}.")
    for name, argument in known.arguments.items():
        if name in rule.kwargs and not argument.accepts(rule.kwargs[name]):
            place.at(name).add(f"cannot be {rule.kwargs[name]!r}", f"Give {argument.expects}.")
    if known.one_of and not any(rule.kwargs.get(name) is not None for name in known.one_of):
        place.add(f"{rule.expectation} needs {' or '.join(known.one_of)}", "Give at least one of them.")
    for name, column in list_rule_columns(rule.expectation, rule.kwargs):
        if column not in columns:
            place.at(name).add(f"{rule.table} has no column {column!r}", suggest(column, columns))
    return len(faults.found) == before


def build_assertions(table: "Table", faults: Faults) -> Iterator[Assertion]:
    """Yields the rules of type `sql` of a table and its columns."""
    for place, rule, column in _list_written(table, faults):
        bounds = {name: value for name in OPERATORS if (value := place.get(name)) is not None}
        if rule.type == "sql":
            yield from _build_assertion(table, rule, column, bounds, place)
            continue
        for name in [*(["query"] if rule.query is not None else []), *bounds]:
            place.at(name).add(f"a rule of type {rule.type} has no {name}", "Write type: sql, or remove it.")


def _build_assertion(
    table: "Table", rule: Rule, column: str | None, bounds: Mapping[str, Any], faults: Faults
) -> Iterator[Assertion]:
    if not rule.name:
        faults.add("a rule of type sql needs a name", "Give the name of its check.")
    if len(bounds) > 1:
        faults.add(f"it has {' and '.join(bounds)}", "Keep one of them, or write two rules.")
    query = rule.query
    if query is None or not BEGIN.match(query):
        hint = "Give a query that begins with SELECT or WITH, over tables of the set written as {name}."
        faults.at("query").add("a rule of type sql needs a query", hint)
        return
    if column is None and re.search(r"\{property\}", query):
        hint = "Move the rule to the column, or write the column's name."
        faults.at("query").add("{property} is a column, and the rule is one of a table", hint)
        return
    query = _fill_in(query, table.short_name, column)
    try:
        reads = list_placeholders(query)
    except ValueError as error:
        faults.at("query").add(str(error), BRACES)
        return
    if rule.name:
        bound = next(
            ((name, tuple(value) if isinstance(value, list) else (value,)) for name, value in bounds.items()),
            None,
        )
        yield Assertion(rule.name, table.name, query.strip(), reads, bound, rule.severity, rule.description)


BRACES = "Write a brace that is not a placeholder twice: {{ or }}."


def list_placeholders(text: str) -> tuple[str, ...]:
    """Returns the names in braces, each once.

    Raises:
        ValueError: a brace has no counterpart.
    """
    names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    return tuple(dict.fromkeys(names))


def check_assertions(contract: "SetContract", table: "Table", faults: Faults) -> None:
    """Refuses queries that name what they cannot read."""
    known = [*(other.short_name for other in contract.tables), *(read.short_name for read in table.inputs)]
    ambiguous = {name for name, count in Counter(known).items() if count > 1}
    for assertion in table.assertions:
        place = faults.at("quality", assertion.name)
        if not assertion.reads:
            hint = f"Write a table as {{name}}; there are: {', '.join(sorted(set(known)))}."
            place.add("the query names no table of the set", hint)
        for name in assertion.reads:
            if name not in known:
                place.add(f"the query names an unknown table {{{name}}}", suggest(name, known))
            elif name in ambiguous:
                place.add(f"{{{name}}} in the query is two tables", "Rename one of them in its contract.")


def _fill_in(query: str, table: str, column: str | None) -> str:
    """Replaces the standard's placeholders of the table and the column that a rule belongs to."""
    return OF_THE_STANDARD.sub(lambda found: f"{{{table}}}" if found[1] == "object" else f"`{column}`", query)


def check_nested(table: "Table", faults: Faults) -> None:
    """Checks what refers to the nested columns of a table; `faults` is at the table.

    Values of nested types are not compared: they are no keys, sequences or references, and most expectations do not
    apply to them.
    """
    nested = {column.name: column.type for column in table.columns if is_nested(column.type)}
    if not nested:
        return
    names = [column.name for column in table.columns]
    for column in table.columns:
        if column.name in nested and (column.unique or column.primary_key):
            problem = f"{column.name}, of type {column.type}, cannot be unique or a primary key"
            faults.at("properties", names.index(column.name)).add(problem, "Mark a column of a simple type.")
    if table.write.sequence in nested:
        hint = "Name a column of a simple type."
        faults.at("customProperties", "write").add(
            f"rows cannot be ordered by {table.write.sequence!r}", hint
        )
    for name, kind in nested.items():
        if "map<" in kind and table.write.is_incremental:
            hint = "Make it an array of structs with key and value, or write the table with replace."
            problem = f"{name} has a map, which {table.write.mode} cannot compare"
            faults.at("properties", names.index(name)).add(problem, hint)
    _check_rules(table, nested, faults)


def _check_rules(table: "Table", nested: Mapping[str, str], faults: Faults) -> None:
    for rule in table.rules:
        if rule.expectation in FOR_NESTED or is_class(rule.expectation):
            continue
        for _, name in list_rule_columns(rule.expectation, rule.kwargs):
            if name in nested:
                hint = "Write a rule in SQL (type sql) over its fields, or give one of them a column by transformLogic."
                faults.add(f"{rule.expectation} does not apply to {name!r}, a column of a nested type", hint)
    for reference in table.references:
        for name in reference.columns:
            if name in nested:
                faults.add(
                    f"{name!r}, a column of a nested type, cannot refer to another table",
                    "Name other columns.",
                )
