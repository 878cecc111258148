"""Quarantine: delivered rows that were not understood, with file, line and reason; one Delta table per set.

Partitioned by run and table, so that a step that is run again replaces what it kept before and nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.file_lock import locked
from lakeshare_pipelines.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakeshare_pipelines.ingest.frame import TableFrame
    from lakeshare_pipelines.wap.lake import Lake

FOLDER = "_quarantine"
COLUMNS = ("set", "table", "run_id", "partition", "file", "line", "reason", "raw", "kept_at")
SHOWN_ROWS = 1000


def keep_rejected(lake: "Lake", contract: SetContract, table: Table, read: "TableFrame", run_id: str) -> int:
    """Keep the rows that did not parse, in place of what this run kept before; returns how many."""
    path = quarantine_path(lake.settings, contract.name)
    # Two runs of a set may keep rows at once; the first of them makes the table.
    with locked(
        lake.settings.state_dir / "locks" / f"quarantine-{contract.name}", wait_s=lake.settings.lock_wait_s
    ):
        if read.rejected is None or not read.rejected_rows:
            _forget(path, table.name, run_id)
            return 0
        if lake.settings.spark_mode == "local":
            # Rows as they were delivered. Executors on other machines may run as another user.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        _write(_record(read.rejected, contract, table, run_id), path, table.name, run_id)
    return read.rejected_rows


def quarantined(
    settings: LakeSettings,
    set_name: str,
    run_id: str | None = None,
    table: str | None = None,
    limit: int = SHOWN_ROWS,
) -> list[Mapping[str, Any]]:
    """Rows in quarantine, of one run and one table when given; at most `limit`, by file and line."""
    from deltalake import DeltaTable

    path = quarantine_path(settings, set_name)
    if not DeltaTable.is_deltatable(str(path)):
        return []
    wanted = [
        (name, "=", value) for name, value in (("run_id", run_id), ("table", table)) if value is not None
    ]
    rows = DeltaTable(path).to_pyarrow_table(filters=wanted or None)
    ordered = rows.sort_by([(name, "ascending") for name in ("run_id", "table", "file", "line")])
    shown: list[Mapping[str, Any]] = ordered.slice(0, limit).select(list(COLUMNS)).to_pylist()
    return shown


def quarantine_path(settings: LakeSettings, set_name: str) -> Path:
    """Root folder of a set's quarantine table."""
    return settings.warehouse / FOLDER / set_name


def _record(rejected: "DataFrame", contract: SetContract, table: Table, run_id: str) -> "DataFrame":
    from pyspark.sql import functions as F

    # Files are named `<partition>/<file>`.
    partition = F.when(F.col("file").contains("/"), F.substring_index("file", "/", 1))
    return rejected.select(
        F.lit(contract.name).alias("set"),
        F.lit(table.name).alias("table"),
        F.lit(run_id).alias("run_id"),
        partition.alias("partition"),
        F.col("file").cast("string"),
        F.col("line").cast("bigint"),
        F.col("reason").cast("string"),
        F.col("raw").cast("string"),
        F.current_timestamp().alias("kept_at"),
    )


def _write(rows: "DataFrame", path: Path, table: str, run_id: str) -> None:
    writer = rows.write.format("delta").mode("overwrite").partitionBy("run_id", "table")
    writer.option("replaceWhere", _of(table, run_id)).save(str(path))


def _forget(path: Path, table: str, run_id: str) -> None:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        return
    kept = DeltaTable(path)
    if kept.partitions(file_pruning_predicate=[("run_id", "=", run_id), ("table", "=", table)]):
        kept.delete(_of(table, run_id))


def _of(table: str, run_id: str) -> str:
    return " AND ".join(
        f"{name} = '{value.replace(chr(39), chr(39) * 2)}'"
        for name, value in (("run_id", run_id), ("table", table))
    )
