"""The sharing DDL for users of Spark: the statements of `lakeshare sql`, with results as data frames."""

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakeshare_server.catalog import open_catalog
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import ServerSettings
from lakeshare_server.sql.changes import Provider
from lakeshare_server.sql.session import SqlSession
from lakeshare_server.sql.statements import Result, operating_system_user

TYPES: dict[type, DataType] = {
    str: StringType(),
    int: LongType(),
    bool: BooleanType(),
    datetime: TimestampType(),
}
# Of statements that answer in a sentence, and of scripts without statements.
TOLD = "told"


def sql(statements: str, spark: SparkSession | None = None, *, single_transaction: bool = False) -> DataFrame:
    """Do the statements, in the catalog that the settings name; see `lakeshare_pipelines.sql`."""
    spark = spark or SparkSession.getActiveSession()
    if spark is None:
        raise BadRequest("spark", None, "Give a SparkSession, or make one the active one.")
    settings = ServerSettings()
    catalog = open_catalog(settings.catalog_url)
    try:
        session = SqlSession(Provider(catalog, settings), operating_system_user())
        answers = list(session.run(statements, single_transaction=single_transaction))
    finally:
        catalog.close()
    return _frame(spark, answers[-1].result if answers else Result())


def _frame(spark: SparkSession, result: Result) -> DataFrame:
    if not result.columns:
        rows = [(result.told,)] if result.told else []
        return spark.createDataFrame(rows, StructType([StructField(TOLD, StringType())]))
    fields = [StructField(name, TYPES[kind]) for name, kind in result.columns.items()]
    return spark.createDataFrame(list(result.rows), StructType(fields))
