"""Audit: every check of a contract on one staged state, each with a verdict, whatever goes wrong in another.

Whether the verdicts are good enough to publish is decided where it is published.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from lakeshare_pipelines.contracts import Reference, Rule, SetContract, Table
from lakeshare_pipelines.errors import BranchMoved, Conflict, NotAudited, PipelineError
from lakeshare_pipelines.spark.session import translate_errors
from lakeshare_pipelines.wap import checks as counts
from lakeshare_pipelines.wap.checks import (
    DRIFT,
    NOT_EMPTY,
    ROWS_PARSED,
    SAMPLE_ROWS,
    SELECTION,
    SERVEABLE,
    STRUCTURE,
    WITHIN_PARTITIONS,
    CheckSpec,
    NotEvaluated,
    RuleOutcome,
    Types,
    check_reference,
    evaluate_rules,
    find_structure_problems,
    get_declared_types,
    get_rule_columns,
    get_types,
    is_daily,
    list_checks,
    make_failed_finding,
    make_rejected_sample,
    make_rule_finding,
    needs_whole_table,
    require_columns,
)
from lakeshare_pipelines.wap.serveable import check_serveable
from lakeshare_pipelines.wap.stage import (
    Staging,
    check_selection,
    drop_staging_location,
    select_view_rows,
    stage,
    staging_for,
)
from lakeshare_pipelines.wap.staged import (
    Finding,
    Lake,
    Staged,
    StagedTable,
    Verdict,
    Verdicts,
    read_quarantine,
    save_attempt,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Check = Callable[[], Finding]


class TableAudit:
    """One table of a staged set, before its judges."""

    def __init__(
        self, lake: Lake, staging: Staging, contract: SetContract, staged: Staged, table: Table
    ) -> None:
        self.lake, self.staging, self.contract = lake, staging, contract
        self.staged, self.table = staged, table
        self.record = staged.find_table(table.name)
        self.is_daily = is_daily(contract, table)
        self._days: Mapping[str, int] | None = None

    def verdicts(self, specs: list[CheckSpec]) -> list[Verdict]:
        """One verdict per spec, in their order."""
        try:
            with self._explained():
                rows = self.staging.rows_of_run(self.staged, self.table).persist()
        except PipelineError:
            raise
        except Exception as error:
            unreadable = make_failed_finding(self.table, f"the staged table cannot be read: {error}")
            return [_verdict(spec, unreadable) for spec in specs]
        try:
            checks = self._checks(rows)
            return [_verdict(spec, self._found(checks[spec.name])) for spec in specs]
        finally:
            rows.unpersist()

    def _checks(self, rows: "DataFrame") -> dict[str, Check]:
        types = get_types(rows.schema)
        checks: dict[str, Check] = {
            STRUCTURE: lambda: self._structure(types),
            ROWS_PARSED: self._rows_parsed,
            NOT_EMPTY: lambda: self._not_empty(rows),
            WITHIN_PARTITIONS: lambda: self._within_partitions(rows),
            DRIFT: lambda: self._drift(rows),
            SERVEABLE: self._serveable,
            SELECTION: lambda: self._selection(rows),
        }
        for rule, outcome in self._outcomes(rows, types):
            checks[rule.name] = self._rule(rule, outcome)
        for reference in self.table.references:
            checks[reference.name] = self._reference(reference, rows, types)
        return checks

    # Kept, because Delta rebuilds a table's state for each reading of a version.
    @cached_property
    def _main(self) -> "DataFrame | None":
        return self.staging.on_main(self.staged, self.table)

    @cached_property
    def _after(self) -> "DataFrame":
        return self.staging.table_after(self.staged, self.table)

    def _structure(self, types: Types) -> Finding:
        published = None if self._main is None else get_types(self._main.schema)
        problems = ["the run did not stage it"] if self.record is None else list(self.record.problems)
        problems += find_structure_problems(self.table, types, get_declared_types(self.table), published)
        observed = {"columns": len(types), "problems": problems}
        if not problems:
            return Finding(True, observed)
        return Finding(False, {**observed, "reason": "; ".join(problems)})

    def _rows_parsed(self) -> Finding:
        record = self.record or StagedTable(self.table.name, 0)
        finding = counts.check_rows_parsed(self.table, record)
        if finding.passed:
            return finding
        rejected = read_quarantine(
            self.lake.settings, self.contract.name, self.staged.run_id, self.table.name, SAMPLE_ROWS
        )
        shows_values = self.lake.settings.show_rejected_values
        samples = tuple(make_rejected_sample(self.table, row, shows_values=shows_values) for row in rejected)
        command = f"lakeshare wap rejected {self.contract.name} --run {self.staged.run_id} --table {self.table.name}"
        return Finding(False, {**finding.observed, counts.SHOW_REJECTED: command}, samples)

    def _not_empty(self, rows: "DataFrame") -> Finding:
        if self.is_daily:
            return counts.check_not_empty(self._by_day(rows), self.staged.partitions)
        return counts.check_not_empty({"all": rows.count()}, ["all"])

    def _within_partitions(self, rows: "DataFrame") -> Finding:
        by_day = self._by_day(rows)
        written = sum(by_day.values()) if self.record is None else self.record.rows
        # A view that is new has all days that its table has.
        is_whole = self.record is not None and self.record.is_whole
        return counts.check_within_partitions(by_day, by_day if is_whole else self.staged.partitions, written)

    def _selection(self, rows: "DataFrame") -> Finding:
        view = self.table.view
        if view is None:
            raise ValueError(f"{self.table.name} is no view")
        base = self.contract.table(view.of)
        is_whole = self.record is not None and self.record.is_whole
        there = (
            self.staging.table_after(self.staged, base)
            if is_whole
            else self.staging.rows_of_run(self.staged, base)
        )
        expected = select_view_rows(self.contract, self.table, view, there)
        published_as = self.staging.definition(self.staged, self.table)
        return check_selection(view, expected, rows.select(*expected.columns), published_as)

    def _drift(self, rows: "DataFrame") -> Finding:
        if self.is_daily:
            # Of a view a day may have no rows, which counts as such; of a table that is an error of its own.
            none = dict.fromkeys(self.staged.partitions, 0) if self.table.view is not None else {}
            of_run = {**none, **self._by_day(rows)}
            everywhere = counts.count_rows_by_day(self._after, self.table)
            return counts.check_drift(self.table.drift, of_run, counts.compute_usual_rows(everywhere, of_run))
        usual = {"table": None if self._main is None else self._main.count()}
        return counts.check_drift(self.table.drift, {"table": rows.count()}, usual)

    def _serveable(self) -> Finding:
        clients = self.staging.clients(self.staged, self.table)
        return check_serveable(self.table.serveable_to, clients, self.record.rewritten if self.record else ())

    def _by_day(self, rows: "DataFrame") -> Mapping[str, int]:
        if self._days is None:
            self._days = counts.count_rows_by_day(rows, self.table)
        return self._days

    def _rule(self, rule: Rule, outcome: RuleOutcome | NotEvaluated) -> Check:
        def check() -> Finding:
            if isinstance(outcome, NotEvaluated):
                raise outcome
            return make_rule_finding(self.table, rule, outcome)

        return check

    def _reference(self, reference: Reference, rows: "DataFrame", types: Types) -> Check:
        def check() -> Finding:
            require_columns(reference.columns, types)
            there = self.staging.table_after(self.staged, self.contract.table(reference.to_table))
            require_columns(reference.to_columns, get_types(there.schema))
            return check_reference(self.table, reference, self._after if self.is_daily else rows, there)

        return check

    def _outcomes(self, rows: "DataFrame", types: Types) -> list[tuple[Rule, RuleOutcome | NotEvaluated]]:
        found: dict[str, RuleOutcome | NotEvaluated] = {}
        of_run: list[Rule] = []
        of_table: list[Rule] = []
        for rule in self.table.rules:
            try:
                require_columns(get_rule_columns(rule), types)
            except NotEvaluated as lacking:
                found[rule.name] = lacking
            else:
                # Where a run replaces the whole table its rows are the table: one pass serves both scopes.
                whole = needs_whole_table(self.contract, self.table, rule)
                (of_table if whole else of_run).append(rule)
        answers: Mapping[str, RuleOutcome | NotEvaluated] = {
            **evaluate_rules(rows, of_run),
            **(evaluate_rules(self._after, of_table) if of_table else {}),
        }
        if any(isinstance(outcome, NotEvaluated) for outcome in answers.values()):
            # Great Expectations swallows the news that the driver is gone; Spark tells when asked.
            with self._explained():
                self.lake.spark.sql("SELECT 1").collect()
        found.update(answers)
        return [(rule, found[rule.name]) for rule in self.table.rules]

    def _found(self, check: Check) -> Finding:
        try:
            with self._explained():
                return check()
        except PipelineError:
            raise
        except Exception as error:
            return make_failed_finding(self.table, str(error))

    def _explained(self) -> AbstractContextManager[None]:
        return translate_errors(self.lake.settings, f"auditing {self.table.name} at {self.staged.ref}")


def _verdict(spec: CheckSpec, found: Finding) -> Verdict:
    severity = found.severity or spec.severity
    return Verdict(
        spec.table, spec.name, severity, found.passed, spec.description, found.observed, found.samples
    )


log = logging.getLogger(__name__)


def audit(lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    """Judge a staged set: exactly the checks of `checks_of(contract)`, on `staged.head` and nothing else.

    Raises:
        BranchMoved: the staging place is not, or no more, at `staged.head`.
        SparkError: Spark died, or the disk is full; nothing is known about the rows.
        NessieError: the catalog is not there.
    """
    staging = staging_for(lake, contract)
    specs = list_checks(contract)
    verdicts: list[Verdict] = []
    with translate_errors(lake.settings, f"auditing {staged.ref}"):
        _require_head(staging, staged)
        for table in contract.tables:
            of_table = [spec for spec in specs if spec.table == table.name]
            verdicts += TableAudit(lake, staging, contract, staged, table).verdicts(of_table)
        # The frames were read by the name of the place, not by the state it was in.
        _require_head(staging, staged)
    judged = Verdicts(staged.ref, staged.head, tuple(verdicts), contract.digest)
    for verdict in judged.failed:
        log.warning("%s failed (%s): %s", verdict.name, verdict.severity, verdict.reason)
    return judged


def _require_head(staging: Staging, staged: Staged) -> None:
    found = staging.seal(staged.ref)
    if found != staged.head:
        raise BranchMoved(staged.ref, staged.head, found)


JITTER_S = 2.0

T = TypeVar("T")


class ReplayFailedAudit(NotAudited):
    """What was audited green was red when it was written and judged again on what main had become."""

    def __init__(self, replayed: Staged, verdicts: Verdicts) -> None:
        super().__init__(replayed.title, f"its audit after a replay failed ({verdicts.blocking_names})")
        self.replayed, self.verdicts = replayed, verdicts


def publish_with_replay(
    lake: Lake,
    contract: SetContract,
    staged: Staged,
    verdicts: Verdicts,
    publish: Callable[[Staged, Verdicts], T],
) -> T:
    """Publish; on a conflict write and judge the same deliveries anew on what main is now, a few times.

    Raises:
        Conflict: main kept moving through every attempt.
        RedReplay: the audit of a replay was red; its staging place stays for inspection.
    """
    while True:
        try:
            return publish(staged, verdicts)
        except Conflict as conflict:
            if staged.attempt + 1 >= lake.settings.replay_attempts:
                raise
            log.warning("%s; replaying %s", conflict, staged.title)
            time.sleep(random.uniform(0, JITTER_S))  # noqa: S311  two writers in step, not a secret
            replayed = stage(lake, contract, staged.partitions, staged.run_id, staged.attempt + 1)
            drop_staging_location(lake, contract, staged.ref)
            staged, verdicts = replayed, audit_and_save(lake, contract, replayed)
            if not verdicts.green:
                raise ReplayFailedAudit(staged, verdicts) from conflict


def audit_and_save(lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    """Audit a staged set and keep its verdicts beside it."""
    verdicts = audit(lake, contract, staged)
    save_attempt(lake.settings, staged, verdicts)
    return verdicts
