"""Tables that Spark changes at random read the same through every API after each publication, as Spark reads them.

Every publication also follows from the one before it: applying the changes that recipients get gives its rows. A few
short stories in CI, more and longer ones in the campaign.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delta_sharing
import httpx
import pytest

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import open_catalog
from lakeshare_server.settings import ServerSettings
from tests.builders.applied_changes import applied
from tests.builders.campaign import campaign_size
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.evolving_table import EvolvingTable, Told
from tests.builders.hostile.served import CLIENT_FEATURES, quietly
from tests.builders.iceberg_rest import door_url, rest_catalog
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.sharing import Provider, Running, a_server
from tests.builders.spark_iceberg import frame_rows

PUBLICATIONS = campaign_size(in_ci=3, in_campaign=9)
# Numbers and format versions; a story that failed once is added here.
STORIES = [(number, (number - 1) % 3 + 1) for number in range(1, campaign_size(in_ci=3, in_campaign=40) + 1)]
DOOR = "evolving_door"

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


@dataclass(frozen=True)
class Doors:
    """All ways of one recipient to the tables."""

    lake: Lake
    provider: Provider
    server: Running
    token: str
    profile: Path
    client: httpx.Client
    data: httpx.Client

    def reader(self, table: str, fmt: Format) -> ProtocolReader:
        return ProtocolReader(self.client, f"flights.{table}", fmt, self.data)

    def share(self, table: EvolvingTable) -> None:
        self.provider.share(table.name, history=True)

    def through_spark(self, table: str) -> Rows:
        """Spark's own Iceberg client on the REST door."""
        conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": door_url(self.server)}
        conf |= {".token": self.token, ".warehouse": "flights", ".cache-enabled": "false"}
        for key, value in conf.items():
            self.lake.spark.conf.set(f"spark.sql.catalog.{DOOR}{key}", value)
        return frame_rows(self.lake.spark.table(f"{DOOR}.{table}"))


@pytest.fixture(scope="module")
def doors(lake: Lake, settings: LakeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    catalog_url = f"sqlite:///{tmp_path_factory.mktemp('evolving')}/catalog.db"
    mine = ServerSettings(_env_file=None, state_dir=settings.state_dir, database_url=catalog_url, port=0)
    provider = Provider(mine, open_catalog(catalog_url))
    provider.share()
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
        yield Doors(lake, provider, server, token, server.profile(token), client, data)


@pytest.mark.campaign
@pytest.mark.parametrize(("seed", "format_version"), STORIES)
def test_a_random_story_reads_the_same_through_every_door(
    lake: Lake, doors: Doors, tmp_path: Path, seed: int, format_version: int
) -> None:
    table = EvolvingTable.drawn(lake, doors.provider.catalog, tmp_path, seed, format_version)
    table.publish_first()
    doors.share(table)
    for number in range(PUBLICATIONS):
        told = table.story[0] if number == 0 else table.publish_next()
        try:
            require_same_rows(doors, table.name, told)
            if number:
                require_changes(doors, table.name, table.story[-2], told)
        except BaseException as error:
            error.add_note(
                f"story {seed} of version {format_version}: {[one.statements for one in table.story]}"
            )
            raise
    require_history(doors, table)


def require_same_rows(doors: Doors, table: str, told: Told) -> None:
    """The newest publication through the Python client, the protocol, PyIceberg and Spark."""
    version = told.publication.version
    reader = doors.reader(table, "delta")
    answer = reader.snapshot()
    assert answer.version == version
    same_rows(reader.rows(answer), told.rows, "delta format")
    needs = set(answer.head.protocol.get("readerFeatures") or ())
    if not needs:
        parquet = doors.reader(table, "parquet")
        same_rows(parquet.rows(parquet.snapshot()), told.rows, "parquet format")
    if needs <= CLIENT_FEATURES:
        frame = quietly(
            delta_sharing.load_as_pandas, f"{doors.profile}#flights.{table}", use_delta_format=True
        )
        same_frame(frame, told.rows, "the Python client")
    schema = {"fields": [{"name": name, "type": kind} for name, kind in told.rows.columns]}
    arrow = rest_catalog(doors.server, doors.token).load_table(table).scan().to_arrow()
    same_rows(Rows.of_arrow(arrow, schema), told.rows, "PyIceberg")
    same_rows(doors.through_spark(table), told.rows, "Spark through the door")


def require_changes(doors: Doors, table: str, before: Told, told: Told) -> None:
    """What recipients are told of one publication makes it of the one before."""
    version = told.publication.version
    reader = doors.reader(table, "delta")
    answer = reader.changes(version, version)
    same_rows(applied(before.under(told), reader.change_rows(answer)), told.rows, f"changes of {version}")


def require_history(doors: Doors, table: EvolvingTable) -> None:
    """Every number still reads as it was."""
    for told in table.story:
        reader = doors.reader(table.name, "delta")
        answer: Any = reader.snapshot(version=told.publication.version)
        assert len(reader.rows(answer).rows) == len(told.rows.rows)
