"""A printed snippet reads the table as it is printed, by an API that works for it; what cannot be is refused."""

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.tokens import TokenType

from lakeshare_pipelines.spark.jars import load_pinned_jars
from lakeshare_server.cli import main
from lakeshare_server.errors import BadRequest
from lakeshare_server.lazy import LazyModule
from lakeshare_server.locations import STORE_KINDS
from lakeshare_server.provider.serveability import ServedTable
from lakeshare_server.snippets import (
    ENGINES,
    ICEBERG_PACKAGE,
    SHARING_PACKAGE,
    EngineName,
    SnippetTable,
    Storage,
    render_snippet,
)
from lakeshare_server.storage import parse_location
from lakeshare_server.tables.serveability import ICEBERG_REST, ICEBERG_REST_ID, Refusal, Verdict
from lakeshare_server.versions import Version
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, some_rows
from tests.builders.sharing import Running, a_provider, a_server

duckdb, pl = LazyModule("duckdb"), LazyModule("polars")
BY_HAND = ("duckdb-sql", "trino", "power-bi", "snowflake")
SERVED = {
    "python-parquet": Verdict("python-parquet", "Python, parquet format", "parquet"),
    "python-delta": Verdict("python-delta", "Python, delta format", "delta"),
    "spark": Verdict("spark", "Spark, delta format", "delta"),
    ICEBERG_REST_ID: Verdict(ICEBERG_REST_ID, ICEBERG_REST, "iceberg"),
}
HOSTILE = "a\"b'c`d\\\n; DROP"
ORDERS = SnippetTable(
    "Partner's-1", "sales", "orders", "bob.share", "https://lake.example/iceberg", "credentials", "s3"
)
PLACES: dict[Storage, str] = {
    "credentials": "gs://lake/t",
    "signed requests": "s3://lake/t",
    "disk": "/lake/t",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of an Iceberg table and a Delta table, and a profile, in the folder that snippets are run in."""
    folder = tmp_path_factory.mktemp("snippets")
    provider = a_provider(folder)
    provider.publish_iceberg("lake.flights", an_iceberg_table(folder / "iceberg").state())
    provider.publish_delta("lake.delta", a_delta_table(folder / "delta"))
    provider.share("lake.flights", "lake.delta", share="Partner's-1")
    token = provider.recipient(shares=("Partner's-1",))
    with a_server(provider) as running:
        profile = {
            "shareCredentialsVersion": 1,
            "endpoint": running.url,
            "bearerToken": token,
            "icebergEndpoint": running.url.replace("/delta-sharing", "/iceberg"),
        }
        (folder / "bob.share").write_text(json.dumps(profile))
        yield replace(running, folder=folder)


@pytest.fixture
def printed(
    server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(server.folder / "state"))
    monkeypatch.chdir(server.folder)

    def run(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["lakeshare", "snippet", *words, "--profile", "bob.share"])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        return said.out

    return run


def rows(found: Any) -> pa.Table:
    """What a snippet has got, whatever it holds it in."""
    if isinstance(found, pl.LazyFrame):
        found = found.collect()
    if isinstance(found, pl.DataFrame | duckdb.DuckDBPyRelation):
        return found.to_arrow_table() if isinstance(found, duckdb.DuckDBPyRelation) else found.to_arrow()
    return pa.Table.from_pandas(found)


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [table.column(name).to_pylist() for name in ("distance", "carrier", "cancelled")]
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("engine", "door", "name", "result"),
    [
        ("pandas", None, "flights", lambda names: names["frame"]),
        ("pandas", None, "delta", lambda names: names["frame"]),
        ("polars", None, "flights", lambda names: names["frame"]),
        ("polars", "iceberg", "flights", lambda names: names["frame"].head(10)),
        ("polars", None, "delta", lambda names: names["frame"]),
        ("duckdb", None, "flights", lambda names: names["connection"].table("shared")),
        ("duckdb", "iceberg", "flights", lambda names: names["connection"].table("shared")),
        ("duckdb", None, "delta", lambda names: names["connection"].table("shared")),
        ("pyiceberg", None, "flights", lambda names: pl.from_arrow(names["table"].scan().to_arrow())),
    ],
)
def test_a_snippet_reads_the_table_as_it_is_printed(
    printed: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    engine: str,
    door: str | None,
    name: str,
    result: Callable[[dict[str, Any]], Any],
) -> None:
    text = printed(f"Partner's-1.lake.{name}", "--engine", engine, *(["--api", door] if door else []))
    names: dict[str, Any] = {}
    exec(compile(text, f"{engine}.py", "exec"), names)
    assert "day" in capsys.readouterr().out
    read, source = in_order(rows(result(names))), in_order(some_rows())
    assert len(read) in (10, len(source))
    assert set(read) <= set(source)


def test_the_token_is_never_printed_and_the_profiles_address_is_taken(
    printed: Callable[..., str], server: Running
) -> None:
    profile = json.loads((server.folder / "bob.share").read_text())
    table = "Partner's-1.lake.flights"
    texts = [
        printed(table, "--engine", engine)
        for engine in ("pyiceberg", "pandas", "polars", "duckdb", "duckdb-sql", "spark", "power-bi")
    ]
    assert not [text for text in texts if profile["bearerToken"] in text]
    assert profile["icebergEndpoint"] in texts[4]
    assert profile["endpoint"] in texts[6]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["no.such.table", "--engine", "pandas"],
            "Shared are: Partner's-1.lake.flights, Partner's-1.lake.delta",
        ),
        (["Partner's-1.lake.delta", "--engine", "pyiceberg"], "iceberg: it is no Iceberg table."),
        (["Partner's-1.lake.flights", "--engine", "trino"], "on the server's own disk"),
        (["Partner's-1.lake.flights", "--engine", "pandas", "--api", "iceberg"], "does not use this API"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(server.folder / "state"))
    monkeypatch.setattr("sys.argv", ["lakeshare", "snippet", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (1, "")
    assert said in told.err


def an_access(storage: Storage | None, **verdicts: Verdict) -> ServedTable:
    changed = {**SERVED, **{verdict.id: verdict for verdict in verdicts.values()}}
    place = parse_location(PLACES[storage] if storage else "gs://lake/t")
    no_credentials = None if storage == "credentials" else "they were not allowed"
    return ServedTable(Version(0, 0), changed, place, storage, no_credentials, None)


@pytest.mark.parametrize(
    ("engine", "storage", "by"),
    [
        ("spark", "credentials", "Iceberg REST"),
        ("spark", "signed requests", "Iceberg REST"),
        ("spark", "disk", "Delta Sharing"),
        ("spark", None, "Delta Sharing"),
        ("polars", "signed requests", "Iceberg REST"),
        ("polars", "disk", "Delta Sharing"),
        ("pyiceberg", "disk", "Iceberg REST"),
        ("pandas", "credentials", "Delta Sharing"),
    ],
)
def test_a_snippet_takes_the_api_that_works_from_most_places(
    engine: EngineName, storage: Storage | None, by: str
) -> None:
    assert f"by {by}" in render_snippet(ENGINES[engine], ORDERS, an_access(storage)).replace("by the ", "by ")


@pytest.mark.parametrize("engine", get_args(EngineName))
def test_what_nobody_is_served_is_refused_with_the_reason_and_the_fix(engine: EngineName) -> None:
    odd = Refusal("it is odd", "Make it even.", "C")
    refused = {
        client: replace(verdict, served_as=None, refused_for=(odd,)) for client, verdict in SERVED.items()
    }
    with pytest.raises(BadRequest, match=r"it is odd \[C\]\. Make it even\."):
        render_snippet(ENGINES[engine], ORDERS, replace(an_access("credentials"), verdicts=refused))


@pytest.mark.parametrize("engine", ["pyiceberg", "trino", "duckdb-sql", "snowflake"])
def test_a_folder_without_credentials_is_refused_with_what_hinders(engine: EngineName) -> None:
    with pytest.raises(BadRequest, match=r"needs credentials for the folder.*they were not allowed"):
        render_snippet(ENGINES[engine], ORDERS, an_access(None))


def test_signed_requests_are_left_to_the_reader_that_can_sign() -> None:
    table = replace(ORDERS, storage="signed requests")
    for engine in ("pyiceberg", "polars", "duckdb"):
        text = render_snippet(ENGINES[engine], table, an_access("signed requests"))
        assert "pyiceberg.io.fsspec.FsspecFileIO" in text
        assert "s3fs" in text
    with pytest.raises(BadRequest, match="needs credentials"):
        render_snippet(ENGINES["trino"], table, an_access("signed requests"))


@pytest.mark.parametrize("engine", [name for name in get_args(EngineName) if name not in BY_HAND])
@pytest.mark.parametrize("door", ["iceberg", "delta-sharing"])
@pytest.mark.parametrize("delta", [False, True])
def test_hostile_names_stay_texts_of_python(engine: EngineName, door: Any, delta: bool) -> None:
    table = SnippetTable(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, "disk", "", needs_delta=delta)
    plain = SnippetTable("a", "a", "a", "a", "a", "disk", "", needs_delta=delta)
    if door in ENGINES[engine].apis:
        texts = [ENGINES[engine].render(one, door) for one in (table, plain)]
        assert shape(texts[0]) == shape(texts[1])


def shape(text: str) -> list[str]:
    """The kinds of a program's parts, in order."""
    return [type(node).__name__ for node in ast.walk(ast.parse(text))]


def test_duckdbs_own_sql_is_sql_of_duckdb_whatever_the_names_are() -> None:
    for table in (ORDERS, SnippetTable("é'\"", 's"', "t'", "p'.share", "http://x/'", "disk", "")):
        text = render_snippet(ENGINES["duckdb-sql"], table, an_access("disk"))
        kinds = [one.type.name for one in duckdb.extract_statements(text)]
        assert kinds == ["LOAD", "LOAD", "SET", "CREATE", "ATTACH", "SELECT"]


def test_duckdbs_own_sql_takes_the_token_from_the_profile(tmp_path: Path) -> None:
    profile = tmp_path / "bo'b.share"
    profile.write_text(json.dumps({"bearerToken": "to'ken", "endpoint": "http://x"}))
    table = replace(ORDERS, profile=str(profile))
    statements = duckdb.extract_statements(render_snippet(ENGINES["duckdb-sql"], table, an_access("disk")))
    connection = duckdb.connect()
    connection.execute(statements[2])
    assert connection.execute("SELECT getvariable('lakeshare_token')").fetchone() == ("to'ken",)


def test_trinos_catalog_file_has_the_address_and_no_token() -> None:
    table = replace(ORDERS, share="é\\:partners")
    text = render_snippet(ENGINES["trino"], table, an_access("credentials"))
    lines = [line.split("=", 1) for line in text.splitlines() if not line.startswith("#")]
    assert dict(lines) == {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": "https://lake.example/iceberg",
        "iceberg.rest-catalog.warehouse": "\\u00e9\\\\:partners",
        "iceberg.rest-catalog.security": "OAUTH2",
        "iceberg.rest-catalog.oauth2.token": "${ENV:LAKESHARE_TOKEN}",
        "iceberg.rest-catalog.vended-credentials-enabled": "true",
        "fs.native-s3.enabled": "true",
    }


@pytest.mark.parametrize("name", ["orders", HOSTILE, 'x"}[Data], y = #(lf)'])
def test_power_bi_is_asked_for_the_table_whatever_its_names_are(name: str) -> None:
    table = SnippetTable(
        name, name, name, "p", "", None, "", sharing_url="https://lake.example/delta-sharing"
    )
    text = render_snippet(ENGINES["power-bi"], table, an_access("disk"))
    program = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
    written = [one.replace('""', '"') for one in re.findall(r'"((?:[^"]|"")*)"', program)]
    # As Power Query reads its literals: `#(lf)` and the like are characters, `#(#)` is the sign itself.
    read = [one.replace("#(lf)", "\n").replace("#(#)", "#") for one in written]
    assert read == ["https://lake.example/delta-sharing", name, name, name]


@pytest.mark.parametrize("name", ["orders", HOSTILE])
def test_snowflake_is_asked_for_the_table_whatever_its_names_are(name: str) -> None:
    table = replace(ORDERS, share=name, schema=name, name=name)
    found = Snowflake().tokenize(render_snippet(ENGINES["snowflake"], table, an_access("credentials")))
    texts = [one.text for one in found if one.token_type == TokenType.STRING]
    names = [one.text for one in found if one.token_type == TokenType.IDENTIFIER]
    assert texts == [
        *("https://lake.example/iceberg", name, "<bearerToken of the profile>"),
        f"lakeshare_{table.alias}",
    ]
    assert names == [table.alias, table.alias, name, name]
    assert [one.token_type for one in found].count(TokenType.SEMICOLON) == 3


def test_spark_is_given_the_packages_of_the_line_that_is_tested() -> None:
    locked = {jar.coordinate for jar in load_pinned_jars().values()}
    beside = SHARING_PACKAGE.replace("delta-sharing-spark", "delta-spark")
    of_stores = {kind.spark_package for kind in STORE_KINDS.values()}
    assert locked >= {ICEBERG_PACKAGE, beside, *of_stores}


def test_every_engine_of_the_command_has_a_text() -> None:
    assert set(get_args(EngineName)) == set(ENGINES)
    assert all(engine.apis for engine in ENGINES.values())
