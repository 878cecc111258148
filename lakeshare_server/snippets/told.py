"""A table's snippets side by side, as pages show them: what cannot be has its reason instead of a text."""

from collections.abc import Mapping
from dataclasses import dataclass

from lakeshare_server.catalog import TableEntry
from lakeshare_server.errors import BadRequest
from lakeshare_server.snippets.doors import Doors
from lakeshare_server.snippets.engines import ENGINES, SPARK, snippet
from lakeshare_server.snippets.shared_table import Door, EngineName, SnippetTable

# What recipients ask for most, in that order, with the names they know; `lakeshare snippet` has more.
TITLES: Mapping[EngineName, str] = {
    "pandas": "pandas",
    "spark": "Spark",
    "duckdb": "DuckDB",
    "power-bi": "Power BI",
    "pyiceberg": "PyIceberg",
    "snowflake": "Snowflake",
}


@dataclass(frozen=True)
class ToldSnippet:
    """How one engine reads a table; exactly one of text and refusal is there."""

    engine: EngineName
    title: str
    text: str | None
    refusal: str | None


def snippet_table(
    entry: TableEntry, doors: Doors, *, profile: str, iceberg_url: str, sharing_url: str
) -> SnippetTable:
    """A shared table as snippets need it."""
    return SnippetTable(
        share=entry.share.name,
        schema=entry.schema,
        name=entry.name,
        profile=profile,
        iceberg_url=iceberg_url,
        sharing_url=sharing_url,
        storage=doors.storage,
        scheme=doors.place.root.partition("://")[0],
        needs_delta=bool(doors.verdicts[SPARK].features),
    )


def told_snippets(table: SnippetTable, doors: Doors, wanted: Door | None = None) -> list[ToldSnippet]:
    """The snippets of a table by the wanted door, or by that which works from most places; or why there is none."""
    return [_told(engine, table, doors, wanted) for engine in TITLES]


def _told(engine: EngineName, table: SnippetTable, doors: Doors, wanted: Door | None) -> ToldSnippet:
    try:
        return ToldSnippet(engine, TITLES[engine], snippet(ENGINES[engine], table, doors, wanted), None)
    except BadRequest as error:
        return ToldSnippet(engine, TITLES[engine], None, error.hint)
