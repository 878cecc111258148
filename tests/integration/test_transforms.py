"""Tables made of published tables of other sets, read at numbers that are recorded and can be read again."""

import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from uuid import uuid4

import pytest

from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.errors import ContractError, InputError, TransformError
from lakeshare_pipelines.share import publication
from lakeshare_pipelines.share.lineage import find_stale_partitions, format_lineage, trace_lineage
from lakeshare_pipelines.share.publication import publish, repair, unchanged_run
from lakeshare_pipelines.wap import inputs
from lakeshare_pipelines.wap.inputs import parse_pins
from lakeshare_pipelines.wap.stage import stage, staging_for
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Ledger, Publication, lock_set
from tests.builders.gold_sets import write_gold, write_module, write_sums
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
NUMBERS = itertools.count(1)


@dataclass
class Gold:
    """Two delivered sets, and one that is made of them."""

    lake: Lake
    catalog: Catalog
    shop: SetContract
    other: SetContract
    contract: SetContract
    sums: SetContract

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.catalog)

    @property
    def orders(self) -> str:
        return f"{self.shop.name}.orders"

    def deliver(self, contract: SetContract, day: str, count: int) -> list[Publication]:
        rows = orders(day, count)
        a_delivery(self.lake.settings, contract, day, rows)
        staged = staged_without_reading(self.lake, contract, day, rows)
        return publish(self.lake, self.catalog, contract, staged, green(contract, staged))

    def run(self, *days: str, pins: Mapping[str, int] = MappingProxyType({})) -> list[Publication]:
        contract = self.contract if days else self.sums
        staged = stage(self.lake, contract, days or ["all"], str(uuid4()), pins=pins)
        return publish(self.lake, self.catalog, contract, staged, green(contract, staged))

    def stale(self) -> list[str]:
        return list(find_stale_partitions(self.ledger, self.contract))

    def with_transform(self, name: str) -> SetContract:
        enriched, days = self.contract.tables
        module = str(enriched.transform).partition(":")[0]
        return replace(self.contract, tables=(replace(enriched, transform=f"{module}:{name}"), days))


@pytest.fixture(scope="module")
def gold(tmp_path_factory: pytest.TempPathFactory, lake: Lake, catalog: Catalog) -> Iterator[Gold]:
    number = next(NUMBERS)
    folder, code = tmp_path_factory.mktemp("gold"), tmp_path_factory.mktemp("code")
    names = [f"{name}{number}" for name in ("goldshop", "goldother", "gold", "goldsums")]
    a_contract(folder, names[0], "delta")
    a_contract(folder, names[1], "iceberg")
    module = f"gold_code_{uuid4().hex[:8]}"
    write_module(code, module, names[0], names[1])
    write_gold(folder, names[2], f"{module}:enrich", names[0], names[1], "delta")
    write_sums(folder, names[3], names[2], "iceberg")
    sets = {contract.name: contract for contract in load_contracts(folder)}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(code))
        yield Gold(lake, catalog, *(sets[name] for name in names))
        sys.modules.pop(module, None)


def test_a_set_is_made_of_numbers_that_are_recorded_and_can_be_pinned_again(gold, monkeypatch):
    lake, ledger, shop, contract = gold.lake, gold.ledger, gold.shop, gold.contract
    assert gold.stale() == []
    with pytest.raises(InputError, match=f"{gold.orders} has no publication. Publish the set"):
        unchanged_run(lake, gold.catalog, contract, [MONDAY])
    gold.deliver(shop, MONDAY, 3)
    gold.deliver(gold.other, MONDAY, 2)
    gold.deliver(gold.other, TUESDAY, 2)
    assert gold.stale() == [MONDAY]

    first = gold.run(MONDAY)

    assert [(row.version, row.rows) for row in first] == [(0, 3), (0, 1)]
    made_of_monday = rows_on_main(lake, contract, "enriched")
    assert rows_on_main(lake, contract, "days") == [(made_of_monday[0][0], 3, 3)]
    assert gold.stale() == []
    assert unchanged_run(lake, gold.catalog, contract, [MONDAY])

    # Another day of a daily input changes nothing of Monday; Monday again does.
    gold.deliver(shop, TUESDAY, 1)
    assert gold.stale() == [TUESDAY]
    assert unchanged_run(lake, gold.catalog, contract, [MONDAY])
    gold.deliver(shop, MONDAY, 5)
    assert gold.stale() == [MONDAY, TUESDAY]

    # A crash between main and the ledger: the record of inputs comes from storage.
    with monkeypatch.context() as patch:
        patch.delattr(publication, "record_landed")
        with pytest.raises(NameError):
            gold.run(MONDAY, TUESDAY)
    second = repair(lake, gold.catalog, contract)
    assert [row.rows for row in second] == [6, 2]
    assert gold.stale() == []
    assert second[0].verdicts["inputs"] == {
        f"{contract.name}.enriched": {
            gold.orders: {"version": 2, "is_whole": False},
            f"{gold.other.name}.totals": {"version": 1, "is_whole": True},
        },
        f"{contract.name}.days": {
            f"{contract.name}.enriched": {"version": None, "is_whole": False},
            f"{shop.name}.totals": {"version": 2, "is_whole": False},
        },
    }

    # A set that is replaced as a whole reads all days.
    [whole] = gold.run()
    assert (whole.version, whole.rows, whole.partition) == (0, 1, "all")
    assert rows_on_main(lake, gold.sums, "sums") == [(6, 2)]
    assert unchanged_run(lake, gold.catalog, gold.sums, ["all"])

    pins = parse_pins(f"{gold.orders}@0, {shop.name}.totals@0,")
    assert unchanged_run(lake, gold.catalog, contract, [MONDAY], pins) is None
    third = gold.run(MONDAY, pins=pins)
    assert [(row.version, row.rows) for row in third] == [(2, 4), (2, 2)]
    assert [
        row for row in rows_on_main(lake, contract, "enriched") if str(row[0]) == MONDAY
    ] == made_of_monday
    assert gold.stale() == [MONDAY]

    assert list(find_stale_partitions(ledger, gold.sums)) == ["all"]
    [of_sums] = trace_lineage(ledger, f"{gold.sums.name}.sums").parts[0].inputs
    days = trace_lineage(ledger, f"{contract.name}.days")
    assert of_sums == trace_lineage(ledger, f"{contract.name}.days", 1)
    assert [(part.version, part.partitions) for part in days.parts] == [(2, (MONDAY,)), (1, (TUESDAY,))]
    assert [(read.table, read.version) for read in days.parts[0].inputs] == [
        (f"{contract.name}.enriched", 2),
        (f"{shop.name}.totals", 0),
    ]
    enriched = days.parts[0].inputs[0].parts[0]
    assert [(read.table, read.version) for read in enriched.inputs] == [
        (gold.orders, 0),
        (f"{gold.other.name}.totals", 1),
    ]
    delivered = ledger.at(gold.orders, 0).verdicts["deliveries"]
    assert enriched.inputs[0].parts[0].deliveries == delivered
    lines = format_lineage(trace_lineage(ledger, f"{contract.name}.enriched", 0))
    assert f"      {MONDAY}: written by publication 0, run {ledger.at(gold.orders, 0).run_id}" in lines
    assert f"        delivery {shop.name}/{MONDAY} {delivered[MONDAY]}" in lines

    # Expired numbers cannot be pinned, nor those of other tables, nor unknown ones.
    with lock_set(gold.catalog, shop.name, "test", 10) as lease:
        ledger.expire(gold.orders, 1, lease)
    refusals = {
        f"{gold.orders}@0": "at 0, which has expired: the oldest readable publication is 1. Pin a number from 1 to 2",
        f"{gold.orders}@7": "has no publication 7. Pin a number from 1 to 2",
        f"{gold.orders}s@1": f"is not one of its inputs. Did you mean '{gold.orders}'?",
        "flights": "names no publication. Write each input as set.table@number",
    }
    for pinned, message in refusals.items():
        with pytest.raises(InputError) as refused:
            stage(lake, contract, [MONDAY], str(uuid4()), pins=parse_pins(pinned))
        assert message in str(refused.value)
    assert staging_for(lake, contract).list_unpublished() == []


FAILURES = {
    "fail": ("raised ValueError: no rate for SEK", ".py, line 13)", "Correct the function"),
    "fail_late": ("raised NumberFormatException", "'c20240101", "Correct the function, or the rows"),
    "select_others": (
        "without column 'paid', without column 'of', with column 'customer'",
        "Select the columns of",
    ),
    "select_arrays": ("cannot be cast to the contract's types", "id array<int> to int"),
    "return_rows": ("returned a list", "Return a DataFrame"),
    "wait": ("did not end within 1 s", "LAKESHARE_TRANSFORM_WAIT_S"),
    "count_forever": ("did not end within 1 s", "Its Spark jobs were cancelled"),
    "read_undeclared": ("is no declared input of enriched", "Add it to the inputs of enriched in gold"),
    "read_branch": ("is no declared input of enriched", "of other sets only published tables"),
    "use_another_session": ("DataFrame of another Spark session", "Make it with `inputs.spark`"),
    "take_two": (
        "cannot be called with one argument",
        "missing a required argument: 'more'",
        "(inputs: Inputs)",
    ),
    "enriched": ("is no function of", "Did you mean 'enrich'?"),
}


def test_a_transform_that_fails_names_contract_field_file_and_remedy_and_stages_nothing(gold, monkeypatch):
    tags, tag_jobs = set[str](), inputs._tag_jobs
    monkeypatch.setattr(inputs, "_tag_jobs", lambda spark, tag: (tags.add(tag), tag_jobs(spark, tag)))
    if gold.ledger.latest(gold.orders) is None:
        gold.deliver(gold.shop, MONDAY, 3)
        gold.deliver(gold.other, MONDAY, 2)
    before = [row.version for row in gold.ledger.history(f"{gold.contract.name}.enriched")]
    settings = gold.lake.settings.model_copy(update={"transform_wait_s": 1})
    hurried = Lake(settings, lambda: gold.lake.spark)
    hurried.__dict__["endpoint"] = gold.lake.endpoint
    enriched, days = gold.contract.tables
    wrong = replace(gold.contract, tables=(enriched, replace(days, derive="SELECT dy FROM {enriched}")))
    with pytest.raises(
        ContractError, match=r"days\.derive: .*UNRESOLVED_COLUMN.*over \{enriched\}, \{totals\}"
    ):
        stage(gold.lake, wrong, [MONDAY], str(uuid4()))
    for name, messages in FAILURES.items():
        with pytest.raises((TransformError, InputError)) as refused:
            stage(
                hurried if "did not end" in messages[0] else gold.lake,
                gold.with_transform(name),
                [MONDAY],
                str(uuid4()),
            )
        text = str(refused.value)
        assert text.startswith(f"{gold.contract.path}: enriched."), text
        for message in messages:
            assert message in text, text

    assert staging_for(gold.lake, gold.contract).list_unpublished() == []
    assert [row.version for row in gold.ledger.history(f"{gold.contract.name}.enriched")] == before
    # Other workers run jobs in this driver, too.
    tracker = gold.lake.spark.sparkContext._jsc.sc().statusTracker()
    started = {job for tag in tags for job in tracker.getJobIdsForTag(tag)}
    assert started
    assert started.isdisjoint(tracker.getActiveJobIds())


def test_a_transform_reads_nothing_of_the_lake_but_its_inputs(gold, tmp_path):
    if gold.ledger.latest(gold.orders) is None:
        gold.deliver(gold.shop, MONDAY, 3)
        gold.deliver(gold.other, MONDAY, 2)
    unpublished = {
        contract.name: staged_without_reading(gold.lake, contract, MONDAY, orders(MONDAY, 4))
        for contract in (gold.shop, gold.other)
    }
    staged = unpublished[gold.shop.name]
    gold.lake.catalog("main")  # runs add it to the session when they first read an Iceberg table
    code = sys.modules[str(gold.contract.tables[0].transform).partition(":")[0]]
    code.BRANCH = unpublished[gold.other.name].ref
    delta = staging_for(gold.lake, gold.shop)
    code.STAGED = delta.staged_location(gold.orders, staged.ref)
    code.OUTSIDE = str(tmp_path / "rates.csv")
    (tmp_path / "rates.csv").write_text("id,rate\n1,2.5\n")
    before = [row.version for row in gold.ledger.history(f"{gold.contract.name}.enriched")]
    try:
        for name, read in {
            "read_by_name": f"{gold.other.name}.orders",
            "read_by_subquery": f"{gold.other.name}.orders",
            "read_by_path": staged.ref,
        }.items():
            with pytest.raises(TransformError) as refused:
                stage(gold.lake, gold.with_transform(name), [MONDAY], str(uuid4()))
            text = str(refused.value)
            assert text.startswith(f"{gold.contract.path}: enriched.transform: "), text
            assert "of the lake" in text, text
            assert read in text, text
            assert f"Add the table to the inputs of enriched in {gold.contract.path.name}" in text
        assert staging_for(gold.lake, gold.contract).list_unpublished() == []
        assert [row.version for row in gold.ledger.history(f"{gold.contract.name}.enriched")] == before
        # Declared inputs, also twice, and files outside of the lake.
        found = stage(gold.lake, gold.with_transform("read_outside"), [MONDAY], str(uuid4()))
        assert found.tables[0].rows >= 3
        staging_for(gold.lake, gold.contract).discard(found.ref)
    finally:
        for contract in (gold.shop, gold.other):
            staging_for(gold.lake, contract).discard(unpublished[contract.name].ref)
