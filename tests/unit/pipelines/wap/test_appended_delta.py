"""The commit that appends rows to a Delta table: new columns, conflicts, checkpoints, tables it cannot be for."""

import dataclasses
import json
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import BranchMoved, Conflict, WarehouseError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.delta import DeltaStaging
from lakeshare_pipelines.wap.staged import Staged, StagedTable, make_staging_name, open_lake_without_spark
from tests.builders.write_modes import a_set_of_modes

DAY = "2024-01-01"


@pytest.fixture
def contract(tmp_path: Path) -> SetContract:
    return a_set_of_modes(tmp_path / "contracts", "shop", "delta", ("append",))


@pytest.fixture
def staging(tmp_path: Path, contract: SetContract) -> DeltaStaging:
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    return DeltaStaging(open_lake_without_spark(settings), contract)


def stage(staging: DeltaStaging, number: int, **more: object) -> Staged:
    """A row at a staging location; `more` are columns that the table may not have."""
    [table], run_id = staging.contract.tables, str(uuid4())
    ref = make_staging_name(staging.contract.name, (DAY,), run_id, 0)
    base = staging.open(ref)
    rows = pa.table({"id": pa.array([number], pa.int32()), **{name: [value] for name, value in more.items()}})
    write_deltalake(staging.staged_location(table.name, ref), rows)
    deliveries, digest = {DAY: str(number)}, staging.contract.digest
    draft = Staged("shop", run_id, (DAY,), ref, base, "", (StagedTable(table.name, 1),), deliveries, digest)
    return dataclasses.replace(draft, head=staging.seal(ref))


def opened(staging: DeltaStaging) -> DeltaTable:
    return DeltaTable(staging.location("shop.append_rows"))


def test_rows_are_added_with_their_columns_in_one_commit_each_and_no_file_moves(
    staging: DeltaStaging,
) -> None:
    text = "no\u2028line\x85of the log"
    for number in range(12):
        more = {"added": text} if number > 5 else {}
        staged = stage(staging, number, **more)
        landed = staging.land(staged, {"digest": "d"})
        assert landed.versions == {"shop.append_rows": number}
        assert staging.land(staged, {"digest": "d"}).versions == landed.versions, "a second time it is known"
    table = opened(staging)
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": number, "added": text if number > 5 else None} for number in range(12)]
    assert table.metadata().configuration == {"delta.enableChangeDataFeed": "true"}
    assert table.transaction_version("shop") == 12
    feed = pa.table(table.load_cdf(starting_version=1).read_all()).to_pylist()
    assert {row["_change_type"] for row in feed} == {"insert"}
    assert len(feed) == 11
    log = Path(staging.location("shop.append_rows")) / "_delta_log"
    assert [file.name for file in log.glob("*.checkpoint.parquet")] == [f"{10:020d}.checkpoint.parquet"]


def test_a_commit_in_between_is_a_conflict(staging: DeltaStaging) -> None:
    staging.land(stage(staging, 1), {})
    one, other = stage(staging, 2), stage(staging, 3)
    staging.land(one, {})
    with pytest.raises(Conflict):
        staging.land(other, {})
    # Also of a writer that comes between the look at main and the commit.
    with pytest.raises(Conflict):
        staging._commit(staging.contract.tables[0], other, {}, json.loads(other.base)["shop.append_rows"])
    assert sorted(opened(staging).to_pyarrow_table()["id"].to_pylist()) == [1, 2]


def test_what_was_staged_in_another_mode_does_not_land(staging: DeltaStaging) -> None:
    staging.land(stage(staging, 1), {})
    staged = stage(staging, 2)
    [table] = staging.contract.tables
    changed = dataclasses.replace(table, write=dataclasses.replace(table.write, mode="replace"))
    other = DeltaStaging(staging.lake, dataclasses.replace(staging.contract, tables=(changed,)))
    with pytest.raises(BranchMoved):
        other.land(staged, {})
    assert opened(staging).to_pyarrow_table()["id"].to_pylist() == [1]


def test_a_table_with_features_of_newer_writers_is_refused(staging: DeltaStaging) -> None:
    staging.land(stage(staging, 1), {})
    log = Path(staging.location("shop.append_rows")) / "_delta_log"
    features = {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["domainMetadata", "clustering"],
    }
    (log / f"{1:020d}.json").write_text(json.dumps({"protocol": features}))
    with pytest.raises(
        WarehouseError, match="uses clustering, domainMetadata, and append writes no such commits"
    ):
        staging.land(stage(staging, 2), {})
