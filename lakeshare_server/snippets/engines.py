"""Engines: through which doors each of them goes, and which one a snippet takes for a table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakeshare_server.errors import BadRequest
from lakeshare_server.snippets import configuration, python, worksheets
from lakeshare_server.snippets.doors import Doors
from lakeshare_server.snippets.shared_table import Door, EngineName, SnippetTable, Storage

Text = Callable[[SnippetTable], str]
PYTHON, PLAIN, SPARK = "Python, delta format", "Python, parquet format", "Spark, delta format"


@dataclass(frozen=True)
class Engine:
    """An engine: its text for each door, the client that it is at Delta Sharing, and how it can get at files.

    `storages` are the ways of the Iceberg door that it knows.
    """

    name: EngineName
    iceberg: Text | None = None
    sharing: Text | None = None
    client: str = PYTHON
    storages: tuple[Storage, ...] = ("credentials", "signed requests", "disk")


ENGINES: dict[EngineName, Engine] = {
    engine.name: engine
    for engine in (
        Engine("pyiceberg", iceberg=python.pyiceberg),
        Engine("pandas", sharing=python.pandas),
        Engine("polars", iceberg=python.polars_iceberg, sharing=python.polars_sharing),
        Engine("duckdb", iceberg=python.duckdb_iceberg, sharing=python.duckdb_sharing),
        Engine("duckdb-sql", iceberg=configuration.duckdb_sql, storages=("credentials", "disk")),
        Engine("spark", iceberg=python.spark_iceberg, sharing=python.spark_sharing, client=SPARK),
        Engine("trino", iceberg=configuration.trino, storages=("credentials",)),
        # Power BI's connector does not say what it announces: what any client reads is what it is promised.
        Engine("power-bi", sharing=worksheets.power_bi, client=PLAIN),
        Engine("snowflake", iceberg=worksheets.snowflake, storages=("credentials",)),
    )
}


def snippet(engine: Engine, table: SnippetTable, doors: Doors, wanted: Door | None = None) -> str:
    """The text for the door that is wanted, or for the one that works from most places.

    Raises:
        BadRequest: the engine cannot read the table, or not through that door; says why, and what to do.
    """
    closed = dict(_closed(engine, doors))
    open_doors = [door for door in _by_reach(doors) if door not in closed]
    if wanted is not None:
        open_doors = [door for door in open_doors if door == wanted]
        closed = {door: why for door, why in closed.items() if door == wanted}
    if not open_doors:
        why = "; ".join(f"{door}: {reason}" for door, reason in closed.items())
        raise BadRequest("--engine", engine.name, f"It cannot read {table.path}: {why}")
    text = engine.iceberg if open_doors[0] == "iceberg" else engine.sharing
    if text is None:
        raise AssertionError("unreachable: a door without a text is closed")
    return text(table)


def _by_reach(doors: Doors) -> tuple[Door, Door]:
    """Iceberg's own door first, except where its clients would have to be on the server's machine."""
    return ("delta-sharing", "iceberg") if doors.storage == "disk" else ("iceberg", "delta-sharing")


def _closed(engine: Engine, doors: Doors) -> Iterator[tuple[Door, str]]:
    """The doors that do not work, with the reason."""
    if engine.iceberg is None:
        yield "iceberg", "it does not go through this door."
    elif doors.iceberg.served_as is None:
        yield "iceberg", _reason(str(doors.iceberg))
    elif doors.storage not in engine.storages:
        yield "iceberg", _unreachable(engine, doors)
    verdict = doors.verdicts[engine.client]
    if engine.sharing is None:
        yield "delta-sharing", "it does not go through this door."
    elif verdict.served_as is None:
        yield "delta-sharing", _reason(str(verdict))


def _unreachable(engine: Engine, doors: Doors) -> str:
    if doors.storage == "disk":
        return "the table is on the server's own disk."
    return f"it needs credentials for the folder, and there are none: {doors.no_credentials}."


def _reason(verdict: str) -> str:
    return verdict.removeprefix("no, ").rstrip(".") + "."
