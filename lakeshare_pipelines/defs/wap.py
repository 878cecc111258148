"""`wap_set(contract)`: the tables of a set as one graph-backed asset, write → audit → publish.

The tables are what is on main and in the ledger; what is staged is never an asset. See docs/adr/0001.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.defs.alerts import tell_red
from lakeshare_pipelines.defs.metadata import (
    UNCHANGED_TEXT,
    check_metadata,
    column_metadata,
    publication_metadata,
    staged_metadata,
)
from lakeshare_pipelines.defs.partitions import partitions_of, partitions_of_run
from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_pipelines.errors import BranchMoved, Conflict, NotAudited
from lakeshare_pipelines.share.publication import (
    UnchangedRun,
    latest_publications,
    publish_or_replay,
    unchanged_run,
)
from lakeshare_pipelines.wap.branches import resealed
from lakeshare_pipelines.wap.checks import CheckSpec, checks_of
from lakeshare_pipelines.wap.replay import RedReplay, judged
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdict, Verdicts
from lakeshare_server.catalog import Publication
from lakeshare_server.errors import Unavailable

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

JUDGED = "judged"
UNCHANGED = "unchanged"
"""Key of the record of a run whose deliveries are in force already: nothing is written, judged or published."""
RETRIES, RETRY_S = 3, 10.0
"""How often a step is tried again when the database or a store does not answer, and after how many seconds."""
SEVERITY = {"error": dg.AssetCheckSeverity.ERROR, "warning": dg.AssetCheckSeverity.WARN}


def table_key(table: str) -> dg.AssetKey:
    """`flights.departures` as an asset key: `flights/departures`."""
    return dg.AssetKey(table.split("."))


def landing_key(contract: SetContract) -> dg.AssetKey:
    """The external asset of a set's deliveries."""
    return dg.AssetKey(["landing", contract.name])


def wap_set(contract: SetContract) -> dg.AssetsDefinition:
    """The set's asset: nothing of it can be selected alone, published alone, or published unaudited."""
    checks = [_spec(check) for check in checks_of(contract)]
    write, audit, publish = _write(contract), _audit(contract, checks), _publish(contract)
    outputs = {_output(table): _asset_out(contract, table) for table in contract.tables}

    @dg.graph_multi_asset(
        name=f"{contract.name}_set",
        ins={"delivery": dg.AssetIn(landing_key(contract), dagster_type=dg.Nothing)},
        outs=outputs,
        check_specs=checks,
        partitions_def=partitions_of(contract),
        backfill_policy=None if contract.partitioning == "none" else dg.BackfillPolicy.single_run(),
        group_name=contract.name,
        can_subset=False,
    )
    def wap_graph(delivery: Any) -> dict[str, Any]:  # Dagster's handles have no public type
        judgement = audit(write(delivery))
        verdicts = {
            spec.get_python_identifier(): getattr(judgement, spec.get_python_identifier()) for spec in checks
        }
        published = publish(getattr(judgement, JUDGED), gate=list(verdicts.values()))
        tables = published if isinstance(published, tuple) else (published,)
        return dict(zip(outputs, tables, strict=True)) | verdicts

    return wap_graph


def publish_job(contract: SetContract) -> "UnresolvedAssetJobDefinition":
    """`publish_<set>`: the set's asset as a job, for the UI's launchpad, the sensor and CI."""
    keys = [table_key(table.name) for table in contract.tables]
    return dg.define_asset_job(
        f"publish_{contract.name}",
        selection=dg.AssetSelection.assets(*keys),
        description=f"Stage, audit and publish deliveries of {contract.name}.",
    )


def _write(contract: SetContract) -> dg.OpDefinition:
    @dg.op(
        name=f"{contract.name}_write",
        description="Read the deliveries into the set's tables on a branch of their own, readable by promised clients.",
        ins={"delivery": dg.In(dg.Nothing)},
        out=dg.Out(dict),
        pool=_pool(contract),
    )
    def write(context: dg.OpExecutionContext, lake: LakeResource) -> dict[str, Any]:
        partitions = partitions_of_run(context)
        with _retried():
            unchanged = unchanged_run(lake.lake(), lake.catalog(), contract, partitions)
        if unchanged is not None:
            context.log.info(
                f"{contract.name} {', '.join(partitions)}: these deliveries are in force already"
            )
            context.add_output_metadata({"lakeshare/unchanged": UNCHANGED_TEXT})
            return {UNCHANGED: unchanged.as_record()}
        staged = stage(lake.lake(), contract, partitions, context.run_id)
        context.add_output_metadata(staged_metadata(staged))
        return staged.as_record()

    return write


def _audit(contract: SetContract, specs: list[dg.AssetCheckSpec]) -> dg.OpDefinition:
    @dg.op(
        name=f"{contract.name}_audit",
        description="Judge what was written; one verdict per rule, red ones stop here.",
        out={JUDGED: dg.Out(dict, is_required=False)}
        | {spec.get_python_identifier(): dg.Out(is_required=False) for spec in specs},
        pool=_pool(contract),
    )
    def audit(context: dg.OpExecutionContext, written: dict[str, Any], lake: LakeResource) -> Iterator[Any]:
        if UNCHANGED in written:
            unchanged = UnchangedRun.from_record(written[UNCHANGED])
            yield from (_unchanged_result(check, unchanged) for check in checks_of(contract))
            yield dg.Output(written, JUDGED)
            return
        staged = resealed(lake.lake(), contract, Staged.from_record(written))
        verdicts = judged(lake.lake(), contract, staged)
        if not verdicts.green:
            tell_red(context, lake.settings(), staged, verdicts)
        # Bare: wrapped in an Output, Dagster records no check at all and lets publish run.
        for verdict in verdicts.verdicts:
            yield _check_result(verdict, staged)
        if verdicts.green:
            yield dg.Output({"staged": staged.as_record(), "verdicts": verdicts.as_record()}, JUDGED)

    return audit


def _publish(contract: SetContract) -> dg.OpDefinition:
    @dg.op(
        name=f"{contract.name}_publish",
        description="Merge exactly what was audited, index its files, write the ledger.",
        ins={"judgement": dg.In(dict), "gate": dg.In(dg.Nothing)},
        out={_output(table): dg.Out(dg.Nothing) for table in contract.tables},
        pool=_pool(contract),
    )
    def publish(
        context: dg.OpExecutionContext, judgement: dict[str, Any], lake: LakeResource
    ) -> Iterator[dg.Output[None]]:
        with _retried():
            if UNCHANGED in judgement:
                publications = latest_publications(lake.catalog(), contract)
            else:
                publications = _published(context, lake, contract, *_read(judgement))
            shown = {
                one.table: publication_metadata(lake.catalog(), one, context.run_id) for one in publications
            }
        for table in contract.tables:
            yield dg.Output(None, _output(table), metadata=shown[table.name])

    return publish


@contextmanager
def _retried() -> Iterator[None]:
    """Have the step tried again, from its start, when the database or a store does not answer."""
    try:
        yield
    except Unavailable as error:
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=RETRY_S) from error


def _published(
    context: dg.OpExecutionContext,
    lake: LakeResource,
    contract: SetContract,
    staged: Staged,
    verdicts: Verdicts,
) -> list[Publication]:
    try:
        return publish_or_replay(lake.lake(), lake.catalog(), contract, staged, verdicts)
    except (NotAudited, BranchMoved, Conflict) as refusal:
        if isinstance(refusal, RedReplay):
            staged = refusal.replayed  # the place that is kept; the first one is gone
            tell_red(context, lake.settings(), staged, refusal.verdicts)
        # Trying again would be refused again: these are answers, not accidents.
        raise dg.Failure(str(refusal), metadata=staged_metadata(staged), allow_retries=False) from refusal


def _read(judgement: Mapping[str, Any]) -> tuple[Staged, Verdicts]:
    return Staged.from_record(judgement["staged"]), Verdicts.from_record(judgement["verdicts"])


def _spec(check: CheckSpec) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        check.name, asset=table_key(check.table), blocking=True, description=check.description
    )


def _check_result(verdict: Verdict, staged: Staged) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=table_key(verdict.table),
        check_name=verdict.check,
        passed=verdict.passed,
        severity=SEVERITY[verdict.severity],
        description=verdict.description,
        metadata=check_metadata(verdict, staged),
    )


def _unchanged_result(check: CheckSpec, unchanged: UnchangedRun) -> dg.AssetCheckResult:
    has_passed = f"{check.table}: {check.name}" not in unchanged.failed_checks
    return dg.AssetCheckResult(
        asset_key=table_key(check.table),
        check_name=check.name,
        passed=has_passed,
        # A check that failed and was published with is a warning.
        severity=SEVERITY[check.severity] if has_passed else dg.AssetCheckSeverity.WARN,
        description=check.description,
        metadata={"lakeshare/unchanged": UNCHANGED_TEXT},
    )


def _asset_out(contract: SetContract, table: Table) -> dg.AssetOut:
    return dg.AssetOut(
        key=table_key(table.name),
        dagster_type=dg.Nothing,
        description=table.description,
        kinds={"spark", table.format, *(["view"] if table.view else [])},
        owners=list(contract.owners),
        tags={"domain": contract.domain} if contract.domain else None,
        metadata=column_metadata(contract, table),
        code_version=contract.digest[:12],
    )


def _output(table: Table) -> str:
    return table.name.replace(".", "__")


def _pool(contract: SetContract) -> str:
    return f"lakeshare_{contract.name}"
