"""Rules in SQL: what a contract's `quality` of type `sql` asserts, and what of it is refused."""

import re
import string
from collections import Counter
from collections.abc import Iterator

from lakeshare_pipelines.contracts import document as odcs
from lakeshare_pipelines.contracts.document import Faults
from lakeshare_pipelines.contracts.model import OPERATORS, Assertion, SetContract, Table
from lakeshare_server.errors import suggest

OF_THE_STANDARD = re.compile(r"\$?\{(object|property)\}")
BEGIN = re.compile(r"\s*(select|with)\b", re.IGNORECASE)


def build_assertions(table_name: str, table: odcs.SchemaObject, faults: Faults) -> Iterator[Assertion]:
    """Yields the rules of type `sql` of a table and its columns."""
    for index, quality in enumerate(table.quality):
        yield from _build_assertion(table_name, quality, None, faults.at("quality", index))
    for number, entry in enumerate(table.properties):
        for index, quality in enumerate(entry.quality):
            place = faults.at("properties", number, "quality", index)
            yield from _build_assertion(table_name, quality, entry.name, place)


def _build_assertion(
    table_name: str, quality: odcs.Quality, column: str | None, faults: Faults
) -> Iterator[Assertion]:
    given = {name: value for name in OPERATORS if (value := getattr(quality, _to_field(name))) is not None}
    if quality.type != "sql":
        for name in [*(["query"] if quality.query is not None else []), *given]:
            faults.at(name).add(
                f"a rule of type {quality.type} has no {name}", "Write type: sql, or remove it."
            )
        return
    if quality.name is None:
        faults.add("a rule of type sql needs a name", "Give the name of its check.")
    if len(given) > 1:
        faults.add(f"it has {' and '.join(given)}", "Keep one of them, or write two rules.")
    query = quality.query
    if query is None or not BEGIN.match(query):
        hint = "Give a query that begins with SELECT or WITH, over tables of the set written as {name}."
        faults.at("query").add("a rule of type sql needs a query", hint)
        return
    if column is None and re.search(r"\{property\}", query):
        hint = "Move the rule to the column, or write the column's name."
        faults.at("query").add("{property} is a column, and the rule is one of a table", hint)
        return
    query = _fill_in(query, table_name.rpartition(".")[2], column)
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(query) if name is not None]
    except ValueError as error:
        hint = "Write a brace that is not a placeholder twice: {{ or }}."
        faults.at("query").add(str(error), hint)
        return
    bounds = [(name, tuple(value) if isinstance(value, list) else (value,)) for name, value in given.items()]
    if quality.name is not None:
        yield Assertion(
            quality.name,
            table_name,
            query.strip(),
            tuple(dict.fromkeys(names)),
            bounds[0] if bounds else None,
            quality.severity,
            " ".join(quality.description.split()),
        )


def check_assertions(contract: SetContract, table: Table, faults: Faults) -> None:
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


def _to_field(operator: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", operator).lower()
