"""The Dagster package: deliveries become audited, numbered publications."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakeshare_pipelines.defs.published_set import (
        catalog_definitions,
        lakeshare_resources,
        published_set,
        set_definitions,
    )
    from lakeshare_pipelines.defs.shared_table import shared_table_sensor
    from lakeshare_pipelines.defs.table_inputs import table_input
    from lakeshare_pipelines.defs.transforms import transform
    from lakeshare_pipelines.defs.wap import LakeResource, table_key
    from lakeshare_pipelines.wap.inputs import Inputs, LakeshareTable

__all__ = [
    "Inputs",
    "LakeResource",
    "LakeshareTable",
    "catalog_definitions",
    "lakeshare_resources",
    "published_set",
    "set_definitions",
    "shared_table_sensor",
    "sql",
    "table_input",
    "table_key",
    "transform",
]
# Importing the package must import neither Dagster nor Spark.
_MODULES = {
    "Inputs": "lakeshare_pipelines.wap.inputs",
    "LakeResource": "lakeshare_pipelines.defs.wap",
    "LakeshareTable": "lakeshare_pipelines.wap.inputs",
    "catalog_definitions": "lakeshare_pipelines.defs.published_set",
    "lakeshare_resources": "lakeshare_pipelines.defs.published_set",
    "published_set": "lakeshare_pipelines.defs.published_set",
    "set_definitions": "lakeshare_pipelines.defs.published_set",
    "shared_table_sensor": "lakeshare_pipelines.defs.shared_table",
    "table_input": "lakeshare_pipelines.defs.table_inputs",
    "table_key": "lakeshare_pipelines.defs.wap",
    "transform": "lakeshare_pipelines.defs.transforms",
}


def __getattr__(name: str) -> Any:
    """Imports the API for Dagster when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


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
