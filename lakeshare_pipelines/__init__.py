"""The Dagster package: deliveries become audited, numbered publications."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sql(
    statements: str, spark: "SparkSession | None" = None, *, single_transaction: bool = False
) -> "DataFrame":
    """Executes sharing DDL from a notebook or a job; returns the result of the last statement.

    Example: `import lakeshare_pipelines as lakeshare; lakeshare.sql("SHOW ALL IN SHARE sales").show()`

    Raises:
        BadRequest: there is no Spark session, given or active.
        SqlError: a syntax error; nothing was executed.
        StatementRefused: a statement failed; the error names those that took effect.
    """
    # Importing the package must not import Spark.
    from lakeshare_pipelines.share.shares import sql as done

    return done(statements, spark, single_transaction=single_transaction)
