"""Which checks an audit of a contract reports, known before any run and without Spark.

The rules and references of the contract, and what every table is held to besides.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.contracts import Drift, Reference, Rule, SetContract, Table
from lakeshare_pipelines.contracts.model import EXPECTATIONS, UNIQUENESS, list_rule_columns
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.wap.staged import Finding, Severity, StagedTable, format_percentage

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.datasource.fluent.interfaces import Batch
    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

STRUCTURE = "structure"
ROWS_PARSED = "rows_parsed"
NOT_EMPTY = "not_empty"
WITHIN_PARTITIONS = "within_partitions"
DRIFT = "drift"
SERVEABLE = "serveable"
SELECTION = "selection"
BUILT_IN_CHECKS = (STRUCTURE, ROWS_PARSED, NOT_EMPTY, WITHIN_PARTITIONS, DRIFT, SERVEABLE, SELECTION)


@dataclass(frozen=True)
class CheckSpec:
    """One check of one table; an audit gives exactly one verdict for it."""

    table: str
    name: str
    severity: Severity
    description: str


def list_checks(contract: SetContract) -> tuple[CheckSpec, ...]:
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
                f"Rename the rule; {', '.join(BUILT_IN_CHECKS)} are taken.",
            )
        seen.add((spec.table, spec.name))
    return specs


def is_daily(contract: SetContract, table: Table) -> bool:
    """Whether a run replaces days of the table, and not all of it."""
    return contract.partitioning == "daily" and bool(table.partition_by)


def get_rule_columns(rule: Rule) -> tuple[str, ...]:
    """The columns a rule speaks of."""
    return tuple(column for _, column in list_rule_columns(EXPECTATIONS[rule.expectation], rule.kwargs))


def needs_whole_table(contract: SetContract, table: Table, rule: Rule) -> bool:
    """Whether a rule cannot be judged on the rows of the run alone."""
    if rule.scope != "table" or not is_daily(contract, table):
        return False
    # Rows of other days cannot repeat a key that holds the day itself.
    day = table.partition_by[0][0]
    return not (rule.expectation in UNIQUENESS and day in get_rule_columns(rule))


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


Types = Mapping[str, str]


def find_structure_problems(table: Table, staged: Types, declared: Types, main: Types | None) -> list[str]:
    """What is wrong with a staged schema, one sentence each. Names are in lower case."""
    published = main or {}
    problems = _compare_with_contract(staged, declared, published)
    if not table.allow_schema_changes:
        problems += _compare_with_main(staged, declared, published)
    return problems


def get_types(schema: "StructType") -> dict[str, str]:
    """A schema as name → type."""
    return {field.name.lower(): field.dataType.simpleString() for field in schema.fields}


def get_declared_types(table: Table) -> dict[str, str]:
    """The contract's columns as name → type, in Spark's own spelling (`long` and `bigint` are one)."""
    from pyspark.sql.types import DataType

    return {column.name.lower(): DataType.fromDDL(column.type).simpleString() for column in table.columns}


def find_missing_columns(wanted: Sequence[str], staged: Types) -> list[str]:
    """Which of the wanted columns the staged rows lack."""
    return [name for name in wanted if name.lower() not in staged]


def _compare_with_contract(staged: Types, declared: Types, published: Types) -> list[str]:
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


def _compare_with_main(staged: Types, declared: Types, published: Types) -> list[str]:
    changes = []
    for name, kind in published.items():
        if name not in declared or name not in staged:
            changes.append(f"column {name} is on main and would be dropped")
        elif staged[name] != kind:
            changes.append(f"column {name} is {kind} on main and would become {staged[name]}")
    if changes:
        changes.append("readers of main would break; allow it in the contract if it is meant")
    return changes


RECENT_DAYS = 7
MAX_NAMED = 20
SHOW_REJECTED = "show_rejected_rows"
"""Name of the observation that holds the command which shows rejected rows as they were delivered."""


def check_rows_parsed(table: Table, staged: StagedTable) -> Finding:
    """Whether few enough of the delivered rows went to quarantine."""
    delivered = staged.rows + staged.rejected
    fraction = staged.rejected / delivered if delivered else 0.0
    observed = {
        "delivered_rows": delivered,
        "rejected_rows": staged.rejected,
        "rejected_fraction": fraction,
        "allowed_fraction": table.max_quarantined_fraction,
    }
    if fraction <= table.max_quarantined_fraction:
        return Finding(True, observed)
    reason = (
        f"{staged.rejected} of {delivered} delivered rows went to quarantine "
        f"({format_percentage(staged.rejected, delivered)}); "
        f"{table.max_quarantined_fraction:.2%} are allowed"
    )
    return Finding(False, {**observed, "reason": reason})


def check_not_empty(rows: Mapping[str, int], expected: Iterable[str]) -> Finding:
    """Whether each expected partition has rows; `rows` counts them by partition."""
    empty = [partition for partition in expected if not rows.get(partition)]
    observed = {"rows": sum(rows.values()), "partitions": len(rows), "empty_partitions": len(empty)}
    if not empty:
        return Finding(True, observed)
    return Finding(False, {**observed, "reason": f"no rows for partition {_some(empty, ', ')}"})


def check_within_partitions(rows: Mapping[str, int], expected: Iterable[str], written: int) -> Finding:
    """Whether all of the `written` rows are in partitions of the run, where its checks look."""
    inside = set(expected)
    outside = {partition: count for partition, count in rows.items() if partition not in inside}
    strayed = written - sum(count for partition, count in rows.items() if partition in inside)
    observed = {"rows": written, "rows_outside": strayed}
    if not strayed:
        return Finding(True, observed)
    named = f" ({_some(sorted(outside), ', ')})" if outside else ""
    reason = f"{strayed} of {written} rows belong to other partitions{named} than those delivered"
    return Finding(False, {**observed, "reason": reason})


def check_drift(limits: Drift, rows: Mapping[str, int], usual: Mapping[str, float | None]) -> Finding:
    """Whether a row count moved further than the limits from what is usual; None: nothing to compare."""
    known = {name: before for name, before in usual.items() if before and name in rows}
    observed: dict[str, object] = {
        "rows": sum(rows.values()),
        "usual_rows": sum(known.values()),
        "partitions_compared": len(known),
        "max_shrink_fraction": limits.max_shrink_fraction,
        "max_growth_fraction": limits.max_growth_fraction,
    }
    moved = [
        text for name in sorted(known) if (text := _describe_movement(limits, name, rows[name], known[name]))
    ]
    if not moved:
        return Finding(True, observed)
    return Finding(False, {**observed, "reason": _some(moved, "; ")})


def compute_usual_rows(counts: Mapping[str, int], of_run: Iterable[str]) -> dict[str, float | None]:
    """Per partition of a run the mean of those next before it on main, or of the first ones."""
    run = set(of_run)
    others = sorted(set(counts) - run)
    usual: dict[str, float | None] = {}
    for partition in run:
        before = [name for name in others if name < partition]
        near = before[-RECENT_DAYS:] or others[:RECENT_DAYS]
        usual[partition] = sum(counts[name] for name in near) / len(near) if near else None
    return usual


def count_rows_by_day(frame: "DataFrame", table: Table) -> dict[str, int]:
    """Rows of the frame by the day they belong to, as the partitions of a daily set are named."""
    from pyspark.sql import functions as F

    day = F.col(f"`{table.partition_by[0][0]}`").cast("date").cast("string")
    counted = frame.groupBy(day.alias("day")).count().collect()
    return {str(row["day"]): int(row["count"]) for row in counted}


def _describe_movement(limits: Drift, name: str, count: int, before: float) -> str:
    change = (count - before) / before
    text = f"{name}: {count} rows where {before:.0f} are usual ({change:+.0%})"
    if limits.max_shrink_fraction is not None and -change > limits.max_shrink_fraction:
        return f"{text}, at most -{limits.max_shrink_fraction:.0%} is allowed"
    if limits.max_growth_fraction is not None and change > limits.max_growth_fraction:
        return f"{text}, at most +{limits.max_growth_fraction:.0%} is allowed"
    return ""


def _some(names: Sequence[str], separator: str) -> str:
    return separator.join([*names[:MAX_NAMED], *(["…"] if len(names) > MAX_NAMED else [])])


SAMPLE_ROWS = 20
MASK = "***"
QUOTED = re.compile(r"'.*'", re.DOTALL)


def select_sample_columns(table: Table, judged: Iterable[str]) -> list[str]:
    """What a sample row shows: the judged columns, and those that say which row and partition it is."""
    partition = {column for column, _ in table.partition_by}
    wanted = {name.lower() for name in (*judged, *partition)}
    return [c.name for c in table.columns if c.primary_key or c.name.lower() in wanted]


def mask_rows(
    table: Table, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]
) -> tuple[Mapping[str, Any], ...]:
    """At most `SAMPLE_ROWS` of `rows`, with personal data and columns the contract does not know as `***`.

    A null stays a null: that a value is missing is what most samples are there to show.
    """
    open_columns = {column.name.lower() for column in table.columns if not column.pii}
    return tuple(
        {name: _mask_value(row[name], name.lower() in open_columns) for name in columns if name in row}
        for row, _ in zip(rows, range(SAMPLE_ROWS), strict=False)
    )


def make_rejected_sample(table: Table, row: Mapping[str, Any], *, shows_values: bool) -> Mapping[str, Any]:
    """A row of the quarantine: where it came from and what was wrong with it.

    `shows_values` adds its values, except for tables with personal data.
    """
    shown = {name: row[name] for name in ("file", "line", "reason")}
    if shows_values and not has_pii(table):
        return shown | {"raw": row["raw"]}
    # Where values are shifted any column may hold what belongs into another, or into none of the contract.
    return shown | {"reason": QUOTED.sub(f"'{MASK}'", str(row["reason"]))}


def has_pii(table: Table, columns: Iterable[str] | None = None) -> bool:
    """Whether any of the columns (all of the table when None) holds personal data."""
    wanted = None if columns is None else {name.lower() for name in columns}
    return any(c.pii and (wanted is None or c.name.lower() in wanted) for c in table.columns)


def _mask_value(value: Any, is_open: bool) -> Any:
    return value if is_open or value is None else MASK


def check_reference(table: Table, reference: Reference, rows: "DataFrame", target: "DataFrame") -> Finding:
    """Whether each row with all its reference columns set finds its counterpart in `target`."""
    from pyspark.sql import functions as F

    left, right = rows.alias("here"), target.select(*_quoted(reference.to_columns)).distinct().alias("there")
    pairs = list(zip(reference.columns, reference.to_columns, strict=True))
    referring = F.lit(True)
    matching = F.lit(True)
    for here, there in pairs:
        referring = referring & F.col(f"here.`{here}`").isNotNull()
        matching = matching & (F.col(f"here.`{here}`") == F.col(f"there.`{there}`"))
    with_reference = left.where(referring)
    orphans = with_reference.join(right, matching, "left_anti")
    failed = orphans.count()
    observed = {"failed_rows": failed, "columns": reference.columns, "refers_to": reference.to_table}
    if not failed:
        return Finding(True, observed)
    columns = select_sample_columns(table, reference.columns)
    samples = [row.asDict() for row in orphans.select(*_quoted(columns)).limit(SAMPLE_ROWS).collect()]
    reason = (
        f"{failed} rows have a {', '.join(reference.columns)} "
        f"that is no {', '.join(reference.to_columns)} of {reference.to_table}"
    )
    return Finding(False, {**observed, "reason": reason}, mask_rows(table, samples, columns))


def _quoted(columns: "tuple[str, ...] | list[str]") -> list[str]:
    return [f"`{column}`" for column in columns]


COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
ROWS = {"result_format": "BASIC", "partial_unexpected_count": SAMPLE_ROWS, "include_unexpected_rows": True}


class NotEvaluated(Exception):
    """A rule that gave no answer; it counts as failed."""


@dataclass(frozen=True)
class RuleOutcome:
    """What Great Expectations found for one rule. Counts are None for rules about the whole table."""

    passed: bool
    rows: int | None = None
    failed_rows: int | None = None
    found: Any = None  # of the type the expectation gives
    samples: tuple[Mapping[str, Any], ...] = ()


def evaluate_rules(frame: "DataFrame", rules: Sequence[Rule]) -> dict[str, RuleOutcome | NotEvaluated]:
    """The outcome of every rule by its name. One that raises does not keep the others from it."""
    if not rules:
        return {}
    batch = _batch(frame)
    outcomes = dict(_validated(batch, rules, COUNTS))
    raised = [rule for rule in rules if isinstance(outcomes[rule.name], NotEvaluated)]
    if len(rules) > 1:
        # Rules share one Spark job: an error of one of them is reported for all that were in it.
        for rule in raised:
            outcomes.update(_validated(batch, [rule], COUNTS))
    failing = [rule for rule in rules if _has_failed_rows(outcomes[rule.name])]
    if failing:
        outcomes.update(_validated(batch, failing, ROWS))
    return outcomes


def _validated(
    batch: "Batch", rules: Sequence[Rule], result_format: Mapping[str, Any]
) -> Iterator[tuple[str, RuleOutcome | NotEvaluated]]:
    from great_expectations import ExpectationSuite

    built: list[Expectation] = []
    for rule in rules:
        try:
            built.append(_expectation(rule))
        except Exception as error:  # whatever pydantic v1 and the expectation's own checks raise
            yield (
                rule.name,
                NotEvaluated(f"{rule.expectation} refuses its arguments: {_one_line(str(error))}"),
            )
    if built:
        suite = ExpectationSuite(name="audit", expectations=built)
        for result in batch.validate(suite, result_format=dict(result_format)).results:
            yield _name(result), _outcome(result)


def _expectation(rule: Rule) -> "Expectation":
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    configuration = ExpectationConfiguration(
        type=rule.expectation, kwargs=dict(rule.kwargs), meta={"rule": rule.name}
    )
    return configuration.to_domain_obj()


def _name(result: "ExpectationValidationResult") -> str:
    # Results come back in an order of their own.
    configuration = result.expectation_config
    if configuration is None or configuration.meta is None:
        raise NotEvaluated("Great Expectations gave a result without saying for which rule")
    return str(configuration.meta["rule"])


def _outcome(result: "ExpectationValidationResult") -> RuleOutcome | NotEvaluated:
    message = _find_exception(result.exception_info)
    if message is not None:
        return NotEvaluated(message)
    found = result.result
    failed_rows = found.get("unexpected_count")
    return RuleOutcome(
        passed=bool(result.success),
        rows=found.get("element_count"),
        failed_rows=failed_rows,
        found=found.get("observed_value"),
        samples=tuple(found.get("unexpected_rows") or ()),
    )


def _has_failed_rows(outcome: RuleOutcome | NotEvaluated) -> bool:
    return isinstance(outcome, RuleOutcome) and not outcome.passed and bool(outcome.failed_rows)


def _find_exception(info: Mapping[str, Any]) -> str | None:
    # One entry for the expectation itself, or one per metric that could not be computed.
    entries: Iterable[Mapping[str, Any]] = [info] if "raised_exception" in info else info.values()
    messages = {_one_line(str(e.get("exception_message"))) for e in entries if e.get("raised_exception")}
    return "; ".join(sorted(messages)) if messages else None


def _one_line(message: str) -> str:
    return " ".join(message.split("JVM stacktrace:")[0].split())


def _batch(frame: "DataFrame") -> "Batch":
    _quiet()
    from great_expectations import get_context
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    # The defaults of an ephemeral context leave a folder for HTML reports in /tmp each time.
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False),
        analytics_enabled=False,
    )
    context = get_context(project_config=config, mode="ephemeral")
    # The audit keeps its frames itself and lets go of them.
    source = context.data_sources.add_spark("lake", persist=False)
    definition = source.add_dataframe_asset("frame").add_batch_definition_whole_dataframe("all rows")
    return definition.get_batch({"dataframe": frame})


def _quiet() -> None:
    # Both are read when the package is imported: its first import tells a hundred things about itself.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logging.getLogger("great_expectations").setLevel(logging.WARNING)


COUNTING = ("count", "proportion")
ERROR_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")


def make_rule_finding(table: Table, rule: Rule, outcome: RuleOutcome) -> Finding:
    """A rule's outcome with its counts, what was expected and found, and masked sample rows."""
    columns = get_rule_columns(rule)
    observed: dict[str, Any] = {"expectation": rule.expectation, "expected": rule.kwargs}
    if outcome.rows is not None and outcome.failed_rows is not None:
        observed["rows"] = outcome.rows
        observed["failed_rows"] = outcome.failed_rows
        observed["failed_fraction"] = outcome.failed_rows / outcome.rows if outcome.rows else 0.0
    if outcome.found is not None:
        is_personal = has_pii(table, columns) and not any(word in rule.expectation for word in COUNTING)
        observed["found"] = MASK if is_personal else outcome.found
    if outcome.passed:
        return Finding(True, observed)
    samples = mask_rows(table, outcome.samples, select_sample_columns(table, columns))
    return Finding(False, {**observed, "reason": _reason(observed)}, samples)


def make_failed_finding(table: Table, message: str) -> Finding:
    """A check that gave no answer has failed."""
    return Finding(False, {"reason": f"not evaluated because {_mask_message(table, message)}"})


def require_columns(wanted: Sequence[str], types: Types) -> None:
    """Refuse to evaluate what speaks of columns that are not there.

    Raises:
        NotEvaluated: names them.
    """
    lacking = find_missing_columns(wanted, types)
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        raise NotEvaluated(f"column {', '.join(lacking)} {verb} missing")


def _mask_message(table: Table, message: str) -> str:
    text = " ".join(message.split("JVM stacktrace:")[0].split())
    if not has_pii(table):
        return text
    # Spark quotes the value it stumbled over.
    classes = sorted(set(ERROR_CLASS.findall(text)))
    if classes:
        return f"{', '.join(classes)} (the message is withheld: the table has personal data)"
    return text


def _reason(observed: Mapping[str, Any]) -> str:
    if observed.get("failed_rows"):
        failed, rows = observed["failed_rows"], observed["rows"]
        return f"{failed} of {rows} rows failed ({format_percentage(failed, rows)})"
    if "found" in observed:
        return f"found {observed['found']}"
    return "the expectation does not hold"
