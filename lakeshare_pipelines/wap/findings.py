"""From what a rule's evaluation gave to what its verdict says, without giving away personal data."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lakeshare_pipelines.contracts import Rule, Table
from lakeshare_pipelines.wap.checks import rule_columns
from lakeshare_pipelines.wap.expectations import NotEvaluated, Outcome
from lakeshare_pipelines.wap.samples import MASK, has_pii, masked, sample_columns
from lakeshare_pipelines.wap.structure import Types, missing_columns
from lakeshare_pipelines.wap.verdicts import Finding, share

# Expectations whose observed value is a number of rows or a share of them, never a value of the column.
COUNTING = ("count", "proportion")
ERROR_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")


def rule_finding(table: Table, rule: Rule, outcome: Outcome) -> Finding:
    """A rule's outcome with its counts, what was expected and found, and masked sample rows."""
    columns = rule_columns(rule)
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
    samples = masked(table, outcome.samples, sample_columns(table, columns))
    return Finding(False, {**observed, "reason": _reason(observed)}, samples)


def unanswered(table: Table, message: str) -> Finding:
    """A check that gave no answer has failed."""
    return Finding(False, {"reason": f"not evaluated because {_told(table, message)}"})


def require_columns(wanted: Sequence[str], types: Types) -> None:
    """Refuse to evaluate what speaks of columns that are not there.

    Raises:
        NotEvaluated: names them.
    """
    lacking = missing_columns(wanted, types)
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        raise NotEvaluated(f"column {', '.join(lacking)} {verb} missing")


def _told(table: Table, message: str) -> str:
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
        return f"{failed} of {rows} rows failed ({share(failed, rows)})"
    if "found" in observed:
        return f"found {observed['found']}"
    return "the expectation does not hold"
