"""Which checks an audit of a contract reports, known before any run and without Spark.

The rules and references of the contract, and what every table is held to besides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lakeshare_pipelines.contracts import Reference, Rule, SetContract, Table
from lakeshare_pipelines.contracts.expectations import EXPECTATIONS, UNIQUENESS, columns_of
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.wap.verdicts import Severity

STRUCTURE = "structure"
ROWS_PARSED = "rows_parsed"
NOT_EMPTY = "not_empty"
WITHIN_PARTITIONS = "within_partitions"
DRIFT = "drift"
SERVEABLE = "serveable"
SELECTION = "selection"
OURS = (STRUCTURE, ROWS_PARSED, NOT_EMPTY, WITHIN_PARTITIONS, DRIFT, SERVEABLE, SELECTION)


@dataclass(frozen=True)
class CheckSpec:
    """One check of one table; an audit gives exactly one verdict for it."""

    table: str
    name: str
    severity: Severity
    description: str


def checks_of(contract: SetContract) -> tuple[CheckSpec, ...]:
    """Every check that an audit of this contract reports, table by table.

    Raises:
        ContractError: two checks of a table have one name.
    """
    specs = tuple(spec for table in contract.tables for spec in _table_checks(contract, table))
    seen: set[tuple[str, str]] = set()
    for spec in specs:
        if (spec.table, spec.name) in seen:
            raise ContractError(
                contract.path,
                f"schema[{spec.table}].quality",
                f"two checks are named {spec.name}",
                f"Rename the rule; {', '.join(OURS)} are taken.",
            )
        seen.add((spec.table, spec.name))
    return specs


def is_daily(contract: SetContract, table: Table) -> bool:
    """Whether a run replaces days of the table, and not all of it."""
    return contract.partitioning == "daily" and bool(table.partition_by)


def rule_columns(rule: Rule) -> tuple[str, ...]:
    """The columns a rule speaks of."""
    return tuple(column for _, column in columns_of(EXPECTATIONS[rule.expectation], rule.kwargs))


def needs_whole_table(contract: SetContract, table: Table, rule: Rule) -> bool:
    """Whether a rule cannot be judged on the rows of the run alone."""
    if rule.scope != "table" or not is_daily(contract, table):
        return False
    # Rows of other days cannot repeat a key that holds the day itself.
    day = table.partition_by[0][0]
    return not (rule.expectation in UNIQUENESS and day in rule_columns(rule))


def _table_checks(contract: SetContract, table: Table) -> Iterator[CheckSpec]:
    structure = "The columns are the contract's, and readers of main lose none."
    yield CheckSpec(table.name, STRUCTURE, "error", structure)
    if table.source is not None:
        yield CheckSpec(table.name, ROWS_PARSED, "error", _rows_parsed_text(table))
    if table.view is None:
        yield CheckSpec(table.name, NOT_EMPTY, "error", "Every partition of the run has rows.")
    else:
        selection = (
            f"Its rows are those that its definition selects of {table.view.of}, no more and no fewer."
        )
        yield CheckSpec(table.name, SELECTION, "error", selection)
    if is_daily(contract, table):
        within = "Every row belongs to a partition of the run."
        yield CheckSpec(table.name, WITHIN_PARTITIONS, "error", within)
    for rule in table.rules:
        yield CheckSpec(table.name, rule.name, rule.severity, rule.description or _rule_text(rule))
    for reference in table.references:
        text = reference.description or _reference_text(reference)
        yield CheckSpec(table.name, reference.name, reference.severity, text)
    if table.drift.max_shrink_fraction is not None or table.drift.max_growth_fraction is not None:
        yield CheckSpec(table.name, DRIFT, table.drift.severity, _drift_text(contract, table))
    yield CheckSpec(table.name, SERVEABLE, table.serveable_to.severity, _serveable_text(table))


def _rows_parsed_text(table: Table) -> str:
    if table.max_quarantined_fraction == 0:
        return "Every delivered row was understood; none went to quarantine."
    return f"At most {table.max_quarantined_fraction:.2%} of the delivered rows went to quarantine."


def _rule_text(rule: Rule) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in rule.kwargs.items())
    return f"{rule.expectation}({arguments}) on {'the table' if rule.scope == 'table' else 'the new rows'}."


def _reference_text(reference: Reference) -> str:
    here, there = ", ".join(reference.columns), ", ".join(reference.to_columns)
    return f"Every {here} exists as {there} in {reference.to_table}."


def _serveable_text(table: Table) -> str:
    if not table.serveable_to.clients:
        return "Recipients can read it: which clients, and why not others, is told."
    return f"{', '.join(table.serveable_to.clients)} can read it as it will be published."


def _drift_text(contract: SetContract, table: Table) -> str:
    limits = []
    if table.drift.max_shrink_fraction is not None:
        limits.append(f"shrinks by at most {table.drift.max_shrink_fraction:.0%}")
    if table.drift.max_growth_fraction is not None:
        limits.append(f"grows by at most {table.drift.max_growth_fraction:.0%}")
    against = "the mean of recent days" if is_daily(contract, table) else "the table on main"
    return f"The row count {' and '.join(limits)} against {against}."
