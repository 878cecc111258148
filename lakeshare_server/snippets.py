"""Snippets: code that reads one shared table with one engine, ready to run by a recipient with its profile.

A token is never in them: they read it from the profile, the engine from its environment, or a person enters it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from lakeshare_server.errors import BadRequest

if TYPE_CHECKING:
    from jinja2.environment import TemplateModule

    from lakeshare_server.catalog import SharedTable
    from lakeshare_server.locations import StoreKind
    from lakeshare_server.provider.serveability import ServedTable

EngineName = Literal[
    "pyiceberg", "pandas", "polars", "duckdb", "duckdb-sql", "spark", "trino", "power-bi", "snowflake"
]
Api = Literal["iceberg", "delta-sharing"]
API_NAMES: tuple[Api, ...] = ("iceberg", "delta-sharing")
Storage = Literal["credentials", "signed requests", "disk"]


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

    @property
    def names(self) -> tuple[str, str, str]:
        """The parts of the table's name for engines that have a catalog for the share."""
        return self.alias, self.schema, self.name

    @property
    def url(self) -> str:
        """The table for clients of Delta Sharing."""
        return f"{self.profile}#{self.share}.{self.schema}.{self.name}"

    @property
    def store(self) -> StoreKind | None:
        # Imports pyarrow, which is not loaded for `lakeshare --help`.
        from lakeshare_server.locations import find_store_kind

        return find_store_kind(self.scheme)

    @property
    def pyiceberg_extras(self) -> str:
        own = self.store.pyiceberg_extra if self.store else ""
        return ",".join(filter(None, ("pyarrow", "s3fs" if self.storage == "signed requests" else own)))

    @property
    def spark_packages(self) -> str:
        return ",".join((ICEBERG_PACKAGE, *([self.store.spark_package] if self.store else [])))


ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SHARING_PACKAGE = "io.delta:delta-sharing-spark_4.1_2.13:4.4.0"


@cache
def _load_templates() -> TemplateModule:
    """The macros of `snippets.jinja`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("lakeshare_server", ""),
        autoescape=False,  # noqa: S701  the texts are code, whose filters quote for its language
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "python": repr,
        "sql": lambda text: "'" + text.replace("'", "''") + "'",
        "identifier": lambda name: '"' + name.replace('"', '""') + '"',
        "spark_identifier": lambda name: "`" + name.replace("`", "``") + "`",
        # A value of a Java properties file, which has JSON's escapes, too.
        "property": lambda text: json.dumps(text)[1:-1],
        # Quotes are doubled, and `#(` would begin an escape.
        "m": lambda text: '"' + text.replace("#(", "#(#)(").replace("\n", "#(lf)").replace('"', '""') + '"',
    }
    environment.globals["sharing_package"] = SHARING_PACKAGE
    return environment.get_template("snippets.jinja").module


@dataclass(frozen=True)
class Engine:
    """An engine: its APIs, the id of its Delta Sharing client, and how it can read files with Iceberg."""

    name: EngineName
    apis: tuple[Api, ...] = API_NAMES
    client: str = "python-delta"
    storages: tuple[Storage, ...] = ("credentials", "signed requests", "disk")

    def render(self, table: SnippetTable, api: Api) -> str:
        """The code for one of its APIs."""
        macro = f"{self.name}_{api.removeprefix('delta-')}".replace("-", "_")
        return str(getattr(_load_templates(), macro)(table))


ENGINES: dict[EngineName, Engine] = {
    engine.name: engine
    for engine in (
        Engine("pyiceberg", ("iceberg",)),
        Engine("pandas", ("delta-sharing",)),
        Engine("polars"),
        # Through PyIceberg: needs no extension.
        Engine("duckdb"),
        Engine("duckdb-sql", ("iceberg",), storages=("credentials", "disk")),
        Engine("spark", client="spark"),
        Engine("trino", ("iceberg",), storages=("credentials",)),
        # Power BI's connector does not document its capabilities: assume those of any client.
        Engine("power-bi", ("delta-sharing",), client="python-parquet"),
        Engine("snowflake", ("iceberg",), storages=("credentials",)),
    )
}


def render_snippet(engine: Engine, table: SnippetTable, served: ServedTable, api: Api | None = None) -> str:
    """The code for the given API, or the one that works on most machines; raises `BadRequest` with the reason."""
    # Iceberg first, except where its clients would have to be on the server's machine.
    apis = API_NAMES[::-1] if served.storage == "disk" else API_NAMES
    refused = {}
    for tried in apis if api is None else (api,):
        refused[tried] = _find_refusal(engine, served, tried)
        if refused[tried] is None:
            return engine.render(table, tried)
    why = "; ".join(f"{tried}: {refused[tried]}" for tried in API_NAMES if tried in refused)
    raise BadRequest("--engine", engine.name, f"It cannot read {table.path}: {why}")


def _find_refusal(engine: Engine, served: ServedTable, api: Api) -> str | None:
    """Why an engine cannot read a table through an API; None if it can."""
    if api not in engine.apis:
        return "it does not use this API."
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
