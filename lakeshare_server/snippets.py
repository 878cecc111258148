"""Snippets: how one shared table is read with one engine, ready to run by whoever has a profile.

doors.py which of the server's doors works for a table; engines.py which engine goes through which; python.py,
configuration.py and worksheets.py the texts; told.py all engines of one table. A token is never in them: they read it
from the profile, the engine from its environment, or a person puts it where the engine asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakeshare_server.errors import BadRequest

if TYPE_CHECKING:
    from lakeshare_server.catalog import TableEntry
    from lakeshare_server.provider.serveability import ServedTable
    from lakeshare_server.storage import ParsedLocation
    from lakeshare_server.tables.serveability import Verdict

EngineName = Literal[
    "pyiceberg", "pandas", "polars", "duckdb", "duckdb-sql", "spark", "trino", "power-bi", "snowflake"
]
Api = Literal["iceberg", "delta-sharing"]
Storage = Literal["credentials", "signed requests", "disk"]
ROWS = 10


@dataclass(frozen=True)
class SnippetTable:
    """A shared table; `profile` is the path of a recipient's profile, `iceberg_url` and `sharing_url` its doors.

    `storage` is how Iceberg clients get at the files, in a store of this `scheme`; `needs_delta` says that the parquet
    format cannot carry the table.
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
        """What recipients call it, on one line."""
        return " ".join(f"{self.share}.{self.schema}.{self.name}".split())

    @property
    def alias(self) -> str:
        """The share as the name of a catalog in any engine."""
        return re.sub(r"[^a-z0-9_]", "_", self.share.lower())


@dataclass(frozen=True)
class TableAccess:
    """What recipients get of a table: verdicts by client, and how Iceberg clients get at its files.

    `storage` is None where they do not, and `no_credentials` says why there are none to hand out.
    """

    verdicts: dict[str, Verdict]
    place: ParsedLocation
    storage: Storage | None
    no_credentials: str | None

    @property
    def iceberg(self) -> Verdict:
        """The verdict of the Iceberg door."""
        from lakeshare_server.tables.serveability import ICEBERG_REST

        return self.verdicts[ICEBERG_REST]


def make_table_access(served: ServedTable) -> TableAccess:
    """The doors to the newest version of a table as the server serves it."""
    verdicts = {verdict.client: verdict for verdict in served.verdicts.values()}
    return TableAccess(verdicts, served.place, served.storage, served.no_credentials)


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


def duckdb_sql(table: SnippetTable) -> str:
    """SQL for DuckDB with its `iceberg` extension, through the Iceberg door."""
    name = ".".join(_quoted(part) for part in (table.alias, table.schema, table.name))
    options = f"TYPE iceberg, ENDPOINT {_literal(table.iceberg_url)}, SECRET lakeshare"
    token = f"(SELECT bearerToken FROM read_json({_literal(table.profile)}))"  # noqa: S608  the path is quoted
    query = f"SELECT * FROM {name} LIMIT {ROWS}"  # noqa: S608  the names are quoted
    return (
        f"-- {table.path} with DuckDB; it loads its extension from its own repository.\n"
        "INSTALL iceberg;\n"
        "LOAD iceberg;\n"
        f"SET VARIABLE lakeshare_token = {token};\n"
        "CREATE SECRET lakeshare (TYPE iceberg, TOKEN getvariable('lakeshare_token'));\n"
        f"ATTACH {_literal(table.share)} AS {_quoted(table.alias)} ({options});\n"
        f"{query};\n"
    )


def trino(table: SnippetTable) -> str:
    """Trino's catalog file, through the Iceberg door; the token is in Trino's environment."""
    name = ".".join(_quoted(part) for part in (table.alias, table.schema, table.name))
    query = f"SELECT * FROM {name} LIMIT {ROWS}"  # noqa: S608  the names are quoted
    store = {"s3": "s3", "gs": "gcs", "abfss": "azure"}[table.scheme]
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
        f"fs.native-{store}.enabled=true\n"
        f"# Then: {query}\n"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _property(text: str) -> str:
    """A value of a Java properties file: JSON's escapes are understood there, too."""
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
    """SQL for a worksheet of Snowflake, through the Iceberg door; whoever runs it puts the token in."""
    name = ".".join(_identifier(part) for part in (table.alias, table.schema, table.name))
    query = f"SELECT * FROM {name} LIMIT {ROWS}"  # noqa: S608  the names are quoted
    # Without quotes and letters of one case only: what is named in a text is then the same name.
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
            f"    CATALOG_URI = {_m_literal(table.iceberg_url)}",
            f"    CATALOG_NAME = {_m_literal(table.share)}",
            "    ACCESS_DELEGATION_MODE = VENDED_CREDENTIALS",
            "  )",
            "  REST_AUTHENTICATION = (TYPE = BEARER BEARER_TOKEN = '<bearerToken of the profile>')",
            "  ENABLED = TRUE;",
            f"CREATE DATABASE {_identifier(table.alias)} LINKED_CATALOG = (",
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


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _m_literal(text: str) -> str:
    """A text of Snowflake's, where a backslash would begin an escape."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


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
        Engine("pyiceberg", iceberg=pyiceberg),
        Engine("pandas", sharing=pandas),
        Engine("polars", iceberg=polars_iceberg, sharing=polars_sharing),
        Engine("duckdb", iceberg=duckdb_iceberg, sharing=duckdb_sharing),
        Engine("duckdb-sql", iceberg=duckdb_sql, storages=("credentials", "disk")),
        Engine("spark", iceberg=spark_iceberg, sharing=spark_sharing, client=SPARK),
        Engine("trino", iceberg=trino, storages=("credentials",)),
        # Power BI's connector does not say what it announces: what any client reads is what it is promised.
        Engine("power-bi", sharing=power_bi, client=PLAIN),
        Engine("snowflake", iceberg=snowflake, storages=("credentials",)),
    )
}


def render_snippet(engine: Engine, table: SnippetTable, access: TableAccess, api: Api | None = None) -> str:
    """The text for the door that is wanted, or for the one that works from most places.

    Raises:
        BadRequest: the engine cannot read the table, or not through that door; says why, and what to do.
    """
    closed = dict(_closed(engine, access))
    open_apis = [door for door in _by_reach(access) if door not in closed]
    if api is not None:
        open_apis = [door for door in open_apis if door == api]
        closed = {door: why for door, why in closed.items() if door == api}
    if not open_apis:
        why = "; ".join(f"{door}: {reason}" for door, reason in closed.items())
        raise BadRequest("--engine", engine.name, f"It cannot read {table.path}: {why}")
    text = engine.iceberg if open_apis[0] == "iceberg" else engine.sharing
    if text is None:
        raise AssertionError("unreachable: a door without a text is closed")
    return text(table)


def _by_reach(access: TableAccess) -> tuple[Api, Api]:
    """Iceberg's own door first, except where its clients would have to be on the server's machine."""
    return ("delta-sharing", "iceberg") if access.storage == "disk" else ("iceberg", "delta-sharing")


def _closed(engine: Engine, access: TableAccess) -> Iterator[tuple[Api, str]]:
    """The doors that do not work, with the reason."""
    if engine.iceberg is None:
        yield "iceberg", "it does not go through this door."
    elif access.iceberg.served_as is None:
        yield "iceberg", _reason(str(access.iceberg))
    elif access.storage not in engine.storages:
        yield "iceberg", _unreachable(engine, access)
    verdict = access.verdicts[engine.client]
    if engine.sharing is None:
        yield "delta-sharing", "it does not go through this door."
    elif verdict.served_as is None:
        yield "delta-sharing", _reason(str(verdict))


def _unreachable(engine: Engine, access: TableAccess) -> str:
    if access.storage == "disk":
        return "the table is on the server's own disk."
    return f"it needs credentials for the folder, and there are none: {access.no_credentials}."


def _reason(verdict: str) -> str:
    return verdict.removeprefix("no, ").rstrip(".") + "."


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
    """How one engine reads a table; exactly one of text and refusal is there."""

    engine: EngineName
    title: str
    text: str | None
    refusal: str | None


def make_snippet_table(
    entry: TableEntry, access: TableAccess, *, profile: str, iceberg_url: str, sharing_url: str
) -> SnippetTable:
    """A shared table as snippets need it."""
    return SnippetTable(
        share=entry.share.name,
        schema=entry.schema,
        name=entry.name,
        profile=profile,
        iceberg_url=iceberg_url,
        sharing_url=sharing_url,
        storage=access.storage,
        scheme=access.place.root.partition("://")[0],
        needs_delta=bool(access.verdicts[SPARK].features),
    )


def make_snippets(table: SnippetTable, access: TableAccess, api: Api | None = None) -> list[EngineSnippet]:
    """The snippets of a table by the wanted door, or by that which works from most places; or why there is none."""
    return [_make_snippet(engine, table, access, api) for engine in TITLES]


def _make_snippet(
    engine: EngineName, table: SnippetTable, access: TableAccess, api: Api | None
) -> EngineSnippet:
    try:
        return EngineSnippet(
            engine, TITLES[engine], render_snippet(ENGINES[engine], table, access, api), None
        )
    except BadRequest as error:
        return EngineSnippet(engine, TITLES[engine], None, error.hint)
