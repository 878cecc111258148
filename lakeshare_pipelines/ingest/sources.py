"""Sources other than landing: their interface, their rows as those of a delivery; tables, files, shares, classes.

A source first returns what it would read, as a position that the publication records, and then reads up to it.
Databases are in `jdbc.py`.
"""

import hashlib
import importlib
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.sources import FilesSource, PythonSource, ShareSource
from lakeshare_pipelines.errors import PipelineError, SourceError
from lakeshare_pipelines.ingest.frame import DeliveredTable
from lakeshare_pipelines.ingest.raw_rows import SPARK_FORMATS, make_raw_rows
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import escape_glob
from lakeshare_pipelines.spark.stores import make_delta_options, make_hadoop_conf
from lakeshare_server.errors import LakeshareError, Unavailable
from lakeshare_server.lazy import LazyModule
from lakeshare_server.outbound import Service
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.metadata import read_metadata_text
from lakeshare_server.versions.metadata_sources import is_delta, make_source, normalise_followed_location

if TYPE_CHECKING:
    import delta_sharing
    import deltalake
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
else:
    deltalake, delta_sharing = LazyModule("deltalake"), LazyModule("delta_sharing")
    F = LazyModule("pyspark.sql.functions")

Position = Mapping[str, Any]
"""Where a source was read up to: values of JSON, without secrets; equal while there is nothing new to read."""
WILDCARDS = frozenset("*?[")
RESPONSE_S, ROWS_S = 120, 3600
"""How long the server of a share may take to describe a table, and to send all its rows."""


@dataclass(frozen=True)
class SourceContext:
    """What a source may use. Spark starts when `spark` is read first."""

    contract: SetContract
    table: Table
    settings: LakeSettings
    stores: Stores
    open_spark: "Callable[[], SparkSession]"

    @property
    def spark(self) -> "SparkSession":
        return self.open_spark()

    @property
    def title(self) -> str:
        """The source in errors."""
        return f"{self.table.reads} (table {self.table.name})"

    def fail(self, reason: str, fix: str) -> SourceError:
        return SourceError(self.title, reason, fix)


class Source(Protocol):
    """A source of one table. Errors other than lakeshare's own are reported with the name of the source."""

    is_repeatable: bool
    """Whether reading the same position twice gives the same rows; otherwise rows are held while they are written."""

    def find_position(self, since: Position | None) -> Position:
        """Returns what would be read now. `since` is the position of the latest publication, None before the first."""

    def read(self, since: Position | None, until: Position) -> "DataFrame":
        """Reads the rows up to `until`: those after `since` for a table that rows are added to, all if it is None."""


def open_source(context: SourceContext) -> Source:
    """Opens the source of a table. Raises `SourceError`: a class of the user's cannot be made."""
    from lakeshare_pipelines.ingest.jdbc import JdbcTable

    entry = context.table.reads
    if entry is None:
        raise ValueError(f"table {context.table.name} has no source")
    if entry.jdbc is not None:
        return JdbcTable(context, entry.jdbc)
    if entry.files is not None:
        return Files(context, entry.files)
    if entry.share is not None:
        return SharedTable(context, entry.share)
    if entry.python is not None:
        return _make_source(context, entry.python)
    return LakeTable(context, str(entry.table))


@dataclass(frozen=True)
class SourceRead:
    """What a run reads of one source: after `since`, up to `until`."""

    context: SourceContext
    source: Source
    since: Position | None
    until: Position

    @property
    def has_nothing_new(self) -> bool:
        return self.since == self.until

    def read(self) -> DeliveredTable:
        """Reads the rows; those of a source that is not repeatable are held by Spark until `release`."""
        contract, table = self.context.contract, self.context.table
        since = self.since if table.write.is_incremental else None
        with blame_source(self.context):
            frame = self.source.read(since, self.until)
            is_text = table.reads is not None and table.reads.files is not None
            rows = make_raw_rows(
                frame,
                f"all/{table.short_name}",
                table,
                is_held=not self.source.is_repeatable,
                is_text=is_text,
            )
        return DeliveredTable(contract, table, [rows])


def find_source_read(context: SourceContext, since: Position | None) -> SourceRead:
    """Fixes what a run reads of the source of a table.

    Raises:
        SourceError: it cannot be read, or cannot be continued at `since`.
    """
    with blame_source(context):
        source = open_source(context)
        until = source.find_position(since)
    try:
        kept: Position = json.loads(json.dumps(until, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise context.fail(f"its position is not JSON: {error}", "Return values of JSON.") from error
    return SourceRead(context, source, since, kept)


def digest_positions(reads: Mapping[str, SourceRead]) -> str:
    """Returns the SHA-256 over the positions of all sources of a set: the identity of what a run reads."""
    positions = {name: read.until for name, read in reads.items()}
    return hashlib.sha256(json.dumps(positions, sort_keys=True).encode()).hexdigest()


@contextmanager
def blame_source(context: SourceContext) -> Iterator[None]:
    """Raises unknown errors in the block as `SourceError`, except those of Spark's connections and of the system.

    Those of the system are the user's if the source is.
    """
    try:
        yield
    except PipelineError:
        raise
    except LakeshareError as error:
        raise context.fail(
            str(error).rstrip("."), "Correct the source, or its access, and run again."
        ) from error
    except (Exception, SystemExit) as error:
        from py4j.protocol import Py4JNetworkError

        from lakeshare_pipelines.ingest.jdbc import explain_error

        is_theirs = context.table.reads is not None and context.table.reads.python is not None
        if isinstance(error, Py4JNetworkError) or (isinstance(error, OSError) and not is_theirs):
            raise
        if (known := explain_error(context, error)) is not None:
            # The driver's error may have the options of the connection.
            raise known from None
        last = traceback.extract_tb(error.__traceback__)[-1]
        lines = str(error).strip().splitlines() or [""]
        # Of an error of Java, the first line names a call only.
        causes = [line.partition(": ")[2] for line in lines if line.startswith((": ", "Caused by: "))]
        cause = (causes or lines[:1])[-1]
        reason = f"cannot be read: {type(error).__name__}: {cause} ({last.name}, line {last.lineno})"
        raise context.fail(reason.rstrip("."), "Correct the source; nothing was published.") from error


@dataclass(frozen=True)
class LakeTable:
    """A Delta or Iceberg table of others, at its newest version."""

    context: SourceContext
    location: str
    is_repeatable = True

    def find_position(self, since: Position | None) -> Position:
        stores = self.context.stores
        location = normalise_followed_location(self.location, stores.settings)
        if not is_delta(location, stores):
            pointer = make_source(location, stores, stores.settings).current(None)
            metadata = json.loads(read_metadata_text(stores, pointer.metadata_location))
            return {"metadata": pointer.metadata_location, "snapshot": metadata.get("current-snapshot-id")}
        table = deltalake.DeltaTable(location, storage_options=make_delta_options(stores, location))
        return {"id": str(table.metadata().id), "version": table.version()}

    def read(self, since: Position | None, until: Position) -> "DataFrame":
        spark, stores = self.context.spark, self.context.stores
        location = normalise_followed_location(self.location, stores.settings)
        _reach(self.context, until.get("metadata", location))
        if "version" in until:
            return spark.read.format("delta").option("versionAsOf", until["version"]).load(location)
        # Its newest snapshot: the position is the metadata file that was current.
        return spark.read.format("iceberg").load(until["metadata"])


@dataclass(frozen=True)
class Files:
    """Files that match a location with wildcards; columns of text formats are read as texts, nested ones as JSON."""

    context: SourceContext
    entry: FilesSource
    is_repeatable = True

    def find_position(self, since: Position | None) -> Position:
        lines = [f"{name}:{size}:{mark}" for name, size, mark in self._list()]
        return {"files": len(lines), "digest": hashlib.sha256("\n".join(lines).encode()).hexdigest()}

    def read(self, since: Position | None, until: Position) -> "DataFrame":
        _reach(self.context, self.entry.path)
        if self.find_position(since) != until:
            raise self.context.fail("its files changed while they were read", "Run again.")
        entry = self.entry
        reader = self.context.spark.read.format(SPARK_FORMATS.get(entry.format, entry.format))
        if entry.format in ("csv", "json", "xml"):
            reader = reader.options(mode="FAILFAST", inferSchema=False, primitivesAsString=True)
        if entry.format == "csv":
            reader = reader.options(header=True, delimiter=self.context.table.reading.delimiter, escape='"')
        return reader.options(**entry.options).load([escape_glob(name) for name, _, _ in self._list()])

    def _list(self) -> list[tuple[str, int, str]]:
        """The files with size and what changes with their content, by name."""
        path, stores = self.entry.path, self.context.stores
        parts = path.split("/")
        plain = next((at for at, part in enumerate(parts) if WILDCARDS.intersection(part)), len(parts) - 1)
        folder = "/".join(parts[:plain])
        found = sorted(
            (file.location, file.size_bytes, f"{file.etag or ''}{file.modified_ms}")
            for file in stores.list(folder)
            if fnmatchcase(file.location, path) and file.location.count("/") == path.count("/")
        )
        if not found:
            raise self.context.fail("there is no such file", "Correct files.path, or put the files there.")
        return found


@dataclass(frozen=True)
class SharedTable:
    """A table of a foreign share at its newest version, read into memory by the client of Delta Sharing."""

    context: SourceContext
    entry: ShareSource
    is_repeatable = True

    def find_position(self, since: Position | None) -> Position:
        metadata = self._call(delta_sharing.get_table_metadata, RESPONSE_S)
        return {"id": metadata.id, "version": int(self._call(delta_sharing.get_table_version, RESPONSE_S))}

    def read(self, since: Position | None, until: Position) -> "DataFrame":
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(
            json.loads(self._call(delta_sharing.get_table_metadata, RESPONSE_S).schema_string)
        )
        rows = self._call(delta_sharing.load_as_pandas, ROWS_S)
        # Not every server has earlier versions: the newest one is read, and must still be the one to read.
        if self.find_position(since) != until:
            raise self.context.fail("a new version was shared while it was read", "Run again.")
        arrow = pa.Table.from_pandas(rows, to_arrow_schema(schema), preserve_index=False)
        return self.context.spark.createDataFrame(arrow, schema)

    @property
    def _url(self) -> str:
        variable = self.entry.profile
        path = os.environ.get(variable)
        if path is None:
            fix = "Set it where runs start, to the path of the profile file of the share."
            raise self.context.fail(f"the environment variable {variable} is not set", fix)
        if not Path(path).is_file():
            raise self.context.fail(
                f"{path}, of {variable}, is no file", "Give the path of the profile file."
            )
        return f"{path}#{self.entry.table}"

    def _call(self, ask: Callable[[str], Any], wait_s: float) -> Any:
        """Calls a function of the client, which has no deadline of its own, with the table's URL.

        Errors are reported without their text: it has signed URLs, with which anyone could read files.
        """
        url = self._url
        try:
            return Service(f"the server of {self.entry.table}", wait_s).call(lambda: ask(url))
        except ImportError as error:
            raise self.context.fail("delta-sharing is not installed", "Install delta-sharing.") from error
        except Unavailable:
            reason = f"no response within {wait_s:g} seconds"
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            reason = type(error).__name__ + ("" if status is None else f", status {status}")
        fix = "Check the profile, its expiry, and the name of the table."
        raise self.context.fail(f"its server refused it or does not respond ({reason})", fix)


def _make_source(context: SourceContext, entry: PythonSource) -> Source:
    module_name, _, name = entry.source.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:
        fix = "Correct the name or the module, install its package, or start the run in its folder."
        raise context.fail(f"cannot be imported: {type(error).__name__}: {error}", fix) from error
    source: Source = kind(context, **entry.options)
    missing = [each for each in ("is_repeatable", "find_position", "read") if not hasattr(source, each)]
    if missing:
        fix = "See the interface lakeshare_pipelines.ingest.sources.Source."
        raise context.fail(f"{kind.__name__} has no {', '.join(missing)}", fix)
    return source


def _reach(context: SourceContext, location: str) -> None:
    """Lets the session read a store that it has not been started for."""
    for key, value in make_hadoop_conf(context.stores, location).items():
        context.spark.conf.set(key, value)
