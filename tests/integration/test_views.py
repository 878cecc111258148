"""A view shows the rows and columns that its contract selects of a table: on main, to recipients, then and now.

Spark is the judge of what is selected; what recipients get is read from the files that the server hands out.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.errors import ContractError, NotAudited
from lakeshare_pipelines.share.publication import publish, publish_or_replay, rollback, rollback_with_views
from lakeshare_pipelines.share.shares import apply_declared_shares
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.delta import STAGED_FOLDER, table_location
from lakeshare_pipelines.wap.stage import reseal, select_view_rows, stage, staging_for
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Publication, open_catalog
from lakeshare_server.catalog.credentials import issue_token
from lakeshare_server.catalog.sharing import create_recipient, editing, grant
from lakeshare_server.settings import ServerSettings
from tests.builders.audits import of
from tests.builders.main_state import rows_at_each_step, rows_on_main
from tests.builders.recipients import Recipients
from tests.builders.sets import a_delivery, an_order, green
from tests.builders.sharing import Provider, Running, a_server

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
SETS = (f"viewed{number}" for number in itertools.count(1))
SELECTED = "amount > 3 AND customer <> 'nobody'"
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: SET
name: SET
version: 1.0.0
status: active
servers:
  - {server: lake, type: local, format: FORMAT}
schema:
  - name: orders
    customProperties:
      - {property: source, value: orders}
    properties:
      - {name: day, logicalType: date, partitioned: true, partitionKeyPosition: 1}
      - {name: id, logicalType: integer, physicalType: int}
      - {name: customer, logicalType: string}
      - {name: email, logicalType: string, classification: pii}
      - {name: amount, logicalType: number, physicalType: double}
VIEWS
customProperties:
  - {property: partitioning, value: daily}
  - {property: firstPartition, value: "2024-01-01"}
  - {property: shares, value: [{share: SET, schema: shop, tables: [TABLES]}]}
"""
VIEWS = f"""\
  - name: large
    physicalType: view
    customProperties:
      - {{property: view, value: {{of: orders, columns: [day, id, amount], where: "{SELECTED}"}}}}
      - {{property: drift, value: {{maxShrinkFraction: 0.9}}}}
  - name: by_party
    customProperties:
      - property: view
        value:
          of: orders
          columns: [day, id]
          perRecipient: {{column: party, value: "array(customer, if(id % 2 = 0, 'auditor', null))", property: party}}
"""


def a_set(
    folder: Path, name: str, table_format: str, views: str = VIEWS, version: str = "1.0.0"
) -> SetContract:
    """Orders by day with views of them, all of them shared."""
    tables = "orders, large, by_party" if views else "orders"
    text = (
        CONTRACT.replace("version: 1.0.0", f"version: {version}")
        .replace("VIEWS\n", views)
        .replace("TABLES", tables)
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("SET", name).replace("FORMAT", table_format))
    return load_contract(path)


@pytest.fixture(scope="module", params=["iceberg", "delta"])
def viewed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, lake: Lake, catalog: Catalog
) -> tuple[SetContract, list[list[Publication]]]:
    """A set with views, and what its runs published: both days; Monday again; Tuesday again after a rollback of orders
    alone, which the views missed; and a rollback of all. The third run is audited: it has what the others have."""
    contract = a_set(tmp_path_factory.mktemp("viewed"), next(SETS), request.param)
    orders = contract.table("orders")
    a_delivery(lake.settings, contract, MONDAY, [an_order(MONDAY, number) for number in (1, 2)])
    a_delivery(lake.settings, contract, TUESDAY, [an_order(TUESDAY, 14, customer="nobody")])
    published = [run(lake, catalog, contract, MONDAY, TUESDAY)]
    a_delivery(lake.settings, contract, MONDAY, [an_order(MONDAY, number) for number in range(1, 6)])
    published.append(run(lake, catalog, contract, MONDAY))
    rollback(lake, catalog, contract, orders, 0)
    a_delivery(lake.settings, contract, TUESDAY, [an_order(TUESDAY, number) for number in (11, 12, 16)])
    published.append(run(lake, catalog, contract, TUESDAY, is_audited=True))
    published.append(rollback_with_views(lake, catalog, contract, orders, 1))
    # The number of a rollback stands for what it shows, which is there already.
    published.append(rollback_with_views(lake, catalog, contract, orders, 4))
    return contract, published


def run(
    lake: Lake, catalog: Catalog, contract: SetContract, *days: str, is_audited: bool = False
) -> list[Publication]:
    staged = stage(lake, contract, days, str(uuid4()))
    verdicts = audit_and_save(lake, contract, staged) if is_audited else green(contract, staged)
    return publish_or_replay(lake, catalog, contract, staged, verdicts)


def test_a_view_follows_the_days_of_its_table_and_makes_up_for_what_it_missed(viewed):
    _, published = viewed
    numbers = [{p.table.rsplit(".", 1)[-1]: (p.version, p.rows) for p in run} for run in published]

    assert numbers == [
        # None is large yet: 14 is nobody's. A row is its customer's, an even one the auditor's too.
        {"orders": (0, 3), "large": (0, 0), "by_party": (0, 5)},
        {"orders": (1, 6), "large": (1, 3), "by_party": (1, 9)},
        # Monday's 3, 4, 5 were gone from the table, and no run had told the views.
        {"orders": (3, 5), "large": (2, 3), "by_party": (2, 8)},
        {"orders": (4, 6), "large": (3, 3), "by_party": (3, 9)},
        {"orders": (4, 6), "large": (3, 3), "by_party": (3, 9)},
    ]


def test_what_is_on_main_is_what_spark_selects_of_the_table(lake, viewed):
    contract, _ = viewed
    orders = rows_at_each_step(lake, contract, "orders")

    assert rows_on_main(lake, contract, "large") == [
        (day, number, amount)
        for day, number, customer, _, amount in orders
        if amount > 3 and customer != "nobody"
    ]
    whose = [
        (day, n, who) for day, n, customer, _, _ in orders for who in (customer, "auditor") if who or n % 2
    ]
    assert rows_at_each_step(lake, contract, "by_party") == sorted(
        (day, n, who) for day, n, who in whose if who != "auditor" or n % 2 == 0
    )


@pytest.fixture(scope="module")
def running(lake: Lake, catalog: Catalog) -> Iterator[Running]:
    settings = ServerSettings(_env_file=None, state_dir=lake.settings.state_dir, port=0)
    with a_server(Provider(settings, open_catalog(settings.catalog_url))) as one:
        yield one


def test_no_recipient_gets_more_of_it_now_or_then_or_as_changes(lake, catalog, running, viewed):
    contract, _ = viewed
    apply_declared_shares(catalog, [contract])
    _, token = Recipients(catalog).add(f"of-{contract.name}", [contract.name])
    table = f"/shares/{contract.name}/schemas/shop/tables/large"

    with running.client(token) as client:
        versions = [
            read(client, client.post(f"{table}/query", json={"version": number})) for number in range(4)
        ]
        since = [read(client, client.post(f"{table}/query", json={"startingVersion": 0}))]
        if contract.tables[0].format == "iceberg":
            since.append(read(client, client.get(f"{table}/changes", params={"startingVersion": 0})))

    ids = [sorted(rows["id"].to_pylist()) if rows.num_rows else [] for rows in versions]
    assert ids == [[], [3, 4, 5], [11, 12, 16], [3, 4, 5]]
    for rows in (*versions[1:], *since):
        # The files themselves have no column but those of the view: the email is nowhere.
        assert {"id", "amount"} <= set(rows.column_names) <= {"day", "id", "amount", "_change_type"}
        assert min(rows["amount"].to_pylist()) > 3
        assert 14 not in rows["id"].to_pylist()


def test_each_recipient_gets_its_own_rows_and_without_a_value_none(catalog, running, viewed):
    contract, _ = viewed
    apply_declared_shares(catalog, [contract])
    table = f"/shares/{contract.name}/schemas/shop/tables/by_party"

    got = {}
    for party in ("c4", "auditor", None):
        with running.client(a_reader(catalog, contract, party)) as client:
            # Now, when there was less of it, and all that was ever added or removed.
            for asked in ({}, {"version": 2}, {"startingVersion": 0}):
                rows = read(client, client.post(f"{table}/query", json=asked))
                got[party, *asked] = set(rows["id"].to_pylist()) if rows.num_rows else set()

    assert got == {
        ("c4",): {4},
        ("c4", "version"): set(),
        ("c4", "startingVersion"): {4},
        ("auditor",): {2, 4, 14},
        ("auditor", "version"): {2, 12, 16},
        ("auditor", "startingVersion"): {2, 4, 12, 14, 16},
        (None,): set(),
        (None, "version"): set(),
        (None, "startingVersion"): set(),
    }


def a_reader(catalog: Catalog, contract: SetContract, party: str | None) -> str:
    """The token of a new recipient of the set's share."""
    name, properties = f"{party}-of-{contract.name}", {} if party is None else {"party": party}
    with editing(catalog, "tests") as edit:
        create_recipient(edit, name, properties=properties)
        grant(edit, contract.name, recipient=name)
        return issue_token(edit, name).secret


def test_a_view_is_shared_as_one_with_the_rule_of_its_recipients(catalog, viewed):
    from sqlalchemy import select

    from lakeshare_server.catalog.models import SharedTableRow

    contract, _ = viewed
    apply_declared_shares(catalog, [contract])
    with catalog.reading() as session:
        mine = select(SharedTableRow).where(SharedTableRow.lake_table.startswith(f"{contract.name}."))
        shared = {row.name: (row.kind, row.rule) for row in session.scalars(mine)}

    assert shared == {
        "orders": ("TABLE", None),
        "large": ("VIEW", None),
        "by_party": ("VIEW", "party = current_recipient('party')"),
    }


def test_what_is_not_the_selection_any_more_is_not_published(lake, catalog, ledger, viewed, tmp_path):
    contract, published = viewed
    views = VIEWS.replace("amount > 3", "amount > 100").replace(
        "{property: drift", "{property: allowSchemaChanges, value: true}\n      - {property: drift"
    )
    other = a_set(tmp_path, contract.name, contract.tables[0].format, views, version="2.0.0")
    a_delivery(lake.settings, other, TUESDAY, [an_order(TUESDAY, n) for n in (11, 12, 15)])
    staged = stage(lake, other, [TUESDAY], str(uuid4()))
    orders = other.table("orders")
    folder = f"{table_location(lake.settings, orders)}/{STAGED_FOLDER}/{staged.ref}"
    place = lake.table_at(orders.name, staged.ref) if orders.format == "iceberg" else f"delta.`{folder}`"
    lake.spark.sql(f"DELETE FROM {place} WHERE id = 15")

    tampered = replace(staged, head=staging_for(lake, other).seal(staged.ref))
    verdicts = audit_and_save(lake, other, tampered)

    # One was defined anew, of the other the table was changed after it was written.
    assert "another physicalName" in of(verdicts, "selection", "large").reason
    assert "`lakeshare wap retry` makes the view again" in of(verdicts, "selection", "by_party").reason
    # A day without rows is no error of a view, but it is drift.
    assert not of(verdicts, "drift", "large").passed
    with pytest.raises(NotAudited, match="selection"):
        publish(lake, catalog, other, tampered, verdicts)
    latest = {table.name: ledger.latest(table.name) for table in contract.tables}
    assert latest == {one.table: one for one in published[-1]}
    # What was repaired in the table shows in its views when the place is audited again: 11, and 12 twice.
    again = reseal(lake, other, staged)
    assert [again.find_table(f"{contract.name}.{name}").rows for name in ("orders", "by_party")] == [2, 3]


def test_rows_that_another_writer_added_to_a_view_are_not_published(
    lake: Lake, catalog: Catalog, tmp_path: Path
) -> None:
    contract = a_set(tmp_path, next(SETS), "delta")
    a_delivery(lake.settings, contract, MONDAY, [an_order(MONDAY, number) for number in range(1, 6)])
    run(lake, catalog, contract, MONDAY)
    location = table_location(lake.settings, contract.table("large"))
    lake.spark.sql(f"INSERT INTO delta.`{location}` VALUES (date'{MONDAY}', 1, 1.5D)")
    a_delivery(lake.settings, contract, TUESDAY, [an_order(TUESDAY, 11)])
    staged = stage(lake, contract, [TUESDAY], str(uuid4()))
    verdicts = audit_and_save(lake, contract, staged)
    assert not of(verdicts, "selection", "large").passed
    assert of(verdicts, "selection", "by_party").passed


def test_what_is_no_predicate_over_the_table_is_told_with_its_place(lake, tmp_path):
    contract = a_set(tmp_path, "wrong", "delta", VIEWS.replace("amount > 3", "amuont > 3"))
    table = contract.table("large")
    rows = lake.spark.sql("SELECT date'2024-01-01' AS day, 1 AS id, 'c' AS customer, 1.5D AS amount")
    with pytest.raises(ContractError, match=r"wrong\.yaml:\d+: large\.view\.where.*amuont"):
        select_view_rows(contract, table, table.view, rows)


def read(client: httpx.Client, answer: httpx.Response) -> pa.Table:
    """The rows of all data files of an answer, whatever it calls them."""
    assert answer.status_code == 200, answer.text
    said = [json.loads(line) for line in answer.text.splitlines()]
    files = [line[kind] for line in said for kind in ("file", "add", "remove", "cdf") if kind in line]
    tables = [pq.read_table(BytesIO(client.get(one["url"]).content)) for one in files]
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
