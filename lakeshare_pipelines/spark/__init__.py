"""Spark: Java, the pinned jars, the session and its catalogs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as functions
else:

    class _Functions:
        """`pyspark.sql.functions`, imported on first use: the definitions load without PySpark."""

        def __getattr__(self, name: str) -> Any:
            from pyspark.sql import functions

            return getattr(functions, name)

    functions = _Functions()
