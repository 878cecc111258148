"""Rules on a frame, judged by Great Expectations: one pass for all, one more for samples of failures.

The only importer of great_expectations.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.contracts import Rule
from lakeshare_pipelines.wap.samples import SAMPLE_ROWS

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.datasource.fluent.interfaces import Batch
    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame

# Counts without values: the values would cost one more job per rule, also for those that pass.
COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
ROWS = {"result_format": "BASIC", "partial_unexpected_count": SAMPLE_ROWS, "include_unexpected_rows": True}


class NotEvaluated(Exception):
    """A rule that gave no answer; it counts as failed."""


@dataclass(frozen=True)
class Outcome:
    """What Great Expectations found for one rule. Counts are None for rules about the whole table."""

    passed: bool
    rows: int | None = None
    failed_rows: int | None = None
    found: Any = None  # of the type the expectation gives
    samples: tuple[Mapping[str, Any], ...] = ()


def judge(frame: "DataFrame", rules: Sequence[Rule]) -> dict[str, Outcome | NotEvaluated]:
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
) -> Iterator[tuple[str, Outcome | NotEvaluated]]:
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


def _outcome(result: "ExpectationValidationResult") -> Outcome | NotEvaluated:
    message = _raised(result.exception_info)
    if message is not None:
        return NotEvaluated(message)
    found = result.result
    failed_rows = found.get("unexpected_count")
    return Outcome(
        passed=bool(result.success),
        rows=found.get("element_count"),
        failed_rows=failed_rows,
        found=found.get("observed_value"),
        samples=tuple(found.get("unexpected_rows") or ()),
    )


def _has_failed_rows(outcome: Outcome | NotEvaluated) -> bool:
    return isinstance(outcome, Outcome) and not outcome.passed and bool(outcome.failed_rows)


def _raised(info: Mapping[str, Any]) -> str | None:
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
