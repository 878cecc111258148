"""Tables with equality deletes through the Delta Sharing API and the Iceberg REST API."""

from pathlib import Path
from typing import Any

import delta_sharing
import httpx
import pytest

from tests.builders.equality_tables import BY_PLACE, ID, NAME, PLACE, EqualityTable, a_table, ids
from tests.builders.grants import grant_to
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_rest import TABLE, door
from tests.builders.sharing import a_provider, a_server


@pytest.fixture
def followed(tmp_path: Path) -> EqualityTable:
    """A table of two files and an equality delete, with a version that has one more of each."""
    table = a_table(tmp_path / "table", ID, NAME)
    table.add_rows([{1: n, 2: f"n{n}"} for n in range(4)], 1)
    table.delete_keys([ID], ids(2), 2)
    table.add_rows([{1: 2, 2: "changed"}], 2)
    return table


def test_every_api_serves_a_followed_table_with_equality_deletes(
    tmp_path: Path, followed: EqualityTable
) -> None:
    followed.commit()
    provider = a_provider(tmp_path)
    provider.follow_iceberg("lake.flights", followed.folder)
    provider.share("lake.flights", history=True)
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client, door(server, token) as iceberg:
        url = f"{server.profile(token)}#flights.lake.flights"

        def rows() -> list[tuple[int, str]]:
            frame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=True)
            return sorted(frame.itertuples(index=False, name=None))

        kept = [(0, "n0"), (1, "n1"), (3, "n3")]
        assert rows() == [*kept[:2], (2, "changed"), kept[2]]
        refused = client.post("shares/flights/schemas/lake/tables/flights/query", json={})
        assert (refused.status_code, "[ROW_LEVEL_DELETES]" in refused.text) == (400, True)

        [with_deletes] = [task for task in planned(iceberg) if "delete-file-references" in task["tasks"]]
        assert with_deletes["deletes"][0]["content"] == "equality-deletes"
        assert with_deletes["deletes"][0]["equality-ids"] == [1]
        assert with_deletes["tasks"]["delete-file-references"] == [0]

        followed.delete_keys([ID], ids(2, 3), 3)
        followed.commit()
        assert rows() == kept[:2]
        changes = client.get(
            "shares/flights/schemas/lake/tables/flights/changes?startingVersion=0",
            headers={"delta-sharing-capabilities": "responseformat=delta;readerfeatures=deletionvectors"},
        )
        assert (
            changes.status_code,
            "the changed rows of a table that is followed are not recorded" in changes.text,
        ) == (400, True)


def planned(client: httpx.Client) -> list[dict[str, Any]]:
    answer = client.post(f"{TABLE}/plan", json={})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return [{"tasks": task, "deletes": told.get("delete-files")} for task in told["file-scan-tasks"]]


def test_scans_of_some_rows_are_refused_where_keys_may_be_of_others(tmp_path: Path) -> None:
    """A grant by partition: keys of an unpartitioned spec may be of rows that it does not cover."""
    table = a_table(tmp_path / "table", ID, PLACE, specs=BY_PLACE[1:] + BY_PLACE[:1])
    for place in ("x", "y"):
        table.add_rows([{1: 1, 3: place}, {1: 2, 3: place}], 1, spec_id=1, partition=(place,))
    table.delete_keys([ID], ids(1), 2, spec_id=1, partition=("x",))
    provider = a_provider(tmp_path)
    provider.publish_iceberg("lake.flights", table.state())
    provider.share("lake.flights")
    token = provider.recipient(shares=())
    grant_to(provider, "bob", rule="place = 'x'")
    with a_server(provider) as server, door(server, token) as client:
        assert len(planned(client)) == 1
        table.delete_keys([ID], ids(77), 2)
        provider.publish_iceberg("lake.flights", table.state())
        answer = client.post(f"{TABLE}/plan", json={})
        assert (answer.status_code, "not shared with you" in answer.text) == (400, True)
