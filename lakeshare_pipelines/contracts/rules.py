"""From the quality of a document to rules: what columns imply, what is written, and whether it makes sense."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lakeshare_pipelines.contracts.document import Quality, RuleExtras, SchemaObject
from lakeshare_pipelines.contracts.expectations import EXPECTATIONS, UNIQUENESS, columns_of, rule_name
from lakeshare_pipelines.contracts.faults import Faults, Location, did_you_mean, read_extras
from lakeshare_pipelines.contracts.model import Column, Rule, Scope

ENGINE = "greatExpectations"


def rules_of(
    table_name: str,
    table: SchemaObject,
    columns: Sequence[Column],
    at: Location,
    faults: Faults,
    *,
    implies: bool,
) -> Iterator[Rule]:
    """The rules of a table: those its columns imply, where they do, and those that are written."""
    implied = tuple(_implied_rules(table_name, columns)) if implies else ()
    made = {rule.name: "required, unique and primaryKey" for rule in implied}
    yield from implied
    names = {column.name for column in columns}
    for where, quality, column in _qualities(table, at):
        if quality.type == "text":
            continue
        rule = _rule(table_name, quality, column, where, faults)
        if rule is None or not _is_sound(rule, names, where, faults):
            continue
        if rule.name in made:
            faults.add(
                where,
                f"rule {rule.name!r} of {table_name} is made by {made[rule.name]} already",
                "Remove one of them, or give this one a `name` of its own.",
            )
            continue
        made[rule.name] = "an earlier rule"
        yield rule


def _implied_rules(table_name: str, columns: Sequence[Column]) -> Iterator[Rule]:
    for column in columns:
        if column.required:
            yield _implied(
                table_name, "expect_column_values_to_not_be_null", {"column": column.name}, "delta"
            )
    key = [column.name for column in columns if column.primary_key]
    singles = [column.name for column in columns if column.unique]
    if len(key) == 1 and key[0] not in singles:
        singles += key
    for name in singles:
        yield _implied(table_name, UNIQUENESS[0], {"column": name}, "table")
    if len(key) > 1:
        yield _implied(table_name, UNIQUENESS[1], {"column_list": key}, "table")


def _implied(table_name: str, expectation: str, kwargs: Mapping[str, Any], scope: Scope) -> Rule:
    return Rule(rule_name(expectation, kwargs), table_name, expectation, kwargs, "error", scope)


def _qualities(table: SchemaObject, at: Location) -> Iterator[tuple[list[str | int], Quality, str | None]]:
    for index, quality in enumerate(table.quality):
        yield [*at, "quality", index], quality, None
    for number, entry in enumerate(table.properties):
        for index, quality in enumerate(entry.quality):
            yield [*at, "properties", number, "quality", index], quality, entry.name


def _rule(
    table_name: str, quality: Quality, column: str | None, where: list[str | int], faults: Faults
) -> Rule | None:
    if quality.type != "custom" or quality.engine != ENGINE or quality.implementation is None:
        faults.add(
            where,
            "only rules of type custom, engine greatExpectations, with an implementation are run",
            f"Write type: custom, engine: {ENGINE}, implementation: {{type: expect_…, kwargs: {{…}}}}.",
        )
        return None
    expectation, kwargs = quality.implementation.type, dict(quality.implementation.arguments)
    known = EXPECTATIONS.get(expectation)
    if known is None:
        hint = did_you_mean(expectation, EXPECTATIONS)
        faults.add([*where, "implementation", "type"], f"unknown expectation {expectation!r}", hint)
        return None
    if column is not None and "column" in known.arguments:
        kwargs.setdefault("column", column)
    extras = read_extras(RuleExtras, quality.custom_properties, where, faults)
    return Rule(
        name=quality.name or rule_name(expectation, kwargs),
        table=table_name,
        expectation=expectation,
        kwargs=kwargs,
        severity=quality.severity,
        scope=extras.scope or ("table" if expectation in UNIQUENESS else "delta"),
        description=" ".join(quality.description.split()),
    )


def _is_sound(rule: Rule, columns: set[str], where: list[str | int], faults: Faults) -> bool:
    known = EXPECTATIONS[rule.expectation]
    before = len(faults.found)
    place = [*where, "implementation", "kwargs"]
    for name in rule.kwargs:
        if name not in known.arguments:
            hint = did_you_mean(name, known.arguments)
            faults.add([*place, name], f"{rule.expectation} takes no argument {name!r}", hint)
    for name in known.required:
        if name not in rule.kwargs:
            faults.add(
                place,
                f"{rule.expectation} needs the argument {name!r}",
                f"Give {known.required[name].wants}.",
            )
    for name, argument in known.arguments.items():
        if name in rule.kwargs and not argument.accepts(rule.kwargs[name]):
            faults.add([*place, name], f"cannot be {rule.kwargs[name]!r}", f"Give {argument.wants}.")
    if known.one_of and not any(rule.kwargs.get(name) is not None for name in known.one_of):
        faults.add(
            place, f"{rule.expectation} needs {' or '.join(known.one_of)}", "Give at least one of them."
        )
    for name, column in columns_of(known, rule.kwargs):
        if column not in columns:
            faults.add(
                [*place, name], f"{rule.table} has no column {column!r}", did_you_mean(column, columns)
            )
    return len(faults.found) == before
