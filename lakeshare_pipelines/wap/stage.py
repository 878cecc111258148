"""Write: a set's deliveries become tables where nobody reads."""

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

from lakeshare_pipelines.contracts import PerRecipient, SetContract, Table, View
from lakeshare_pipelines.errors import ContractError, PipelineError
from lakeshare_pipelines.ingest import Delivery, blame_changed_delivery, find_delivery, require_unchanged
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.ingest.sources import ReadingLimits
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import translate_errors
from lakeshare_pipelines.wap.checks import SHOW_REJECTED
from lakeshare_pipelines.wap.serveable import ClientMatrix
from lakeshare_pipelines.wap.staged import (
    WHOLE,
    Attempt,
    Finding,
    Lake,
    Staged,
    StagedTable,
    Verdict,
    Verdicts,
    get_begin_time,
    list_attempts,
    list_recorded_names,
    make_staging_name,
    make_staging_prefix,
    record_begin,
    remove_record,
    save_attempt,
    write_quarantine,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lakeshare_server.catalog import Ledger


@dataclass(frozen=True)
class Landed:
    """A set that reached main: per table what pins it there."""

    staged: Staged
    evidence: Mapping[str, object]
    nessie_hash: str | None
    versions: Mapping[str, int]  # Delta versions by table; empty for Iceberg


class Staging(Protocol):
    """Where a set waits for its audit, and how it gets from there to main."""

    def open(self, ref: str) -> str:
        """Make (or empty) the staging place and return the state of main it starts from."""

    def write(
        self,
        ref: str,
        table: Table,
        frame: "DataFrame",
        partitions: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        """Replace the table's `partitions` on the staging place by `frame`."""

    def make_serveable(self, ref: str, table: Table) -> tuple[str, ...]:
        """Rewrite the staged table where clients could not read it that the contract promises it to.

        Returns the reason codes of what a rewrite took away; none where the contract does not ask for it.
        """

    def clients(self, staged: Staged, table: Table) -> ClientMatrix:
        """How each client would get the table as it will stand on main after publication."""

    def seal(self, ref: str) -> str:
        """The state just written, as `Staged.head`."""

    def rows_of_run(self, staged: Staged, table: Table) -> "DataFrame":
        """The rows this run wrote."""

    def count_written(self, staged: Staged, table: Table) -> int:
        """How many rows of the staging place are not main's: those of the run, in its partitions or out of them."""

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        """The whole table as it will stand on main after publication."""

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        """The table on main as the run found it; None before the first publication."""

    def definition(self, staged: Staged, table: Table) -> str | None:
        """The digest of what a view was defined as when it was made; None where nobody made it as a view."""

    def land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        """Make exactly `staged.head` main's state for every table of the set; half-done ones are completed.

        Raises:
            BranchMoved: the staging place is not at `staged.head` any more.
            Conflict: a table of the set changed on main since `staged.base`.
        """

    def find_incomplete(self, is_known: "IsInLedger") -> list[Landed]:
        """Arrivals on main that the ledger does not have, oldest first; half-done ones are completed."""

    def list_unpublished(self) -> list[tuple[str, datetime]]:
        """Staging places of this set that are not published, and when each was last written."""

    def discard(self, ref: str) -> None:
        """Remove the staging place; nothing happens when it is gone already, or when its set began to land."""


PROPERTY = "lakeshare."
"""How the names of our properties begin, in Nessie commits, Iceberg snapshots and Delta commits alike."""

DEFINITION = "view"
"""The property of an Iceberg table that keeps the digest of what its view was defined as."""


def commit_properties(staged: Staged, evidence: Mapping[str, object]) -> dict[str, str]:
    """What the commit on main says of the set that lands with it: enough to write the ledger from storage."""
    return {
        PROPERTY + "set": staged.set_name,
        PROPERTY + "run": staged.run_id,
        PROPERTY + "ref": staged.ref,
        PROPERTY + "audited": staged.head,
        PROPERTY + "staged": staged.as_json(),
        PROPERTY + "evidence": json.dumps(evidence, separators=(",", ":"), sort_keys=True),
    }


def parse_commit_properties(properties: Mapping[str, Any]) -> tuple[Staged, Mapping[str, object]]:
    """The staged set and the evidence that `commit_properties` wrote."""
    staged = Staged.from_record(json.loads(properties[PROPERTY + "staged"]))
    return staged, json.loads(properties[PROPERTY + "evidence"])


def get_landed_run(properties: Mapping[str, Any], set_name: str) -> str | None:
    """The run of a set that landed with a commit; None for a commit of anybody else, or of a rollback."""
    if properties.get(PROPERTY + "set") != set_name or PROPERTY + "staged" not in properties:
        return None
    return str(properties[PROPERTY + "run"])


class IsInLedger(Protocol):
    """How a format asks the ledger about one run of this set."""

    def __call__(self, run_id: str) -> bool:
        """Whether the run's publications are in the ledger."""


def staging_for(lake: Lake, contract: SetContract) -> Staging:
    """The staging of a set's format; all its tables have the same one."""
    from lakeshare_pipelines.wap.delta import DeltaStaging
    from lakeshare_pipelines.wap.iceberg import IcebergStaging

    formats = {table.format for table in contract.tables}
    if formats == {"iceberg"}:
        return IcebergStaging(lake, contract)
    if formats == {"delta"}:
        return DeltaStaging(lake, contract)
    raise ContractError(
        contract.path,
        "schema",
        f"set {contract.name} mixes the formats {', '.join(sorted(formats))}",
        "Tables that are published together have one format; make two sets of it.",
    )


def select_view_rows(contract: SetContract, table: Table, view: View, rows: "DataFrame") -> "DataFrame":
    """What a view shows of these rows of its table.

    Raises:
        ContractError: its predicate, or its value per recipient, is no Spark SQL over the table's columns.
    """
    from pyspark.errors import AnalysisException, ParseException

    part = "where"
    try:
        frame = rows if view.where is None else rows.where(_expression(view.where))
        _ = frame.schema  # Spark Connect analyses no earlier
        part = "perRecipient"
        frame = _assign_recipients(frame, view)
        _ = frame.schema
    except (AnalysisException, ParseException) as error:
        raise ContractError(
            contract.path,
            f"{table.short_name}.view.{part}",
            str(error).splitlines()[0].rstrip("."),
            f"It is Spark SQL over the columns of {view.of}.",
        ) from error
    return frame.select(*(frame[column.name].cast(column.type) for column in table.columns))


def is_in_sync(settings: LakeSettings, table: Table, view: View) -> bool:
    """Whether the newest publications of a view and of its table were made by one run.

    If not, the view was left out of the contract for a while, or one of the two was rolled back alone.
    """
    from lakeshare_server.catalog import Ledger, open_catalog

    catalog = open_catalog(settings.catalog_url)
    try:
        ledger = Ledger(catalog)
        runs = [_get_run_of_latest(ledger, name) for name in (table.name, view.of)]
    finally:
        catalog.close()
    return runs[0] is not None and runs[0] == runs[1]


def _get_run_of_latest(ledger: "Ledger", table: str) -> str | None:
    """The run that made what a table shows now; a rollback shows what another run made."""
    shown = ledger.latest(table)
    while shown is not None and shown.rollback_of is not None:
        shown = ledger.at(table, shown.rollback_of)
    return None if shown is None else shown.run_id


def check_selection(
    view: View, expected: "DataFrame", rows: "DataFrame", published_as: str | None
) -> Finding:
    """Whether a view's rows are the expected ones, each as often; `published_as` is the digest of its definition."""
    wanted, found = _fingerprints(expected, rows)
    observed = {"of": view.of, "selected_rows": wanted[0], "rows": found[0], "definition": view.digest}
    if published_as != view.digest:
        reason = (
            "the contract defines it otherwise than it was published, and its earlier versions and changes would go on "
            "to show what it leaves out now. Give the changed view another physicalName and share that under the "
            "name recipients know ({table: …, name: …})"
        )
        return Finding(False, {**observed, "published_as": published_as, "reason": reason})
    if wanted == found:
        return Finding(True, observed)
    reason = (
        f"{found[0]} rows are staged and {wanted[0]} of {view.of} are selected, or not the same ones: one of the "
        "two was changed since it was written. `lakeshare wap retry` makes the view again"
    )
    return Finding(False, {**observed, "reason": reason})


def _expression(text: str) -> "Column":
    from pyspark.sql import functions as F

    # In parentheses no text can end the expression and begin another clause.
    return F.expr(f"({text})")


def _assign_recipients(frame: "DataFrame", view: View) -> "DataFrame":
    """The rows that are somebody's, once for each whose they are, with the column that tells it."""
    from pyspark.sql import functions as F

    per = view.per_recipient
    columns = [F.col(f"`{name}`") for name in view.columns]
    if per is None:
        return frame.select(*columns)
    if per.value is None:
        frame = frame.select(*columns)
    else:
        frame = frame.select(*columns, _make_recipient_column(frame, per, per.value).alias(per.column))
    whose = F.col(f"`{per.column}`")
    # Formats take an empty text in a partition for none.
    return frame.where(whose.isNotNull() & (whose.cast("string") != ""))


def _make_recipient_column(frame: "DataFrame", per: PerRecipient, value: str) -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    whose = _expression(value)
    kind = frame.select(whose.alias(per.column)).schema[0].dataType
    if isinstance(kind, T.ArrayType):
        # Distinct as texts: two values that read the same are one recipient's.
        return F.explode(F.array_distinct(whose.cast("array<string>")))
    return whose.cast("string")


def _fingerprints(*frames: "DataFrame") -> list[tuple[int, int]]:
    """Of each frame the number of rows, and a sum over them that is another one for other rows, in whatever order."""
    from pyspark.sql import functions as F

    sums = []
    for number, frame in enumerate(frames):
        columns = [F.col(f"`{name}`") for name in frame.columns]
        # A hash passes over nulls: without their places (null, a) and (a, null) would be the same.
        row = F.xxhash64(*columns, *(column.isNull() for column in columns)).cast("decimal(38,0)")
        sums.append(
            frame.agg(F.lit(number).alias("frame"), F.count("*").alias("rows"), F.sum(row).alias("sum"))
        )
    found = {row["frame"]: row for row in reduce(lambda one, other: one.unionByName(other), sums).collect()}
    return [(int(found[number]["rows"]), int(found[number]["sum"] or 0)) for number in range(len(frames))]


log = logging.getLogger(__name__)


def stage(
    lake: Lake, contract: SetContract, partitions: Sequence[str], run_id: str, attempt: int = 0
) -> Staged:
    """Write the deliveries of `partitions` to a place of their own. Running it again starts that place anew.

    Raises:
        DeliveryError: a delivery is missing, not whole, unreadable, or changed while it was read.
        SparkError: Spark died, or the disk is full.
        NessieError: the catalog is not there.
    """
    partitions = tuple(partitions)
    deliveries = [find_delivery(lake.settings, contract, partition) for partition in partitions]
    staging = staging_for(lake, contract)
    ref = make_staging_name(contract.name, partitions, run_id, attempt)
    with (
        translate_errors(lake.settings, f"staging {ref}", [file for one in deliveries for file in one.files]),
        _discard_on_failure(lake, staging, ref),
        blame_changed_delivery(deliveries),
    ):
        record_begin(lake.settings, ref)
        draft = Staged(
            set_name=contract.name,
            run_id=run_id,
            partitions=partitions,
            ref=ref,
            base=staging.open(ref),
            head="",
            tables=(),
            deliveries={delivery.partition: delivery.digest for delivery in deliveries},
            contract_digest=contract.digest,
            attempt=attempt,
        )
        tables = _write_all(lake, staging, contract, draft, deliveries)
        tables = tuple(
            replace(one, rewritten=staging.make_serveable(ref, contract.table(one.table))) for one in tables
        )
        for delivery in deliveries:
            require_unchanged(delivery)
        staged = replace(draft, head=staging.seal(ref), tables=tables)
    save_attempt(lake.settings, staged)
    return staged


def _write_all(
    lake: Lake, staging: Staging, contract: SetContract, draft: Staged, deliveries: Sequence[Delivery]
) -> tuple[StagedTable, ...]:
    properties = {"set": contract.name, "run": draft.run_id, "contract": contract.digest}
    limits = ReadingLimits(lake.settings.max_line_mb, lake.settings.max_unpacked_mb)
    read = read_delivery(lake.spark, contract, deliveries, limits)
    frames: dict[str, DataFrame] = {}
    written = []
    try:
        for table in contract.tables:
            arrived = read.get(table.name)
            # A view that is new, or missed something, shows all of its table from now on.
            is_whole = table.view is not None and not (
                staging.on_main(draft, table) is not None and is_in_sync(lake.settings, table, table.view)
            )
            if arrived is not None:
                frame = arrived.frame
            elif table.view is None:
                frame = derive_table(lake.spark, table, frames)
            else:
                base = contract.table(table.view.of)
                of_base = staging.table_after(draft, base) if is_whole else frames[base.name]
                frame = select_view_rows(contract, table, table.view, of_base)
            frames[table.name] = frame.cache()
            rows = frames[table.name].count()
            log.info("writing %s rows of %s to %s", rows, table.name, draft.ref)
            partitions = WHOLE if is_whole else draft.partitions
            staging.write(draft.ref, table, frames[table.name], partitions, properties)
            one = _staged_table(lake, contract, table, rows, arrived, draft.run_id)
            digest = None if table.view is None else table.view.digest
            written.append(replace(one, view=digest, is_whole=is_whole))
    finally:
        for frame in frames.values():
            frame.unpersist()
    return tuple(written)


def rebuild_views(lake: Lake, contract: SetContract, staged: Staged) -> None:
    """Write the views of a staged set anew, of their tables as those are on the staging place now.

    Raises:
        SparkError: Spark died, or the disk is full.
    """
    staging = staging_for(lake, contract)
    properties = {"set": contract.name, "run": staged.run_id, "contract": contract.digest}
    for table in contract.tables:
        record = staged.find_table(table.name)
        if table.view is None or record is None:
            continue
        base = contract.table(table.view.of)
        with translate_errors(lake.settings, f"making {table.name} again at {staged.ref}"):
            rows = staging.table_after(staged, base) if record.is_whole else staging.rows_of_run(staged, base)
            frame = select_view_rows(contract, table, table.view, rows)
            staging.write(staged.ref, table, frame, staged.partitions_of(table.name), properties)


def derive_table(spark: "SparkSession", table: Table, frames: "Mapping[str, DataFrame]") -> "DataFrame":
    """A derived table: the contract's SQL over the rows of this run, typed as the contract says."""
    from pyspark.sql import functions as F

    if table.derive is None:
        raise ValueError(f"table {table.name} has neither a source nor a derivation")
    inputs: dict[str, Any] = {name.rsplit(".", 1)[-1]: frames[name] for name in table.depends_on}
    frame = spark.sql(table.derive, **inputs)
    return frame.select(*(F.col(column.name).cast(column.type) for column in table.columns))


def _staged_table(
    lake: Lake, contract: SetContract, table: Table, rows: int, arrived: TableFrame | None, run_id: str
) -> StagedTable:
    if arrived is None:
        return StagedTable(table.name, rows)
    rejected = write_quarantine(lake, contract, table, arrived, run_id)
    return StagedTable(table.name, rows, rejected, tuple(problem.detail for problem in arrived.problems))


@contextmanager
def _discard_on_failure(lake: Lake, staging: Staging, ref: str) -> Iterator[None]:
    """A staging place that was never finished tells nobody anything: remove it, keep the first error."""
    try:
        yield
    except BaseException:
        try:
            staging.discard(ref)
            remove_record(lake.settings, ref)
        except Exception:
            log.exception("%s could not be removed; `lakeshare wap discard %s` does it later", ref, ref)
        raise


@dataclass(frozen=True)
class StagingLocation:
    """A branch or staging folder; `attempt` is None when its run ended before it had anything to record."""

    ref: str
    set_name: str
    since: datetime
    attempt: Attempt | None

    @property
    def state(self) -> str:
        """`unfinished`, `staged`, `red` or `green`."""
        return "unfinished" if self.attempt is None else self.attempt.state


class UnknownStagingLocation(PipelineError):
    """No staging place of that name."""

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"there is no staging place {ref!r}. `lakeshare wap list` shows those that are there."
        )
        self.ref = ref


def list_staging_locations(lake: Lake, contracts: Sequence[SetContract]) -> list[StagingLocation]:
    """Every staging place of these sets, oldest first."""
    recorded = {attempt.staged.ref: attempt for attempt in list_attempts(lake.settings)}
    found = [place for contract in contracts for place in _of_set(lake, contract, recorded)]
    return sorted(found, key=lambda place: place.since)


def find_staging_location(
    lake: Lake, contracts: Sequence[SetContract], ref: str
) -> tuple[SetContract, StagingLocation]:
    """A staging place by its name.

    Raises:
        UnknownStagingPlace: there is none.
    """
    for contract in contracts:
        for place in list_staging_locations(lake, [contract]):
            if place.ref == ref:
                return contract, place
    raise UnknownStagingLocation(ref)


def reseal(lake: Lake, contract: SetContract, staged: Staged) -> Staged:
    """The staged set as it stands now: what somebody repaired on the branch is part of the next audit.

    Views are made again, of what their tables have now.
    """
    staging = staging_for(lake, contract)
    head = staging.seal(staged.ref)
    if head == staged.head:
        return staged
    log.warning("%s moved from %s to %s since it was written", staged.ref, staged.head, head)
    rebuild_views(lake, contract, dataclasses.replace(staged, head=head))
    moved = dataclasses.replace(staged, head=staging.seal(staged.ref))
    tables = tuple(
        dataclasses.replace(table, rows=staging.count_written(moved, contract.table(table.table)))
        for table in staged.tables
    )
    return dataclasses.replace(moved, tables=tables)


def drop_staging_location(lake: Lake, contract: SetContract, ref: str) -> None:
    """Remove a staging place and its record; a published one only loses its record."""
    staging_for(lake, contract).discard(ref)
    remove_record(lake.settings, ref)


def drop_abandoned(
    lake: Lake, contracts: Sequence[SetContract], now: datetime | None = None
) -> list[StagingLocation]:
    """Remove staging places older than `branch_days`, and records as old that a crash left without one.

    Returns the places.
    """
    horizon = (now or datetime.now(UTC)) - timedelta(days=lake.settings.branch_days)
    dropped = []
    for contract in contracts:
        there = list_staging_locations(lake, [contract])
        for ref, since in list_recorded_names(lake.settings, make_staging_prefix(contract.name)):
            if since <= horizon and ref not in {place.ref for place in there}:
                remove_record(lake.settings, ref)
        for place in there:
            if place.since <= horizon:
                log.info("dropping %s, untouched since %s", place.ref, place.since)
                drop_staging_location(lake, contract, place.ref)
                dropped.append(place)
    return dropped


def _of_set(lake: Lake, contract: SetContract, recorded: dict[str, Attempt]) -> Iterator[StagingLocation]:
    for ref, since in staging_for(lake, contract).list_unpublished():
        attempt = recorded.get(ref)
        latest = attempt.written_at if attempt is not None else get_begin_time(lake.settings, ref) or since
        yield StagingLocation(ref, contract.name, latest, attempt)


def format_staging_location(place: StagingLocation) -> str:
    """Where it is, what it holds, what its audit said."""
    return "\n".join(_lines(place))


def format_verdicts(verdicts: Verdicts) -> list[str]:
    """One line per verdict, failed ones with the rows that broke the rule."""
    return [line for verdict in verdicts.verdicts for line in _verdict(verdict)]


def _lines(place: StagingLocation) -> Iterator[str]:
    yield f"{place.ref}: set {place.set_name}, {place.state}, since {place.since:%Y-%m-%d %H:%M} UTC"
    if place.attempt is None:
        yield "  its run ended before everything was written; run the partition again, or discard it"
        return
    staged = place.attempt.staged
    yield f"  partition {staged.partition}, run {staged.run_id}, at {staged.head}, from main at {staged.base}"
    for table in staged.tables:
        rejected = f", {table.rejected} rejected (quarantined)" if table.rejected else ""
        rewritten = f", rewritten for {', '.join(table.rewritten)}" if table.rewritten else ""
        yield f"  {table.table}: {table.rows} rows{rejected}{rewritten}"
    if place.attempt.verdicts is None:
        yield "  not audited yet: `lakeshare wap retry` does it"
        return
    yield from format_verdicts(place.attempt.verdicts)


def _verdict(verdict: Verdict) -> Iterator[str]:
    mark = "ok  " if verdict.passed else "FAIL" if verdict.blocks else "warn"
    yield f"  {mark}  {verdict.name}" + ("" if verdict.passed else f": {verdict.reason}")
    for row in verdict.samples:
        yield f"          {_row(row)}"
    if SHOW_REJECTED in verdict.observed:
        yield f"        as delivered: `{verdict.observed[SHOW_REJECTED]}`"


def format_rejected_rows(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Rows of the quarantine, each with what was delivered."""
    for row in rows:
        yield f"{row['table']}  {row['file']}:{row['line']}  {row['reason']}"
        # A terminal must not obey what a sender wrote.
        yield "    " + "".join(
            sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in str(row["raw"])
        )


def _row(row: Mapping[str, object]) -> str:
    return "  ".join(f"{name}={value}" for name, value in row.items())
