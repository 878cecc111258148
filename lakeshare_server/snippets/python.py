"""Snippets in Python: PyIceberg, pandas, Polars, DuckDB and Spark."""

from collections.abc import Sequence

from lakeshare_server.snippets.shared_table import ROWS, SnippetTable

# Beside the Spark line of jars.lock.toml; a test compares them.
ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
STORE_PACKAGES = {
    "s3": "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    "gs": "org.apache.iceberg:iceberg-gcp-bundle:1.12.0",
    "abfss": "org.apache.iceberg:iceberg-azure-bundle:1.12.0",
}
SHARING_PACKAGE = "io.delta:delta-sharing-spark_4.1_2.13:4.4.0"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def pyiceberg(table: SnippetTable) -> str:
    """PyIceberg, through the Iceberg door."""
    return _text(
        *_iceberg_head(table, "PyIceberg", ()),
        f"print(table.scan(limit={ROWS}).to_arrow())",
    )


def polars_iceberg(table: SnippetTable) -> str:
    """Polars, through the Iceberg door."""
    # Polars' own reader knows neither the credentials nor signed requests.
    return _text(
        *_iceberg_head(table, "Polars", ("polars",)),
        'frame = pl.scan_iceberg(table, reader_override="pyiceberg")',
        f"print(frame.head({ROWS}).collect())",
    )


def duckdb_iceberg(table: SnippetTable) -> str:
    """DuckDB, which gets rows from PyIceberg: it needs no extension."""
    return _text(
        *_iceberg_head(table, "DuckDB", ("duckdb",)),
        "# DuckDB gets the rows of the scan in memory: a row_filter and selected_fields make them fewer.",
        'connection = table.scan().to_duckdb("shared", duckdb.connect())',
        f'print(connection.table("shared").limit({ROWS}))',
    )


def pandas(table: SnippetTable) -> str:
    """pandas, through Delta Sharing."""
    return _text(
        *_sharing_head(table, "pandas", ()),
        f"frame = delta_sharing.load_as_pandas({_url(table)}, limit={ROWS})",
        "print(frame)",
    )


def polars_sharing(table: SnippetTable) -> str:
    """Polars, which gets rows through Delta Sharing."""
    return _text(
        *_sharing_head(table, "Polars", ("polars",)),
        f"frame = pl.from_pandas(delta_sharing.load_as_pandas({_url(table)}, limit={ROWS}))",
        "print(frame)",
    )


def duckdb_sharing(table: SnippetTable) -> str:
    """DuckDB, which gets rows through Delta Sharing."""
    return _text(
        *_sharing_head(table, "DuckDB", ("duckdb",)),
        "# DuckDB gets the rows in memory: a jsonPredicateHints or a limit makes them fewer.",
        "connection = duckdb.connect()",
        f'connection.register("shared", delta_sharing.load_as_pandas({_url(table)}))',
        f'print(connection.table("shared").limit({ROWS}))',
    )


def spark_iceberg(table: SnippetTable) -> str:
    """Spark, through the Iceberg door."""
    packages = [
        ICEBERG_PACKAGE,
        *(package for scheme, package in STORE_PACKAGES.items() if scheme == table.scheme),
    ]
    catalog = f"spark.sql.catalog.{table.alias}"
    name = ".".join(_backquoted(part) for part in (table.alias, table.schema, table.name))
    return _text(
        f"# {table.path} with Spark 4.1, by the Iceberg REST catalog.",
        "import json",
        "from pathlib import Path",
        "",
        "from pyspark.sql import SparkSession",
        "",
        _profile(table),
        "conf = {",
        f'    "spark.jars.packages": {",".join(packages)!r},',
        f'    {catalog!r}: "org.apache.iceberg.spark.SparkCatalog",',
        f'    {catalog + ".type"!r}: "rest",',
        f'    {catalog + ".uri"!r}: profile["icebergEndpoint"],',
        f'    {catalog + ".token"!r}: profile["bearerToken"],',
        f"    {catalog + '.warehouse'!r}: {table.share!r},",
        "}",
        "spark = SparkSession.builder.config(map=conf).getOrCreate()",
        f"frame = spark.table({name!r})",
        f"frame.show({ROWS})",
    )


def spark_sharing(table: SnippetTable) -> str:
    """Spark, through Delta Sharing."""
    conf = [f'    "spark.jars.packages": {SHARING_PACKAGE!r},']
    option = ""
    if table.needs_delta:
        conf += [
            f'    "spark.sql.extensions": {DELTA_EXTENSION!r},',
            f'    "spark.sql.catalog.spark_catalog": {DELTA_CATALOG!r},',
        ]
        option = '.option("responseFormat", "delta")'
    return _text(
        f"# {table.path} with Spark 4.1, by Delta Sharing.",
        "from pyspark.sql import SparkSession",
        "",
        "conf = {",
        *conf,
        "}",
        "spark = SparkSession.builder.config(map=conf).getOrCreate()",
        f'frame = spark.read.format("deltaSharing"){option}.load({_url(table)})',
        f"frame.show({ROWS})",
    )


def _iceberg_head(table: SnippetTable, engine: str, more: Sequence[str]) -> list[str]:
    """What all that read with PyIceberg have in common, up to the loaded table."""
    signed = table.storage == "signed requests"
    also = ",s3fs" if signed else ",adlfs" if table.scheme == "abfss" else ""
    packages = [f"pyiceberg[pyarrow{also}]", *more]
    return [
        f"# {table.path} with {engine}, by the Iceberg REST catalog.",
        *_install(packages),
        *(
            ["# The table is on the server's own disk: this reads it on that machine alone."]
            * (table.storage == "disk")
        ),
        "import json",
        "from pathlib import Path",
        "",
        *_imports(more),
        "from pyiceberg.catalog.rest import RestCatalog",
        "",
        _profile(table),
        "catalog = RestCatalog(",
        f"    {table.alias!r},",
        '    uri=profile["icebergEndpoint"],',
        '    token=profile["bearerToken"],',
        f"    warehouse={table.share!r},",
        *(['    **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"},'] if signed else []),
        ")",
        f"table = catalog.load_table({(table.schema, table.name)!r})",
    ]


def _sharing_head(table: SnippetTable, engine: str, more: Sequence[str]) -> list[str]:
    return [
        f"# {table.path} with {engine}, by Delta Sharing.",
        *_install(["delta-sharing", *more]),
        "import delta_sharing",
        *_imports(more),
        "",
    ]


def _install(packages: Sequence[str]) -> list[str]:
    return [f"# pip install {' '.join(repr(name) if '[' in name else name for name in packages)}"]


def _imports(packages: Sequence[str]) -> list[str]:
    return ["import polars as pl" if name == "polars" else f"import {name}" for name in packages]


def _profile(table: SnippetTable) -> str:
    return f"profile = json.loads(Path({table.profile!r}).read_text())"


def _url(table: SnippetTable) -> str:
    return repr(f"{table.profile}#{table.share}.{table.schema}.{table.name}")


def _backquoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(*lines: str) -> str:
    return "\n".join(lines) + "\n"
