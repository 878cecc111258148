"""Audit: run every check of a contract on one staged state; a failing check does not stop the others.

Whether the verdicts allow a publication is decided in share/publication.py.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from lakeshare_pipelines.contracts import Reference, Rule, SetContract, Table
from lakeshare_pipelines.contracts.rules import Assertion
from lakeshare_pipelines.errors import BranchMoved, Conflict, NotAudited, PipelineError
from lakeshare_pipelines.ingest.delivery import name_files
from lakeshare_pipelines.ingest.landing import open_landing
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import NESSIE, LakeSettings
from lakeshare_pipelines.spark.session import count_cores, translate_errors
from lakeshare_pipelines.wap import checks
from lakeshare_pipelines.wap.checks import CheckSpec, NotEvaluated, RuleOutcome, Types
from lakeshare_pipelines.wap.inputs import read_publication
from lakeshare_pipelines.wap.merge import align
from lakeshare_pipelines.wap.serveable import check_serveable
from lakeshare_pipelines.wap.stage import (
    Staging,
    check_selection,
    drop_staging_location,
    open_ledger,
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
    find_trace,
    read_quarantine,
    save_attempt,
)
from lakeshare_server.telemetry.logs import run_step
from lakeshare_server.telemetry.tracing import add_attributes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakeshare_server.catalog import Publication

log = logging.getLogger(__name__)

JITTER_S = 2.0
WHOLE_TABLE = "all"
MAX_HELD_VALUES = 2_000_000
"""Staged rows with no more values are held in Spark's memory; to hold more costs longer than to read columns again."""

MANY_FILES = 32
"""Held rows of more files, or partitions, are read by one task for each core."""

KNOWN = 10
"""Publications in whose states main may be at the start of a run: others may be published while it is at work."""

T = TypeVar("T")


class ReplayFailedAudit(NotAudited):
    """The audit of a replay on the moved main failed."""

    def __init__(self, replayed: Staged, verdicts: Verdicts) -> None:
        super().__init__(replayed.title, f"its audit after a replay failed ({verdicts.blocking_names})")
        self.replayed, self.verdicts = replayed, verdicts


class TableAudit:
    """The checks of one table; `published` are its last publications, newest first."""

    def __init__(
        self,
        lake: Lake,
        staging: Staging,
        contract: SetContract,
        staged: Staged,
        table: Table,
        published: "Sequence[Publication]",
    ) -> None:
        self.lake, self.staging, self.contract = lake, staging, contract
        self.staged, self.table, self.published = staged, table, published
        self.record = staged.find_table(table.name)
        self.is_whole = self.record is not None and self.record.is_whole
        self.is_by_partition = contract.is_by_partition(table)
        self._counts: Mapping[str, int] | None = None
        self._rows: DataFrame
        # Rows that are not of the run, and that rules on its rows are about, too.
        self._others = 0
        self._held = ExitStack()

    def verdicts(self, specs: list[CheckSpec]) -> list[Verdict]:
        reads_whole = any(map(partial(checks.needs_whole_table, self.contract, self.table), self.table.rules))
        # What is held last goes first: Spark would plan a frame again when one that it reads goes.
        with self._held:
            try:
                with self._translate_errors():
                    rows = self._rows = self._hold(self.staging.rows_of_run(self.staged, self.table))
                    if reads_whole and self._after is not rows:
                        self._after = self._hold(self._after, *self.published[:1])
                    of_rows = self._add_rows_of_others(rows)
            except PipelineError:
                raise
            except Exception as error:
                unreadable = checks.make_failed_finding(self.table, f"the table cannot be read: {error}")
                return [_make_verdict(spec, unreadable) for spec in specs]
            by_name = self._checks(rows, of_rows)
            return [_make_verdict(spec, self._run(by_name[spec.name])) for spec in specs]

    def _hold(self, frame: "DataFrame", *others: "Publication") -> "DataFrame":
        """Hold the rows of the run, and those of other publications, in Spark's memory if they are few."""
        rows = sum((each.rows for each in others), 0 if self.record is None else self.record.rows)
        if self.record is not None and rows * len(self.table.columns) <= MAX_HELD_VALUES:
            files = sum((each.files for each in others), len(self.staged.partitions))
            if files > MANY_FILES and self.lake.settings.spark_mode == "local":
                # Iceberg has a task for every four small files, in each query of held rows, too.
                frame = frame.coalesce(count_cores(self.lake.spark))
            self._held.callback(frame.persist().unpersist)
        return frame

    def _add_rows_of_others(self, rows: "DataFrame") -> "DataFrame":
        """The rows of the run, and those that another writer added to main: no run audited them."""
        if self._main is None or self.contract.is_replaced(self.table):
            return rows
        state = self.staging.state_on_main(self.staged, self.table)
        published = self.staging.select_own(self.staged, self.table, self.published)
        if any(state in (each.delta_version, each.snapshot_id) for each in published):
            return rows
        others = self._find_rows_of_others(published)
        is_whole = others is self._after
        self._others = others.count() - (rows.count() if is_whole else 0)
        if not self._others:
            return rows
        since = f" since publication {self.published[0].version}" if self.published else ""
        log.warning(
            "%s: another writer changed main%s: rules are about %d more rows",
            *(self.table.name, since, self._others),
        )
        return others if is_whole else rows.unionByName(others, allowMissingColumns=True)

    def _find_rows_of_others(self, published: "Sequence[Publication]") -> "DataFrame":
        """The rows that main has since the last publication and that stay; all rows if they cannot be compared."""
        has_maps = any("map<" in column.type for column in self.table.columns)
        if self._main is None or not published or has_maps:
            # Spark does not compare maps.
            return self._after
        try:
            known = read_publication(self.lake, published[0])
            added = align(self.table, self.staging.rows_since(self.staged, self.table, published[0], known))
            self._held.callback(added.persist().unpersist)
            if added.isEmpty():
                return added
            others = added.intersectAll(align(self.table, self._after))
            self._held.callback(others.persist().unpersist)
            others.count()
        except Exception as error:  # of Spark or of the store
            reason = checks.make_failed_finding(self.table, str(error)).observed["reason"]
            log.warning("%s: the comparison with its last publication is %s", self.table.name, reason)
            return self._after
        return others

    def _checks(self, rows: "DataFrame", of_rows: "DataFrame") -> dict[str, Callable[[], Finding]]:
        """The checks by their names; `of_rows` are the rows that rules of rows are about."""
        types = checks.get_types(rows.schema)
        outcomes = self._evaluate_rules(of_rows, types)
        return {
            checks.STRUCTURE: partial(self._check_structure, types),
            checks.ROWS_PARSED: self._check_rows_parsed,
            checks.MERGE_KEYS: self._check_merge_keys,
            checks.NOT_EMPTY: partial(self._check_not_empty, rows),
            checks.WITHIN_PARTITIONS: partial(self._check_within_partitions, rows),
            checks.DRIFT: partial(self._check_drift, rows),
            checks.SERVEABLE: self._check_serveable,
            checks.SELECTION: partial(self._check_selection, rows),
            **{rule.name: partial(self._check_rule, rule, outcomes[rule.name]) for rule in self.table.rules},
            **{each.name: partial(self._check_assertion, each) for each in self.table.assertions},
            **{ref.name: partial(self._check_reference, ref, rows, types) for ref in self.table.references},
        }

    @cached_property
    def _main(self) -> "DataFrame | None":
        return self.staging.on_main(self.staged, self.table)

    @cached_property
    def _after(self) -> "DataFrame":
        return self.staging.table_around(self.staged, self.table, self._rows)

    def _check_structure(self, types: Types) -> Finding:
        published = None if self._main is None else checks.get_types(self._main.schema)
        problems = ["the run did not stage it"] if self.record is None else list(self.record.problems)
        declared = checks.get_declared_types(self.table)
        # Another writer may have added columns to main.
        schemas = [json.loads(each.schema_string) for each in self.published[:1]]
        known = {field["name"].lower() for schema in schemas for field in schema["fields"]}
        problems += checks.find_structure_problems(self.table, types, declared, published, known)
        return Finding.of({"columns": len(types), "problems": problems}, "; ".join(problems))

    def _check_rows_parsed(self) -> Finding:
        finding = checks.check_rows_parsed(self.table, self.record or StagedTable(self.table.name, 0))
        if finding.passed:
            return finding
        settings, set_name, run_id = self.lake.settings, self.contract.name, self.staged.run_id
        rejected = read_quarantine(settings, set_name, run_id, self.table.name, checks.SAMPLE_ROWS)
        shows_values = settings.show_rejected_values
        samples = tuple(
            checks.make_rejected_sample(self.table, r, shows_values=shows_values) for r in rejected
        )
        command = f"lakeshare quarantine show {set_name} --run {run_id} --table {self.table.name}"
        return Finding(False, {**finding.observed, checks.SHOW_REJECTED: command}, samples)

    def _check_merge_keys(self) -> Finding:
        problems = () if self.record is None else self.record.key_problems
        return Finding.of({"problems": list(problems)}, "; ".join(problems))

    def _check_not_empty(self, rows: "DataFrame") -> Finding:
        if self.table.write.is_incremental and self.record is not None:
            # Rows that change nothing, or only delete others, are none of the run's.
            is_new = set(self.staged.partitions) > set(self.record.skipped)
            return checks.check_not_empty({WHOLE_TABLE: self.record.rows}, (WHOLE_TABLE,) if is_new else ())
        partitions = self.staged.partitions if self.is_by_partition else (WHOLE_TABLE,)
        return checks.check_not_empty(self._count_by_partition(rows), partitions)

    def _check_within_partitions(self, rows: "DataFrame") -> Finding:
        by_partition = self._count_by_partition(rows)
        written = sum(by_partition.values()) if self.record is None else self.record.rows
        # A new view has all days that its table has.
        expected = by_partition if self.is_whole else self.staged.partitions
        return checks.check_within_partitions(by_partition, expected, written)

    def _check_selection(self, rows: "DataFrame") -> Finding:
        view = self.table.view
        if view is None:
            raise ValueError(f"{self.table.name} is no view")
        read = self.staging.table_after if self.is_whole or self._others else self.staging.rows_of_run
        base = read(self.staged, self.contract.table(view.of))
        rows = self._after if self._others else rows
        expected = select_view_rows(self.contract, self.table, view, base)
        published_as = self.staging.definition(self.staged, self.table)
        return check_selection(view, expected, rows.select(*expected.columns), published_as)

    def _check_drift(self, rows: "DataFrame") -> Finding:
        if self.is_by_partition:
            of_run = {**dict.fromkeys(self.staged.partitions, 0), **self._count_by_partition(rows)}
            if not self.contract.partitioning.is_time:
                # Other names are no earlier states of a partition.
                known = self._main
                main = (
                    {} if known is None else checks.count_rows_by_partition(known, self.contract, self.table)
                )
                return checks.check_drift(self.table.drift, of_run, {name: main.get(name) for name in of_run})
            of_all = checks.count_rows_by_partition(self._after, self.contract, self.table)
            return checks.check_drift(self.table.drift, of_run, checks.compute_usual_rows(of_all, of_run))
        usual = {"table": None if self._main is None else self._main.count()}
        is_whole = self.contract.is_replaced(self.table)
        counts = {"table": self._count_by_partition(rows)[WHOLE_TABLE] if is_whole else self._after.count()}
        return checks.check_drift(self.table.drift, counts, usual)

    def _check_serveable(self) -> Finding:
        clients = self.staging.clients(self.staged, self.table)
        return check_serveable(self.table.serveable_to, clients, self.record.rewritten if self.record else ())

    def _count_by_partition(self, rows: "DataFrame") -> Mapping[str, int]:
        if self._counts is None:
            if self.is_by_partition:
                self._counts = checks.count_rows_by_partition(rows, self.contract, self.table)
            else:
                self._counts = {WHOLE_TABLE: rows.count()}
        return self._counts

    def _check_rule(self, rule: Rule, outcome: RuleOutcome | NotEvaluated) -> Finding:
        if isinstance(outcome, NotEvaluated):
            raise outcome
        found = checks.make_rule_finding(self.table, rule, outcome)
        if not self._others:
            return found
        return replace(found, observed={**found.observed, "rows_not_of_the_run": self._others})

    def _check_reference(self, reference: Reference, rows: "DataFrame", types: Types) -> Finding:
        checks.require_columns(reference.columns, types)
        target = self.staging.table_after(self.staged, self.contract.table(reference.to_table))
        checks.require_columns(reference.to_columns, checks.get_types(target.schema))
        is_whole = self.contract.is_replaced(self.table)
        return checks.check_reference(self.table, reference, rows if is_whole else self._after, target)

    def _check_assertion(self, assertion: Assertion) -> Finding:
        frames: dict[str, Any] = {name: self._read_by_name(name) for name in assertion.reads}
        return checks.check_assertion(self.table, assertion, self.lake.spark.sql(assertion.query, **frames))

    def _read_by_name(self, name: str) -> "DataFrame":
        """A table of the set as it will be, or an input at the number that the run read, by its short name."""
        if name == self.table.short_name:
            return self._after
        own = next((table for table in self.contract.tables if table.short_name == name), None)
        if own is not None:
            return self.staging.table_after(self.staged, own)
        read = next(read.table for read in self.table.inputs if read.short_name == name)
        with open_ledger(self.lake.settings) as ledger:
            publication = ledger.at(read, self.staged.inputs[read])
        if publication is None:
            raise NotEvaluated(f"publication {self.staged.inputs[read]} of {read} is gone")
        return read_publication(self.lake, publication)

    def _evaluate_rules(self, rows: "DataFrame", types: Types) -> dict[str, RuleOutcome | NotEvaluated]:
        outcomes: dict[str, RuleOutcome | NotEvaluated] = {}
        of_run: list[Rule] = []
        of_table: list[Rule] = []
        for rule in self.table.rules:
            try:
                checks.require_columns(checks.get_rule_columns(rule), types)
            except NotEvaluated as missing:
                outcomes[rule.name] = missing
            else:
                # Where a run replaces the whole table its rows are the table: one pass serves both scopes.
                whole = checks.needs_whole_table(self.contract, self.table, rule)
                (of_table if whole else of_run).append(rule)
        evaluated: Mapping[str, RuleOutcome | NotEvaluated] = {
            **checks.evaluate_rules(rows, of_run),
            **(checks.evaluate_rules(self._after, of_table) if of_table else {}),
        }
        if any(isinstance(outcome, NotEvaluated) for outcome in evaluated.values()):
            # Great Expectations hides that the Spark driver or its executors are gone; a job shows it.
            with self._translate_errors():
                self.lake.spark.range(1, numPartitions=1).collect()
        return {**outcomes, **evaluated}

    def _run(self, check: Callable[[], Finding]) -> Finding:
        try:
            with self._translate_errors():
                return check()
        except PipelineError:
            raise
        except Exception as error:
            return checks.make_failed_finding(self.table, str(error))

    def _translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(self.lake.settings, f"auditing {self.table.name} at {self.staged.ref}")


def _make_verdict(spec: CheckSpec, finding: Finding) -> Verdict:
    severity, text = finding.severity or spec.severity, spec.description
    return Verdict(spec.table, spec.name, severity, finding.passed, text, finding.observed, finding.samples)


def audit(lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    """Run exactly the checks of `list_checks(contract)` on `staged.head`.

    Raises:
        BranchMoved: the staging location is not, or no longer, at `staged.head`.
        SparkError: Spark died, or the disk is full; nothing is known about the rows.
    """
    staging = staging_for(lake, contract)
    specs = checks.list_checks(contract)
    verdicts: list[Verdict] = []
    with (
        run_step("audit", staged.run_id, find_trace(lake, staged.ref), set=contract.name, ref=staged.ref),
        translate_errors(lake.settings, f"auditing {staged.ref}"),
    ):
        _require_head(staging, staged)
        with open_ledger(lake.settings) as ledger:
            published = {table.name: ledger.history(table.name, KNOWN) for table in contract.tables}
        for table in contract.tables:
            of_table = [spec for spec in specs if spec.table == table.name]
            of = TableAudit(lake, staging, contract, staged, table, published[table.name])
            verdicts += of.verdicts(of_table)
        # The frames were read by the name of the location, not by its state.
        _require_head(staging, staged)
        result = Verdicts(staged.ref, staged.head, tuple(verdicts), contract.digest)
        for verdict in result.failed:
            log.warning("%s failed (%s): %s", verdict.name, verdict.severity, verdict.reason)
        add_attributes(checks=len(verdicts), failed=len(result.failed), green=result.green)
    return result


def _require_head(staging: Staging, staged: Staged) -> None:
    head = staging.seal(staged.ref)
    if head != staged.head:
        raise BranchMoved(staged.ref, staged.head, head)


def audit_and_save(lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    verdicts = audit(lake, contract, staged)
    save_attempt(lake, staged, verdicts)
    return verdicts


@contextmanager
def open_trial_lake(settings: LakeSettings, contract: SetContract, spark: "SparkSession") -> Iterator[Lake]:
    """A lake of its own in a temporary folder, with an empty warehouse; removed at the end of the block."""
    with TemporaryDirectory(prefix="lakeshare-test-") as folder, ExitStack() as stack:
        own = settings.model_copy(
            update={
                "state_dir": Path(folder),
                "warehouse": None,
                "landing": None,
                "database_url": None,
                "iceberg_catalog": NESSIE,
                "nessie_uri": None,
            }
        )
        if any(table.format == "iceberg" for table in contract.tables):
            stack.enter_context(nessie_for(own, keep=False))
        yield Lake(own, lambda: spark)


def audit_files(
    lake: Lake, contract: SetContract, files: Sequence[Path], partition: str
) -> tuple[Staged, Verdicts]:
    """Delivers files to a trial lake, stages and audits them. Nothing is published.

    Raises:
        DeliveryError: the files are no delivery of the set.
    """
    tables = tuple(
        replace(
            table,
            warehouse=None,
            location=None,
            # Files stand for the rows of other sources.
            source=table.source if table.reads is None else table.short_name,
            reads=None,
        )
        for table in contract.tables
    )
    here = replace(contract, tables=tables, server=replace(contract.server, location=None, endpoint_url=None))
    open_landing(lake.settings).replace(here.name, partition, name_files(here, files))
    staged = stage(lake, here, [partition], "trial")
    verdicts = audit(lake, here, staged)
    # The quarantine is gone with the lake.
    shown = tuple(
        replace(verdict, observed={k: v for k, v in verdict.observed.items() if k != checks.SHOW_REJECTED})
        for verdict in verdicts.verdicts
    )
    return staged, replace(verdicts, verdicts=shown)


def publish_with_replay(
    lake: Lake,
    contract: SetContract,
    staged: Staged,
    verdicts: Verdicts,
    publish: Callable[[Staged, Verdicts], T],
) -> T:
    """Publish; on a conflict stage and audit the same deliveries again on the current main, a few times.

    Raises:
        Conflict: main moved during every attempt.
        ReplayFailedAudit: the audit of a replay failed; its staging location stays for inspection.
    """
    while True:
        try:
            return publish(staged, verdicts)
        except Conflict as conflict:
            if staged.attempt + 1 >= lake.settings.replay_attempts:
                raise
            log.warning("%s; replaying %s", conflict, staged.title)
            time.sleep(random.uniform(0, JITTER_S))  # noqa: S311  two writers in step, not a secret
            attempt, run_id = staged.attempt + 1, staged.run_id
            with run_step("replay", run_id, find_trace(lake, staged.ref), set=contract.name, attempt=attempt):
                replayed = stage(lake, contract, staged.partitions, run_id, attempt, staged.pins)
            drop_staging_location(lake, contract, staged.ref)
            staged, verdicts = replayed, audit_and_save(lake, contract, replayed)
            if not verdicts.green:
                raise ReplayFailedAudit(staged, verdicts) from conflict
