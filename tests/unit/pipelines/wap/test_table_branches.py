"""Sets that land from branches of their tables, in a SQL catalog on SQLite: in part, in races, beside other writers.

Without Spark: pyiceberg writes the rows.
"""

import dataclasses
import json
import threading
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import BranchMoved, Conflict, IcebergCatalogError, SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import repair
from lakeshare_pipelines.wap import branches
from lakeshare_pipelines.wap.branches import MAIN, BranchStaging, get_snapshot_id
from lakeshare_pipelines.wap.staged import (
    Lake,
    Staged,
    StagedTable,
    make_staging_name,
    open_lake_without_spark,
)
from lakeshare_server.catalog import Catalog, Ledger
from tests.builders.database_schema import open_migrated
from tests.builders.sets import ARROW_TYPES, a_contract

DAY = "2024-01-01"


@pytest.fixture
def contract(tmp_path: Path) -> SetContract:
    return a_contract(tmp_path / "contracts", "shop", "iceberg")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    for name, value in {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/catalog.db"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LOCAL__{name}", value)
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state", iceberg_catalog="local")
    return open_lake_without_spark(settings)


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    return open_migrated(lake.settings.catalog_url)


@pytest.fixture
def staging(lake: Lake, contract: SetContract) -> BranchStaging:
    """Of two tables that have no rows."""
    staging = BranchStaging(lake, contract)
    for name in staging.names:
        staging.tables.create_namespace(name)
        lake.iceberg.create_table(name, rows_of(contract, name, []).schema)
    return staging


def rows_of(contract: SetContract, name: str, numbers: list[int]) -> pa.Table:
    columns = {}
    for column in next(table for table in contract.tables if table.name == name).columns:
        kind = ARROW_TYPES.get(column.type, pa.string())
        days = pa.array([DAY] * len(numbers), pa.string()).cast(pa.date32())
        columns[column.name] = (
            days if kind == pa.date32() else pa.array(numbers, pa.int64()).cast(kind, safe=False)
        )
    return pa.table(columns)


def stage(staging: BranchStaging, numbers: list[int]) -> Staged:
    """A run that adds rows to each table."""
    run_id = str(uuid4())
    ref = make_staging_name(staging.contract.name, (DAY,), run_id, 0)
    base = staging.open(ref)
    for name in staging.names:
        table = staging.tables.require(name)
        if get_snapshot_id(table, ref) is None:
            make_first_branch(staging, name, ref)
        staging.tables.require(name).append(rows_of(staging.contract, name, numbers), branch=ref)
    tables = tuple(StagedTable(name, len(numbers)) for name in staging.names)
    contract = staging.contract
    draft = Staged(contract.name, run_id, (DAY,), ref, base, "", tables, {DAY: "digest"}, contract.digest)
    return dataclasses.replace(draft, head=staging.seal(ref))


def make_first_branch(staging: BranchStaging, name: str, ref: str) -> None:
    """A branch of a table without rows, as Spark makes it; pyiceberg makes none."""
    table = staging.tables.require(name)
    table.append(rows_of(staging.contract, name, []))
    empty = get_snapshot_id(table, MAIN)
    table.manage_snapshots().create_branch(empty, ref).commit()
    staging.tables.commit(name, {MAIN: empty}, (RemoveSnapshotRefUpdate(ref_name=MAIN),))


def land_one_table(staging: BranchStaging, staged: Staged) -> None:
    """What a run leaves that is killed between the commits of its two tables."""
    name, record = staging.names[0], branches.stage.commit_properties(staged, {})
    staging._commit(name, json.loads(staged.base)[name], json.loads(staged.head)[name], record)


def write_as_another(staging: BranchStaging, short_name: str) -> None:
    name = staging.contract.table(short_name).name
    staging.tables.require(name).append(rows_of(staging.contract, name, [77]))


def ids(staging: BranchStaging, short_name: str) -> list[int]:
    table = staging.contract.table(short_name)
    rows = staging.tables.require(table.name).scan().to_arrow()
    return sorted(rows[table.columns[1].name].to_pylist())


@pytest.mark.parametrize("is_first", [True, False], ids=["first publication", "later publication"])
def test_a_half_landed_set_whose_other_table_was_changed_is_reverted(
    lake: Lake, catalog: Catalog, staging: BranchStaging, is_first: bool
) -> None:
    if not is_first:
        whole = stage(staging, [1, 2])
        staging.land(whole, {})
        assert len(repair(lake, catalog, staging.contract)) == 2
    before = [] if is_first else [1, 2]
    half = stage(staging, [3])
    land_one_table(staging, half)
    assert ids(staging, "orders") == [*before, 3]
    write_as_another(staging, "totals")
    staging.discard(half.ref)
    assert [ref for ref, _ in staging.list_unpublished()] == [half.ref], "the repair needs the branches"

    assert repair(lake, catalog, staging.contract) == []

    assert ids(staging, "orders") == before
    assert ids(staging, "totals") == [*before, 77]
    assert Ledger(catalog).by_run(half.run_id) == []
    assert [ref for ref, _ in staging.list_unpublished()] == [half.ref]
    with pytest.raises(Conflict):
        staging.land(half, {})
    staging.discard(half.ref)
    assert staging.list_unpublished() == []
    again = stage(staging, [3])
    staging.land(again, {})
    assert [publication.run_id for publication in repair(lake, catalog, staging.contract)] == [
        again.run_id
    ] * 2
    assert ids(staging, "orders") == [*before, 3]


def test_rows_that_were_written_on_top_of_a_half_landed_set_stay(
    lake: Lake, catalog: Catalog, staging: BranchStaging
) -> None:
    half = stage(staging, [3])
    land_one_table(staging, half)
    for name in ("orders", "totals"):
        write_as_another(staging, name)
    assert repair(lake, catalog, staging.contract) == []
    assert ids(staging, "orders") == [3, 77]
    staging.land(stage(staging, [4]), {})
    assert len(repair(lake, catalog, staging.contract)) == 2
    assert ids(staging, "orders") == [3, 4, 77]


def test_a_half_landed_set_is_completed_with_what_was_audited_whatever_its_branches_have_by_now(
    lake: Lake, catalog: Catalog, staging: BranchStaging
) -> None:
    half = stage(staging, [3])
    land_one_table(staging, half)
    totals = staging.contract.table("totals").name
    staging.tables.require(totals).append(rows_of(staging.contract, totals, [9]), branch=half.ref)
    write_as_another(staging, "orders")
    published = repair(lake, catalog, staging.contract)
    assert [(one.run_id, one.rows) for one in published] == [(half.run_id, 1)] * 2
    assert (ids(staging, "orders"), ids(staging, "totals")) == ([3, 77], [3])
    assert repair(lake, catalog, staging.contract) == []
    assert staging.list_unpublished() == []


def test_a_branch_that_moved_or_left_mains_history_is_refused_and_no_row_of_main_is_lost(
    staging: BranchStaging,
) -> None:
    staging.land(stage(staging, [1]), {})
    moved, table = stage(staging, [2]), staging.contract.table("orders").name
    staging.tables.require(table).append(rows_of(staging.contract, table, [9]), branch=moved.ref)
    with pytest.raises(BranchMoved, match=moved.ref):
        staging.land(moved, {})
    # As after CREATE OR REPLACE BRANCH from an older snapshot of the table.
    first = staging.tables.require(table).snapshots()[0].snapshot_id
    apart = dataclasses.replace(moved, head=json.dumps({**json.loads(moved.head), table: first}))
    staging.tables.commit(
        table,
        {moved.ref: get_snapshot_id(staging.tables.require(table), moved.ref)},
        (branches.set_branch(staging.tables.require(table), moved.ref, first),),
    )
    with pytest.raises(Conflict):
        staging.land(dataclasses.replace(apart, head=staging.seal(moved.ref)), {})
    assert (ids(staging, "orders"), ids(staging, "totals")) == ([1], [1])


def test_of_runs_that_land_at_once_one_wins_and_the_others_conflict(
    lake: Lake, staging: BranchStaging
) -> None:
    staging.land(stage(staging, [1]), {})
    runs = [stage(staging, [number]) for number in (2, 3, 4)]
    results: list[type[BaseException] | None] = []

    def land(staged: Staged) -> None:
        own = BranchStaging(open_lake_without_spark(lake.settings), staging.contract)
        try:
            own.land(staged, {})
        except Conflict as error:
            results.append(type(error))
        else:
            results.append(None)

    threads = [threading.Thread(target=land, args=(staged,)) for staged in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == sorted(map(str, [None, Conflict, Conflict]))
    assert ids(staging, "orders") == ids(staging, "totals")
    assert len(ids(staging, "orders")) == 2


def test_main_keeps_its_retention(staging: BranchStaging) -> None:
    staging.land(stage(staging, [1]), {})
    table = staging.contract.table("orders").name
    opened = staging.tables.require(table)
    kept = branches.set_branch(opened, MAIN, get_snapshot_id(opened, MAIN)).model_copy(
        update={"min_snapshots_to_keep": 7}
    )
    staging.tables.commit(table, {}, (kept,))
    staging.land(stage(staging, [2]), {})
    assert staging.tables.require(table).refs()[MAIN].min_snapshots_to_keep == 7


def test_commits_that_lose_to_changes_of_other_branches_are_repeated(
    staging: BranchStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "JITTER_S", 0)
    staging.land(stage(staging, [1]), {})
    staged = stage(staging, [2])
    catalog, commit, lost = staging.lake.iceberg, staging.lake.iceberg.commit_table, iter(range(2))

    def commit_after_others(table: IcebergTable, *arguments: object) -> object:
        if next(lost, None) is not None:
            raise CommitFailedException(f"{table.name()} was updated by another process")
        return commit(table, *arguments)

    monkeypatch.setattr(catalog, "commit_table", commit_after_others)
    staging.land(staged, {})
    assert next(lost, None) is None
    assert ids(staging, "orders") == ids(staging, "totals") == [1, 2]


def test_maintenance_keeps_what_leads_from_main_to_a_branch(
    lake: Lake, catalog: Catalog, staging: BranchStaging
) -> None:
    staging.land(stage(staging, [1]), {})
    discarded, waiting = stage(staging, [2]), stage(staging, [3])
    staging.discard(discarded.ref)
    latest = repair(lake, catalog, staging.contract)[0]
    removed, between = (json.loads(staged.head)[latest.table] for staged in (discarded, waiting))
    # As a repair by hand leaves it: a second snapshot on the branch.
    for name in staging.names:
        table = staging.tables.require(name)
        table.append(rows_of(staging.contract, name, [4]), branch=waiting.ref)
    repaired = dataclasses.replace(waiting, head=staging.seal(waiting.ref))

    staging.tables.remove_snapshots(latest.table, [removed, between, latest.snapshot_id, 7])

    listed = {snapshot.snapshot_id for snapshot in staging.tables.require(latest.table).snapshots()}
    assert removed not in listed
    assert {between, latest.snapshot_id} < listed
    [head] = staging.tables.heads(latest.table)
    assert head.metadata_location == staging.tables.require(latest.table).metadata_location
    staging.land(repaired, {})
    assert ids(staging, "orders") == [1, 3, 4]


def test_a_restored_table_is_shown_again_or_its_metadata_named(staging: BranchStaging) -> None:
    name, catalog = staging.names[0], staging.lake.iceberg
    staging.land(stage(staging, [1]), {})
    first = staging.tables.find(name, MAIN)
    staging.land(stage(staging, [2]), {})
    second = staging.tables.find(name, MAIN)

    assert staging.tables.show(name, first.metadata_location, first.snapshot_id, {"run": "restore"})
    assert ids(staging, "orders") == [1]
    assert not staging.tables.show(name, first.metadata_location, first.snapshot_id, {})

    catalog.drop_table(name)
    assert staging.tables.show(name, first.metadata_location, first.snapshot_id, {})
    assert ids(staging, "orders") == [1]
    with pytest.raises(
        IcebergCatalogError, match=f"without snapshot {second.snapshot_id}.*which registers /there"
    ):
        staging.tables.show(name, "/there", second.snapshot_id, {})


def test_a_catalog_that_is_gone_is_named_without_its_password(
    contract: SetContract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "postgresql+psycopg://me:secret@127.0.0.1:9/none"
    monkeypatch.setenv("PYICEBERG_CATALOG__GONE__URI", uri)
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state", iceberg_catalog="gone")
    with pytest.raises(IcebergCatalogError, match="Iceberg catalog gone: it or its store did not") as error:
        BranchStaging(open_lake_without_spark(settings), contract).list_unpublished()
    assert "secret" not in str(error.value)


def test_the_rows_of_a_run_are_asked_of_spark_before_a_column_is_named(
    staging: BranchStaging, contract: SetContract
) -> None:
    """`lakeshare wap retry` of a branch that was not changed is where an audit is the first to need Spark."""
    staged = stage(staging, [1])
    for read in (staging.rows_of_run, staging.count_written):
        with pytest.raises(SparkError):
            read(staged, contract.table("orders"))
