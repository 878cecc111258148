"""Structure: the staged columns against the contract and against main, where only additions are harmless."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Types = Mapping[str, str]


def structure_problems(table: Table, staged: Types, declared: Types, main: Types | None) -> list[str]:
    """What is wrong with a staged schema, one sentence each. Names are in lower case."""
    published = main or {}
    problems = _against_contract(staged, declared, published)
    if not table.allow_schema_changes:
        problems += _against_main(staged, declared, published)
    return problems


def types_of(schema: "StructType") -> dict[str, str]:
    """A schema as name → type."""
    return {field.name.lower(): field.dataType.simpleString() for field in schema.fields}


def declared_types(table: Table) -> dict[str, str]:
    """The contract's columns as name → type, in Spark's own spelling (`long` and `bigint` are one)."""
    from pyspark.sql.types import DataType

    return {column.name.lower(): DataType.fromDDL(column.type).simpleString() for column in table.columns}


def missing_columns(wanted: Sequence[str], staged: Types) -> list[str]:
    """Which of the wanted columns the staged rows lack."""
    return [name for name in wanted if name.lower() not in staged]


def _against_contract(staged: Types, declared: Types, published: Types) -> list[str]:
    problems = [f"column {name} is missing" for name in declared if name not in staged]
    problems += [
        f"column {name} is {staged[name]}, the contract says {kind}"
        for name, kind in declared.items()
        if name in staged and staged[name] != kind
    ]
    # What main has and the contract dropped is judged as a change, below.
    return problems + [
        f"column {name} is not in the contract"
        for name in staged
        if name not in declared and name not in published
    ]


def _against_main(staged: Types, declared: Types, published: Types) -> list[str]:
    changes = []
    for name, kind in published.items():
        if name not in declared or name not in staged:
            changes.append(f"column {name} is on main and would be dropped")
        elif staged[name] != kind:
            changes.append(f"column {name} is {kind} on main and would become {staged[name]}")
    if changes:
        changes.append("readers of main would break; allow it in the contract if it is meant")
    return changes
