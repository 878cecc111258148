"""Iceberg tables of every kind read through every client as Spark reads them, or are refused with the expected code.

The tables, as Spark wrote them once: tests/builders/iceberg_matrix. What is expected of each client: expected.txt
beside them. One server shares them, and every client reads a refused table once the stated fix was applied. Spark
writes and reads the tables again as they are recorded: one of them in CI, all in the campaign.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
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
from lakeshare_server.catalog.listings import find_shared_table
from lakeshare_server.cli.tables import table_app
from lakeshare_server.errors import Unserveable
from lakeshare_server.locations import local_path
from lakeshare_server.provider import following
from lakeshare_server.provider.serveability import TableServeability, provider_view
from lakeshare_server.tables.serveability import ReasonCode, Verdict
from lakeshare_server.versions import Versions
from tests.builders.campaign import IS_CAMPAIGN, campaign_size
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_matrix import TABLES
from tests.builders.iceberg_matrix.clients import NAMES, OWN_LIMIT, ROWS, Clients, Outcome, plain_rows
from tests.builders.iceberg_matrix.expectations import EXPECTED, FIXED, is_for_nobody, refusals
from tests.builders.iceberg_matrix.made import Makers, Written, session_of_its_own
from tests.builders.iceberg_matrix.plan import INSERT
from tests.builders.iceberg_matrix.recorded import make, recorded_sources, sources, unpacked
from tests.builders.iceberg_rest import door, told_values
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg, frame_rows

REFUSED = [name for name, cells in EXPECTED.items() if is_for_nobody(cells)]
SERVED = [name for name in EXPECTED if name not in REFUSED]
# Spark's Delta needs most of a second for a table. In CI it reads one table of each kind in which a Delta reader meets
# something new: mapped names, types, partition values, vectors, and what no other reader of Delta tables takes.
READ_BY_SPARK_DELTA = (
    SERVED
    if IS_CAMPAIGN
    else [
        *("renamed_partition", "widened_inside", "without_zone_partition"),
        *("primitives_v2", "variant_inside", "v3_many_generations"),
    ]
)
# Through the Iceberg REST API, Spark reads in CI what PyIceberg cannot and one table of each kind of metadata;
# PyIceberg reads every other one.
READ_BY_SPARK_ICEBERG = (
    SERVED
    if IS_CAMPAIGN
    else [
        *(name for name in SERVED if EXPECTED[name]["pyiceberg"] == OWN_LIMIT),
        *("everything", "renamed_v1", "renamed_v3", "odd_names", "imported", "without_zone_partition"),
        *("primitives_v1", "primitives_v2", "primitives_v3", "empty", "emptied", "metadata_in_gzip"),
        *("by_several", "by_void", "by_other_specs_each_time", "by_a_column_that_is_gone"),
        *("unpublished_beside_main", "rolled_back", "history_expired", "upgraded_twice"),
        *("v2_many_generations", "v3_many_generations", "v2_upgraded"),
    ]
)
# In CI the Python client reads in delta format what the parquet format does not have, and some tables of each family;
# our own reader reads the answer in delta format for each table.
READ_BY_PYTHON_DELTA = (
    SERVED
    if IS_CAMPAIGN
    else [
        *(
            name
            for name in SERVED
            if not EXPECTED[name]["python_parquet"] == EXPECTED[name]["python_delta"] == ROWS
        ),
        *(
            "plain",
            "imported",
            "by_several",
            "by_void",
            "by_other_specs_each_time",
            "by_identity_of_decimals",
        ),
        *(
            "primitives_v1",
            "primitives_v2",
            "primitives_v3",
            "nested",
            "empty",
            "emptied",
            "v2_many_generations",
        ),
    ]
)
# One table for each combination of outcomes.
OF_EACH_OUTCOME = list({tuple(EXPECTED[name].values()): name for name in SERVED}.values())
MADE_AGAIN = Random("matrix").sample(list(TABLES), campaign_size(in_ci=1, in_campaign=len(TABLES)))
READ_BY = {"python_delta": READ_BY_PYTHON_DELTA, "spark_iceberg": READ_BY_SPARK_ICEBERG}
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
    """The tables as they were made and fixed, behind one server."""

    made: Mapping[str, Written]
    refusals: Mapping[str, Unserveable]
    fixed: Mapping[str, Written]
    provider: Provider
    clients: Clients
    versions: Versions
    judging: TableServeability

    def verdicts(self, name: str) -> list[Verdict]:
        """The verdicts on a table by client, as `lakeshare table serveability` prints them."""
        entry = find_shared_table(self.provider.catalog, f"flights.lake.{name}", "PATH")
        found = list(self.judging.judge(provider_view(entry, self.versions)).verdicts.values())
        assert {verdict.code for verdict in found if verdict.code} <= set(ReasonCode)
        return [verdict for verdict in found if verdict.client in VERDICTS.values()]


@pytest.fixture(scope="module")
def matrix(
    lake: Lake, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Matrix]:
    chosen, provider = chosen_tables(request), a_provider(tmp_path_factory.mktemp("provider"))
    with unpacked() as (made, fixed):
        shared = published(provider, {name: table for name, table in made.items() if name in chosen})
        refused = {name: result for name, result in shared.items() if isinstance(result, Unserveable)}
        again = published(
            provider, {f"{name}_fixed": table for name, table in fixed.items() if name in chosen}
        )
        served = [*(shared.keys() - refused.keys()), *again]
        provider.share(*(f"lake.{name}" for name in served))
        token, spark = provider.recipient(), session_of_its_own(lake.spark)
        with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
            folder = tmp_path_factory.mktemp("answers")
            clients = Clients.of(server, token, (client, data), spark, folder)
            opened = following.Provider(provider.catalog, provider.settings)
            judging = opened.serveability
            yield Matrix(made, refused, fixed, provider, clients, opened.versions, judging)


def published(provider: Provider, tables: Mapping[str, Written]) -> dict[str, Publication | Unserveable]:
    """The publication or the refusal of each table."""
    found: dict[str, Publication | Unserveable] = {}
    for name, table in tables.items():
        try:
            found[name] = provider.publish_iceberg(f"lake.{name}", table.state)
        except Unserveable as error:
            found[name] = error
    return found


def chosen_tables(request: pytest.FixtureRequest) -> set[str]:
    """The tables of the tests that were chosen: one alone is a matter of seconds."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    return {call["name"] for call in calls if call.get("name") in TABLES}


def rows_of(table: Written) -> Rows:
    assert table.rows is not None, "Spark does not read it"
    return table.rows


def test_something_is_expected_of_every_table() -> None:
    assert list(EXPECTED) == list(TABLES)
    assert len(TABLES) >= 40
    assert {*READ_BY_SPARK_DELTA, *READ_BY_SPARK_ICEBERG, *READ_BY_PYTHON_DELTA} <= set(SERVED)


def test_the_recorded_tables_are_those_of_the_plans(matrix: Matrix) -> None:
    """Otherwise `python -m tests.builders.iceberg_matrix.recorded` records them again, in about two minutes."""
    assert recorded_sources() == sources()
    assert list(matrix.made) == list(TABLES)
    assert list(matrix.fixed) == FIXED
    for name, plan in TABLES.items():
        table = matrix.made[name]
        assert (table.rows is not None, table.some and table.some[0]) == (plan.is_read_by_spark, plan.where)


@pytest.mark.campaign
def test_spark_writes_and_reads_tables_as_recorded(
    lake: Lake, matrix: Matrix, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    made, fixed = make(Makers.on(lake, tmp_path), MADE_AGAIN)
    for found, recorded in ((made, matrix.made), (fixed, matrix.fixed)):
        for name, table in found.items():
            with subtests.test(name):
                require_same_table(table.result(), recorded[name])


def require_same_table(found: Written, recorded: Written) -> None:
    """The same rows in as many files, with as many rows deleted in as many ways."""
    assert (found.rows, found.some) == (recorded.rows, recorded.some)
    totals = [
        {name: value for name, value in snapshot_summary(table).items() if name.startswith("total-")}
        for table in (found, recorded)
    ]
    for total in totals:
        # Compressed sizes depend on names and times in the files.
        total.pop("total-files-size", None)
    assert totals[0] == totals[1]


def snapshot_summary(table: Written) -> dict[str, str]:
    [summary] = [
        snapshot["summary"]
        for snapshot in written_metadata(table)["snapshots"]
        if snapshot["snapshot-id"] == table.state.snapshot_id
    ]
    return summary


def written_metadata(table: Written) -> dict[str, Any]:
    """The metadata file, which is in gzip in some tables."""
    content = Path(local_path(table.state.metadata_location)).read_bytes()
    return json.loads(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)


@pytest.mark.campaign
@pytest.mark.parametrize("name", TABLES)
def test_clients_read_what_spark_reads_or_are_refused_with_the_code(
    matrix: Matrix, name: str, subtests: pytest.Subtests
) -> None:
    table, cells = matrix.made[name], EXPECTED[name]
    if name in REFUSED:
        [code] = refusals(cells)
        refusal = matrix.refusals[name]
        assert (refusal.code, str(refusal).endswith(f"[{code}]")) == (code, True)
    else:
        assert name not in matrix.refusals, matrix.refusals[name]
        for client in NAMES:
            if name not in READ_BY.get(client, SERVED):
                continue
            with subtests.test(client=client):
                require_outcome(matrix, name, client, table)
        with subtests.test("the verdicts of the provider"):
            require_foretold(matrix, name)
    if name in FIXED:
        with subtests.test("after the stated fix"):
            require_readable_by_all(matrix, name)


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
    """The verdicts have the outcome of each client."""
    verdicts = {verdict.client: verdict for verdict in matrix.verdicts(name)}
    for client, cell in EXPECTED[name].items():
        verdict = verdicts[VERDICTS[client]]
        found = ROWS if verdict.served_as else verdict.code
        assert found == (ROWS if cell == OWN_LIMIT else cell), client
    if EXPECTED[name]["spark_delta"] == ROWS:
        features = matrix.clients.reader(name).metadata().head.protocol.get("readerFeatures") or ()
        assert set(verdicts["Spark, delta format"].features) == set(features)


def require_readable_by_all(matrix: Matrix, name: str) -> None:
    """Every client is served the fixed table, and those that were refused before read it."""
    table = f"{name}_fixed"
    assert {verdict.served_as for verdict in matrix.verdicts(table)} == {"parquet", "delta", "iceberg"}
    for client in ("python_parquet", "python_delta", "pyiceberg"):
        if EXPECTED[name][client] != ROWS:
            assert matrix.clients.read(client, table, rows_of(matrix.fixed[name])).cell == ROWS, client


@pytest.mark.parametrize("name", OF_EACH_OUTCOME)
def test_the_command_prints_the_verdicts_of_each_outcome(
    matrix: Matrix, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(matrix.provider.settings.state_dir))
    arguments = ["serveability", f"lake.{name}", "--json"]
    printed = json.loads(CliRunner().invoke(table_app, arguments, catch_exceptions=False).output)
    verdicts = [verdict.as_json() for verdict in matrix.verdicts(name)]
    assert [verdict for verdict in printed if verdict["client"] in VERDICTS.values()] == verdicts


@pytest.mark.parametrize("name", ["unpublished_beside_main"])
def test_the_iceberg_catalog_has_nothing_unpublished(matrix: Matrix, name: str) -> None:
    refs = {ref: at["snapshot-id"] for ref, at in written_metadata(matrix.made[name])["refs"].items()}
    assert refs.keys() == {"main", "audit", "kept"}
    with door(matrix.clients.server, matrix.clients.token) as client:
        metadata = client.get(f"/v1/shares/flights/namespaces/lake/tables/{name}").json()["metadata"]
    assert set(metadata["refs"]) == {"main"}
    assert not told_values(metadata) & {"audit", "kept", str(refs["audit"])}


def test_each_version_has_the_columns_of_its_snapshot(lake: Lake, tmp_path: Path) -> None:
    """By number through both formats and by snapshot through the door, as Spark reads each snapshot directly."""
    iceberg = SparkIceberg.at(session_of_its_own(lake.spark), "over_time", tmp_path)
    provider, judged = a_provider(tmp_path), []
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
