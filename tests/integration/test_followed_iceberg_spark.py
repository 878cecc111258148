"""Iceberg tables that Spark commits to are followed: each number reads as Spark read it, through each door."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delta_sharing
import httpx
import pytest

from lakeshare_pipelines.nessie.client import NessieEndpoint
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server import nessie as nessie_api
from lakeshare_server.cli import main
from tests.builders.canonical import Rows, same_frame
from tests.builders.followed_iceberg import numbered, pinned, version_of
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_rest import rest_catalog
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg, frame_rows

pytestmark = [
    pytest.mark.timeout(600),
    # The client's own: it concatenates empty frames.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
]
CREATE = (
    "CREATE TABLE {t} (id BIGINT, region STRING) USING iceberg PARTITIONED BY (region) "
    "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
)


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.chdir(tmp_path)
    return provider


def follow(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    """As the operator types it."""
    arguments = (
        "table",
        "follow",
        location,
        "--as",
        "lake.flights",
        "--share",
        "flights",
        "--check-every",
        "0",
    )
    monkeypatch.setattr("sys.argv", ["lakeshare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


@dataclass(frozen=True)
class Doors:
    """A recipient before two workers."""

    workers: tuple[Running, Running]
    token: str

    def poll(self) -> int:
        """Both are asked at once, and tell the same."""
        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(self._version, worker) for worker in self.workers * 2]
            [number] = {one.result() for one in asking}
        return number

    def reads(self, number: int, expected: Rows) -> None:
        """The Python client reads these rows of a number."""
        url = f"{self.workers[0].profile(self.token)}#flights.lake.flights"
        frame = quietly(delta_sharing.load_as_pandas, url, version=number, use_delta_format=True)
        same_frame(frame, expected, f"version {number}")

    def loaded(self) -> Any:
        """The table through the Iceberg REST door, for PyIceberg."""
        return rest_catalog(self.workers[1], self.token).load_table("lake.flights")

    def _version(self, worker: Running) -> int:
        with worker.client(self.token) as client:
            return version_of(client)


def scanned(scan: Any, expected: Rows) -> Rows:
    """What PyIceberg reads, in the columns and types that Spark tells."""
    fields = [{"name": name, "type": kind} for name, kind in expected.columns]
    return Rows.of_arrow(scan.to_arrow(), {"fields": fields})


@pytest.fixture
def doors(provider: Provider) -> Iterator[Doors]:
    """Servers over the state; what they serve is shared by the test."""
    with a_server(provider) as one, a_server(provider) as other:
        yield Doors((one, other), "")


def test_each_number_of_a_folder_reads_as_spark_read_it(
    lake: Lake, provider: Provider, doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = SparkIceberg.at(lake.spark, "followed_folder", tmp_path / "warehouse")
    judged: list[tuple[int, Rows]] = []

    def commit(*statements: str) -> None:
        spark.run("orders", statements)
        judged.append((spark.state("orders").snapshot_id, spark.rows("orders")))

    spark.run("orders", [CREATE])
    commit("INSERT INTO {t} VALUES (1, 'eu'), (2, 'eu'), (3, 'us')")
    commit("INSERT INTO {t} VALUES (4, 'us'), (5, 'asia')")
    follow(monkeypatch, str(tmp_path / "warehouse" / "lake" / "orders"))
    doors = Doors(doors.workers, provider.recipient())
    assert doors.poll() == 1

    commit("DELETE FROM {t} WHERE id = 2")
    assert doors.poll() == 2
    commit(f"CALL {{c}}.system.rollback_to_snapshot('{{t}}', {judged[1][0]})")
    assert doors.poll() == 3
    commit("INSERT INTO {t} VALUES (6, NULL)")
    commit("INSERT INTO {t} VALUES (7, 'eu')")
    assert doors.poll() == 5
    assert pinned(provider) == [snapshot for snapshot, _ in judged]
    assert [one.rollback_of for one in numbered(provider)] == [None, None, None, 1, None, None]
    made_current = spark.spark.sql(f"SELECT made_current_at FROM {spark.table('orders')}.history ORDER BY 1")
    told = [int(one.published_at.timestamp() * 1000) for one in numbered(provider)]
    assert told == [int(row[0].timestamp() * 1000) for row in made_current.collect()]
    for number, (_, rows) in enumerate(judged):
        doors.reads(number, rows)
    opened = doors.loaded()
    for snapshot, rows in judged:
        assert scanned(opened.scan(snapshot_id=snapshot), rows) == rows

    # What is pinned by older numbers alone goes, and so does the log of it.
    spark.run(
        "orders",
        [
            "CALL {c}.system.expire_snapshots(table => '{t}', older_than => TIMESTAMP '2999-01-01 00:00:00', "
            "retain_last => 1)"
        ],
    )
    assert doors.poll() == 5
    commit("INSERT INTO {t} VALUES (8, 'eu')")
    assert doors.poll() == 6
    assert pinned(provider) == [snapshot for snapshot, _ in judged]
    for number in (5, 6):
        doors.reads(number, judged[number][1])
    assert scanned(doors.loaded().scan(), judged[6][1]) == judged[6][1]


def test_a_nessie_branch_tells_its_own_states_and_none_of_other_branches(
    lake: Lake, provider: Provider, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, nessie = lake.endpoint, lake.nessie("publisher")
    monkeypatch.setattr(nessie_api, "PAGE_SIZE", 2)
    monkeypatch.setenv("PYICEBERG_CATALOG__NESSIE_OF_TESTS__URI", endpoint.uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__NESSIE_OF_TESTS__TOKEN", str(endpoint.writer_token))
    branch = nessie.create_branch("followed-branch", nessie.reference("main").hash).name
    table = f"{lake.catalog(branch)}.followed_ns.orders"
    judged: list[tuple[int, Rows]] = []

    def run(at: str, statement: str) -> None:
        lake.spark.sql(statement.format(t=f"{lake.catalog(at)}.followed_ns.orders"))

    def judge() -> None:
        content = nessie.content("followed_ns.orders", branch)
        assert content is not None
        judged.append((content.snapshot_id, frame_rows(lake.spark.table(table))))

    lake.spark.sql(f"CREATE NAMESPACE {lake.catalog(branch)}.followed_ns")
    run(branch, CREATE)
    run(branch, "INSERT INTO {t} VALUES (1, 'eu'), (2, 'us')")
    judge()
    follow(monkeypatch, f"nessie:nessie-of-tests/followed_ns.orders@{branch}")
    doors = Doors(doors.workers, provider.recipient())
    assert doors.poll() == 0
    run(branch, "INSERT INTO {t} VALUES (3, 'eu')")
    judge()
    run(branch, "DELETE FROM {t} WHERE id = 1")
    judge()
    assert doors.poll() == 2

    # Three commits on a branch of it, of which it gets the last state alone.
    aside = nessie.create_branch("followed-aside", nessie.reference(branch).hash).name
    for number in (4, 5, 6):
        run(aside, f"INSERT INTO {{t}} VALUES ({number}, 'asia')")
    assert doors.poll() == 2
    merge(endpoint, aside, branch)
    judge()
    assert doors.poll() == 3
    assert pinned(provider) == [snapshot for snapshot, _ in judged]
    for number, (_, rows) in enumerate(judged):
        doors.reads(number, rows)
    opened = doors.loaded()
    assert scanned(opened.scan(), judged[3][1]) == judged[3][1]
    assert [entry.snapshot_id for entry in opened.history()] == [snapshot for snapshot, _ in judged]
    assert str(endpoint.writer_token) not in everything_in(provider)
    run(branch, "DROP TABLE {t}")
    with doors.workers[0].client(doors.token) as client:
        refused = client.get(f"{FLIGHTS}/version")
        assert refused.status_code == 400
        assert "The table is not there" in refused.text
        assert "followed_ns" not in refused.text
        assert "nessie-of-tests" not in refused.text
    doors.reads(3, judged[3][1])


def merge(endpoint: NessieEndpoint, source: str, target: str) -> None:
    """One commit on the target that brings it to the source's head."""
    with httpx.Client(headers={"Authorization": f"Bearer {endpoint.publisher_token}"}) as client:
        heads = {
            name: client.get(f"{endpoint.uri}/trees/{name}").json()["reference"]["hash"]
            for name in (source, target)
        }
        answer = client.post(
            f"{endpoint.uri}/trees/{target}@{heads[target]}/history/merge",
            json={"fromRefName": source, "fromHash": heads[source]},
        )
    assert answer.json()["wasApplied"] is True, answer.text


def everything_in(provider: Provider) -> str:
    """The whole database as text."""
    return provider.settings.state_dir.joinpath("lakeshare.db").read_bytes().decode("latin-1")
