"""Snippets that are not Python: DuckDB's own SQL, Trino's catalog file."""

import json

from lakeshare_server.snippets.shared_table import ROWS, SnippetTable


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
