"""A Delta set of which one table landed and another was changed by others is taken back, and blocks nothing."""

import dataclasses
import json
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import Conflict, WarehouseError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import repair
from lakeshare_pipelines.wap.delta import DeltaStaging
from lakeshare_pipelines.wap.staged import (
    Lake,
    Staged,
    StagedTable,
    make_staging_name,
    open_lake_without_spark,
)
from lakeshare_server.catalog import Catalog, Ledger
from tests.builders.database_schema import open_migrated
from tests.builders.sets import a_contract

DAY = "2024-01-01"


@pytest.fixture
def contract(tmp_path: Path) -> SetContract:
    return a_contract(tmp_path / "contracts", "shop", "delta")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake_without_spark(LakeSettings(_env_file=None, state_dir=tmp_path / "state"))


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    return open_migrated(lake.settings.catalog_url)


def rows_of(contract: SetContract, short_name: str, numbers: list[int]) -> pa.Table:
    """Rows of one day with the contract's columns, by pyarrow instead of Spark."""
    kinds = {"date": pa.date32(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
    columns = {}
    for column in contract.table(short_name).columns:
        kind = kinds.get(column.type, pa.string())
        days = pa.array([DAY] * len(numbers)).cast(pa.date32())
        columns[column.name] = days if kind == pa.date32() else pa.array(numbers).cast(kind)
    return pa.table(columns)


def stage(staging: DeltaStaging, contract: SetContract, numbers: list[int]) -> Staged:
    run_id = str(uuid4())
    ref = make_staging_name(contract.name, (DAY,), run_id, 0)
    base = staging.open(ref)
    for table in contract.tables:
        place = f"{staging.location(table.name)}/_staged/{ref}"
        write_deltalake(place, rows_of(contract, table.short_name, numbers), partition_by=["day"])
    tables = tuple(StagedTable(table.name, len(numbers)) for table in contract.tables)
    draft = Staged(contract.name, run_id, (DAY,), ref, base, "", tables, {DAY: "digest"}, contract.digest)
    return dataclasses.replace(draft, head=staging.seal(ref))


def land_one_table(staging: DeltaStaging, contract: SetContract, staged: Staged) -> None:
    """What a run leaves that is killed between the commits of its two tables."""
    first = contract.tables[0]
    staging._commit(first, staged, {}, json.loads(staged.base)[first.name])


def write_as_somebody_else(staging: DeltaStaging, contract: SetContract, short_name: str) -> None:
    location = staging.location(contract.table(short_name).name)
    write_deltalake(location, rows_of(contract, short_name, [77]), mode="append", partition_by=["day"])


def ids(staging: DeltaStaging, contract: SetContract, short_name: str) -> list[int]:
    column = contract.table(short_name).columns[1].name
    rows = DeltaTable(staging.location(contract.table(short_name).name)).to_pyarrow_table()
    return sorted(int(value) for value in rows[column].to_pylist())


@pytest.mark.parametrize("is_first", [True, False], ids=["first publication", "later publication"])
def test_a_half_landed_set_whose_other_table_was_changed_is_taken_back(
    lake: Lake, catalog: Catalog, contract: SetContract, is_first: bool
) -> None:
    staging = DeltaStaging(lake, contract)
    if not is_first:
        whole = stage(staging, contract, [1, 2])
        staging.land(whole, {})
        assert len(repair(lake, catalog, contract)) == 2
    before = [] if is_first else [1, 2]
    half = stage(staging, contract, [3])
    land_one_table(staging, contract, half)
    assert ids(staging, contract, "orders") == [3]
    write_as_somebody_else(staging, contract, "totals")

    assert repair(lake, catalog, contract) == []

    assert ids(staging, contract, "orders") == before
    assert ids(staging, contract, "totals") == sorted([*before, 77])
    assert Ledger(catalog).by_run(half.run_id) == []
    assert [ref for ref, _ in staging.list_unpublished()] == [half.ref]
    versions = [DeltaTable(staging.location(table.name)).version() for table in contract.tables]
    assert repair(lake, catalog, contract) == []
    assert [DeltaTable(staging.location(table.name)).version() for table in contract.tables] == versions
    # What replays it lands on what main has become.
    with pytest.raises(Conflict):
        staging.land(half, {})
    staging.discard(half.ref)
    assert staging.list_unpublished() == []
    again = stage(staging, contract, [3])
    staging.land(again, {})
    assert [publication.run_id for publication in repair(lake, catalog, contract)] == [again.run_id] * 2
    assert ids(staging, contract, "orders") == [3]


def test_rows_that_were_written_on_top_of_a_half_landed_set_stay(
    lake: Lake, catalog: Catalog, contract: SetContract
) -> None:
    staging = DeltaStaging(lake, contract)
    half = stage(staging, contract, [3])
    land_one_table(staging, contract, half)
    for name in ("orders", "totals"):
        write_as_somebody_else(staging, contract, name)
    assert repair(lake, catalog, contract) == []
    assert ids(staging, contract, "orders") == [3, 77]
    assert repair(lake, catalog, contract) == []
    staging.land(stage(staging, contract, [4]), {})
    assert len(repair(lake, catalog, contract)) == 2
    assert ids(staging, contract, "orders") == [4]


def test_a_half_landed_set_that_nobody_disturbed_is_completed(
    lake: Lake, catalog: Catalog, contract: SetContract
) -> None:
    staging = DeltaStaging(lake, contract)
    half = stage(staging, contract, [3])
    land_one_table(staging, contract, half)
    assert {one.run_id for one in repair(lake, catalog, contract)} == {half.run_id}
    assert [ids(staging, contract, name) for name in ("orders", "totals")] == [[3], [3]]


def test_a_table_in_another_store_than_the_warehouse_is_refused_by_name(lake: Lake, tmp_path: Path) -> None:
    location = (
        "      - {property: location, value: s3://other/orders}\n      - {property: source, value: orders}"
    )
    text = {"      - {property: source, value: orders}": location}
    elsewhere = a_contract(tmp_path / "contracts", "elsewhere", "delta", **text)
    with pytest.raises(WarehouseError, match=r"s3://other/orders: it is in another store than the warehouse"):
        DeltaStaging(lake, elsewhere).open("ref")


@pytest.mark.parametrize("base", ["no table", "0"])
def test_a_writer_that_comes_between_the_look_at_main_and_the_commit_is_a_conflict(
    lake: Lake, contract: SetContract, base: str
) -> None:
    staging = DeltaStaging(lake, contract)
    if base == "0":
        staging.land(stage(staging, contract, [1]), {})
    staged = stage(staging, contract, [3])
    write_as_somebody_else(staging, contract, "orders")
    with pytest.raises(Conflict, match=rf"shop\.orders changed on main since {base} \(main is at \d\)"):
        land_one_table(staging, contract, staged)
    assert 77 in ids(staging, contract, "orders")


def test_a_table_that_deltalake_does_not_write_is_named_and_blocks_no_later_run(
    lake: Lake, catalog: Catalog, contract: SetContract
) -> None:
    staging = DeltaStaging(lake, contract)
    staging.land(stage(staging, contract, [1]), {})
    assert len(repair(lake, catalog, contract)) == 2
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["identityColumns"]}
    log = Path(staging.location("shop.totals")) / "_delta_log"
    (log / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}))
    half = stage(staging, contract, [2])
    with pytest.raises(
        WarehouseError, match=r"shop/totals: deltalake does not write the table: .*IdentityColumns"
    ):
        staging.land(half, {})
    assert ids(staging, contract, "orders") == [2]

    assert repair(lake, catalog, contract) == []

    assert ids(staging, contract, "orders") == [1]
    assert [ref for ref, _ in staging.list_unpublished()] == [half.ref]
