"""What a followed Iceberg table tells of its changes: what its files tell, and where they do not, the reason."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.builders.followed_iceberg import OwnedTable, following, refused, version_of
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.sharing import FLIGHTS, a_provider, a_server


@pytest.fixture
def table(tmp_path: Path) -> OwnedTable:
    """Versions 0 and 1 are appended; 2 is without a whole file, of a day, and 3 without some rows."""
    owned = OwnedTable(tmp_path / "warehouse")
    owned.append_days(3)
    owned.table.delete("day = '2013-01-03'")
    owned.table.delete("distance = 0")
    return owned


@pytest.fixture
def client(table: OwnedTable, tmp_path: Path) -> Iterator[httpx.Client]:
    provider = following(a_provider(tmp_path), table.folder)
    with a_server(provider) as server, server.client(provider.recipient()) as opened:
        yield opened


@pytest.mark.parametrize("fmt", ["delta", "parquet"])
def test_windows_lead_from_one_version_to_the_last(client: httpx.Client, fmt: Format) -> None:
    with httpx.Client(verify=False) as data:
        reader = ProtocolReader(client, "flights.lake.flights", fmt, data)
        assert version_of(client) == 3
        last, shape = reader.snapshot(), reader.snapshot().head.shape
        for start in range(3):
            copy = reader.replica(reader.snapshot(version=start), [reader.window(start + 1, 3)], shape)
            assert copy.rows == reader.rows(last).rows


def test_the_feed_tells_what_files_tell(client: httpx.Client) -> None:
    with httpx.Client(verify=False) as data:
        reader = ProtocolReader(client, "flights.lake.flights", "delta", data)
        told = [(file.kind, file.version) for file in reader.changes(0, 2).files]
        assert told == [("add", 0), *[("add", 1)] * 3, ("remove", 2)]
        assert len(reader.change_rows(reader.changes(1, 1)).rows) == 12


def test_the_feed_is_refused_from_where_rows_were_rewritten(client: httpx.Client) -> None:
    for params in ({"startingVersion": 3}, {"startingVersion": 0}):
        answer = client.get(f"{FLIGHTS}/changes", params=params)
        refused(answer, "version 3", "the changed rows of a table that is followed are not recorded")
