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
from lakeshare_pipelines.spark.session import explained
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
    Outcome,
    Types,
    checks_of,
    declared_types,
    is_daily,
    judge,
    needs_whole_table,
    rejected_sample,
    require_columns,
    rule_columns,
    rule_finding,
    structure_problems,
    types_of,
    unanswered,
    unmatched,
)
from lakeshare_pipelines.wap.serveable import serveable
from lakeshare_pipelines.wap.stage import Staging, drop, selected, selection, stage, staging_for
from lakeshare_pipelines.wap.staged import (
    Finding,
    Lake,
    Staged,
    StagedTable,
    Verdict,
    Verdicts,
    keep,
    quarantined,
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
        self.record = staged.record_of(table.name)
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
            unreadable = unanswered(self.table, f"the staged table cannot be read: {error}")
            return [_verdict(spec, unreadable) for spec in specs]
        try:
            checks = self._checks(rows)
            return [_verdict(spec, self._found(checks[spec.name])) for spec in specs]
        finally:
            rows.unpersist()

    def _checks(self, rows: "DataFrame") -> dict[str, Check]:
        types = types_of(rows.schema)
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
        published = None if self._main is None else types_of(self._main.schema)
        problems = ["the run did not stage it"] if self.record is None else list(self.record.problems)
        problems += structure_problems(self.table, types, declared_types(self.table), published)
        observed = {"columns": len(types), "problems": problems}
        if not problems:
            return Finding(True, observed)
        return Finding(False, {**observed, "reason": "; ".join(problems)})

    def _rows_parsed(self) -> Finding:
        record = self.record or StagedTable(self.table.name, 0)
        finding = counts.rows_parsed(self.table, record)
        if finding.passed:
            return finding
        kept = quarantined(
            self.lake.settings, self.contract.name, self.staged.run_id, self.table.name, SAMPLE_ROWS
        )
        shows_values = self.lake.settings.show_rejected_values
        samples = tuple(rejected_sample(self.table, row, shows_values=shows_values) for row in kept)
        command = f"lakeshare wap rejected {self.contract.name} --run {self.staged.run_id} --table {self.table.name}"
        return Finding(False, {**finding.observed, counts.SHOW_REJECTED: command}, samples)

    def _not_empty(self, rows: "DataFrame") -> Finding:
        if self.is_daily:
            return counts.not_empty(self._by_day(rows), self.staged.partitions)
        return counts.not_empty({"all": rows.count()}, ["all"])

    def _within_partitions(self, rows: "DataFrame") -> Finding:
        by_day = self._by_day(rows)
        written = sum(by_day.values()) if self.record is None else self.record.rows
        # A view that is new has all days that its table has.
        is_whole = self.record is not None and self.record.is_whole
        return counts.within_partitions(by_day, by_day if is_whole else self.staged.partitions, written)

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
        expected = selected(self.contract, self.table, view, there)
        published_as = self.staging.definition(self.staged, self.table)
        return selection(view, expected, rows.select(*expected.columns), published_as)

    def _drift(self, rows: "DataFrame") -> Finding:
        if self.is_daily:
            # Of a view a day may have no rows, which counts as such; of a table that is an error of its own.
            none = dict.fromkeys(self.staged.partitions, 0) if self.table.view is not None else {}
            of_run = {**none, **self._by_day(rows)}
            everywhere = counts.rows_by_day(self._after, self.table)
            return counts.drifted(self.table.drift, of_run, counts.usual_rows(everywhere, of_run))
        usual = {"table": None if self._main is None else self._main.count()}
        return counts.drifted(self.table.drift, {"table": rows.count()}, usual)

    def _serveable(self) -> Finding:
        clients = self.staging.clients(self.staged, self.table)
        return serveable(self.table.serveable_to, clients, self.record.rewritten if self.record else ())

    def _by_day(self, rows: "DataFrame") -> Mapping[str, int]:
        if self._days is None:
            self._days = counts.rows_by_day(rows, self.table)
        return self._days

    def _rule(self, rule: Rule, outcome: Outcome | NotEvaluated) -> Check:
        def check() -> Finding:
            if isinstance(outcome, NotEvaluated):
                raise outcome
            return rule_finding(self.table, rule, outcome)

        return check

    def _reference(self, reference: Reference, rows: "DataFrame", types: Types) -> Check:
        def check() -> Finding:
            require_columns(reference.columns, types)
            there = self.staging.table_after(self.staged, self.contract.table(reference.to_table))
            require_columns(reference.to_columns, types_of(there.schema))
            return unmatched(self.table, reference, self._after if self.is_daily else rows, there)

        return check

    def _outcomes(self, rows: "DataFrame", types: Types) -> list[tuple[Rule, Outcome | NotEvaluated]]:
        found: dict[str, Outcome | NotEvaluated] = {}
        of_run: list[Rule] = []
        of_table: list[Rule] = []
        for rule in self.table.rules:
            try:
                require_columns(rule_columns(rule), types)
            except NotEvaluated as lacking:
                found[rule.name] = lacking
            else:
                # Where a run replaces the whole table its rows are the table: one pass serves both scopes.
                whole = needs_whole_table(self.contract, self.table, rule)
                (of_table if whole else of_run).append(rule)
        answers: Mapping[str, Outcome | NotEvaluated] = {
            **judge(rows, of_run),
            **(judge(self._after, of_table) if of_table else {}),
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
            return unanswered(self.table, str(error))

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.lake.settings, f"auditing {self.table.name} at {self.staged.ref}")


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
    specs = checks_of(contract)
    verdicts: list[Verdict] = []
    with explained(lake.settings, f"auditing {staged.ref}"):
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


class RedReplay(NotAudited):
    """What was audited green was red when it was written and judged again on what main had become."""

    def __init__(self, replayed: Staged, verdicts: Verdicts) -> None:
        super().__init__(replayed.title, f"its audit after a replay failed ({verdicts.blocking_names})")
        self.replayed, self.verdicts = replayed, verdicts


def with_replay(
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
            drop(lake, contract, staged.ref)
            staged, verdicts = replayed, judged(lake, contract, replayed)
            if not verdicts.green:
                raise RedReplay(staged, verdicts) from conflict


def judged(lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    """Audit a staged set and keep its verdicts beside it."""
    verdicts = audit(lake, contract, staged)
    keep(lake.settings, staged, verdicts)
    return verdicts
