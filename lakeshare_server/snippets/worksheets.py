"""Snippets for what a person opens a window of: Power BI's query language M, a worksheet of Snowflake."""

from lakeshare_server.snippets.shared_table import ROWS, SnippetTable


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
            f"    CATALOG_URI = {_literal(table.iceberg_url)}",
            f"    CATALOG_NAME = {_literal(table.share)}",
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


def _literal(text: str) -> str:
    """A text of Snowflake's, where a backslash would begin an escape."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
