"""Resources and alerts of a run, and `wap_set(contract)`: a set's tables as one graph asset, write → audit → publish.

The tables are the state of main and the ledger; staged state is never an asset. See docs/adr/0001.
"""

import base64
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr

from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.contracts.partitioning import SEPARATOR, split_key
from lakeshare_pipelines.errors import BranchMoved, Conflict, NotAudited
from lakeshare_pipelines.ingest import Delivery, find_deliveries
from lakeshare_pipelines.ingest.delivery import require_in_time
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.lineage import find_stale_partitions, get_reads
from lakeshare_pipelines.share.publication import (
    UnchangedRun,
    deliveries_in_force,
    latest_publications,
    publish_or_replay,
    unchanged_run,
)
from lakeshare_pipelines.spark.session import open_session, stop_session
from lakeshare_pipelines.wap.audit import ReplayFailedAudit, audit_and_save
from lakeshare_pipelines.wap.checks import list_checks
from lakeshare_pipelines.wap.inputs import LakeshareTable, open_table, parse_pins
from lakeshare_pipelines.wap.stage import open_ledger, reseal, stage
from lakeshare_pipelines.wap.staged import WHOLE, Lake, Staged, Verdict, Verdicts
from lakeshare_server.catalog import Catalog, Ledger, Publication, open_catalog
from lakeshare_server.errors import Unavailable

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
    from dagster_aws.s3 import S3Resource
    from pyspark.sql import SparkSession


INPUTS_TAG = "lakeshare/inputs"
"""Tag of a run that pins publications of its inputs, as `reference.airports@3, flights.departures@12`."""
PUBLICATION = "lakeshare/publication"


class SparkResource:
    """One Spark session per run: started when first used, stopped when the run ends.

    Local and cluster sessions are dagster-pyspark's `LazyPySparkResource`, on a driver with the Java, jars and log file
    of lakeshare.
    """

    def __init__(self) -> None:
        self._session: SparkSession | None = None

    def session(self) -> "SparkSession":
        if self._session is None:
            self._session = open_session(LakeSettings(), _build_session)
        return self._session

    def stop(self) -> None:
        if self._session is not None:
            stop_session(self._session)
            self._session = None


def _build_session(conf: dict[str, str]) -> "SparkSession":
    # Imports pyspark: only on use, so that the definitions load quickly.
    from dagster_pyspark import LazyPySparkResource

    session: SparkSession = LazyPySparkResource(spark_config=conf).spark_session
    return session


def make_landing_store(settings: LakeSettings) -> "dict[str, S3Resource]":
    """Returns the resource `s3` if deliveries land in S3."""
    if not settings.landing_root.startswith("s3:"):
        return {}
    # Takes two seconds and five hundred modules.
    from lakeshare_pipelines.defs.landing import LandingResource

    own = settings.landing_stores
    return {"s3": LandingResource(endpoint_url=own.s3_endpoint, region_name=own.s3_region)}


class LakeResource(dg.ConfigurableResource[Any]):
    """The lake and its ledger, opened by a run when first used."""

    spark: dg.ResourceDependency[SparkResource]
    _lake: Lake | None = PrivateAttr(default=None)
    _catalog: Catalog | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["LakeResource"]:
        """Stops Spark and closes the catalog at the end of the run."""
        try:
            yield self
        finally:
            self.spark.stop()
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def settings(self) -> LakeSettings:
        return LakeSettings()

    def lake(self) -> Lake:
        """Returns the run's lake; Spark and Nessie start when it first needs them."""
        if self._lake is None:
            self._lake = Lake(self.settings(), self.spark.session)
        return self._lake

    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self.settings().catalog_url)
        return self._catalog

    def table(
        self,
        name: str,
        context: dg.AssetExecutionContext | None = None,
        *,
        version: int | None = None,
        is_materialized: bool = False,
        partitions: Sequence[str] | None = None,
    ) -> LakeshareTable:
        """Returns a published table at `version`, at the number of the run's tag `lakeshare/inputs`, or at the newest.

        `partitions` are keys of its set, as `2024-01-01` or `2024-01-01/eu`, whose rows are read; all rows by default.

        `is_materialized` takes the number of the newest materialization of the table's asset instead of the newest one.
        With `context` the number is recorded as metadata `lakeshare/input/<table>` of the assets of the step.

        Raises:
            InputError: the table has no such publication or partition, or the publication has expired.
        """
        if context is not None:
            if version is None:
                version = parse_pins(context.run.tags.get(INPUTS_TAG, "")).get(name)
            if version is None and is_materialized:
                version = _find_materialized_number(context, name)
        table = open_table(self.lake(), Ledger(self.catalog()), name, version, partitions)
        if context is not None:
            for key in context.selected_asset_keys:
                context.add_asset_metadata({f"lakeshare/input/{name}": table.version}, asset_key=key)
        return table


def _find_materialized_number(context: dg.AssetExecutionContext, name: str) -> int | None:
    """The publication number of the newest materialization of a table's asset; None without one."""
    event = context.instance.get_latest_materialization_event(table_key(name))
    materialization = None if event is None else event.asset_materialization
    number = None if materialization is None else materialization.metadata.get(PUBLICATION)
    return number.value if isinstance(number, dg.IntMetadataValue) else None


def alert_failed_audit(
    context: dg.OpExecutionContext, settings: LakeSettings, staged: Staged, verdicts: Verdicts
) -> None:
    """Logs a red audit and posts it to Slack: set, partition, failed rules, staging location."""
    rules = "\n".join(f"• {verdict.name}: {verdict.reason}" for verdict in verdicts.failed)
    text = (
        f"Audit of {staged.set_name} {staged.partition} failed; nothing was published.\n{rules}\n"
        f"Kept at {staged.ref}: `lakeshare wap show {staged.ref}`"
    )
    send_alert(context, settings, text, context.run_id)


def send_alert(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    settings: LakeSettings,
    text: str,
    run_id: str,
) -> None:
    """Logs an alert with the run's URL as an error, and posts it to Slack when a token is set.

    A failure of Slack is logged as an error.
    """
    text = f"{text}\n{settings.dagster_url.rstrip('/')}/runs/{run_id}"
    context.log.error(text)
    if settings.slack_token is None:
        return
    from dagster_slack import SlackResource
    from slack_sdk.errors import SlackClientError

    client = SlackResource(token=settings.slack_token.get_secret_value()).get_client()
    if settings.slack_base_url is not None:
        client.base_url = settings.slack_base_url.rstrip("/") + "/"
    try:
        client.chat_postMessage(channel=settings.slack_channel, text=text)
    except (SlackClientError, OSError):
        context.log.exception("Slack did not take the message; check LAKESHARE_SLACK_TOKEN and _CHANNEL.")


MAX_PLOTTED = 60
UNCHANGED_TEXT = "this delivery is in force already; no new number was given"


def column_metadata(contract: SetContract, table: Table) -> Mapping[str, Any]:
    """Returns table name, column schema and column lineage, which are known before any run."""
    key = table.primary_key
    columns = [
        dg.TableColumn(
            column.name,
            column.type,
            description=column.description,
            constraints=dg.TableColumnConstraints(
                nullable=not column.required, unique=column.unique or key == (column.name,)
            ),
            tags={"pii": ""} if column.pii else {},
        )
        for column in table.columns
    ]
    constraints = dg.TableConstraints(other=[f"PRIMARY KEY ({', '.join(key)})"]) if len(key) > 1 else None
    return {
        "dagster/table_name": table.name,
        "dagster/column_schema": dg.TableSchema(columns, constraints),
        "dagster/column_lineage": dg.TableColumnLineage(
            {column.name: _list_sources(contract, table, column) for column in table.columns}
        ),
    }


def staged_metadata(staged: Staged) -> Mapping[str, Any]:
    inputs: dict[str, Any] = (
        {"lakeshare/inputs": dg.MetadataValue.json(staged.inputs)} if staged.inputs else {}
    )
    return inputs | {
        "lakeshare/staged_at": staged.ref,
        "lakeshare/partition": staged.partition,
        "lakeshare/head": staged.head,
        "lakeshare/rows": {table.table: table.rows for table in staged.tables},
        "lakeshare/rejected": {table.table: table.rejected for table in staged.tables},
        "lakeshare/rewritten": {table.table: list(table.rewritten) for table in staged.tables},
    }


def check_metadata(verdict: Verdict, staged: Staged) -> Mapping[str, Any]:
    """Returns what a rule observed, up to twenty masked rows that broke it, and the staging location."""
    shown: dict[str, Any] = {"lakeshare/staged_at": staged.ref, "lakeshare/head": staged.head}
    for name, value in verdict.observed.items():
        # Numbers and texts unchanged, rows as a table, everything else as JSON.
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            value = dg.MetadataValue.md(format_markdown_table(value))
        elif not isinstance(value, int | float | str):
            value = dg.MetadataValue.json(value)
        shown[f"observed/{name}"] = value
    if verdict.samples:
        shown["lakeshare/samples"] = dg.MetadataValue.md(format_markdown_table(verdict.samples))
    if not verdict.passed:
        shown["lakeshare/next"] = f"lakeshare wap show {staged.ref}"
    return shown


def publication_metadata(catalog: Catalog, publication: Publication, run_id: str) -> Mapping[str, Any]:
    """Returns number, counts and pins, and a chart of the row counts of the last publications."""
    history = Ledger(catalog).history(publication.table, limit=MAX_PLOTTED)
    shown: dict[str, Any] = {
        "dagster/row_count": publication.rows,
        "dagster/uri": publication.location,
        PUBLICATION: publication.version,
        "lakeshare/files": publication.files,
        "lakeshare/size_bytes": publication.size_bytes,
        "lakeshare/index": publication.index_digest,
        "lakeshare/published_by": publication.run_id,
        "lakeshare/rows_over_time": dg.MetadataValue.md(plot_rows([entry.rows for entry in history[::-1]])),
    }
    reads = get_reads(publication)
    if reads:
        numbers = {name: read.version for name, read in reads.items() if read.version is not None}
        shown["lakeshare/inputs"] = dg.MetadataValue.json(numbers)
    if publication.run_id != run_id:
        shown["lakeshare/unchanged"] = UNCHANGED_TEXT
    if publication.nessie_hash is not None:
        shown["nessie/hash"] = publication.nessie_hash
    if publication.snapshot_id is not None:
        shown["iceberg/snapshot_id"] = str(publication.snapshot_id)
    if publication.delta_version is not None:
        shown["delta/version"] = publication.delta_version
    return shown


def plot_rows(rows: Sequence[int], width: int = 360, height: int = 60) -> str:
    """Returns row counts, oldest first, as a bar chart in a Markdown image."""
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
    names = list(rows[0])
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(row.get(name)).replace("|", "\\|") for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _list_sources(contract: SetContract, table: Table, column: Column) -> list[dg.TableColumnDep]:
    if table.source is not None:
        source = column.delivered_as
        return [] if source is None else [dg.TableColumnDep(landing_key(contract), source)]
    names = (name.rsplit(".", 1) for name in column.lineage)
    inputs = {read.table for read in contract.inputs}
    return [
        dg.TableColumnDep(table_key(of if of in inputs else contract.table(of).name), source)
        for of, source in names
    ]


def make_partitions(contract: SetContract) -> dg.PartitionsDefinition[str] | None:
    """Returns the partitions of a set's tables; None if the set is replaced as a whole."""
    partitioning = contract.partitioning
    if partitioning.is_whole:
        return None
    if partitioning.second is not None:
        time, second = get_dimension_names(contract)
        values = partitioning.second.values
        names = (
            make_dynamic_names(contract) if values is None else dg.StaticPartitionsDefinition(list(values))
        )
        return dg.MultiPartitionsDefinition({time: _make_first_dimension(contract), second: names})
    return _make_first_dimension(contract)


def make_dynamic_names(contract: SetContract) -> dg.DynamicPartitionsDefinition:
    """Returns the dynamic partitions of a set, or of its second dimension."""
    return dg.DynamicPartitionsDefinition(name=f"partitions_{contract.name}")


def get_dimension_names(contract: SetContract) -> tuple[str, str]:
    """Returns the names of both dimensions in Dagster: what a partition of time is, as `day`, and the column."""
    second, noun = contract.partitioning.second, contract.partitioning.noun
    column = "" if second is None else second.column
    return (noun if noun != column else "time"), column


def make_partition_key(contract: SetContract, key: str) -> str:
    """Returns Dagster's form of a key: the same text, or a key of two dimensions."""
    if contract.partitioning.second is None:
        return key
    return dg.MultiPartitionKey(dict(zip(get_dimension_names(contract), split_key(key), strict=True)))


def _make_first_dimension(contract: SetContract) -> dg.PartitionsDefinition[str]:
    partitioning = contract.partitioning
    if partitioning.kind == "static":
        return dg.StaticPartitionsDefinition(list(partitioning.values))
    if partitioning.kind == "dynamic":
        return make_dynamic_names(contract)
    first, zone, offset = str(partitioning.first), partitioning.time_zone, partitioning.end_offset
    if partitioning.kind == "hourly":
        # Hadoop's paths allow no colon, which Dagster's own format has.
        return dg.HourlyPartitionsDefinition(
            start_date=first, fmt="%Y-%m-%d-%H", timezone=zone, end_offset=offset
        )
    if partitioning.kind == "weekly":
        return dg.WeeklyPartitionsDefinition(start_date=first, day_offset=1, timezone=zone, end_offset=offset)
    if partitioning.kind == "monthly":
        return dg.MonthlyPartitionsDefinition(start_date=first, timezone=zone, end_offset=offset)
    return dg.DailyPartitionsDefinition(start_date=first, timezone=zone, end_offset=offset)


def add_dynamic_partitions(instance: dg.DagsterInstance, contract: SetContract, keys: Sequence[str]) -> None:
    """Adds keys of a set with dynamic partitions, as its sensor does, before a run is started without the sensor."""
    names = _list_dynamic_names(contract, keys)
    if names:
        instance.add_dynamic_partitions(str(make_dynamic_names(contract).name), names)


def _list_dynamic_names(contract: SetContract, keys: Iterable[str]) -> list[str]:
    """The parts of keys that Dagster adds as dynamic partitions; empty for a set without them."""
    second = contract.partitioning.second
    if second is not None and second.values is None:
        return sorted({split_key(key)[1] for key in keys})
    return sorted(keys) if contract.partitioning.kind == "dynamic" else []


def make_delivery_partitions(contract: SetContract) -> dg.DynamicPartitionsDefinition:
    """Returns the dynamic partitions of deliveries, `<partition>@<first twelve digits of the digest>`."""
    return dg.DynamicPartitionsDefinition(name=f"landing_{contract.name}")


def make_delivery_key(partition: str, digest: str) -> str:
    return f"{partition}@{digest[:12]}"


def get_partitions_of_run(context: dg.OpExecutionContext, contract: SetContract) -> tuple[str, ...]:
    """Returns the partitions a run writes: one, every one of a range, or the whole set."""
    if not context.has_partitions:
        return WHOLE
    return read_partition_keys(contract, context.partition_keys)


def read_partition_keys(contract: SetContract, keys: Iterable[str]) -> tuple[str, ...]:
    """Returns a set's own form of Dagster's keys, as `make_partition_key` makes these of it."""
    own = [
        SEPARATOR.join(key.keys_by_dimension[name] for name in get_dimension_names(contract))
        if isinstance(key, dg.MultiPartitionKey)
        else key
        for key in keys
    ]
    return tuple(own if contract.partitioning.second is None else sorted(own))


LATE_TAG, ALLOW = "lakeshare/late", "allow"
"""Tag of a run, with the value `allow`, that publishes partitions whose lateness window is over."""
JUDGED = "judged"
UNCHANGED = "unchanged"
"""Key of the record of a run whose deliveries are in force already: nothing is written, audited or published."""
RETRIES, RETRY_S = 3, 10.0
"""How often a step is retried when the database or a store does not respond, and after how many seconds."""
SEVERITY = {"error": dg.AssetCheckSeverity.ERROR, "warning": dg.AssetCheckSeverity.WARN}


def table_key(table: str) -> dg.AssetKey:
    """Returns the asset key of a table: `flights/departures` for `flights.departures`."""
    return dg.AssetKey(table.split("."))


def landing_key(contract: SetContract) -> dg.AssetKey:
    return dg.AssetKey(["landing", contract.name])


def wap_set(
    contract: SetContract,
    *,
    pool: str | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    upstream: dict[str, dg.AssetIn] | None = None,
    io_manager_key: str = "io_manager",
) -> dg.AssetsDefinition:
    """Returns the set's asset; its tables cannot be selected, published or left unaudited individually.

    `upstream` holds more assets that it depends on, by names of op inputs; they replace those of the same name.
    The steps pass each other a small record through `io_manager_key`.
    """
    checks = [
        dg.AssetCheckSpec(
            check.name, asset=table_key(check.table), blocking=True, description=check.description
        )
        for check in list_checks(contract)
    ]
    read = list_upstream(contract) | (upstream or {})
    pool = pool or f"lakeshare_{contract.name}"
    steps = (
        _write(contract, read, pool, io_manager_key),
        _audit(contract, checks, pool, io_manager_key),
        _publish(contract, pool),
    )
    write, audit, publish = (
        step if retry_policy is None else step.with_retry_policy(retry_policy) for step in steps
    )
    outputs = {_output(table): _make_out(contract, table) for table in contract.tables}

    @dg.graph_multi_asset(
        name=f"{contract.name}_set",
        ins=read,
        outs=outputs,
        check_specs=checks,
        partitions_def=make_partitions(contract),
        backfill_policy=None if contract.partitioning.is_whole else dg.BackfillPolicy.single_run(),
        group_name=contract.name,
        can_subset=False,
    )
    def wap_graph(**upstream: Any) -> dict[str, Any]:  # Dagster's handles have no public type
        judgement = audit(write(**upstream))
        names = [spec.get_python_identifier() for spec in checks]
        verdicts = {name: getattr(judgement, name) for name in names}
        published = publish(getattr(judgement, JUDGED), gate=list(verdicts.values()))
        tables = published if isinstance(published, tuple) else (published,)
        return dict(zip(outputs, tables, strict=True)) | verdicts

    return wap_graph


def _make_out(contract: SetContract, table: Table) -> dg.AssetOut:
    return dg.AssetOut(
        key=table_key(table.name),
        dagster_type=dg.Nothing,
        description=table.description,
        kinds={"spark", table.format, *(["view"] if table.view else ["python"] if table.transform else [])},
        owners=list(contract.owners),
        tags={"domain": contract.domain} if contract.domain else None,
        metadata=column_metadata(contract, table),
        code_version=contract.digest[:12],
    )


def list_upstream(contract: SetContract) -> dict[str, dg.AssetIn]:
    """Returns deliveries, assets of sources and published tables that a set reads, by the names of the op's inputs."""
    upstream: dict[str, dg.AssetIn] = {}
    if contract.takes_deliveries:
        upstream["delivery"] = dg.AssetIn(landing_key(contract), dagster_type=dg.Nothing)
    for table in contract.tables:
        asset = None if table.reads is None else table.reads.asset
        if asset is not None:
            name = f"source__{asset.replace('/', '__')}"
            upstream[name] = dg.AssetIn(dg.AssetKey(asset.split("/")), dagster_type=dg.Nothing)
    for read in contract.inputs:
        name = read.table.replace(".", "__")
        # Without a mapping Dagster maps partitions of time to those of the same time, and all else to all partitions.
        upstream[name] = dg.AssetIn(table_key(read.table), dagster_type=dg.Nothing)
    return upstream


def publish_job(contract: SetContract) -> "UnresolvedAssetJobDefinition":
    """Returns `publish_<set>`: the set's asset as a job, for the UI's launchpad, the sensor and CI."""
    keys = [table_key(table.name) for table in contract.tables]
    return dg.define_asset_job(
        f"publish_{contract.name}",
        selection=dg.AssetSelection.assets(*keys),
        description=f"Stage, audit and publish deliveries of {contract.name}.",
        # One run is one Spark driver: docs/adr/0002. A project may have another executor.
        executor_def=dg.in_process_executor,
    )


def source_schedule(contract: SetContract) -> dg.ScheduleDefinition:
    """Returns the schedule of a set with sources other than landing; a run without anything new publishes nothing."""
    return dg.ScheduleDefinition(
        name=f"read_{contract.name}",
        # By name: a second object for the job is a duplicate to Dagster.
        job_name=publish_job(contract).name,
        cron_schedule=str(contract.schedule),
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Read the sources of {contract.name}.",
    )


def _write(
    contract: SetContract, upstream: Mapping[str, dg.AssetIn], pool: str, io_manager_key: str
) -> dg.OpDefinition:
    @dg.op(
        name=f"{contract.name}_write",
        description="Read the deliveries into the set's tables on their own branch, readable by the promised clients.",
        ins={name: dg.In(dg.Nothing) for name in upstream},
        out=dg.Out(dict, io_manager_key=io_manager_key),
        pool=pool,
    )
    def write(context: dg.OpExecutionContext, lakeshare: LakeResource) -> dict[str, Any]:
        partitions = get_partitions_of_run(context, contract)
        pins = parse_pins(context.get_tag(INPUTS_TAG) or "")
        if contract.takes_deliveries and context.get_tag(LATE_TAG) != ALLOW:
            require_in_time(contract, partitions)
        with retry_on_outage():
            unchanged = unchanged_run(lakeshare.lake(), lakeshare.catalog(), contract, partitions, pins)
        if unchanged is not None:
            message = f"{contract.name} {', '.join(partitions)}: these deliveries are in force already"
            context.log.info(message)
            context.add_output_metadata({"lakeshare/unchanged": UNCHANGED_TEXT})
            return {UNCHANGED: unchanged.as_record()}
        staged = stage(lakeshare.lake(), contract, partitions, context.run_id, pins=pins)
        context.add_output_metadata(staged_metadata(staged))
        return staged.as_record()

    return write


def _audit(
    contract: SetContract, specs: list[dg.AssetCheckSpec], pool: str, io_manager_key: str
) -> dg.OpDefinition:
    @dg.op(
        name=f"{contract.name}_audit",
        description="Audit the staged tables; one verdict per rule, a red one stops the run.",
        out={JUDGED: dg.Out(dict, is_required=False, io_manager_key=io_manager_key)}
        | {spec.get_python_identifier(): dg.Out(is_required=False) for spec in specs},
        pool=pool,
    )
    def audit(
        context: dg.OpExecutionContext, written: dict[str, Any], lakeshare: LakeResource
    ) -> Iterator[Any]:
        if UNCHANGED in written:
            unchanged = UnchangedRun.from_record(written[UNCHANGED])
            for check in list_checks(contract):
                has_passed = f"{check.table}: {check.name}" not in unchanged.failed_checks
                yield dg.AssetCheckResult(
                    asset_key=table_key(check.table),
                    check_name=check.name,
                    passed=has_passed,
                    # A check that failed and was published with is a warning.
                    severity=SEVERITY[check.severity] if has_passed else dg.AssetCheckSeverity.WARN,
                    description=check.description,
                    metadata={"lakeshare/unchanged": UNCHANGED_TEXT},
                )
            yield dg.Output(written, JUDGED)
            return
        staged = reseal(lakeshare.lake(), contract, Staged.from_record(written))
        verdicts = audit_and_save(lakeshare.lake(), contract, staged)
        if not verdicts.green:
            alert_failed_audit(context, lakeshare.settings(), staged, verdicts)
        # Bare: wrapped in an Output, Dagster records no check at all and lets publish run.
        for verdict in verdicts.verdicts:
            yield dg.AssetCheckResult(
                asset_key=table_key(verdict.table),
                check_name=verdict.check,
                passed=verdict.passed,
                severity=SEVERITY[verdict.severity],
                description=verdict.description,
                metadata=check_metadata(verdict, staged),
            )
        if verdicts.green:
            yield dg.Output({"staged": staged.as_record(), "verdicts": verdicts.as_record()}, JUDGED)

    return audit


def _publish(contract: SetContract, pool: str) -> dg.OpDefinition:
    @dg.op(
        name=f"{contract.name}_publish",
        description="Merge exactly what was audited, index its files, write the ledger.",
        ins={"judgement": dg.In(dict), "gate": dg.In(dg.Nothing)},
        out={_output(table): dg.Out(dg.Nothing) for table in contract.tables},
        pool=pool,
    )
    def publish(
        context: dg.OpExecutionContext, judgement: dict[str, Any], lakeshare: LakeResource
    ) -> Iterator[dg.Output[None]]:
        with retry_on_outage():
            if UNCHANGED in judgement:
                publications = latest_publications(lakeshare.catalog(), contract)
            else:
                staged = Staged.from_record(judgement["staged"])
                verdicts = Verdicts.from_record(judgement["verdicts"])
                publications = _publish_and_report(context, lakeshare, contract, staged, verdicts)
            metadata = {
                publication.table: publication_metadata(lakeshare.catalog(), publication, context.run_id)
                for publication in publications
            }
        for table in contract.tables:
            yield dg.Output(None, _output(table), metadata=metadata[table.name])

    return publish


@contextmanager
def retry_on_outage() -> Iterator[None]:
    """Retries the step from its start when the database or a store does not respond."""
    try:
        yield
    except Unavailable as error:
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=RETRY_S) from error


def _publish_and_report(
    context: dg.OpExecutionContext,
    lakeshare: LakeResource,
    contract: SetContract,
    staged: Staged,
    verdicts: Verdicts,
) -> list[Publication]:
    try:
        return publish_or_replay(lakeshare.lake(), lakeshare.catalog(), contract, staged, verdicts)
    except (NotAudited, BranchMoved, Conflict) as refusal:
        if isinstance(refusal, ReplayFailedAudit):
            staged = refusal.replayed  # the staging location that is kept; the first one was removed
            alert_failed_audit(context, lakeshare.settings(), staged, refusal.verdicts)
        # A retry would be refused again.
        raise dg.Failure(str(refusal), metadata=staged_metadata(staged), allow_retries=False) from refusal


def _output(table: Table) -> str:
    return table.name.replace(".", "__")


INTERVAL_S = 30


def _list_targets(contract: SetContract, job: "UnresolvedAssetJobDefinition | None") -> dict[str, Any]:
    if job is not None:
        return {"job": job}
    return {"asset_selection": [table_key(table.name) for table in contract.tables]}


def landing_asset(contract: SetContract) -> dg.AssetSpec:
    return dg.AssetSpec(
        landing_key(contract),
        description=f"Deliveries for set {contract.name}; one key per content that arrived.",
        group_name="landing",
        kinds={"file"},
        owners=list(contract.owners),
        partitions_def=make_delivery_partitions(contract),
    )


def landing_sensor(
    contract: SetContract, *, from_s3: bool = False, job: "UnresolvedAssetJobDefinition | None" = None
) -> dg.SensorDefinition:
    """Returns the sensor that reports complete deliveries in order and requests a run for each new content.

    With `from_s3` it lists them by the resource `s3`. The runs are of `job`, or of the set's assets.
    """
    partitions = make_delivery_partitions(contract)

    @dg.sensor(
        name=f"landing_{contract.name}",
        description=f"Watches the deliveries of {contract.name}.",
        **_list_targets(contract, job),
        minimum_interval_seconds=INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"s3"} if from_s3 else None,
    )
    def landing(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings = LakeSettings()
        stores = context.resources.s3 if from_s3 else None
        known = set(context.instance.get_dynamic_partitions(partitions.name or ""))
        complete = [delivery for delivery in find_deliveries(settings, contract, stores) if delivery.complete]
        keys = {make_delivery_key(delivery.partition, delivery.digest): delivery for delivery in complete}
        fresh = {key: delivery for key, delivery in keys.items() if key not in known}
        if not fresh:
            return dg.SkipReason(f"{len(complete)} complete deliveries, none of them new.")
        arrived = {delivery.partition for delivery in fresh.values()}
        with open_ledger(settings) as ledger:
            in_force = deliveries_in_force(ledger, contract, arrived)
        return dg.SensorResult(
            asset_events=[
                dg.AssetMaterialization(
                    landing_key(contract),
                    partition=key,
                    metadata={
                        "lakeshare/digest": delivery.digest,
                        "lakeshare/files": len(delivery.files),
                        "dagster/uri": dg.MetadataValue.path(delivery.location),
                        "lakeshare/arrived": dg.MetadataValue.timestamp(delivery.arrived_at),
                    },
                )
                for key, delivery in fresh.items()
            ],
            dynamic_partitions_requests=[
                partitions.build_add_request(list(fresh)),
                *_request_dynamic_partitions(contract, arrived),
            ],
            run_requests=[
                request
                for key, delivery in fresh.items()
                if in_force.get(delivery.partition, ("",))[0] != delivery.digest
                and (request := _make_delivery_request(context, contract, key, delivery)) is not None
            ],
        )

    return landing


def inputs_sensor(
    contract: SetContract, *, job: "UnresolvedAssetJobDefinition | None" = None
) -> dg.SensorDefinition:
    """Returns the sensor that requests a run where a table that the set reads has a newer number than the set used.

    Days of daily inputs start the same days; other inputs the last published day, or the set. The sensor's cursor has
    the numbers of its last evaluation.
    """

    @dg.sensor(
        name=f"inputs_{contract.name}",
        description=f"Watches the published tables that {contract.name} is made of.",
        **_list_targets(contract, job),
        minimum_interval_seconds=INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def inputs(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings = LakeSettings()
        with open_ledger(settings) as ledger:
            latest = {read.table: ledger.latest(read.table) for read in contract.inputs}
            missing = [name for name, found in latest.items() if found is None]
            if missing:
                return dg.SkipReason(
                    f"{', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no publication."
                )
            numbers = ", ".join(
                f"{name}@{found.version}" for name, found in latest.items() if found is not None
            )
            evaluated = f"{numbers}, contract {contract.digest[:12]}"
            if context.cursor == evaluated:
                return dg.SkipReason(f"No input has a newer number: {numbers}.")
            stale = list(find_stale_partitions(ledger, contract))
        if contract.takes_deliveries and stale:
            arrived = {found.partition for found in find_deliveries(settings, contract) if found.complete}
            for partition in sorted(set(stale) - arrived):
                context.log.warning(
                    f"{contract.name}/{partition} is not in landing any more and keeps its inputs"
                )
            stale = [partition for partition in stale if partition in arrived]
        requests = [
            _make_run_request(context, contract, partition, f"{contract.name}:{partition}:{evaluated}")
            for partition in stale
        ]
        return dg.SensorResult(
            run_requests=[request for request in requests if request is not None],
            dynamic_partitions_requests=_request_dynamic_partitions(contract, stale),
            cursor=evaluated,
        )

    return inputs


def _make_delivery_request(
    context: dg.SensorEvaluationContext, contract: SetContract, key: str, delivery: Delivery
) -> dg.RunRequest | None:
    if contract.partitioning.is_late(delivery.partition, dt.datetime.now(dt.UTC)):
        context.log.error(
            f"delivery {delivery.title} is later than the {contract.partitioning.lateness_hours} latenessHours of its "
            f"set; run it with the tag {LATE_TAG}: {ALLOW}, or `lakeshare publish {contract.name} --allow-late`."
        )
        return None
    run_key = f"{contract.name}:{delivery.partition}:{delivery.digest}"
    return _make_run_request(context, contract, delivery.partition, run_key, {"lakeshare/delivery": key})


def _make_run_request(
    context: dg.SensorEvaluationContext,
    contract: SetContract,
    partition: str,
    run_key: str,
    tags: Mapping[str, str] | None = None,
) -> dg.RunRequest | None:
    partitioning = contract.partitioning
    # A dynamic key is added with the request of its run.
    if partitioning.is_time and not _make_first_dimension(contract).has_partition_key(
        split_key(partition)[0]
    ):
        last = (
            "yesterday"
            if (partitioning.kind, partitioning.end_offset) == ("daily", 0)
            else "the last ended one"
        )
        ahead = "" if not partitioning.end_offset else f" and {partitioning.end_offset} after it"
        context.log.error(
            f"delivery {contract.name}/{partition} is no {partitioning.noun} from {partitioning.first} to "
            f"{last}{ahead}; rename its folder, or move the contract's first partition."
        )
        return None
    return dg.RunRequest(
        run_key=run_key,
        partition_key=None if partitioning.is_whole else make_partition_key(contract, partition),
        tags=dict(tags or {}),
    )


def _request_dynamic_partitions(
    contract: SetContract, keys: Iterable[str]
) -> list[dg.AddDynamicPartitionsRequest]:
    names = _list_dynamic_names(contract, keys)
    return [make_dynamic_names(contract).build_add_request(names)] if names else []
