"""Lineage follows the recorded numbers, through rollbacks and maintenance, and tells which days are out of date."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.contracts.model import Input, SetContract, Table
from lakeshare_pipelines.contracts.partitioning import Partitioning, SecondDimension
from lakeshare_pipelines.errors import NoSuchPublication
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.lineage import (
    LineageNode,
    find_stale_partitions,
    format_lineage,
    trace_lineage,
)
from lakeshare_pipelines.wap.inputs import find_inputs
from lakeshare_pipelines.wap.staged import ReadTable
from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.publications import a_publication

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
REGIONS = {"t": {"regions.t": {"version": 0, "is_whole": True}}}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_catalog(f"sqlite:///{tmp_path / 'catalog.db'}"))


def publish(ledger: Ledger, table: str, *days: str, **fields: object) -> int:
    """A publication of one table; `inputs` are numbers by table, in a tuple if only rows of the run were read.

    The kinds of partitions of both tables follow in the tuple.
    """
    inputs = {
        name: ReadTable(number[0], False, number[1:] or None).as_record()
        if isinstance(number, tuple)
        else {"version": number, "is_whole": True}
        for name, number in dict(fields.pop("inputs", {})).items()
    }
    verdicts = {
        "deliveries": {day: f"{table} {day}" for day in days},
        "inputs": {table: inputs} if inputs else {},
    }
    set_name = table.split(".")[0]
    common = {"set_name": set_name, "format": "iceberg", "partition": "...".join(days)}
    row = a_publication(table=table, verdicts=verdicts, **common, **fields)
    [published] = ledger.append([row])
    return published.version


def a_set(partitioning: str, *inputs: Input, source: str | None = None) -> SetContract:
    table = Table("gold.t", "iceberg", (), source=source, transform=None if source else "a:b", inputs=inputs)
    return SetContract(
        *("gold", "1", "", (), "", (table,)),
        partitioning=Partitioning("daily", MONDAY) if partitioning == "daily" else Partitioning(),
        shares=(),
        digest="d",
        path=Path("gold.yaml"),
    )


def test_a_whole_set_is_stale_by_any_newer_number_but_those_of_maintenance(ledger):
    gold = a_set("none", Input("shop.t"))
    assert find_stale_partitions(ledger, gold) == {}
    publish(ledger, "shop.t", MONDAY)
    assert find_stale_partitions(ledger, gold) == {"all": {"shop.t": 0}}
    publish(ledger, "gold.t", "all", inputs={"shop.t": 0})
    publish(ledger, "shop.t", MONDAY, maintenance_of=0)
    assert find_stale_partitions(ledger, gold) == {}
    publish(ledger, "shop.t", TUESDAY)
    assert find_stale_partitions(ledger, gold) == {"all": {"shop.t": 2}}
    # With files of its own, it is run again; it is not begun by its inputs.
    assert find_stale_partitions(ledger, replace(gold, tables=(replace(gold.tables[0], source="t"),)))


def test_days_follow_the_same_days_and_rollbacks(ledger):
    gold = a_set("daily", Input("shop.t", "day"))
    for day in (MONDAY, TUESDAY):
        publish(ledger, "shop.t", day)
    publish(ledger, "gold.t", MONDAY, TUESDAY, inputs={"shop.t": (1,)})
    assert find_stale_partitions(ledger, gold) == {}
    publish(ledger, "shop.t", MONDAY)
    assert list(find_stale_partitions(ledger, gold)) == [MONDAY]
    publish(ledger, "gold.t", MONDAY, inputs={"shop.t": (2,)})
    publish(ledger, "shop.t", MONDAY, rollback_of=0)
    assert list(find_stale_partitions(ledger, gold)) == [MONDAY, TUESDAY]


def test_a_month_follows_its_days_and_names_the_same_names(ledger):
    days = Input("shop.t", "day", "date", Partitioning("daily", "2024-01-01"))
    months = replace(a_set("none", days), partitioning=Partitioning("monthly", "2024-01-01"))
    for day in ("2024-01-30", "2024-01-31", "2024-02-01"):
        publish(ledger, "shop.t", day)
    assert list(find_stale_partitions(ledger, months)) == ["2024-01-01", "2024-02-01"]
    publish(ledger, "gold.t", "2024-01-01", inputs={"shop.t": (2,)})
    assert list(find_stale_partitions(ledger, months)) == ["2024-02-01"]
    publish(ledger, "gold.t", "2024-02-01", inputs={"shop.t": (2,)})
    assert find_stale_partitions(ledger, months) == {}
    publish(ledger, "shop.t", "2024-01-15")
    assert list(find_stale_partitions(ledger, months)) == ["2024-01-01"]


def test_days_of_regions_follow_both_dimensions(ledger):
    second = SecondDimension("region", ("eu", "us"))
    cells = Partitioning("daily", MONDAY, second=second)
    days, regions = Partitioning("daily", MONDAY), Partitioning("dynamic")
    gold = replace(
        a_set(
            "none",
            Input("shop.t", "day", "date", days),
            Input("rates.t", "region", "string", regions),
            Input("stock.t", "day", "date", cells),
        ),
        partitioning=cells,
    )
    publish(ledger, "rates.t", "eu", "us")
    publish(ledger, "shop.t", MONDAY, TUESDAY)
    publish(ledger, "stock.t", f"{MONDAY}/eu", f"{MONDAY}/us", f"{TUESDAY}/eu")
    found = [f"{MONDAY}/eu", f"{MONDAY}/us", f"{TUESDAY}/eu"]
    assert list(find_stale_partitions(ledger, gold)) == found
    publish(ledger, "gold.t", *found, inputs={"shop.t": (0,), "rates.t": (0,), "stock.t": (0,)})
    assert find_stale_partitions(ledger, gold) == {}
    publish(ledger, "rates.t", "us")
    assert list(find_stale_partitions(ledger, gold)) == [f"{MONDAY}/us"]
    publish(ledger, "gold.t", f"{MONDAY}/us", inputs={"shop.t": (0,), "rates.t": (1,), "stock.t": (0,)})
    publish(ledger, "shop.t", MONDAY)
    assert list(find_stale_partitions(ledger, gold)) == [f"{MONDAY}/eu", f"{MONDAY}/us"]
    # A day of a set with one dimension is made of all regions.
    [table] = gold.tables
    table = replace(table, name="sums.t", inputs=(Input("stock.t", "day", "date", cells),))
    sums = replace(gold, name="sums", tables=(table,), partitioning=days)
    assert list(find_stale_partitions(ledger, sums)) == [MONDAY, TUESDAY]
    publish(ledger, "sums.t", MONDAY, TUESDAY, inputs={"stock.t": (0,)})
    publish(ledger, "stock.t", f"{MONDAY}/us")
    assert list(find_stale_partitions(ledger, sums)) == [MONDAY]


def test_all_names_follow_an_input_without_names(ledger):
    regions = Input("shop.t", "region", "string", Partitioning("dynamic"))
    named = replace(
        a_set("none", regions, Input("rates.t")), partitioning=Partitioning("static", values=("eu", "us"))
    )
    publish(ledger, "rates.t", "all")
    for name in ("asia", "eu", "us"):
        publish(ledger, "shop.t", name)
    assert list(find_stale_partitions(ledger, named)) == ["eu", "us"]
    publish(ledger, "gold.t", "eu", "us", inputs={"shop.t": (2,), "rates.t": 0})
    assert find_stale_partitions(ledger, named) == {}
    publish(ledger, "shop.t", "us")
    assert list(find_stale_partitions(ledger, named)) == ["us"]
    publish(ledger, "gold.t", "us", inputs={"shop.t": (3,), "rates.t": 0})
    publish(ledger, "rates.t", "all")
    assert list(find_stale_partitions(ledger, named)) == ["eu", "us"]


def test_a_set_with_deliveries_is_not_begun_by_its_inputs(ledger):
    publish(ledger, "shop.t", MONDAY)
    assert find_stale_partitions(ledger, a_set("daily", Input("shop.t", "day"), source="t")) == {}


def test_the_tree_names_deliveries_and_the_numbers_of_earlier_days(ledger):
    publish(ledger, "regions.t", "all")
    publish(ledger, "shop.t", MONDAY)
    publish(ledger, "shop.t", TUESDAY)
    publish(ledger, "gold.t", MONDAY, inputs={"shop.t": (0,), "regions.t": 0})
    publish(ledger, "gold.t", TUESDAY, inputs={"shop.t": (1,), "regions.t": 0})
    publish(ledger, "gold.t", TUESDAY, maintenance_of=1)
    publish(ledger, "top.t", "all", inputs={"gold.t": 2})

    lines = [
        line.split(", run ")[0].split(", 20")[0] for line in format_lineage(trace_lineage(ledger, "top.t"))
    ]

    assert lines == [
        "top.t publication 0",
        "  all: written by publication 0",
        "    gold.t publication 2, which repeats publication 1",
        f"      {TUESDAY}: written by publication 1",
        "        shop.t publication 1",
        f"          {TUESDAY}: written by publication 1",
        f"            delivery shop/{TUESDAY} shop.t {TUESDAY}",
        "        regions.t publication 0",
        "          all: written by publication 0",
        "            delivery regions/all regions.t all",
        f"      {MONDAY}: written by publication 0",
        "        shop.t publication 0",
        f"          {MONDAY}: written by publication 0",
        f"            delivery shop/{MONDAY} shop.t {MONDAY}",
        "        regions.t publication 0",
    ]
    with pytest.raises(NoSuchPublication):
        trace_lineage(ledger, "gold.t", 7)


def test_the_tree_has_the_hours_of_a_day_and_the_days_of_a_month(ledger):
    publish(ledger, "shop.t", f"{MONDAY}-06", f"{MONDAY}-07")
    publish(ledger, "shop.t", f"{TUESDAY}-06")
    publish(ledger, "shop.t", f"{MONDAY}-07", f"{TUESDAY}-07")
    publish(ledger, "gold.t", MONDAY, inputs={"shop.t": (2, "daily", "hourly", "UTC")})
    publish(ledger, "gold.t", TUESDAY, inputs={"shop.t": (2, "daily", "hourly", "UTC")})
    publish(ledger, "top.t", MONDAY, inputs={"gold.t": (0, "monthly", "daily", "UTC")})

    def list_hours(node: LineageNode) -> list[tuple[int, tuple[str, ...]]]:
        return [(part.version, tuple(part.deliveries)) for part in node.parts[0].inputs[0].parts]

    assert list_hours(trace_lineage(ledger, "gold.t", 0)) == [(2, (f"{MONDAY}-07",)), (0, (f"{MONDAY}-06",))]
    assert list_hours(trace_lineage(ledger, "gold.t")) == [(2, (f"{TUESDAY}-07",)), (1, (f"{TUESDAY}-06",))]
    [days] = trace_lineage(ledger, "top.t").parts[0].inputs
    assert days == trace_lineage(ledger, "gold.t", 0)


def test_the_command_prints_the_tree_or_json(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path))
    ledger = Ledger(open_catalog(LakeSettings(_env_file=None).catalog_url))
    publish(ledger, "shop.t", MONDAY)
    publish(ledger, "gold.t", MONDAY, inputs={"shop.t": (0,)})

    tree, record = (CliRunner().invoke(app, ["lineage", "gold.t", *more]) for more in ([], ["0", "--json"]))

    assert f"        delivery shop/{MONDAY} shop.t {MONDAY}" in tree.stdout.splitlines()
    [part] = json.loads(record.stdout)["parts"]
    [read] = part["inputs"]
    assert (part["version"], part["partitions"], part["deliveries"]) == (0, [MONDAY], {})
    assert (read["table"], read["parts"][0]["deliveries"]) == ("shop.t", {MONDAY: f"shop.t {MONDAY}"})
    missing = CliRunner().invoke(app, ["lineage", "gold.none"])
    assert str(missing.exception).startswith(
        "table gold.none has no publication: the ledger does not have it"
    )


def test_a_set_that_is_published_meanwhile_is_read_at_the_numbers_of_one_run(tmp_path):
    class Racing(Ledger):
        """A run of the set ends between two reads."""

        is_published = False

        def latest(self, table):
            found = super().latest(table)
            if not self.is_published:
                self.is_published = True
                publish(self, "shop.a", MONDAY)
                publish(self, "shop.b", MONDAY)
            return found

    racing = Racing(open_catalog(f"sqlite:///{tmp_path / 'racing.db'}"))
    for table in ("shop.a", "shop.b"):
        publish(racing, table, MONDAY)

    found = find_inputs(racing, a_set("none", Input("shop.a"), Input("shop.b")), {})

    assert {name: publication.version for name, publication in found.items()} == {"shop.a": 1, "shop.b": 1}
