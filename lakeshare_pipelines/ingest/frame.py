"""A delivery as frames that match the contract, with what did not fit beside them.

Rows that do not parse are set aside with file, line and reason; columns that are missing, unknown or of another type
are told as problems. Neither stops the reading: the audit judges them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.ingest.delivery import Delivery, unchanged_while
from lakeshare_pipelines.ingest.integrity import ReadableFile, ReadingLimits, require_readable
from lakeshare_pipelines.ingest.judged_rows import REASON, another_type, judge
from lakeshare_pipelines.ingest.landing_files import assign_files
from lakeshare_pipelines.ingest.problems import Problem, structure_problems, together
from lakeshare_pipelines.ingest.raw_rows import FILE, LINE, RAW, read_raw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Problem", "TableFrame", "read_delivery"]


@dataclass(frozen=True)
class TableFrame:
    """One table of a delivery: typed rows, rows set aside (None when there are none), problems of its columns.

    `rejected` has the columns table, file, line, reason and raw.
    """

    frame: "DataFrame"
    rejected: "DataFrame | None" = None
    problems: tuple[Problem, ...] = ()
    rejected_rows: int = 0


def read_delivery(
    spark: "SparkSession",
    contract: SetContract,
    deliveries: Sequence[Delivery],
    limits: ReadingLimits = ReadingLimits(),  # noqa: B008  frozen
) -> dict[str, TableFrame]:
    """Read the deliveries of one run, all partitions together; a frame for each table with a source.

    Raises:
        DeliveryError: a file cannot be read at all, or changed while it was read.
        ContractError: the transformLogic of a column is no Spark SQL.
    """
    with unchanged_while(deliveries):
        files = [
            require_readable(file, limits)
            for delivery in deliveries
            for file in assign_files(contract, delivery.partition, delivery.files)
        ]
        return {
            table.name: _read_table(
                spark, contract, table, [file for file in files if file.file.table is table]
            )
            for table in contract.tables
            if table.source is not None
        }


def _read_table(
    spark: "SparkSession", contract: SetContract, table: Table, files: Sequence[ReadableFile]
) -> TableFrame:
    from pyspark.sql import functions as F

    wanted = [column.delivered_as for column in table.columns if column.delivered_as]
    groups = read_raw(spark, files, wanted)
    problems = [problem for group in groups for problem in structure_problems(table, group)]
    judged = judge(contract, table, groups)
    rejected_rows, wrong = another_type(table, judged, groups)
    if wrong:
        problems += [
            Problem(name, f"is of another type than {table.column(name).type}", groups[index].files)
            for index, name in wrong
        ]
        judged = judge(contract, table, groups, without=wrong)
        rejected_rows = judged.where(F.col(REASON).isNotNull()).count()
    rejected = judged.where(F.col(REASON).isNotNull()).select(
        F.lit(table.name).alias("table"),
        F.col(FILE).alias("file"),
        F.col(LINE).alias("line"),
        F.col(REASON).alias("reason"),
        F.col(RAW).alias("raw"),
    )
    return TableFrame(
        frame=judged.where(F.col(REASON).isNull()).select(*(column.name for column in table.columns)),
        rejected=rejected if rejected_rows else None,
        problems=together(problems),
        rejected_rows=rejected_rows,
    )
