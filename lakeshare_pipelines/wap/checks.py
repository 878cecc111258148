"""The checks of an audit: `list_checks` names them before any run and without Spark, the rest evaluates them."""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, wraps
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.contracts import Reference, Rule, SetContract, Table
from lakeshare_pipelines.contracts.column_types import can_widen
from lakeshare_pipelines.contracts.document import find_line
from lakeshare_pipelines.contracts.model import Drift
from lakeshare_pipelines.contracts.partitioning import split_key
from lakeshare_pipelines.contracts.rules import UNIQUENESS, Assertion, is_class, list_rule_columns
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.spark.rows import make_key_column
from lakeshare_pipelines.wap.staged import Finding, Severity, StagedTable, format_percentage, to_json_value
from lakeshare_server.lazy import LazyModule

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.datasource.fluent.interfaces import Batch
    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType
else:
    F = LazyModule("pyspark.sql.functions")

STRUCTURE = "structure"
ROWS_PARSED = "rows_parsed"
NOT_EMPTY = "not_empty"
WITHIN_PARTITIONS = "within_partitions"
DRIFT = "drift"
SERVEABLE = "serveable"
SELECTION = "selection"
MERGE_KEYS = "merge_keys"
BUILT_IN_CHECKS = (
    *(STRUCTURE, ROWS_PARSED, MERGE_KEYS, NOT_EMPTY, WITHIN_PARTITIONS, DRIFT, SERVEABLE, SELECTION),
)


@dataclass(frozen=True)
class CheckSpec:
    """One check of one table; an audit gives exactly one verdict for it."""

    table: str
    name: str
    severity: Severity
    description: str


def list_checks(contract: SetContract) -> tuple[CheckSpec, ...]:
    """Every check that an audit of this contract reports; raises `ContractError` for two of the same name."""
    specs = tuple(spec for table in contract.tables for spec in _table_checks(contract, table))
    seen: set[tuple[str, str]] = set()
    for spec in specs:
        if (spec.table, spec.name) in seen:
            raise ContractError(
                contract.path,
                f"schema[{spec.table}].quality",
                f"two checks are named {spec.name}",
                f"Rename the rule; {', '.join(BUILT_IN_CHECKS)} are taken.",
                line=find_line(contract, "schema", spec.table.rpartition(".")[2], "quality", spec.name),
            )
        seen.add((spec.table, spec.name))
    return specs


def get_rule_columns(rule: Rule) -> tuple[str, ...]:
    return tuple(column for _, column in list_rule_columns(rule.expectation, rule.kwargs))


def needs_whole_table(contract: SetContract, table: Table, rule: Rule) -> bool:
    """Whether a rule cannot be evaluated on the rows of the run alone."""
    if rule.scope != "table" or not contract.is_by_partition(table):
        return rule.scope == "table" and table.write.is_incremental
    # Rows of other partitions cannot repeat a key that holds the partition itself.
    return not (rule.expectation in UNIQUENESS and table.partition_by[0][0] in get_rule_columns(rule))


def _table_checks(contract: SetContract, table: Table) -> Iterator[CheckSpec]:
    structure = "The columns are the contract's, and readers of main lose none."
    yield CheckSpec(table.name, STRUCTURE, "error", structure)
    if table.has_source:
        parsed = "Every delivered row was understood; none went to quarantine."
        if table.max_quarantined_fraction:
            parsed = f"At most {table.max_quarantined_fraction:.2%} of the delivered rows went to quarantine."
        yield CheckSpec(table.name, ROWS_PARSED, "error", parsed)
    if table.write.has_key:
        order = f" and {table.write.sequence}" if table.write.sequence else ""
        keys = f"The delivered rows have a key{order}, and no two different rows have the same."
        yield CheckSpec(table.name, MERGE_KEYS, "error", keys)
    if table.view is None and not table.allow_empty:
        yield CheckSpec(table.name, NOT_EMPTY, "error", "Every partition of the run has rows.")
    if table.view is not None:
        rows = f"Its rows are those that its definition selects of {table.view.of}, no more and no fewer."
        yield CheckSpec(table.name, SELECTION, "error", rows)
    if contract.is_by_partition(table):
        within = "Every row belongs to a partition of the run."
        yield CheckSpec(table.name, WITHIN_PARTITIONS, "error", within)
    yield from _written_checks(table)
    if table.drift.max_shrink_fraction is not None or table.drift.max_growth_fraction is not None:
        yield CheckSpec(table.name, DRIFT, table.drift.severity, _describe_drift(contract, table))
    serveable = "Reports which clients can read it, and why others cannot."
    if table.serveable_to.clients:
        serveable = f"{', '.join(table.serveable_to.clients)} can read it as it will be published."
    yield CheckSpec(table.name, SERVEABLE, table.serveable_to.severity, serveable)


def _written_checks(table: Table) -> Iterator[CheckSpec]:
    """The checks that the contract writes out: rules, and references to other tables."""
    for rule in table.rules:
        yield CheckSpec(table.name, rule.name, rule.severity, rule.description or _describe_rule(rule))
    for assertion in table.assertions:
        text = f"Its query returns {assertion.describe_bound()}."
        yield CheckSpec(table.name, assertion.name, assertion.severity, assertion.description or text)
    for ref in table.references:
        text = f"Every {', '.join(ref.columns)} exists as {', '.join(ref.to_columns)} in {ref.to_table}."
        yield CheckSpec(table.name, ref.name, ref.severity, ref.description or text)


def _describe_rule(rule: Rule) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in rule.kwargs.items())
    return f"{rule.expectation}({arguments}) on {'the table' if rule.scope == 'table' else 'the new rows'}."


def _describe_drift(contract: SetContract, table: Table) -> str:
    limits = []
    if table.drift.max_shrink_fraction is not None:
        limits.append(f"shrinks by at most {table.drift.max_shrink_fraction:.0%}")
    if table.drift.max_growth_fraction is not None:
        limits.append(f"grows by at most {table.drift.max_growth_fraction:.0%}")
    against = "the table on main"
    if contract.is_by_partition(table):
        is_time, noun = contract.partitioning.is_time, contract.partitioning.noun
        against = f"the mean of recent {noun}s" if is_time else "the same partition on main"
    return f"The row count {' and '.join(limits)} against {against}."


Types = Mapping[str, str]


def find_structure_problems(
    table: Table, staged: Types, declared: Types, main: Types | None, known: Collection[str] | None = None
) -> list[str]:
    """The problems of a staged schema, one sentence each. Column names are in lower case.

    `known` are the columns of the last publication, by default those of main.
    """
    published = main or {}
    known = published if known is None else known
    problems = [f"column {name} is missing" for name in declared if name not in staged]
    problems += [
        f"column {name} is {staged[name]}, the contract says {kind}"
        for name, kind in declared.items()
        if name in staged and staged[name] != kind
    ]
    # A column that main has and the contract dropped is reported as a change, below.
    problems += [
        f"column {name} is not in the contract"
        for name in staged
        if name not in declared and name not in known
    ]
    if not table.allow_schema_changes:
        problems += _compare_with_main(table, staged, declared, published)
    return problems


def _compare_with_main(table: Table, staged: Types, declared: Types, published: Types) -> list[str]:
    def is_widened(name: str) -> bool:
        return table.format == "iceberg" and can_widen(published[name], staged[name])

    changes = []
    for name, kind in published.items():
        if name not in declared or name not in staged:
            changes.append(f"column {name} is on main and would be dropped")
        elif staged[name] != kind and not is_widened(name):
            changes.append(f"column {name} is {kind} on main and would become {staged[name]}")
    if changes:
        changes.append("readers of main would break; allow it in the contract if it is meant")
    return changes


def get_types(schema: "StructType") -> dict[str, str]:
    return {field.name.lower(): field.dataType.simpleString() for field in schema.fields}


def get_declared_types(table: Table) -> dict[str, str]:
    """The contract's columns as name → type, in Spark's spelling (`long` becomes `bigint`)."""
    from pyspark.sql.types import DataType

    return {column.name.lower(): DataType.fromDDL(column.type).simpleString() for column in table.columns}


RECENT_DAYS = 7
MAX_NAMED = 20
SHOW_REJECTED = "show_rejected_rows"
"""The observation with the command that shows rejected rows as they were delivered."""


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
    reason = (
        f"{staged.rejected} of {delivered} delivered rows went to quarantine "
        f"({format_percentage(staged.rejected, delivered)}); "
        f"{table.max_quarantined_fraction:.2%} are allowed"
    )
    return Finding.of(observed, "" if fraction <= table.max_quarantined_fraction else reason)


def check_not_empty(rows: Mapping[str, int], expected: Iterable[str]) -> Finding:
    """Whether each expected partition has rows; `rows` counts them by partition."""
    empty = [partition for partition in expected if not rows.get(partition)]
    observed = {"rows": sum(rows.values()), "partitions": len(rows), "empty_partitions": len(empty)}
    return Finding.of(observed, f"no rows for partition {_join_some(empty, ', ')}" if empty else "")


def check_within_partitions(rows: Mapping[str, int], expected: Iterable[str], written: int) -> Finding:
    """Whether all `written` rows are in partitions of the run; the other checks read only those."""
    inside = set(expected)
    outside = {partition: count for partition, count in rows.items() if partition not in inside}
    strayed = written - sum(count for partition, count in rows.items() if partition in inside)
    named = f" ({_join_some(sorted(outside), ', ')})" if outside else ""
    reason = f"{strayed} of {written} rows belong to other partitions{named} than those delivered"
    return Finding.of({"rows": written, "rows_outside": strayed}, reason if strayed else "")


def check_drift(limits: Drift, rows: Mapping[str, int], usual: Mapping[str, float | None]) -> Finding:
    """Whether row counts moved further than the limits from the usual ones; None: nothing to compare."""
    known = {name: before for name, before in usual.items() if before and name in rows}
    observed: dict[str, object] = {
        "rows": sum(rows.values()),
        "usual_rows": sum(known.values()),
        "partitions_compared": len(known),
        "max_shrink_fraction": limits.max_shrink_fraction,
        "max_growth_fraction": limits.max_growth_fraction,
    }
    moved = [_describe_movement(limits, name, rows[name], known[name]) for name in sorted(known)]
    return Finding.of(observed, _join_some([text for text in moved if text], "; "))


def compute_usual_rows(counts: Mapping[str, int], of_run: Iterable[str]) -> dict[str, float | None]:
    """Per partition of a run, the mean of the partitions just before it on main, or of the first ones.

    With a second dimension only partitions of the same name are compared.
    """
    run = set(of_run)
    others = sorted(set(counts) - run)
    usual: dict[str, float | None] = {}
    for partition in run:
        alike = [name for name in others if split_key(name)[1] == split_key(partition)[1]]
        before = [name for name in alike if name < partition]
        near = before[-RECENT_DAYS:] or alike[:RECENT_DAYS]
        usual[partition] = sum(counts[name] for name in near) / len(near) if near else None
    return usual


def count_rows_by_partition(frame: "DataFrame", contract: SetContract, table: Table) -> dict[str, int]:
    """Rows of the frame by the key of their partition of the set."""
    column = table.partition_column
    key = make_key_column(contract.partitioning, column.name, column.type)
    counted = frame.groupBy(key.alias("key")).count().collect()
    return {str(row["key"]): int(row["count"]) for row in counted}


def _describe_movement(limits: Drift, name: str, count: int, before: float) -> str:
    change = (count - before) / before
    text = f"{name}: {count} rows where {before:.0f} are usual ({change:+.0%})"
    if limits.max_shrink_fraction is not None and -change > limits.max_shrink_fraction:
        return f"{text}, at most -{limits.max_shrink_fraction:.0%} is allowed"
    if limits.max_growth_fraction is not None and change > limits.max_growth_fraction:
        return f"{text}, at most +{limits.max_growth_fraction:.0%} is allowed"
    return ""


def _join_some(names: Sequence[str], separator: str) -> str:
    return separator.join([*names[:MAX_NAMED], *(["…"] if len(names) > MAX_NAMED else [])])


SAMPLE_ROWS = 20
MASK = "***"
QUOTED = re.compile(r"'.*'", re.DOTALL)


def select_sample_columns(table: Table, checked: Iterable[str]) -> list[str]:
    """The columns of a sample row: those checked, the primary key and the partition."""
    names = {name.lower() for name in (*checked, *(column for column, _ in table.partition_by))}
    return [c.name for c in table.columns if c.primary_key or c.name.lower() in names]


def mask_rows(
    table: Table, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]
) -> tuple[Mapping[str, Any], ...]:
    """At most `SAMPLE_ROWS` of `rows`, with personal data and unknown columns as `***`; nulls stay nulls."""
    open_columns = {column.name.lower() for column in table.columns if not column.pii}

    def mask(name: str, value: Any) -> Any:
        return value if value is None or name.lower() in open_columns else MASK

    shown = islice(rows, SAMPLE_ROWS)
    return tuple({name: mask(name, row[name]) for name in columns if name in row} for row in shown)


def make_rejected_sample(table: Table, row: Mapping[str, Any], *, shows_values: bool) -> Mapping[str, Any]:
    """A row of the quarantine; `shows_values` adds its values, except for tables with personal data."""
    shown = {name: row[name] for name in ("file", "line", "reason")}
    if shows_values and not has_pii(table):
        return shown | {"raw": row["raw"]}
    # In a row with shifted values any column may hold personal data of another column.
    return shown | {"reason": QUOTED.sub(f"'{MASK}'", str(row["reason"]))}


def has_pii(table: Table, columns: Iterable[str] | None = None) -> bool:
    """Whether any of the columns (default: all of the table) holds personal data."""
    names = None if columns is None else {name.lower() for name in columns}
    return any(c.pii and (names is None or c.name.lower() in names) for c in table.columns)


def check_reference(table: Table, reference: Reference, rows: "DataFrame", target: "DataFrame") -> Finding:
    """Whether each row with all its reference columns set has a match in `target`."""

    left, right = rows.alias("here"), target.select(*_quote(reference.to_columns)).distinct().alias("there")
    referring = matching = F.lit(True)
    for column, target_column in zip(reference.columns, reference.to_columns, strict=True):
        referring = referring & F.col(f"here.`{column}`").isNotNull()
        matching = matching & (F.col(f"here.`{column}`") == F.col(f"there.`{target_column}`"))
    orphans = left.where(referring).join(right, matching, "left_anti")
    failed = orphans.count()
    observed = {"failed_rows": failed, "columns": reference.columns, "refers_to": reference.to_table}
    if not failed:
        return Finding(True, observed)
    columns = select_sample_columns(table, reference.columns)
    samples = [row.asDict() for row in orphans.select(*_quote(columns)).limit(SAMPLE_ROWS).collect()]
    reason = (
        f"{failed} rows have a {', '.join(reference.columns)} "
        f"that is no {', '.join(reference.to_columns)} of {reference.to_table}"
    )
    return Finding.of(observed, reason, mask_rows(table, samples, columns))


def check_assertion(table: Table, assertion: Assertion, result: "DataFrame") -> Finding:
    """Whether the result of an assertion's query has no row, or is a number within its bound."""
    observed: dict[str, Any] = {"query": assertion.query, "expected": assertion.describe_bound()}
    if assertion.bound is None:
        failed = result.count()
        if not failed:
            return Finding(True, observed | {"failed_rows": 0})
        samples = [row.asDict() for row in result.limit(SAMPLE_ROWS).collect()]
        masked = mask_rows(table, samples, result.columns)
        return Finding.of(observed | {"failed_rows": failed}, f"the query returned {failed} rows", masked)
    rows = result.limit(2).collect()
    if len(rows) != 1 or len(result.columns) != 1:
        raise NotEvaluated(
            f"the query returned no single number but {len(rows)} rows of {len(result.columns)}"
        )
    number = rows[0][0]
    if number is None or isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        raise NotEvaluated(
            f"the query returned {'null' if number is None else type(number).__name__}, no number"
        )
    found = {"found": to_json_value(number if isinstance(number, int) else float(number))}
    reason = (
        ""
        if assertion.holds(float(number))
        else f"the query returned {number}, not {assertion.describe_bound()}"
    )
    return Finding.of(observed | found, reason)


def _quote(columns: "tuple[str, ...] | list[str]") -> list[str]:
    return [f"`{column}`" for column in columns]


COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
ROWS = {"result_format": "BASIC", "partial_unexpected_count": SAMPLE_ROWS, "include_unexpected_rows": True}


class NotEvaluated(Exception):
    """A rule that was not evaluated; it counts as failed."""


@dataclass(frozen=True)
class RuleOutcome:
    """The result of one rule in Great Expectations. Counts are None for rules about the whole table."""

    passed: bool
    rows: int | None = None
    failed_rows: int | None = None
    found: Any = None  # of the type the expectation gives
    samples: tuple[Mapping[str, Any], ...] = ()


def evaluate_rules(frame: "DataFrame", rules: Sequence[Rule]) -> dict[str, RuleOutcome | NotEvaluated]:
    """The outcome of every rule by its name; a rule that raises does not stop the others."""
    if not rules:
        return {}
    batch = _make_batch(frame)
    outcomes = dict(_validate(batch, rules, COUNTS))
    raised = [rule for rule in rules if isinstance(outcomes[rule.name], NotEvaluated)]
    if len(rules) > 1:
        # Rules share one Spark job: an error of one rule is reported for all rules of the job.
        for rule in raised:
            outcomes.update(_validate(batch, [rule], COUNTS))
    failing = []
    for rule in rules:
        outcome = outcomes[rule.name]
        if isinstance(outcome, RuleOutcome) and not outcome.passed and outcome.failed_rows:
            failing.append(rule)
    if failing:
        outcomes.update(_validate(batch, failing, ROWS))
    return outcomes


def _validate(
    batch: "Batch", rules: Sequence[Rule], result_format: Mapping[str, Any]
) -> Iterator[tuple[str, RuleOutcome | NotEvaluated]]:
    from great_expectations import ExpectationSuite

    built: list[Expectation] = []
    for rule in rules:
        try:
            built.append(_make_expectation(rule))
        except NotEvaluated as refused:
            yield rule.name, refused
    if built:
        suite = ExpectationSuite(name="audit", expectations=built)
        for result in batch.validate(suite, result_format=dict(result_format)).results:
            # Results come in an order of their own.
            configured = result.expectation_config
            if configured is None or configured.meta is None:
                raise NotEvaluated("Great Expectations returned a result without its rule")
            yield str(configured.meta["rule"]), _make_outcome(result)


def _make_expectation(rule: Rule) -> "Expectation":
    """The expectation of a rule; raises `NotEvaluated` for a class that cannot be imported, or refused arguments."""
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    kwargs, meta = dict(rule.kwargs), {"rule": rule.name}
    kind = _import_class(rule.expectation) if is_class(rule.expectation) else None
    try:
        if kind is not None:
            return kind(**kwargs, meta=meta)
        return ExpectationConfiguration(type=rule.expectation, kwargs=kwargs, meta=meta).to_domain_obj()
    except Exception as error:  # pydantic v1 and each expectation raise their own types
        refused = f"{rule.expectation} refuses its arguments: {_to_one_line(str(error))}"
        raise NotEvaluated(refused) from error


def _import_class(place: str) -> "type[Expectation]":
    from great_expectations.expectations.expectation import Expectation

    module_name, _, name = place.partition(":")
    try:
        kind = getattr(import_module(module_name), name)
    except (Exception, SystemExit) as error:
        reason = f"{place} cannot be imported: {type(error).__name__}: {_to_one_line(str(error))}"
        raise NotEvaluated(reason) from error
    if not (isinstance(kind, type) and issubclass(kind, Expectation)):
        raise NotEvaluated(f"{place} is no class of great_expectations.expectations.expectation.Expectation")
    return kind


def require_expectations(contract: SetContract) -> None:
    """Imports the user's classes of expectations, and checks their arguments; raises `ContractError`."""
    for table in contract.tables:
        for rule in table.rules:
            if not is_class(rule.expectation):
                continue
            prepare_great_expectations()
            try:
                _make_expectation(rule)
            except NotEvaluated as error:
                raise ContractError(
                    contract.path,
                    f"schema[{table.name}].quality",
                    f"rule {rule.name}: {error}",
                    "Correct the class or its kwargs, install its package, or start the run in its folder.",
                    line=find_line(contract, "schema", table.short_name, "quality", rule.name),
                ) from error


def _make_outcome(result: "ExpectationValidationResult") -> RuleOutcome | NotEvaluated:
    exceptions: Mapping[str, Any] = result.exception_info
    # One entry for the expectation itself, or one per metric that could not be computed.
    entries = [exceptions] if "raised_exception" in exceptions else exceptions.values()
    messages = {_to_one_line(str(e.get("exception_message"))) for e in entries if e.get("raised_exception")}
    if messages:
        return NotEvaluated("; ".join(sorted(messages)))
    values = result.result
    return RuleOutcome(
        passed=bool(result.success),
        rows=values.get("element_count"),
        failed_rows=values.get("unexpected_count"),
        found=values.get("observed_value"),
        samples=tuple(values.get("unexpected_rows") or ()),
    )


def _to_one_line(message: str) -> str:
    return " ".join(message.split("JVM stacktrace:")[0].split())


def prepare_great_expectations() -> None:
    """Sets what the package reads at its first import, which otherwise logs a hundred lines."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logging.getLogger("great_expectations").setLevel(logging.WARNING)


def _make_batch(frame: "DataFrame") -> "Batch":
    prepare_great_expectations()
    from great_expectations import get_context
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    _skip_queries_for_no_values()
    # The defaults of an ephemeral context leave a folder for HTML reports in /tmp each time.
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False),
        analytics_enabled=False,
    )
    context = get_context(project_config=config, mode="ephemeral")
    # The audit decides which frames are held, and releases them.
    source = context.data_sources.add_spark("lake", persist=False)
    definition = source.add_dataframe_asset("frame").add_batch_definition_whole_dataframe("all rows")
    return definition.get_batch({"dataframe": frame})


@cache
def _skip_queries_for_no_values() -> None:
    """Wraps metrics of Great Expectations, which collect sample values also if the result format asks for none.

    It is a Spark query per rule (docs/adr/0053).
    """
    from great_expectations.expectations.registry import _registered_metrics

    def skip(collect: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        @wraps(collect)
        def collect_wanted(*args: Any, **kwargs: Any) -> list[Any]:
            wanted = kwargs["metric_value_kwargs"]["result_format"].get("partial_unexpected_count")
            return [] if wanted == 0 else collect(*args, **kwargs)

        return collect_wanted

    for name, metric in _registered_metrics.items():
        provider, collect = metric["providers"].get("SparkDFExecutionEngine", (None, None))
        if name.endswith(".unexpected_values") and collect is not None:
            metric["providers"]["SparkDFExecutionEngine"] = provider, skip(collect)


COUNTING = ("count", "proportion")


def make_rule_finding(table: Table, rule: Rule, outcome: RuleOutcome) -> Finding:
    """A finding with the counts of the rule, the expected and found values, and masked sample rows."""
    columns = get_rule_columns(rule)
    observed: dict[str, Any] = {"expectation": rule.expectation, "expected": rule.kwargs}
    if outcome.rows is not None and outcome.failed_rows is not None:
        fraction = outcome.failed_rows / outcome.rows if outcome.rows else 0.0
        observed |= {"rows": outcome.rows, "failed_rows": outcome.failed_rows, "failed_fraction": fraction}
    if outcome.found is not None:
        is_personal = has_pii(table, columns) and not any(word in rule.expectation for word in COUNTING)
        observed["found"] = MASK if is_personal else outcome.found
    if outcome.passed:
        return Finding(True, observed)
    samples = mask_rows(table, outcome.samples, select_sample_columns(table, columns))
    return Finding.of(observed, _explain(observed), samples)


def make_failed_finding(table: Table, message: str) -> Finding:
    """A check that could not be evaluated counts as failed."""
    return Finding(False, {"reason": f"not evaluated because {_mask_message(table, message)}"})


def require_columns(columns: Sequence[str], types: Types) -> None:
    """Raises `NotEvaluated` with the names of the columns that are missing."""
    missing = [name for name in columns if name.lower() not in types]
    if missing:
        raise NotEvaluated(f"column {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def _mask_message(table: Table, message: str) -> str:
    text = _to_one_line(message)
    # Spark quotes the value that it could not convert.
    classes = sorted(set(re.findall(r"\[([A-Z][A-Z0-9_.]+)\]", text)))
    if classes and has_pii(table):
        return f"{', '.join(classes)} (the message is withheld: the table has personal data)"
    return text


def _explain(observed: Mapping[str, Any]) -> str:
    if observed.get("failed_rows"):
        failed, rows = observed["failed_rows"], observed["rows"]
        return f"{failed} of {rows} rows failed ({format_percentage(failed, rows)})"
    if "found" in observed:
        return f"found {observed['found']}"
    return "the expectation does not hold"
