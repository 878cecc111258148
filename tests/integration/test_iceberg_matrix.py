"""Iceberg tables of every kind read through every client as Spark reads them, or are refused with the expected code.

The tables: tests/builders/iceberg_matrix. What is expected of each client: expected.txt beside them. One Spark makes
them, one server shares them, and every client reads a refused table once the stated fix was applied.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delta_sharing
import httpx
import pytest
from pydantic import ValidationError
from pyiceberg.exceptions import ValidationError as MetadataError
from pyiceberg.table import StaticTable
from typer.testing import CliRunner

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Publication
from lakeshare_server.cli.tables import table_app
from lakeshare_server.errors import Unserveable
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables.serveability import ReasonCode
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_matrix import TABLES
from tests.builders.iceberg_matrix.clients import NAMES, OWN_LIMIT, ROWS, Clients, Outcome, plain_rows
from tests.builders.iceberg_matrix.expectations import expectations, is_for_nobody, refusals
from tests.builders.iceberg_matrix.made import Makers, Written, session_of_its_own
from tests.builders.iceberg_matrix.plan import COMPACT, COMPACT_DELETES, INSERT, Step
from tests.builders.iceberg_rest import door, told_values
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.spark_iceberg import frame_rows

EXPECTED = expectations()
REFUSED = [name for name, cells in EXPECTED.items() if is_for_nobody(cells)]
SERVED = [name for name in EXPECTED if name not in REFUSED]
# Spark's Delta needs most of a second for a table. In CI it reads those in which a Delta reader meets something new:
# mapped names, types, partition values, vectors of each kind, and what no other reader of Delta tables takes.
READ_BY_SPARK_DELTA = (
    SERVED
    if IS_CAMPAIGN
    else [
        *("renamed", "added_again_all_old", "struct_replaced", "in_list_and_map", "renamed_partition"),
        *("odd_names", "without_zone_partition", "widened_inside", "everything", "imported_by_day"),
        *("adopted_by_time", "by_identity_of_times", "by_identity_of_decimals", "by_several", "by_void"),
        *("by_numbers_with_a_fraction", "by_bytes_and_flags", "primitives_v2", "without_metrics_counts"),
        *("nested", "variant", "variant_inside", "variant_shredded", "scattered_over_folders"),
        *("v2_partitioned_anew", "v3_many_generations", "v2_upgraded", "v2_equality_and_positions"),
    ]
)
# The stated fix by its code, where it needs not know the table's columns; else it is in the plan.
FIXES: Mapping[str, Step] = {
    **dict.fromkeys(("RENAMED_COLUMNS", "WIDENED_TYPES", "FILES_WITHOUT_IDS", "COLUMN_DEFAULTS"), COMPACT),
    "PARTITION_VALUES_NOT_IN_FILES": COMPACT,
    "ROW_LEVEL_DELETES": COMPACT_DELETES,
}
# Of the stories of deletes, which all have one fix, those with most in them.
LONG_STORIES = (
    *("v2_partitioned_anew", "v3_many_generations", "v2_upgraded", "v3_nothing_left"),
    "v2_equality_and_positions",
)
FIXED = [
    name
    for name, cells in EXPECTED.items()
    if refusals(cells) and (refusals(cells) != ["ROW_LEVEL_DELETES"] or name in LONG_STORIES)
]
VERDICTS = {
    "python_parquet": "Python, parquet format",
    "python_delta": "Python, delta format",
    "spark_delta": "Spark, delta format",
    "pyiceberg": "Iceberg REST",
    "spark_iceberg": "Iceberg REST",
}

pytestmark = [
    pytest.mark.timeout(900),
    # The client's own: it concatenates empty frames, and forgets a folder when a table has no files.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


@dataclass(frozen=True)
class Matrix:
    """The tables as they were made and mended, behind one server."""

    written: Mapping[str, Future[Written]]
    refusals: Mapping[str, Unserveable]
    mended: Mapping[str, Future[Written]]
    provider: Provider
    clients: Clients


@pytest.fixture(scope="module")
def makers(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Makers:
    return Makers.on(lake, tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def matrix(
    makers: Makers, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Matrix]:
    plans = {name: plan for name, plan in TABLES.items() if name in chosen_tables(request)}
    provider = a_provider(tmp_path_factory.mktemp("provider"))
    written = makers.make(plans)
    mended = makers.mend({name: (TABLES[name], fix_of(name)) for name in FIXED if is_made(written.get(name))})
    shared, refused = published(provider, written), dict[str, Unserveable]()
    for name, result in shared.items():
        if isinstance(result, Unserveable):
            refused[name] = result
    served = [name for name in shared if name not in refused]
    again = published(provider, {f"{name}_mended": table for name, table in mended.items()})
    again = {name: result for name, result in again.items() if not isinstance(result, Unserveable)}
    provider.share(*(f"lake.{name}" for name in [*served, *again]))
    token, spark = provider.recipient(), session_of_its_own(makers.any_case["hadoop"].spark)
    with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
        clients = Clients.of(server, token, (client, data), spark, tmp_path_factory.mktemp("answers"))
        yield Matrix(written, refused, mended, provider, clients)


def is_made(table: Future[Written] | None) -> bool:
    return table is not None and table.exception() is None


def published(
    provider: Provider, tables: Mapping[str, Future[Written]]
) -> dict[str, Publication | Unserveable]:
    """The publication or the refusal of each table that was made; the others are failures of their own tests."""
    found: dict[str, Publication | Unserveable] = {}
    for name, table in tables.items():
        if is_made(table):
            try:
                found[name] = provider.publish_iceberg(f"lake.{name}", table.result().state)
            except Unserveable as error:
                found[name] = error
    return found


def chosen_tables(request: pytest.FixtureRequest) -> set[str]:
    """The tables of the tests that were chosen: one alone is a matter of seconds."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    return {call["name"] for call in calls if call.get("name") in TABLES}


def fix_of(name: str) -> tuple[Step, ...]:
    return TABLES[name].fix or tuple(dict.fromkeys(FIXES[code] for code in refusals(EXPECTED[name])))


def rows_of(table: Written) -> Rows:
    assert table.rows is not None, "Spark does not read it"
    return table.rows


def test_something_is_expected_of_every_table() -> None:
    assert list(EXPECTED) == list(TABLES)
    assert len(TABLES) >= 40
    assert set(READ_BY_SPARK_DELTA) <= set(SERVED)


@pytest.mark.campaign
@pytest.mark.parametrize("name", TABLES)
def test_clients_read_what_spark_reads_or_are_refused_with_the_code(
    matrix: Matrix, name: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(matrix.provider.settings.state_dir))
    table, cells = matrix.written[name].result(), EXPECTED[name]
    if name in REFUSED:
        [code] = refusals(cells)
        refusal = matrix.refusals[name]
        assert (refusal.code, str(refusal).endswith(f"[{code}]")) == (code, True)
    else:
        assert name not in matrix.refusals, matrix.refusals[name]
        for client in NAMES:
            with subtests.test(client=client):
                require_outcome(matrix, name, client, table)
        with subtests.test("lakeshare table serveability"):
            require_foretold(matrix, name)
    if name in FIXED:
        with subtests.test("after the stated fix"):
            require_readable_by_all(matrix, f"{name}_mended", rows_of(matrix.mended[name].result()))


def require_outcome(matrix: Matrix, name: str, client: str, table: Written) -> None:
    """What a client makes of a table is the cell in `expected.txt`."""
    expected = EXPECTED[name][client]
    if client == "spark_delta" and name not in READ_BY_SPARK_DELTA:
        # The same request, whose answer our own reader reads.
        client = "delta_answer"
    try:
        outcome = matrix.clients.read(client, name, rows_of(table), table.some)
    except AssertionError as error:
        if expected != OWN_LIMIT:
            raise
        outcome = Outcome(OWN_LIMIT, f"AssertionError: {error}")
    assert outcome.cell == expected, outcome.said
    if expected == OWN_LIMIT:
        # Without any server, PyIceberg does not load the very table either, or reads other rows.
        assert client == "pyiceberg"
        with pytest.raises((AssertionError, ValidationError, MetadataError, ValueError)) as limit:
            same_rows(by_pyiceberg(table), rows_of(table))
        assert limit.typename in outcome.said


def require_foretold(matrix: Matrix, name: str) -> None:
    """`lakeshare table serveability` has the outcome of each client."""
    verdicts = serveability(name)
    for client, cell in EXPECTED[name].items():
        verdict = verdicts[VERDICTS[client]]
        found = ROWS if verdict["served_as"] else verdict["code"]
        assert found == (ROWS if cell == OWN_LIMIT else cell), client
    if EXPECTED[name]["spark_delta"] == ROWS:
        features = matrix.clients.reader(name).metadata().head.protocol.get("readerFeatures") or ()
        assert set(verdicts["Spark, delta format"]["features"]) == set(features)


def require_readable_by_all(matrix: Matrix, name: str, expected: Rows) -> None:
    verdicts = serveability(name)
    formats = {verdict["served_as"] for client, verdict in verdicts.items() if client in VERDICTS.values()}
    assert formats == {"parquet", "delta", "iceberg"}
    for client in ("python_parquet", "python_delta", "pyiceberg"):
        assert matrix.clients.read(client, name, expected).cell == ROWS, client


@pytest.mark.parametrize("name", ["unpublished_beside_main"])
def test_the_iceberg_catalog_has_nothing_unpublished(matrix: Matrix, makers: Makers, name: str) -> None:
    iceberg = makers.of(TABLES[name])
    refs = {row.name: row.snapshot_id for row in iceberg.spark.table(f"{iceberg.table(name)}.refs").collect()}
    with door(matrix.clients.server, matrix.clients.token) as client:
        metadata = client.get(f"/v1/shares/flights/namespaces/lake/tables/{name}").json()["metadata"]
    assert set(metadata["refs"]) == {"main"}
    assert not told_values(metadata) & {"audit", "kept", str(refs["audit"])}


def test_each_version_has_the_columns_of_its_snapshot(makers: Makers, tmp_path: Path) -> None:
    """By number through both formats and by snapshot through the door, as Spark reads each snapshot directly."""
    iceberg, provider, judged = makers.any_case["hadoop"], a_provider(tmp_path), []
    steps = [
        "CREATE TABLE {t} (id INT, s STRING) USING iceberg",
        INSERT.format("(1, 'a')"),
        "ALTER TABLE {t} RENAME COLUMN s TO text",
        INSERT.format("(2, 'b')"),
        "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
        "ALTER TABLE {t} DROP COLUMN text",
        INSERT.format("(5000000000)"),
        "ALTER TABLE {t} ADD COLUMN text INT",
        "DELETE FROM {t} WHERE id = 1",
    ]
    for step in steps:
        iceberg.run("over_time", [step])
        if not step.startswith(("CREATE", "ALTER")):
            state = iceberg.state("over_time")
            provider.publish_iceberg("lake.over_time", state)
            at = f"SELECT * FROM {iceberg.table('over_time')} VERSION AS OF {state.snapshot_id}"
            judged.append((state.snapshot_id, at))
    # Once all snapshots are in one metadata file: it has to be known which columns each of them had.
    newest = iceberg.state("over_time").metadata_location
    for snapshot_id, _ in judged[:-1]:
        provider.publish_iceberg("lake.again", type(state)(newest, snapshot_id))
    provider.share("lake.over_time", "lake.again", history=True)
    token, spark = provider.recipient(), iceberg.spark.newSession()
    with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
        clients = Clients.of(server, token, (client, data), spark, tmp_path)
        for number, (snapshot_id, at) in enumerate(judged):
            expected = frame_rows(iceberg.spark.sql(at))
            through = spark.sql(f"SELECT * FROM door.lake.over_time VERSION AS OF {snapshot_id}")
            same_rows(frame_rows(through), expected, f"snapshot {number}")
            for table in ("over_time", "again")[: 2 if number < len(judged) - 1 else 1]:
                reader = clients.reader(table)
                same_rows(reader.rows(reader.snapshot(version=number)), expected, f"{table} {number}")
                needs = reader.snapshot(version=number).head.protocol.get("readerFeatures") or ()
                if "typeWidening" not in needs:
                    url = f"{clients.profile}#flights.lake.{table}"
                    frame = quietly(delta_sharing.load_as_pandas, url, version=number, use_delta_format=True)
                    same_frame(frame[expected.names], expected, f"{table} {number}")


def by_pyiceberg(table: Written) -> Rows:
    """What PyIceberg reads of the files by itself."""
    opened = StaticTable.from_metadata(local_path(table.state.metadata_location))
    return plain_rows(opened.scan().to_arrow(), rows_of(table))


def serveability(name: str) -> dict[str, dict[str, Any]]:
    """The answer of `lakeshare table serveability`, by client."""
    ended = CliRunner().invoke(table_app, ["serveability", f"lake.{name}", "--json"], catch_exceptions=False)
    found = {verdict["client"]: verdict for verdict in json.loads(ended.output)}
    codes = {verdict["code"] for verdict in found.values() if verdict["code"]}
    assert codes <= set(ReasonCode)
    return found
