"""Snippets: code that reads one shared table with one engine, ready to run by a recipient with its profile.

A token is never in them: they read it from the profile, the engine from its environment, or a person enters it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakeshare_server.errors import BadRequest

if TYPE_CHECKING:
    from lakeshare_server.catalog import SharedTable
    from lakeshare_server.locations import StoreKind
    from lakeshare_server.provider.serveability import ServedTable

EngineName = Literal[
    "pyiceberg", "pandas", "polars", "duckdb", "duckdb-sql", "spark", "trino", "power-bi", "snowflake"
]
Api = Literal["iceberg", "delta-sharing"]
API_NAMES: tuple[Api, ...] = ("iceberg", "delta-sharing")
Storage = Literal["credentials", "signed requests", "disk"]
ROWS = 10
BACKSLASH = "\\"


@dataclass(frozen=True)
class SnippetTable:
    """A shared table; `profile` is the path of a recipient's profile.

    `storage` is how Iceberg clients read the files, in a store of this `scheme`; `needs_delta`: the parquet format
    cannot carry the table.
    """

    share: str
    schema: str
    name: str
    profile: str
    iceberg_url: str
    storage: Storage | None
    scheme: str
    needs_delta: bool = False
    sharing_url: str = ""

    @property
    def path(self) -> str:
        """The recipients' name of the table, on one line."""
        return " ".join(f"{self.share}.{self.schema}.{self.name}".split())

    @property
    def alias(self) -> str:
        """The share as a catalog name for any engine."""
        return re.sub(r"[^a-z0-9_]", "_", self.share.lower())


ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SHARING_PACKAGE = "io.delta:delta-sharing-spark_4.1_2.13:4.4.0"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


Text = Callable[[SnippetTable], str]


def python_iceberg(engine: str, packages: Sequence[str], *code: str) -> Text:
    """Python code with PyIceberg, through the Iceberg REST API; `code` begins with the loaded `table`."""
    return lambda table: _text(*_iceberg_head(table, engine, packages), *code)


def python_sharing(engine: str, packages: Sequence[str], *code: str) -> Text:
    """Python code with delta-sharing; LOAD in `code` reads the table into a pandas frame, up to a given argument."""

    def render(table: SnippetTable) -> str:
        head = [
            f"# {table.path} with {engine}, by Delta Sharing.",
            _format_install(["delta-sharing", *packages]),
            "import delta_sharing",
            *_format_imports(packages),
            "",
        ]
        load = f"delta_sharing.load_as_pandas({_url(table)}"
        return _text(*head, *(line.replace("LOAD", load) for line in code))

    return render


def _find_store_kind(table: SnippetTable) -> StoreKind | None:
    # Imports pyarrow, which is not loaded for `lakeshare --help`.
    from lakeshare_server.locations import find_store_kind

    return find_store_kind(table.scheme)


def spark_iceberg(table: SnippetTable) -> str:
    store = _find_store_kind(table)
    packages = [ICEBERG_PACKAGE, *([store.spark_package] if store else [])]
    catalog = f"spark.sql.catalog.{table.alias}"
    name = ".".join(f"`{part.replace('`', '``')}`" for part in (table.alias, table.schema, table.name))
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
    signed = table.storage == "signed requests"
    store = _find_store_kind(table)
    extras = ["pyarrow", "s3fs" if signed else store.pyiceberg_extra if store else ""]
    local = "# The table is on the server's own disk: this reads it on that machine alone."
    return [
        f"# {table.path} with {engine}, by the Iceberg REST catalog.",
        _format_install([f"pyiceberg[{','.join(filter(None, extras))}]", *more]),
        *([local] if table.storage == "disk" else []),
        "import json",
        "from pathlib import Path",
        "",
        *_format_imports(more),
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


def _format_install(packages: Sequence[str]) -> str:
    return f"# pip install {' '.join(repr(name) if '[' in name else name for name in packages)}"


def _format_imports(packages: Sequence[str]) -> list[str]:
    return ["import polars as pl" if name == "polars" else f"import {name}" for name in packages]


def _profile(table: SnippetTable) -> str:
    return f"profile = json.loads(Path({table.profile!r}).read_text())"


def _url(table: SnippetTable) -> str:
    return repr(f"{table.profile}#{table.share}.{table.schema}.{table.name}")


def _text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def duckdb_sql(table: SnippetTable) -> str:
    name = _quote_path(table)
    options = f"TYPE iceberg, ENDPOINT {_literal(table.iceberg_url)}, SECRET lakeshare"
    token = f"(SELECT bearerToken FROM read_json({_literal(table.profile)}))"  # noqa: S608  the path is quoted
    query = f"SELECT * FROM {name} LIMIT {ROWS}"  # noqa: S608  the names are quoted
    return (
        f"-- {table.path} with DuckDB; it loads its extension from its own repository.\n"
        "INSTALL iceberg;\n"
        "LOAD iceberg;\n"
        f"SET VARIABLE lakeshare_token = {token};\n"
        "CREATE SECRET lakeshare (TYPE iceberg, TOKEN getvariable('lakeshare_token'));\n"
        f"ATTACH {_literal(table.share)} AS {_quote(table.alias)} ({options});\n"
        f"{query};\n"
    )


def trino(table: SnippetTable) -> str:
    """Trino's catalog file, through the Iceberg REST API; the token is in Trino's environment."""
    query = f"SELECT * FROM {_quote_path(table)} LIMIT {ROWS}"  # noqa: S608  the names are quoted
    store = _find_store_kind(table)
    file_system = store.trino_file_system if store else "local"
    return (
        f"# {table.path} with Trino. This is etc/catalog/{table.alias}.properties, on every node.\n"
        "# LAKESHARE_TOKEN in Trino's environment is the bearerToken of the profile.\n"
        "connector.name=iceberg\n"
        "iceberg.catalog.type=rest\n"
        f"iceberg.rest-catalog.uri={_property(table.iceberg_url)}\n"
        f"iceberg.rest-catalog.warehouse={_property(table.share)}\n"
        "iceberg.rest-catalog.security=OAUTH2\n"
        "iceberg.rest-catalog.oauth2.token=${ENV:LAKESHARE_TOKEN}\n"
        "iceberg.rest-catalog.vended-credentials-enabled=true\n"
        f"fs.native-{file_system}.enabled=true\n"
        f"# Then: {query}\n"
    )


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_path(table: SnippetTable) -> str:
    return ".".join(_quote(part) for part in (table.alias, table.schema, table.name))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _property(text: str) -> str:
    """A value of a Java properties file, which has JSON's escapes, too."""
    return json.dumps(text)[1:-1]


def power_bi(table: SnippetTable) -> str:
    """M for Power BI's own connector, through Delta Sharing; it asks for the token itself."""
    steps = (("Share", "Source", table.share), ("Schema", "Share", table.schema))
    return "\n".join(
        (
            f"// {table.path} with Power BI, by Delta Sharing.",
            "// Get data > Blank query > Advanced editor: put this there. The key that it asks for is the bearerToken",
            "// of the profile. Or, without code: Get data > Delta Sharing, with the address below.",
            "let",
            f"    Source = DeltaSharing.Contents({_m_text(table.sharing_url)}, null),",
            *(f"    {step} = {of}{{[Name={_m_text(name)}]}}[Data]," for step, of, name in steps),
            f"    Table = Schema{{[Name={_m_text(table.name)}]}}[Data]",
            "in",
            "    Table",
            "",
        )
    )


def snowflake(table: SnippetTable) -> str:
    """SQL for a Snowflake worksheet, through the Iceberg REST API; its user enters the token."""
    query = f"SELECT * FROM {_quote_path(table)} LIMIT {ROWS}"  # noqa: S608  the names are quoted
    # Without quotes and with letters of one case: a text then names the same integration.
    integration = f"lakeshare_{table.alias}"
    return "\n".join(
        (
            f"-- {table.path} with Snowflake, by the Iceberg REST catalog.",
            "-- Put the bearerToken of the profile in its place. It takes the right to create integrations, and an",
            "-- address that Snowflake reaches.",
            f"CREATE CATALOG INTEGRATION {integration}",
            "  CATALOG_SOURCE = ICEBERG_REST",
            "  TABLE_FORMAT = ICEBERG",
            "  REST_CONFIG = (",
            f"    CATALOG_URI = {_literal(table.iceberg_url.replace(BACKSLASH, BACKSLASH * 2))}",
            f"    CATALOG_NAME = {_literal(table.share.replace(BACKSLASH, BACKSLASH * 2))}",
            "    ACCESS_DELEGATION_MODE = VENDED_CREDENTIALS",
            "  )",
            "  REST_AUTHENTICATION = (TYPE = BEARER BEARER_TOKEN = '<bearerToken of the profile>')",
            "  ENABLED = TRUE;",
            f"CREATE DATABASE {_quote(table.alias)} LINKED_CATALOG = (",
            f"  CATALOG = '{integration}'",
            "  ALLOWED_WRITE_OPERATIONS = NONE",
            ");",
            f"{query};",
            "",
        )
    )


def _m_text(text: str) -> str:
    """A text of M: quotes are doubled, and `#(` would begin an escape."""
    return '"' + text.replace("#(", "#(#)(").replace("\n", "#(lf)").replace('"', '""') + '"'


@dataclass(frozen=True)
class Engine:
    """An engine: its code for each API, the id of its Delta Sharing client, and how it can read files with Iceberg."""

    name: EngineName
    iceberg: Text | None = None
    sharing: Text | None = None
    client: str = "python-delta"
    storages: tuple[Storage, ...] = ("credentials", "signed requests", "disk")


ENGINES: dict[EngineName, Engine] = {
    engine.name: engine
    for engine in (
        Engine("pyiceberg", python_iceberg("PyIceberg", (), f"print(table.scan(limit={ROWS}).to_arrow())")),
        Engine("pandas", None, python_sharing("pandas", (), f"frame = LOAD, limit={ROWS})", "print(frame)")),
        Engine(
            "polars",
            # Polars' own reader supports neither the credentials nor signed requests.
            python_iceberg(
                "Polars",
                ("polars",),
                'frame = pl.scan_iceberg(table, reader_override="pyiceberg")',
                f"print(frame.head({ROWS}).collect())",
            ),
            python_sharing(
                "Polars", ("polars",), f"frame = pl.from_pandas(LOAD, limit={ROWS}))", "print(frame)"
            ),
        ),
        Engine(
            "duckdb",
            # Through PyIceberg: needs no extension.
            python_iceberg(
                "DuckDB",
                ("duckdb",),
                "# DuckDB gets the rows of the scan in memory: a row_filter and selected_fields make them fewer.",
                'connection = table.scan().to_duckdb("shared", duckdb.connect())',
                f'print(connection.table("shared").limit({ROWS}))',
            ),
            python_sharing(
                "DuckDB",
                ("duckdb",),
                "# DuckDB gets the rows in memory: a jsonPredicateHints or a limit makes them fewer.",
                "connection = duckdb.connect()",
                'connection.register("shared", LOAD))',
                f'print(connection.table("shared").limit({ROWS}))',
            ),
        ),
        Engine("duckdb-sql", iceberg=duckdb_sql, storages=("credentials", "disk")),
        Engine("spark", iceberg=spark_iceberg, sharing=spark_sharing, client="spark"),
        Engine("trino", iceberg=trino, storages=("credentials",)),
        # Power BI's connector does not document its capabilities: assume those of any client.
        Engine("power-bi", sharing=power_bi, client="python-parquet"),
        Engine("snowflake", iceberg=snowflake, storages=("credentials",)),
    )
}


def render_snippet(engine: Engine, table: SnippetTable, served: ServedTable, api: Api | None = None) -> str:
    """The code for the given API, or the one that works on most machines; raises `BadRequest` with the reason."""
    # Iceberg first, except where its clients would have to be on the server's machine.
    apis = API_NAMES[::-1] if served.storage == "disk" else API_NAMES
    refused = {}
    for tried in apis if api is None else (api,):
        text = engine.iceberg if tried == "iceberg" else engine.sharing
        reason = "it does not use this API." if text is None else _find_refusal(engine, served, tried)
        if text is not None and reason is None:
            return text(table)
        refused[tried] = reason
    why = "; ".join(f"{tried}: {refused[tried]}" for tried in API_NAMES if tried in refused)
    raise BadRequest("--engine", engine.name, f"It cannot read {table.path}: {why}")


def _find_refusal(engine: Engine, served: ServedTable, api: Api) -> str | None:
    """Why an engine cannot read a table through an API that it uses; None if it can."""
    verdict = served.iceberg if api == "iceberg" else served.verdicts[engine.client]
    if verdict.served_as is None:
        return str(verdict).removeprefix("no, ").rstrip(".") + "."
    if api == "delta-sharing" or served.storage in engine.storages:
        return None
    if served.storage == "disk":
        return "the table is on the server's own disk."
    return f"it needs credentials for the folder, and there are none: {served.no_credentials}."


TITLES: Mapping[EngineName, str] = {
    "pandas": "pandas",
    "spark": "Spark",
    "duckdb": "DuckDB",
    "power-bi": "Power BI",
    "pyiceberg": "PyIceberg",
    "snowflake": "Snowflake",
}


@dataclass(frozen=True)
class EngineSnippet:
    """An engine's code for a table, or the reason why there is none."""

    engine: EngineName
    title: str
    text: str | None
    refusal: str | None


def make_snippet_table(
    entry: SharedTable, served: ServedTable, *, profile: str, iceberg_url: str, sharing_url: str
) -> SnippetTable:
    return SnippetTable(
        share=entry.share,
        schema=entry.schema,
        name=entry.name,
        profile=profile,
        iceberg_url=iceberg_url,
        sharing_url=sharing_url,
        storage=served.storage,
        scheme=served.place.root.partition("://")[0],
        needs_delta=bool(served.verdicts["spark"].features),
    )


def make_snippets(table: SnippetTable, served: ServedTable, api: Api | None = None) -> list[EngineSnippet]:
    """The snippets of a table, through the given API or the one that works on most machines, or the refusals."""
    snippets = []
    for engine, title in TITLES.items():
        try:
            text = render_snippet(ENGINES[engine], table, served, api)
            snippets.append(EngineSnippet(engine, title, text, None))
        except BadRequest as error:
            snippets.append(EngineSnippet(engine, title, None, error.hint))
    return snippets
