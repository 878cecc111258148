"""`wap_set(contract)`: the tables of a set as one graph-backed asset, write → audit → publish.

The tables are what is on main and in the ledger; what is staged is never an asset. See docs/adr/0001.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.defs.resources import LakeResource, alert_failed_audit
from lakeshare_pipelines.errors import BranchMoved, Conflict, DeliveriesRefused, NotAudited
from lakeshare_pipelines.ingest import Delivery, find_deliveries
from lakeshare_pipelines.ingest.s3_landing import fetch_deliveries
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share import publication
from lakeshare_pipelines.share.publication import (
    UnchangedRun,
    deliveries_in_force,
    latest_publications,
    publish_or_replay,
    repair,
    unchanged_run,
)
from lakeshare_pipelines.wap.audit import ReplayFailedAudit, audit_and_save
from lakeshare_pipelines.wap.checks import CheckSpec, list_checks
from lakeshare_pipelines.wap.stage import drop_abandoned, reseal, stage
from lakeshare_pipelines.wap.staged import WHOLE, Staged, Verdict, Verdicts
from lakeshare_server.catalog import Catalog, Ledger, Publication, open_catalog
from lakeshare_server.catalog.audit import prune
from lakeshare_server.errors import Unavailable

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

MAX_PLOTTED = 60
UNCHANGED_TEXT = "this delivery is in force already; no new number was given"


def column_metadata(contract: SetContract, table: Table) -> Mapping[str, Any]:
    """Table name, column schema and column lineage, known before any run."""
    return {
        "dagster/table_name": table.name,
        "dagster/column_schema": _column_schema(table),
        "dagster/column_lineage": dg.TableColumnLineage(
            {column.name: _sources(contract, table, column) for column in table.columns}
        ),
    }


def staged_metadata(staged: Staged) -> Mapping[str, Any]:
    """Where a run's tables wait, and how many rows."""
    return {
        "lakeshare/staged_at": staged.ref,
        "lakeshare/partition": staged.partition,
        "lakeshare/head": staged.head,
        "lakeshare/rows": {table.table: table.rows for table in staged.tables},
        "lakeshare/rejected": {table.table: table.rejected for table in staged.tables},
        "lakeshare/rewritten": {table.table: list(table.rewritten) for table in staged.tables},
    }


def check_metadata(verdict: Verdict, staged: Staged) -> Mapping[str, Any]:
    """What a rule saw, up to twenty masked rows that broke it, and where the staged set is kept."""
    shown: dict[str, Any] = {"lakeshare/staged_at": staged.ref, "lakeshare/head": staged.head}
    for name, value in verdict.observed.items():
        shown[f"observed/{name}"] = _make_metadata_value(value)
    if verdict.samples:
        shown["lakeshare/samples"] = dg.MetadataValue.md(format_markdown_table(verdict.samples))
    if not verdict.passed:
        shown["lakeshare/next"] = f"lakeshare wap show {staged.ref}"
    return shown


def _make_metadata_value(value: Any) -> Any:
    """Numbers and texts as they are, rows of one kind as a table, everything else as JSON."""
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        return dg.MetadataValue.md(format_markdown_table(value))
    return dg.MetadataValue.json(value)


def publication_metadata(catalog: Catalog, publication: Publication, run_id: str) -> Mapping[str, Any]:
    """Number, counts, pins, and the row count over the last publications as a small picture."""
    history = Ledger(catalog).history(publication.table, limit=MAX_PLOTTED)
    shown: dict[str, Any] = {
        "dagster/row_count": publication.rows,
        "dagster/uri": publication.location,
        "lakeshare/publication": publication.version,
        "lakeshare/files": publication.files,
        "lakeshare/size_bytes": publication.size_bytes,
        "lakeshare/index": publication.index_digest,
        "lakeshare/published_by": publication.run_id,
        "lakeshare/rows_over_time": dg.MetadataValue.md(
            plot_rows([entry.rows for entry in reversed(history)])
        ),
    }
    if publication.run_id != run_id:
        shown["lakeshare/unchanged"] = UNCHANGED_TEXT
    if publication.nessie_hash is not None:
        shown["nessie/hash"] = publication.nessie_hash
        shown["iceberg/snapshot_id"] = str(publication.snapshot_id)
    if publication.delta_version is not None:
        shown["delta/version"] = publication.delta_version
    return shown


def plot_rows(rows: Sequence[int], width: int = 360, height: int = 60) -> str:
    """Row counts, oldest first, as bars in a Markdown image."""
    top = max([*rows, 1])
    step = width / max(len(rows), 1)
    bars = "".join(
        f'<rect x="{at * step:.1f}" y="{height - height * count / top:.1f}" '
        f'width="{step * 0.8:.1f}" height="{height * count / top:.1f}"/>'
        for at, count in enumerate(rows)
    )
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" fill="#4f6fad">{bars}</svg>'
    picture = base64.b64encode(svg.encode()).decode()
    return f"![{len(rows)} publications, at most {top} rows](data:image/svg+xml;base64,{picture})"


def format_markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as a Markdown table."""
    names = list(rows[0])
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(row.get(name)).replace("|", "\\|") for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _sources(contract: SetContract, table: Table, column: Column) -> list[dg.TableColumnDep]:
    if table.source is not None:
        source = column.delivered_as
        return [] if source is None else [dg.TableColumnDep(dg.AssetKey(["landing", contract.name]), source)]
    named = (name.rsplit(".", 1) for name in column.lineage)
    return [
        dg.TableColumnDep(dg.AssetKey(contract.table(of).name.split(".")), source) for of, source in named
    ]


def _column_schema(table: Table) -> dg.TableSchema:
    key = table.primary_key
    is_composite = len(key) > 1
    constraints = dg.TableConstraints(other=[f"PRIMARY KEY ({', '.join(key)})"]) if is_composite else None
    return dg.TableSchema([_column(table, column) for column in table.columns], constraints)


def _column(table: Table, column: Column) -> dg.TableColumn:
    return dg.TableColumn(
        column.name,
        column.type,
        description=column.description,
        constraints=dg.TableColumnConstraints(
            nullable=not column.required, unique=column.unique or table.primary_key == (column.name,)
        ),
        tags={"pii": ""} if column.pii else {},
    )


def make_partitions(contract: SetContract) -> dg.DailyPartitionsDefinition | None:
    """The partitions of a set's tables; None when it is replaced as a whole."""
    if contract.partitioning == "none":
        return None
    return dg.DailyPartitionsDefinition(start_date=str(contract.first_partition))


def make_delivery_partitions(contract: SetContract) -> dg.DynamicPartitionsDefinition:
    """One key per delivery that was seen: `<partition>@<digest>`, the first twelve digits of it."""
    return dg.DynamicPartitionsDefinition(name=f"landing_{contract.name}")


def make_delivery_key(partition: str, digest: str) -> str:
    """The dynamic partition key of a delivery."""
    return f"{partition}@{digest[:12]}"


def get_partitions_of_run(context: dg.OpExecutionContext) -> tuple[str, ...]:
    """The partitions a run writes: one day, every day of a range, or the whole set."""
    return tuple(context.partition_keys) if context.has_partitions else WHOLE


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
    checks = [_spec(check) for check in list_checks(contract)]
    write, audit, publish = _write(contract), _audit(contract, checks), _publish(contract)
    outputs = {_output(table): _asset_out(contract, table) for table in contract.tables}

    @dg.graph_multi_asset(
        name=f"{contract.name}_set",
        ins={"delivery": dg.AssetIn(landing_key(contract), dagster_type=dg.Nothing)},
        outs=outputs,
        check_specs=checks,
        partitions_def=make_partitions(contract),
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
        partitions = get_partitions_of_run(context)
        with _retry_on_outage():
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
            yield from (_unchanged_result(check, unchanged) for check in list_checks(contract))
            yield dg.Output(written, JUDGED)
            return
        staged = reseal(lake.lake(), contract, Staged.from_record(written))
        verdicts = audit_and_save(lake.lake(), contract, staged)
        if not verdicts.green:
            alert_failed_audit(context, lake.settings(), staged, verdicts)
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
        with _retry_on_outage():
            if UNCHANGED in judgement:
                publications = latest_publications(lake.catalog(), contract)
            else:
                publications = _publish_and_report(context, lake, contract, *_parse_judgement(judgement))
            shown = {
                publication.table: publication_metadata(lake.catalog(), publication, context.run_id)
                for publication in publications
            }
        for table in contract.tables:
            yield dg.Output(None, _output(table), metadata=shown[table.name])

    return publish


@contextmanager
def _retry_on_outage() -> Iterator[None]:
    """Have the step tried again, from its start, when the database or a store does not answer."""
    try:
        yield
    except Unavailable as error:
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=RETRY_S) from error


def _publish_and_report(
    context: dg.OpExecutionContext,
    lake: LakeResource,
    contract: SetContract,
    staged: Staged,
    verdicts: Verdicts,
) -> list[Publication]:
    try:
        return publish_or_replay(lake.lake(), lake.catalog(), contract, staged, verdicts)
    except (NotAudited, BranchMoved, Conflict) as refusal:
        if isinstance(refusal, ReplayFailedAudit):
            staged = refusal.replayed  # the place that is kept; the first one is gone
            alert_failed_audit(context, lake.settings(), staged, refusal.verdicts)
        # Trying again would be refused again: these are answers, not accidents.
        raise dg.Failure(str(refusal), metadata=staged_metadata(staged), allow_retries=False) from refusal


def _parse_judgement(judgement: Mapping[str, Any]) -> tuple[Staged, Verdicts]:
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


@dg.op(
    description="Remove audit events older than LAKESHARE_AUDIT_RETENTION_DAYS; the chain stays verifiable."
)
def prune_audit_log(context: dg.OpExecutionContext, repaired: int, lake: LakeResource) -> None:
    days = lake.settings().audit_retention_days
    if days is None:
        context.log.info("audit events are kept for ever: LAKESHARE_AUDIT_RETENTION_DAYS is not set")
        return
    pruned = prune(lake.catalog(), datetime.now(UTC) - timedelta(days=days), "janitor")
    context.log.info(f"removed {pruned.events} audit events of more than {days} days ago")


def maintenance_definitions(contracts: Sequence[SetContract]) -> dg.Definitions:
    """The janitor's job and its nightly schedule."""

    @dg.op(description="Write ledger entries that crashed runs still owe.")
    def repair_ledger(context: dg.OpExecutionContext, lake: LakeResource) -> int:
        repaired = 0
        for contract in contracts:
            repaired += len(repair(lake.lake(), lake.catalog(), contract, lake.settings().lock_wait_s))
        context.log.info(f"{repaired} publications were owed and are written now")
        return repaired

    @dg.op(description="Drop staging places older than LAKESHARE_BRANCH_DAYS.")
    def drop_abandoned_places(context: dg.OpExecutionContext, repaired: int, lake: LakeResource) -> None:
        dropped = drop_abandoned(lake.lake(), contracts)
        refs = ", ".join(place.ref for place in dropped) or "none"
        context.log.info(f"dropped {len(dropped)} staging places: {refs} ({repaired} repaired before)")

    @dg.op(description="Remove change files older than LAKESHARE_BRANCH_DAYS that no publication names.")
    def drop_abandoned_changes(context: dg.OpExecutionContext, repaired: int, lake: LakeResource) -> None:
        for contract in contracts:
            folders = publication.drop_abandoned(
                lake.lake(), lake.catalog(), contract, lake.settings().lock_wait_s
            )
            context.log.info(
                f"removed {len(folders)} folders of change files: {', '.join(folders) or 'none'}"
            )

    @dg.job(
        description="Repairs the ledger, then removes abandoned staging places and files, and old events."
    )
    def janitor() -> None:
        repaired = repair_ledger()
        drop_abandoned_places(repaired)
        drop_abandoned_changes(repaired)
        prune_audit_log(repaired)

    nightly = dg.ScheduleDefinition(
        name="janitor_nightly",
        job=janitor,
        cron_schedule="30 3 * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return dg.Definitions(jobs=[janitor], schedules=[nightly])


INTERVAL_S = 30


def landing_asset(contract: SetContract) -> dg.AssetSpec:
    """What others deliver: lakeshare only observes it."""
    return dg.AssetSpec(
        landing_key(contract),
        description=f"Deliveries for set {contract.name}; one key per content that arrived.",
        group_name="landing",
        kinds={"file"},
        owners=list(contract.owners),
        partitions_def=make_delivery_partitions(contract),
    )


def landing_sensor(contract: SetContract, *, from_s3: bool = False) -> dg.SensorDefinition:
    """Reports complete deliveries in stable order and requests a run for each content not in force yet.

    With `from_s3` it first fetches what has landed in S3, by the resource `s3`.
    """
    tables = [table_key(table.name) for table in contract.tables]

    @dg.sensor(
        name=f"landing_{contract.name}",
        description=f"Watches the landing folder of {contract.name}.",
        asset_selection=tables,
        minimum_interval_seconds=INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"s3"} if from_s3 else None,
    )
    def landing(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings = LakeSettings()
        refused = _fetch_deliveries(context, settings, contract) if from_s3 else ""
        known = set(context.instance.get_dynamic_partitions(make_delivery_partitions(contract).name or ""))
        complete = [found for found in find_deliveries(settings, contract) if found.complete]
        fresh = [found for found in complete if make_delivery_key(found.partition, found.digest) not in known]
        if not fresh:
            return dg.SkipReason(f"{len(complete)} complete deliveries, none of them new. {refused}".rstrip())
        shown = deliveries_in_force(Ledger(open_catalog(settings.catalog_url)), contract)
        wanted = [found for found in fresh if shown.get(found.partition, ("",))[0] != found.digest]
        return dg.SensorResult(
            asset_events=[_make_materialization(contract, found) for found in fresh],
            dynamic_partitions_requests=[
                make_delivery_partitions(contract).build_add_request(
                    [make_delivery_key(found.partition, found.digest) for found in fresh]
                )
            ],
            run_requests=_make_run_requests(context, contract, wanted),
        )

    return landing


def _fetch_deliveries(
    context: dg.SensorEvaluationContext, settings: LakeSettings, contract: SetContract
) -> str:
    """Fetch what has landed; returns why some of it is refused, which must not keep the rest from its runs."""
    try:
        # Dagster hands out an S3Resource as its client.
        fetched = fetch_deliveries(context.resources.s3, settings, contract)
    except DeliveriesRefused as refused:
        context.log.warning(str(refused))
        return str(refused)
    if fetched:
        context.log.info(f"fetched from {settings.landing_s3}: {', '.join(fetched)}")
    return ""


def _make_run_requests(
    context: dg.SensorEvaluationContext, contract: SetContract, wanted: Sequence[Delivery]
) -> list[dg.RunRequest]:
    days = make_partitions(contract)
    requests = []
    for found in wanted:
        if days is not None and not days.has_partition_key(found.partition):
            context.log.error(
                f"delivery {contract.name}/{found.partition} is no day from {contract.first_partition} to "
                "yesterday; rename its folder, or move the contract's first partition."
            )
            continue
        requests.append(
            dg.RunRequest(
                run_key=f"{contract.name}:{found.partition}:{found.digest}",
                partition_key=None if days is None else found.partition,
                tags={"lakeshare/delivery": make_delivery_key(found.partition, found.digest)},
            )
        )
    return requests


def _make_materialization(contract: SetContract, found: Delivery) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        landing_key(contract),
        partition=make_delivery_key(found.partition, found.digest),
        metadata={
            "lakeshare/digest": found.digest,
            "lakeshare/files": len(found.files),
            "dagster/uri": dg.MetadataValue.path(str(found.path)),
            "lakeshare/arrived": dg.MetadataValue.timestamp(found.arrived_at),
        },
    )
