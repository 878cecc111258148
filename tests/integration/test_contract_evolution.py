"""A published table follows its contract: small changes in place, breaking ones as a new table beside the old one.

Recipients read the old table at its last number, with a notice in every API, until the last day that the contract has.
"""

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import select

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.share.publication import publish, unchanged_run
from lakeshare_pipelines.share.shares import apply_declared_shares
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.stage import list_staging_locations, stage
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Ledger, Publication, open_catalog
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import ServerSettings
from tests.builders.iceberg_rest import door, rest_catalog
from tests.builders.main_state import main_state, rows_on_main
from tests.builders.recipients import Recipients
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading
from tests.builders.sharing import Provider, Running, a_server

NAME, DELTA = "evolved", "evolved_delta"
MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
LAST_DAY = dt.date(2999, 1, 31)
EMAIL = "{name: email, logicalType: string, classification: pii}"
NOTE = f"{EMAIL}\n      - {{name: note, logicalType: string}}"
SECOND = {
    "version: 1.0.0": "version: 2.0.0",
    "name: orders\n": "name: orders_v2\n",
    f"physicalName: {NAME}.orders\n": f"physicalName: {NAME}.orders_v2\n",
    f"      - {EMAIL}\n": "",
    "FROM {orders}": "FROM {orders_v2}",
    "tables: [orders, totals]": "tables: [orders_v2, totals]",
}
RETIRE = f"  - {{property: retire, value: [{{table: orders, date: {LAST_DAY}, successor: orders_v2}}]}}"
NOTICE = (
    f"This table gets no new data and is shared until {LAST_DAY} (end of the day, UTC). "
    f"Read {NAME}_share.shop.orders_v2 instead."
)
PROPERTIES = {
    "lakeshare.retire": str(LAST_DAY),
    "lakeshare.successor": "shop.orders_v2",
    "lakeshare.notice": NOTICE,
}


@dataclass(frozen=True)
class Evolved:
    """A set of version 1.1.0 with its shares, a recipient of them, and the running server."""

    lake: Lake
    catalog: Catalog
    first: SetContract
    wider: SetContract
    folder: Path
    server: Running
    token: str

    def run(self, contract: SetContract, day: str, *, is_audited: bool = False) -> list[Publication]:
        staged = stage(self.lake, contract, [day], str(uuid4()))
        verdicts = audit(self.lake, contract, staged) if is_audited else green(contract, staged)
        return publish(self.lake, self.catalog, contract, staged, verdicts)

    def second(self) -> SetContract:
        return a_contract(self.folder, NAME, "iceberg", RETIRE, **SECOND)

    def tables(self) -> set[str]:
        with self.server.client(self.token) as client:
            listed = client.get(f"/shares/{NAME}_share/all-tables").json()["items"]
        return {table["name"] for table in listed}


def publish_first_day(lake: Lake, catalog: Catalog, contract: SetContract) -> None:
    """Neither its reading nor its audit is the subject."""
    staged = staged_without_reading(lake, contract, MONDAY, orders(MONDAY))
    publish(lake, catalog, contract, staged, green(contract, staged))


@pytest.fixture(scope="module")
def evolved(lake: Lake, catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evolved]:
    folder = tmp_path_factory.mktemp("contracts")
    first = a_contract(folder, NAME, "iceberg")
    a_delivery(lake.settings, first, MONDAY, orders(MONDAY))
    settings = ServerSettings(_env_file=None, state_dir=lake.settings.state_dir, port=0)
    with a_server(Provider(settings, open_catalog(settings.catalog_url))) as server:
        made = Evolved(lake, catalog, first, first, folder, server, "")
        publish_first_day(lake, catalog, first)
        apply_declared_shares(catalog, [first])
        _, token = Recipients(catalog).add(f"of-{NAME}", [f"{NAME}_share"])
        changes = {
            "version: 1.0.0": "version: 1.1.0",
            EMAIL: NOTE,
            "physicalType: int,": "physicalType: bigint,",
            # Files of the narrower type are written again for clients that could not read them.
            "{property: source, value: orders}": "{property: source, value: orders}\n      - {property: serveableTo, "
            "value: [python-parquet]}",
        }
        wider = a_contract(folder, NAME, "iceberg", **changes)
        a_delivery(lake.settings, wider, TUESDAY, [{**row, "note": "n"} for row in orders(TUESDAY)])
        made = Evolved(lake, catalog, first, wider, folder, server, token)
        made.run(wider, TUESDAY, is_audited=True)
        apply_declared_shares(catalog, [wider])
        yield made


def test_a_nullable_column_and_a_wider_type_are_published_in_place(evolved: Evolved) -> None:
    latest = Ledger(evolved.catalog).latest(f"{NAME}.orders")

    assert latest is not None
    assert (latest.version, latest.rows) == (1, 6)
    rows = rows_on_main(evolved.lake, evolved.wider, "orders")
    assert [row[-1] for row in rows] == [None] * 3 + ["n"] * 3
    frame = evolved.lake.table(f"{NAME}.orders")
    assert dict(frame.dtypes)["id"] == "bigint"


def test_a_contract_that_breaks_what_is_published_changes_nothing(evolved: Evolved) -> None:
    lake, catalog = evolved.lake, evolved.catalog
    dropped = {f"      - {EMAIL}\n": "", "tables: [orders, totals]": "tables: [totals]"}
    broken = a_contract(evolved.folder, NAME, "iceberg", **{"version: 1.0.0": "version: 1.2.0"}, **dropped)
    before = main_state(lake, broken), list_staging_locations(lake, [broken]), evolved.tables()

    assert unchanged_run(lake, catalog, broken, [MONDAY]) is None
    with pytest.raises(
        ContractError, match=r"evolved\.orders\.email: the column is gone.*give the contract version 2"
    ):
        stage(lake, broken, [MONDAY], str(uuid4()))
    with pytest.raises(ContractError, match=r"share entry evolved_share\.shop\.orders is gone"):
        apply_declared_shares(catalog, [broken])

    assert (main_state(lake, broken), list_staging_locations(lake, [broken]), evolved.tables()) == before


def test_a_new_major_version_is_a_new_table_beside_the_old_one_until_its_last_day(evolved: Evolved) -> None:
    catalog, second = evolved.catalog, evolved.second()
    old = Ledger(catalog).latest(f"{NAME}.orders")
    a_delivery(evolved.lake.settings, second, TUESDAY, [{**orders(TUESDAY, 1)[0], "note": "late"}])
    late = stage(evolved.lake, evolved.wider, [TUESDAY], str(uuid4()))

    published = evolved.run(second, MONDAY)
    # A run that was staged before cannot publish the old version again.
    with pytest.raises(ContractError, match=r"orders_v2: the table is gone"):
        publish(evolved.lake, catalog, evolved.wider, late, green(evolved.wider, late))
    applied = apply_declared_shares(catalog, [second])

    assert {row.table: row.version for row in published} == {f"{NAME}.orders_v2": 0, f"{NAME}.totals": 2}
    assert Ledger(catalog).latest(f"{NAME}.orders") == old
    assert (applied.added, applied.changed, applied.removed) == (
        (f"{NAME}_share.shop.orders_v2",),
        (f"{NAME}_share.shop.orders",),
        (),
    )
    assert evolved.tables() == {"orders", "orders_v2", "totals"}
    assert read_rows(evolved, "orders") == 6
    assert read_rows(evolved, "orders_v2") == 3
    check_notices(evolved)
    # Its name is not given to another table before that.
    renamed = {**SECOND, "tables: [orders, totals]": "tables: [{table: orders_v2, name: orders}, totals]"}
    other = a_contract(evolved.folder, NAME, "iceberg", RETIRE, **renamed, **{"lake}": "other}"})
    with pytest.raises((BadRequest, ContractError), match="orders"):
        apply_declared_shares(catalog, [other])

    assert not apply_declared_shares(catalog, [second], today=LAST_DAY).removed
    ended = apply_declared_shares(catalog, [second], today=LAST_DAY + dt.timedelta(days=1))
    assert ended.removed == (f"{NAME}_share.shop.orders",)
    assert evolved.tables() == {"orders_v2", "totals"}
    with catalog.reading() as session:
        removals = select(AuditRow.principal).where(
            AuditRow.action == "remove_table", AuditRow.object_name == f"{NAME}_share.shop.orders"
        )
        assert list(session.scalars(removals)) == ["contracts"]
    with pytest.raises(AssertionError, match="404"):
        read_rows(evolved, "orders")


def test_a_delta_table_gets_a_nullable_column_in_place_and_a_new_major_version_beside_it(
    lake: Lake, catalog: Catalog, tmp_path: Path
) -> None:
    first = a_contract(tmp_path, DELTA, "delta")
    wider = a_contract(tmp_path, DELTA, "delta", **{"version: 1.0.0": "version: 1.1.0", EMAIL: NOTE})
    changes = {old.replace(NAME, DELTA): new.replace(NAME, DELTA) for old, new in SECOND.items()}
    second = a_contract(tmp_path, DELTA, "delta", RETIRE, **changes)
    noted = [{**row, "note": "n"} for row in orders(TUESDAY)]
    a_delivery(lake.settings, first, MONDAY, orders(MONDAY))
    publish_first_day(lake, catalog, first)
    a_delivery(lake.settings, wider, TUESDAY, noted)
    staged = stage(lake, wider, [TUESDAY], str(uuid4()))
    publish(lake, catalog, wider, staged, green(wider, staged))
    assert [row[4] for row in rows_on_main(lake, wider, "orders")] == [None] * 3 + ["n"] * 3
    apply_declared_shares(catalog, [wider])
    narrower = a_contract(
        tmp_path, DELTA, "delta", **{"version: 1.0.0": "version: 2.0.0"}, **{f"      - {EMAIL}\n": ""}
    )
    with pytest.raises(ContractError, match=r"orders\.email"):
        stage(lake, narrower, [MONDAY], str(uuid4()))
    assert list_staging_locations(lake, [narrower]) == []

    staged = stage(lake, second, [MONDAY, TUESDAY], str(uuid4()))
    published = publish(lake, catalog, second, staged, green(second, staged))

    assert {row.table: row.version for row in published} == {f"{DELTA}.orders_v2": 0, f"{DELTA}.totals": 2}
    old, new = (Ledger(catalog).latest(f"{DELTA}.{name}") for name in ("orders", "orders_v2"))
    assert old is not None
    assert new is not None
    assert (old.version, old.rows, new.rows) == (1, 6, 6)
    settings = ServerSettings(_env_file=None, state_dir=lake.settings.state_dir, port=0)
    apply_declared_shares(catalog, [second])
    _, token = Recipients(catalog).add(f"of-{DELTA}", [f"{DELTA}_share"])
    with (
        a_server(Provider(settings, open_catalog(settings.catalog_url))) as server,
        server.client(token) as client,
    ):
        for table, columns in (
            ("orders", ["day", "id", "customer", "email", "note", "amount"]),
            ("orders_v2", ["day", "id", "customer", "amount"]),
        ):
            path = f"/shares/{DELTA}_share/schemas/shop/tables/{table}"
            metadata = json.loads(client.get(f"{path}/metadata").text.splitlines()[1])["metaData"]
            assert [field["name"] for field in json.loads(metadata["schemaString"])["fields"]] == columns
            files = client.post(f"{path}/query", json={}).text.splitlines()[2:]
            assert sum(json.loads(json.loads(line)["file"]["stats"])["numRecords"] for line in files) == 6
            assert ("lakeshare.retire" in metadata["configuration"]) is (table == "orders")


def read_rows(evolved: Evolved, table: str) -> int:
    """The number of rows that PyIceberg reads by the server."""
    with evolved.server.client(evolved.token) as client:
        response = client.post(f"/shares/{NAME}_share/schemas/shop/tables/{table}/query", json={})
        assert response.status_code == 200, f"{response.status_code} {response.text}"
    loaded = rest_catalog(evolved.server, evolved.token, f"{NAME}_share").load_table(f"shop.{table}")
    return int(loaded.scan().to_arrow().num_rows)


def check_notices(evolved: Evolved) -> None:
    """Compares what each API shows of the old table and of the new one."""
    server, token = evolved.server, evolved.token
    with server.client(token) as client:
        for name, expected in (("orders", PROPERTIES), ("orders_v2", {})):
            path = f"/shares/{NAME}_share/schemas/shop/tables/{name}"
            parquet = configuration_of(client.get(f"{path}/metadata"))
            delta = configuration_of(
                client.get(f"{path}/metadata", headers={"delta-sharing-capabilities": "responseformat=delta"})
            )
            for found in (parquet, delta):
                assert {
                    key: value for key, value in found.items() if key.startswith("lakeshare.")
                } == expected
    with door(server, token) as client:
        loaded = client.get(f"/v1/shares/{NAME}_share/namespaces/shop/tables/orders").json()
        assert loaded["metadata"]["properties"].items() >= PROPERTIES.items()


def configuration_of(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 200, response.text
    fields = json.loads(response.text.splitlines()[1])["metaData"]
    found: dict[str, str] = fields.get("deltaMetadata", fields)["configuration"]
    return found
