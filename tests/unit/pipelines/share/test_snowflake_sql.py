"""Snowflake's SQL names exactly what is meant, whatever the names are, and opens exactly what was published."""

import pytest
import sqlglot
from sqlglot import exp

from lakeshare_pipelines.share.snowflake import (
    PublishedState,
    SnowflakeObjects,
    TableName,
    format_create_table,
    format_create_volume,
    format_refresh_table,
    format_script,
    quote_identifier,
    quote_literal,
    quote_name_as_text,
)
from lakeshare_server.catalog import Publication
from lakeshare_server.errors import BadRequest
from tests.builders.publications import published

HOSTILE = ['a"b', "a'b", "a\\'; DROP TABLE t; --", "ü ü", "a.b", "$x", "1st", "a%sb"]
OBJECTS = SnowflakeObjects(TableName("orders", "sales", "lake"), "lake_volume", "lake_files")


def a_state(path: str = "sales/orders/metadata/1.metadata.json", **different: object) -> PublishedState:
    return PublishedState(a_publication_of(**different), path, "s3://lake/tables")


def a_publication_of(**different: object) -> Publication:
    return published(table="sales.orders", version=7, **different)


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("orders", '"ORDERS"'),
        ("Order_1$", '"ORDER_1$"'),
        ("select", '"SELECT"'),
        ('"orders"', '"orders"'),
        ('"a""b"', '"a""b"'),
        ("my orders", '"my orders"'),
        ('"', '""""'),
    ],
)
def test_a_name_is_what_snowflake_would_take_it_for(name: str, sql: str) -> None:
    assert quote_identifier("name", name) == sql


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_one_identifier_and_a_hostile_text_one_text(name: str) -> None:
    parsed = sqlglot.parse_one(
        f"SELECT {quote_identifier('name', name)}, {quote_literal(name)}", dialect="snowflake"
    )
    column, text = parsed.expressions
    assert (column.name, text.this, text.is_string) == (name, name, True)
    assert len(list(parsed.find_all(exp.Column))) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_paths_leave_one_statement_of_the_same_shape(name: str) -> None:
    objects = SnowflakeObjects(TableName(name, name, name), name, name)
    for statement in (
        format_create_table(a_state(name), objects),
        format_refresh_table(a_state(name), objects),
    ):
        tokens = sqlglot.tokenize(statement, dialect="snowflake")
        plain = sqlglot.tokenize(
            format_create_table(a_state(), OBJECTS)
            if statement.startswith("CREATE")
            else format_refresh_table(a_state(), OBJECTS),
            dialect="snowflake",
        )
        assert [token.token_type for token in tokens] == [token.token_type for token in plain]
        assert {token.text for token in tokens} & {name, quote_identifier("name", name)}


@pytest.mark.parametrize("name", ["", '""', "a\nb", "a\x00b", "x" * 256])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="schema"):
        quote_identifier("schema", name)


def test_a_database_without_a_schema_is_refused() -> None:
    with pytest.raises(BadRequest, match="Give the schema of the database lake"):
        TableName("orders", None, "lake")
    assert TableName("orders").sql == '"ORDERS"'


def test_an_iceberg_table_is_made_and_brought_to_one_metadata_file() -> None:
    assert format_create_table(a_state(), OBJECTS) == (
        'CREATE ICEBERG TABLE IF NOT EXISTS "LAKE"."SALES"."ORDERS"\n'
        "  EXTERNAL_VOLUME = 'LAKE_VOLUME'\n"
        "  CATALOG = 'LAKE_FILES'\n"
        "  METADATA_FILE_PATH = 'sales/orders/metadata/1.metadata.json'"
    )
    assert format_refresh_table(a_state(), OBJECTS) == (
        'ALTER ICEBERG TABLE "LAKE"."SALES"."ORDERS" REFRESH \'sales/orders/metadata/1.metadata.json\''
    )


def test_a_delta_table_is_made_from_its_folder_and_not_refreshed_by_itself() -> None:
    state = a_state("sales/orders", format="delta", delta_version=7)
    assert format_create_table(state, OBJECTS).endswith(
        "BASE_LOCATION = 'sales/orders'\n  AUTO_REFRESH = FALSE"
    )
    assert format_refresh_table(state, OBJECTS) == 'ALTER ICEBERG TABLE "LAKE"."SALES"."ORDERS" REFRESH'


def test_a_volume_named_with_other_characters_is_quoted_inside_the_text() -> None:
    assert quote_name_as_text("external volume", "my volume") == "'\"my volume\"'"
    assert quote_name_as_text("external volume", '"lake"') == "'\"lake\"'"


@pytest.mark.parametrize(
    ("location", "base", "holds"),
    [
        ("s3://lake/tables", "'s3://lake/tables/'", "STORAGE_AWS_ROLE_ARN = '<"),
        ("gs://lake", "'gcs://lake/'", "STORAGE_PROVIDER = 'GCS'"),
        (
            "abfss://files@acme.dfs.core.windows.net/lake",
            "'azure://acme.blob.core.windows.net/files/lake/'",
            "AZURE_TENANT_ID = '<",
        ),
    ],
)
def test_a_volume_is_spelt_as_snowflake_spells_its_store(location: str, base: str, holds: str) -> None:
    statement = format_create_volume(PublishedState(a_publication_of(), "x", location), OBJECTS)
    assert f"STORAGE_BASE_URL = {base}" in statement
    assert holds in statement
    assert "ALLOW_WRITES = FALSE" in statement


def test_the_script_says_what_it_shows_and_each_statement_ends() -> None:
    text = format_script(a_state(audited=False), OBJECTS, with_integrations=True)
    assert "-- Publication 7 of sales.orders, unaudited: followed in storage." in text
    statements = [part for part in text.split(";") if part.strip()]
    assert [part.strip().splitlines()[-1].split()[0] for part in statements if "CREATE" in part]
    assert text.count(";\n") == 4
    assert "CREATE" not in format_script(a_state(), OBJECTS).replace("CREATE ICEBERG TABLE", "")


def test_a_comment_stays_a_comment_whatever_the_table_is_called() -> None:
    text = format_script(
        PublishedState(published(table="a\nDROP TABLE b; --", version=1), "x", "s3://lake"), OBJECTS
    )
    assert not any(line.startswith("DROP") for line in text.splitlines())
