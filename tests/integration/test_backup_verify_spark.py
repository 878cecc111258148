"""Tables that Spark writes in every way are proved from their copies; what light readers do not know Spark opens."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import OpenSpark, TableProof
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.verify.iceberg import normalize_location
from lakeshare_pipelines.wap.staged import Lake as SparkLake
from tests.builders.backup_lakes import Lake
from tests.builders.iceberg_matrix import TABLES
from tests.builders.iceberg_matrix.made import Makers, Written

# The times inside of the tables are those of the clock: all of them are before this day ends.
DAY = "2099-12-31"
KINDS = (
    "v2_equality_and_positions",
    "v2_in_orc",
    "v3_many_generations",
    "unpublished_beside_main",
    "scattered_over_folders",
)
BY_SPARK = {"v2_equality_and_positions"}


def open_spark(lake: SparkLake) -> OpenSpark:
    return lambda: lake.spark


@pytest.fixture(scope="module")
def proved(
    lake: SparkLake, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Written, TableProof]]:
    """All kinds in one copy."""
    place = tmp_path_factory.mktemp("kinds")
    makers = Makers.on(lake, place / "lake")
    made = {name: one.result() for name, one in makers.make({name: TABLES[name] for name in KINDS}).items()}
    copied = Lake(place)
    pointers = [one.state.metadata_location for one in made.values()]
    proofs = copied.made(DAY, copied.listing(), pointers=pointers, spark=open_spark(lake)).tables
    by_metadata = {proof.metadata_key: proof for proof in proofs}
    source = copied.backup.source.location("")
    keys = {
        name: normalize_location(one.state.metadata_location).removeprefix(source)
        for name, one in made.items()
    }
    return {name: (one, by_metadata[keys[name]]) for name, one in made.items()}


@pytest.mark.parametrize("name", KINDS)
def test_the_copy_has_the_rows_that_were_written(
    proved: dict[str, tuple[Written, TableProof]], name: str
) -> None:
    written, proof = proved[name]
    assert written.rows is not None
    assert (proof.status, proof.rows) == ("verified", len(written.rows.rows)), proof
    assert proof.opened_by is not None
    assert proof.opened_by.startswith("Spark" if name in BY_SPARK else "pyiceberg"), proof


def test_a_delta_table_that_deltalake_does_not_know_is_opened_by_spark(
    lake: SparkLake, tmp_path: Path
) -> None:
    copied = Lake(tmp_path, declared=_declared(tmp_path))
    root = tmp_path / "lake/widened"
    (root / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1, 2, 3]}), root / "a.parquet")
    features = {"readerFeatures": ["vacuumProtocolCheck"], "writerFeatures": ["vacuumProtocolCheck"]}
    fields = [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]
    told = {
        "id": "11111111-2222-3333-4444-555555555555",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    size_bytes = (root / "a.parquet").stat().st_size
    added = {
        "path": "a.parquet",
        "size": size_bytes,
        "partitionValues": {},
        "modificationTime": 1,
        "dataChange": True,
    }
    lines = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"metaData": told},
        {"add": added},
    ]
    (root / f"_delta_log/{0:020}.json").write_text("\n".join(map(json.dumps, lines)))
    (alone,) = copied.made("2099-12-30", copied.listing()).tables
    assert alone.status == "degraded"
    (proof,) = copied.made(DAY, copied.listing(), spark=open_spark(lake)).tables
    assert (proof.status, proof.rows) == ("verified", 3)
    assert str(proof.opened_by).startswith("Spark ")


def _declared(folder: Path) -> Backup:
    source, target = StoreAddress(url=str(folder / "lake")), StoreAddress(url=str(folder / "copies"))
    return Backup(name="lake", source=source, target=target)
