"""Opening in Spark, where it is had, what light readers do not know: Delta's features, Iceberg's equality deletes.

Spark reaches stores as its session is configured to; what it cannot reach is not opened.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSpark = Callable[[], "SparkSession"]
BEYOND = (
    "unsupported",
    "not supported",
    "not yet support",
    "does not support",
    "not implemented",
    "notimplemented",
)


def is_beyond(reader_said: BackupError) -> bool:
    """Whether a reader refused for what it does not know, and not for what is wrong with the table."""
    said = reader_said.reason.lower()
    return any(words in said for words in BEYOND)


def spark_rows(
    open_spark: OpenSpark,
    table_format: Literal["delta", "iceberg"],
    location: str,
    version: int | None = None,
) -> tuple[int, str]:
    """How many rows Spark reads, every column of every row, and who says so.

    `location` is a table's root for Delta, of a metadata file for Iceberg.

    Raises:
        BackupError: it does not open in Spark either.
    """
    spark = open_spark()
    reader = f"Spark {spark.version}"
    place = location.replace("s3://", "s3a://", 1) if table_format == "delta" else location
    try:
        load = spark.read.format(table_format)
        if version is not None:
            load = load.option("versionAsOf", version)
        table = load.load(place)
        # A mere count would be answered from statistics; the sum needs the values.
        values = ", ".join(f"`{name.replace('`', '``')}`" for name in table.columns)
        counted = table.selectExpr(f"xxhash64({values}) AS of_row").selectExpr(
            "count(*) AS rows", "sum(of_row % 97)"
        )
        return int(counted.collect()[0]["rows"]), reader
    # Spark raises what its sources raise, through a gateway: nothing of it may pass for an opened table.
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackupError(
            location, f"{reader} cannot open it: {said}", "Look at the table at its source."
        ) from error
