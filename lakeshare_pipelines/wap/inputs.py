"""What a set is made of: published tables of other sets at their numbers, sources at their positions, and transforms.

Numbers and positions are fixed before anything is staged, and recorded with each publication. A red audit or a crash
advances no position, and a rollback takes it back. Staging is beside this file.
"""

import importlib
import importlib.util
import inspect
import re
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.loader import build_contract
from lakeshare_pipelines.contracts.model import Input
from lakeshare_pipelines.contracts.partitioning import Kind, Partitioning
from lakeshare_pipelines.errors import ContractError, InputError, PipelineError, TransformError
from lakeshare_pipelines.ingest import find_deliveries_of_run
from lakeshare_pipelines.ingest.sources import (
    Position,
    SourceContext,
    SourceRead,
    digest_positions,
    find_source_read,
)
from lakeshare_pipelines.spark.rows import column_by_name, filter_partitions, find_other_fields
from lakeshare_pipelines.spark.scans import Scan, list_scans
from lakeshare_pipelines.spark.session import MAIN_CATALOG, is_connect, translate_errors
from lakeshare_pipelines.wap.staged import WHOLE, Lake, ReadTable, read_snapshot
from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.errors import suggest
from lakeshare_server.lazy import LazyModule
from lakeshare_server.yaml_documents import parse

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
else:
    F = LazyModule("pyspark.sql.functions")

BRANCH_CATALOGS = "wap_"
"""How the names of Spark catalogs of branches begin; they are those of staging locations."""
PIN = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)@(\d+)")


def parse_pins(text: str) -> dict[str, int]:
    """The numbers in `reference.airports@3, flights.departures@12`, by table; raises `InputError`."""
    pins: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        pin = PIN.fullmatch(part)
        if pin is None:
            fix = "Write each input as set.table@number, with commas between them."
            raise InputError("the run", repr(part), "names no publication", fix)
        pins[pin[1]] = int(pin[2])
    return pins


def find_inputs(ledger: Ledger, contract: SetContract, pins: Mapping[str, int]) -> dict[str, Publication]:
    """The publication of each input of a set: the pinned one, or the newest.

    Raises:
        InputError: an input is not published, or a pinned number does not exist, has expired, or is of no input.
    """
    title, names = f"set {contract.name}", [read.table for read in contract.inputs]
    for name in pins:
        if name not in names:
            fix = suggest(name, names, f"Its inputs are: {', '.join(names)}.") if names else "It has none."
            raise InputError(title, name, "is not one of its inputs", fix)
    found: dict[str, Publication] = {}
    for name, latest in _find_latest(ledger, names).items():
        if latest is None:
            raise InputError(title, name, "has no publication", "Publish the set of that table first.")
        found[name] = latest
        if name in pins:
            found[name] = _find_pinned(ledger, title, latest, pins[name])
    return found


def _find_latest(ledger: Ledger, names: Sequence[str]) -> dict[str, Publication | None]:
    """The newest publications of several tables at one moment: those of a set are appended together."""
    found = {name: ledger.latest(name) for name in names}
    # Numbers only grow: what is the same twice was so between the two reads.
    while found != (again := {name: ledger.latest(name) for name in names}):
        found = again
    return found


def _find_pinned(ledger: Ledger, title: str, latest: Publication, version: int) -> Publication:
    pinned, oldest = ledger.at(latest.table, version), ledger.oldest_readable(latest.table)
    readable = f"Pin a number from {oldest} to {latest.version}: `lakeshare publications {latest.table}`."
    if pinned is None:
        raise InputError(title, latest.table, f"has no publication {version}", readable)
    if version < oldest:
        reason = (
            f"cannot be read at {version}, which has expired: the oldest readable publication is {oldest}"
        )
        raise InputError(title, latest.table, reason, readable)
    return pinned


def read_publication(lake: Lake, publication: Publication) -> "DataFrame":
    """A published table at its number, for any catalog."""
    if publication.format == "delta":
        reader = lake.spark.read.format("delta").option("versionAsOf", publication.delta_version or 0)
        return reader.load(publication.location)
    if publication.metadata_location is None or publication.snapshot_id is None:
        raise ValueError(f"publication {publication.version} of {publication.table} pins no snapshot")
    return read_snapshot(lake.spark, lake.stores, publication.metadata_location, publication.snapshot_id)


@dataclass(frozen=True)
class LakeshareTable:
    """A published table at one publication number, for code outside of sets: all rows, or those of some partitions."""

    lake: Lake
    publication: Publication
    partitions: tuple[str, ...] | None = None
    """Keys of the partitions whose rows are read; None: all rows."""
    contract: SetContract | None = None
    """The contract with which the partitions were published; None for all rows."""

    @property
    def name(self) -> str:
        return self.publication.table

    @property
    def version(self) -> int:
        """The publication number."""
        return self.publication.version

    @property
    def location(self) -> str:
        """The folder or URL of the table; its files hold other numbers, too."""
        return self.publication.location

    def to_spark(self) -> "DataFrame":
        frame = read_publication(self.lake, self.publication)
        if self.partitions is None or self.contract is None:
            return frame
        column = self.contract.table(self.name).partition_column
        return _select_partitions(
            frame, self.contract.partitioning, column.name, column.type, self.partitions
        )

    def to_arrow(self) -> "pa.Table":
        """The rows, in memory; read by Spark, as every format and every row-level delete is."""
        return self.to_spark().toArrow()

    def to_pandas(self) -> "pd.DataFrame":
        """The rows, in memory, as `to_arrow`."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame


def _select_partitions(
    frame: "DataFrame", partitioning: Partitioning, name: str, column_type: str, keys: Sequence[str]
) -> "DataFrame":
    """The rows of partitions; none without a key."""
    if not keys:
        return frame.where(F.lit(False))
    return frame.where(filter_partitions(partitioning, name, column_type, keys))


def open_table(
    lake: Lake, ledger: Ledger, name: str, version: int | None = None, partitions: Sequence[str] | None = None
) -> LakeshareTable:
    """A published table at a number, or at its newest one; of `partitions`, by keys of its set, or all rows.

    Raises:
        InputError: it is not published, the number does not exist or has expired, or the table has no such partition.
    """
    latest = ledger.latest(name)
    if latest is None:
        raise InputError(
            "the table", name, "has no publication", "Publish its set, or correct the name: set.table."
        )
    publication = latest if version is None else _find_pinned(ledger, "the table", latest, version)
    if partitions is None:
        return LakeshareTable(lake, publication)
    contract = find_partitioned(ledger, publication)
    if contract is None:
        raise InputError("the table", name, "has no partitions that can be read alone", "Read all rows.")
    for key in partitions:
        if not contract.is_partition(key):
            raise InputError("the table", name, f"has no partition {key!r}", contract.partitioning.expected)
    return LakeshareTable(lake, publication, tuple(partitions), contract)


def find_partitioned(ledger: Ledger, publication: Publication) -> SetContract | None:
    """The contract with which a table was published; None if it is not written by partition, or no record has it."""
    recorded = ledger.recorded_contract(publication.contract_digest)
    if recorded is None:
        return None
    contract = build_contract(parse(recorded.text), Path(f"{recorded.set_name}.yaml"), None)
    return contract if contract.is_by_partition(contract.table(publication.table)) else None


class Inputs:
    """What a transform reads: the session, the partitions of the run, deliveries and declared tables.

    Published tables of other sets are read at the number that the run pinned; nothing else of them can be read.
    """

    def __init__(
        self,
        lake: Lake,
        contract: SetContract,
        table: Table,
        partitions: Sequence[str],
        rows_of_run: "Mapping[str, DataFrame]",
        delivered: "Mapping[str, DataFrame]",
        read_whole: "Callable[[Table], DataFrame]",
        publications: Mapping[str, Publication],
    ) -> None:
        self._lake, self._contract, self._table = lake, contract, table
        self._rows_of_run, self._delivered = rows_of_run, delivered
        self._read_whole, self._publications = read_whole, publications
        self._read: dict[str, bool] = {}
        self._returned: list[DataFrame] = []
        self.partitions = tuple(partitions)
        """The keys of the run's partitions, as `2013-01-01`, or `all`."""

    @property
    def spark(self) -> "SparkSession":
        """The session of the run."""
        return self._lake.spark

    def delivery(self, name: str) -> "DataFrame":
        """The rows that this run's deliveries brought for a table of the set with a source.

        Raises:
            InputError: the set has no such table, or the transform does not declare it.
        """
        sources = {table.short_name: table for table in self._contract.tables if table.has_source}
        by_name = sources | {table.name: table for table in sources.values()}
        if name not in by_name:
            fix = suggest(name, sources, "Its tables with a source are the ones to name.") if sources else ""
            raise self._refuse(
                name, "is no delivered table of the set", fix or "The set takes no deliveries."
            )
        table = by_name[name]
        if table.name in self._table.depends_on and table.name in self._delivered:
            self._note(table.name, is_whole=False)
            return self._permit(self._delivered[table.name])
        return self.table(table.name)

    def table(self, name: str, *, whole: bool = False) -> "DataFrame":
        """A declared table: the rows of this run, or the whole table.

        Of a table of the set, the rows that this run staged; with `whole`, or if deliveries are added to the table, the
        table as it will be after publication.
        Of a table of another set, its rows at the pinned number; if the partitions of both sets correspond, those that
        have a time or a name in common with the run's, all rows with `whole`.

        Raises:
            InputError: the transform does not declare the table.
        """
        own = {each: self._contract.table(each) for each in self._table.depends_on}
        own |= {table.short_name: table for table in own.values()}
        if name in own:
            table = own[name]
            is_whole = whole or table.name not in self._rows_of_run
            self._note(table.name, is_whole=is_whole)
            return self._permit(self._read_whole(table) if is_whole else self._rows_of_run[table.name])
        read = next((each for each in self._table.inputs if each.table == name), None)
        if read is None:
            fix = f"Add it to the inputs of {self._table.short_name} in {self._contract.path.name}; of other sets only "
            fix += "published tables can be read."
            raise self._refuse(name, f"is no declared input of {self._table.short_name}", fix)
        self._note(name, is_whole=whole or read.column is None)
        frame = self._permit(read_publication(self._lake, self._publications[name]))
        if whole or read.column is None:
            return frame
        partitioning = self._contract.partitioning
        keys = list(
            dict.fromkeys(
                found for key in self.partitions for found in partitioning.map_key(key, read.partitioning)
            )
        )
        return _select_partitions(frame, read.partitioning, read.column, read.column_type, keys)

    def find_undeclared(self, frame: "DataFrame") -> list[Scan]:
        """Tables and files of the lake in a frame's plan that this object did not return; none on Spark Connect."""
        if is_connect(self._lake.spark):
            return []
        states = {scan.state for each in self._returned for scan in list_scans(each)}
        own = self._lake.named_catalog
        catalog = MAIN_CATALOG if own is None else own.name
        roots = {self._lake.settings.lake_root, *filter(None, (t.warehouse for t in self._contract.tables))}
        return [
            scan
            for scan in list_scans(frame)
            if scan.state not in states
            and (
                scan.catalog == catalog
                or scan.catalog.startswith(BRANCH_CATALOGS)
                or any(map(scan.is_below, roots))
            )
        ]

    def _permit(self, frame: "DataFrame") -> "DataFrame":
        """The frame, whose tables and files a transform may read."""
        self._returned.append(frame)
        return frame

    def list_read(self) -> dict[str, ReadTable]:
        """The declared tables with their numbers, and how much of each was read."""
        numbers: dict[str, int | None] = dict.fromkeys(self._table.depends_on)
        numbers |= {read.table: self._publications[read.table].version for read in self._table.inputs}
        kinds = {read.table: self._find_kinds(read) for read in self._table.inputs}
        return {
            name: ReadTable(number, self._read.get(name), kinds.get(name)) for name, number in numbers.items()
        }

    def _find_kinds(self, read: Input) -> tuple[Kind, Kind, str] | None:
        """Kinds of partitions of the set and of an input, and their time zone, if keys of one are none of the other."""
        own = self._contract.partitioning
        is_mapped = read.column is not None and own.is_time and own.kind != read.partitioning.kind
        return (own.kind, read.partitioning.kind, own.time_zone) if is_mapped else None

    def _note(self, name: str, *, is_whole: bool) -> None:
        self._read[name] = is_whole or self._read.get(name, False)

    def _refuse(self, name: str, reason: str, fix: str) -> InputError:
        return InputError(f"{self._contract.path}: {self._table.short_name}.inputs", name, reason, fix)


def derive_table(inputs: Inputs, contract: SetContract, table: Table) -> "DataFrame":
    """A derived table: the contract's SQL over the rows of this run and its inputs, cast to the contract's types.

    Raises:
        ContractError: it is not valid Spark SQL over them, or lacks a column of the contract.
    """
    from pyspark.errors import AnalysisException, ParseException

    if table.derive is None:
        raise ValueError(f"table {table.name} has neither a source nor a derivation")
    names = (*table.depends_on, *(read.table for read in table.inputs))
    frames: dict[str, Any] = {name.rsplit(".", 1)[-1]: inputs.table(name) for name in names}
    try:
        frame = inputs.spark.sql(table.derive, **frames)
        typed = frame.select(*(F.col(column.name).cast(column.type) for column in table.columns))
        _ = typed.schema  # Spark Connect analyses no earlier
        other = find_other_fields(frame, {column.name: column.type for column in table.columns})
    except (AnalysisException, ParseException) as error:
        reads = ", ".join(f"{{{name}}}" for name in frames)
        fix = f"It is Spark SQL over {reads}, with the columns of {table.short_name}."
        raise ContractError(
            contract.path, f"{table.short_name}.derive", _get_first_line(error), fix
        ) from error
    if other:
        fix = "Give nested fields the names and the order of the contract, as with named_struct."
        raise ContractError(
            contract.path, f"{table.short_name}.derive", f"column {'; column '.join(other)}", fix
        )
    return typed


@dataclass(frozen=True)
class Transform:
    """The function that makes a table; `code` is the SHA-256 of the file that defines it."""

    contract: SetContract
    table: Table
    function: Callable[[Inputs], Any]
    code: str

    def fail(self, reason: str, fix: str) -> TransformError:
        """The error of this transform."""
        return make_transform_error(self.contract, self.table, reason, fix)


def make_transform_error(contract: SetContract, table: Table, reason: str, fix: str) -> TransformError:
    return TransformError(contract.path, table.short_name, table.transform or "", reason, fix)


def load_transforms(contract: SetContract) -> dict[str, Transform]:
    """Imports the functions of a set's transforms, by table; raises `TransformError` for one that cannot be called."""
    return {
        table.name: load_transform(contract, table)
        for table in contract.tables
        if table.transform is not None
    }


def load_transform(contract: SetContract, table: Table) -> Transform:
    """Imports the function of a table's transform and checks that it takes one argument; raises `TransformError`."""
    module_name, _, name = (table.transform or "").partition(":")

    def fail(reason: str, fix: str) -> TransformError:
        return make_transform_error(contract, table, reason, fix)

    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"cannot be imported: {type(error).__name__}: {_get_first_line(error)}{_locate(error, None)}"
        fix = "Correct the module, install its package, or start the run in its folder."
        raise fail(reason, fix) from error
    function = getattr(module, name, None)
    if not inspect.isfunction(function):
        names = [other for other, value in vars(module).items() if inspect.isfunction(value)]
        hint = suggest(name, names, "Define it at the top of the module.") if names else "Define it there."
        raise fail(f"is no function of {module.__file__}", hint)
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        reason = f"cannot be called with one argument{_locate_function(function)}: {error}"
        raise fail(reason, f"Define it as `def {name}(inputs: Inputs) -> DataFrame`.") from error
    return Transform(contract, table, function, digest_code(table) or "")


def digest_code(table: Table) -> str | None:
    """The SHA-256 of the file that defines a table's transform; None without a transform, or if it is not found."""
    if table.transform is None:
        return None
    spec = None
    # It imports the packages around the module; `load_transform` reports what they raise.
    with suppress(Exception, SystemExit):
        spec = importlib.util.find_spec(table.transform.partition(":")[0])
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return sha256(Path(spec.origin).read_bytes()).hexdigest()


INTERRUPT_EVERY_S = 0.5
POLL_S = 0.2
ENDING_S = 5
"""How long a late transform may take to end after its jobs were cancelled, before its thread is left alone."""


def run_transform(
    lake: Lake, transform: Transform, inputs: Inputs, write: "Callable[[DataFrame], int]"
) -> int:
    """Call a transform and write the rows of its frame; returns their number.

    The function runs in a thread of its own, which is left behind if it does not end. Its Spark jobs are cancelled.

    Raises:
        TransformError: it raised an error, did not end in time, or its result does not match the contract.
    """
    wait_s, tag = lake.settings.transform_wait_s, f"lakeshare-{uuid4()}"
    with _limit_jobs(lake.spark, tag, wait_s) as is_late:
        try:
            with translate_errors(lake.settings, f"transform {transform.table.transform}"):
                frame = _check_result(transform, _call(transform.function, inputs, tag, is_late), lake.spark)
                _require_declared(transform, inputs, frame)
                return write(frame)
        except (Exception, SystemExit) as error:
            if is_late.is_set():
                reason = f"did not end within {wait_s} s{_locate_function(transform.function)}"
                fix = "Correct it, or raise LAKESHARE_TRANSFORM_WAIT_S. Its Spark jobs were cancelled."
                raise transform.fail(reason, fix) from error
            if isinstance(error, PipelineError):
                raise
            where = _locate(error, transform.function) or _locate_function(transform.function)
            reason = f"raised {type(error).__name__}: {_get_first_line(error)}{where}"
            fix = "Correct the function, or the rows that it reads; nothing was published."
            raise transform.fail(reason, fix) from error


@contextmanager
def _limit_jobs(spark: "SparkSession", tag: str, wait_s: float) -> Iterator[threading.Event]:
    """Cancels the Spark jobs with a tag, and those of this thread, from a deadline to the end of the block.

    The event is set when the deadline has passed.
    """
    is_over, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        if is_over.wait(wait_s):
            return
        is_late.set()
        # Again and again: a transform may start another job.
        while True:
            _cancel_jobs(spark, tag)
            if is_over.wait(INTERRUPT_EVERY_S):
                return

    watcher = threading.Thread(target=watch, name=f"deadline of {tag}", daemon=True)
    _tag_jobs(spark, tag)
    watcher.start()
    try:
        yield is_late
    finally:
        is_over.set()
        watcher.join()
        if is_connect(spark):
            spark.removeTag(tag)
        else:
            spark.sparkContext.removeJobTag(tag)


def _tag_jobs(spark: "SparkSession", tag: str) -> None:
    """Gives the jobs that this thread starts a tag."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        # Not `spark.addTag`: in a session without Connect such a tag is known in its own thread only.
        spark.sparkContext.addJobTag(tag)


def _cancel_jobs(spark: "SparkSession", tag: str) -> None:
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def _call(function: Callable[[Inputs], Any], inputs: Inputs, tag: str, is_late: threading.Event) -> Any:
    """The result of a function. Raises `TimeoutError` if it has not ended when the deadline has passed."""
    outcome: Future[Any] = Future()

    def call() -> None:
        try:
            _tag_jobs(inputs.spark, tag)
            outcome.set_result(function(inputs))
        except BaseException as error:  # raised again by the caller
            outcome.set_exception(error)

    thread = threading.Thread(target=call, name=f"transform {function.__qualname__}", daemon=True)
    thread.start()
    while not outcome.done() and not is_late.is_set():
        wait([outcome], timeout=POLL_S)
    if is_late.is_set():
        thread.join(ENDING_S)
        raise TimeoutError
    return outcome.result()


def _check_result(transform: Transform, result: Any, spark: "SparkSession") -> "DataFrame":
    """The result of a transform with the contract's columns and types; raises `TransformError` if it differs."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame

    table, where = transform.table, _locate_function(transform.function)
    if not isinstance(result, DataFrame):
        fix = "Return a DataFrame of the session `inputs.spark`."
        raise transform.fail(f"returned a {type(result).__name__}{where}", fix)
    if not _is_same_session(result.sparkSession, spark):
        fix = "Make it with `inputs.spark`, which has the catalogs and settings of the run."
        raise transform.fail(f"returned a DataFrame of another Spark session{where}", fix)
    found = Counter(name.lower() for name in result.columns)
    expected = {column.name.lower(): column for column in table.columns}
    problems = [f"without column {name!r}" for name in expected if name not in found]
    problems += [
        f"with column {name!r}, which is not in the contract" for name in found if name not in expected
    ]
    problems += [f"with column {name!r} more than once" for name, count in found.items() if count > 1]
    fix = f"Select the columns of {table.short_name}: {', '.join(column.name for column in table.columns)}."
    if problems:
        raise transform.fail(f"returned rows {', '.join(problems)}{where}", fix)
    columns = [column_by_name(column.name).cast(column.type).alias(column.name) for column in table.columns]
    try:
        typed = result.select(*columns)
        _ = typed.schema  # Spark Connect analyses no earlier
    except AnalysisException as error:
        reason = f"returned rows that cannot be cast to the contract's types{where}: {_get_first_line(error)}"
        kinds = {field.name.lower(): field.dataType.simpleString() for field in result.schema}
        wrong = [f"{column.name} {kinds[name]} to {column.type}" for name, column in expected.items()]
        raise transform.fail(reason, f"{fix} The casts: {', '.join(wrong)}.") from error
    if other := find_other_fields(result, {column.name: column.type for column in table.columns}):
        fix = "Give nested fields the names and the order of the contract."
        raise transform.fail(f"returned rows whose column {'; column '.join(other)}{where}", fix)
    return typed


def _require_declared(transform: Transform, inputs: Inputs, frame: "DataFrame") -> None:
    """Raises `TransformError` if a frame reads tables or files of the lake that `inputs` did not return."""
    undeclared = list(dict.fromkeys(scan.name for scan in inputs.find_undeclared(frame)))
    if undeclared:
        table = transform.table.short_name
        reason = f"reads {', '.join(undeclared[:3])} of the lake{_locate_function(transform.function)}"
        fix = (
            f"Add the table to the inputs of {table} in {transform.contract.path.name} and read it by "
            "inputs.table: branches, staged files and other numbers than the pinned ones are not read"
        )
        raise transform.fail(reason, fix)


def _is_same_session(found: "SparkSession", own: "SparkSession") -> bool:
    if found is own:
        return True
    if is_connect(own) or is_connect(found):
        return getattr(found, "session_id", None) == getattr(own, "session_id", "")
    # `SparkSession.getActiveSession()` makes another Python object of the same session.
    return bool(found._jsparkSession.equals(own._jsparkSession))


def _get_first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0].rstrip(".")


def _locate(error: BaseException, function: Callable[..., Any] | None) -> str:
    """Where an error was raised in the file of a function, or in any file but Python's own importer."""
    if isinstance(error, SyntaxError) and function is None:
        return f" ({error.filename}, line {error.lineno})"
    file = None if function is None else inspect.unwrap(function).__code__.co_filename
    frames = traceback.extract_tb(error.__traceback__)
    fitting = (
        [each for each in frames if each.filename == file]
        if file
        else [
            each
            for each in frames
            if not each.filename.startswith("<")
            and "importlib" not in each.filename
            and each.filename != __file__
        ]
    )
    return f" ({fitting[-1].filename}, line {fitting[-1].lineno})" if fitting else ""


def _locate_function(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f" ({code.co_filename}, line {code.co_firstlineno})"


POSITIONS = "positions"
"""The evidence of a publication with the positions of its set, by table."""


def list_in_force(ledger: Ledger, table: str, partitions: Collection[str]) -> Iterator[Publication]:
    """The publications of these partitions that the latest one contains, newest first; no rollbacks and maintenance."""
    below: int | None = None
    for publication in ledger.of_partitions(table, partitions):
        if below is not None and publication.version > below:
            continue
        if publication.repeats is not None:
            below = publication.repeats
            continue
        yield publication


def find_position(ledger: Ledger, table: str) -> Position | None:
    """Where the source of a table was read up to by the publication that the latest one contains."""
    for publication in list_in_force(ledger, table, WHOLE):
        found: Position | None = publication.verdicts.get(POSITIONS, {}).get(table)
        return found
    return None


def find_source_reads(lake: Lake, ledger: Ledger, contract: SetContract) -> dict[str, SourceRead]:
    """Fixes what a run reads of the sources of a set, by table; Spark starts for databases only.

    Raises:
        SourceError: a source cannot be read, or cannot be continued.
    """
    return {
        table.name: find_source_read(
            SourceContext(contract, table, lake.settings, lake.stores, lambda: lake.spark),
            find_position(ledger, table.name),
        )
        for table in contract.tables
        if table.reads is not None
    }


def find_digests(
    lake: Lake, ledger: Ledger, contract: SetContract, partitions: Sequence[str]
) -> dict[str, str]:
    """The identity of what a run would read, by partition: its deliveries or positions; empty for a set without both.

    Raises:
        DeliveryError: a delivery is missing or incomplete.
        SourceError: a source cannot be read, or cannot be continued.
    """
    deliveries = find_deliveries_of_run(lake.settings, contract, partitions)
    digests = dict.fromkeys(partitions, "") | {found.partition: found.digest for found in deliveries}
    if contract.has_sources:
        digests = dict.fromkeys(partitions, digest_positions(find_source_reads(lake, ledger, contract)))
    return digests
