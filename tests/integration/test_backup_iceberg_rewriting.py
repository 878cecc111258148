"""Tables of every kind that Spark writes are, rewritten for another place, what they were: judged by Spark.

Their data are elsewhere when Spark reads them. Tables: tests/builders/iceberg_matrix, as Spark wrote and read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from pyiceberg.table import StaticTable

from lakeshare_pipelines.backup.verify.rewriting import RewrittenTable
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.backup_moves import Move
from tests.builders.canonical import same_rows
from tests.builders.iceberg_matrix.made import Makers, Written
from tests.builders.iceberg_matrix.recorded import PLACE, TABLES_IN, unpacked
from tests.builders.spark_iceberg import SparkIceberg

KINDS = (
    "v2_partitioned_anew", "v2_deletes_for_each_file", "v2_in_avro", "v2_in_orc", "v2_equality_and_positions",
    "v2_upgraded", "v3_many_generations", "v3_partitioned", "v3_nothing_left", "manifests_inside", "upgraded_twice",
    "metadata_in_gzip_of_a_catalog", "unpublished_beside_main", "scattered_over_folders", "orc_v1", "of_a_catalog",
)  # fmt: skip
WITH_DELETES_IN_USE = ("v2_partitioned_anew", "v2_in_avro", "v2_in_orc", "v3_many_generations")


@dataclass(frozen=True)
class Moved:
    """What was written, where it went, and the catalog that tells Spark of it."""

    written: Mapping[str, Written]
    move: Move
    rewritten: Mapping[str, RewrittenTable]
    nessie: SparkIceberg


@pytest.fixture(scope="module")
def moved(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Moved:
    place = tmp_path_factory.mktemp("moves")
    with unpacked() as (made, _):
        move = Move(PLACE / TABLES_IN, place / "elsewhere")
        move.copy()
        rewritten = {
            name: move.rewritten(made[name].state.metadata_location, f"tables/{name}") for name in KINDS
        }
    # The end of the block removed the original place, unless another test reads it.
    return Moved(made, move, rewritten, Makers.on(lake, place).any_case["nessie"])


@pytest.mark.parametrize("name", KINDS)
def test_spark_reads_the_rows_of_the_table_that_is_gone(moved: Moved, name: str) -> None:
    nessie, location = moved.nessie, moved.rewritten[name].metadata_location
    nessie.run(
        f"again_{name}",
        [f"CALL {{c}}.system.register_table(table => 'lake.again_{name}', metadata_file => '{location}')"],
    )
    assert moved.written[name].rows is not None
    same_rows(nessie.rows(f"again_{name}"), moved.written[name].rows, name)
    assert not moved.move.still_named(moved.rewritten[name])


@pytest.mark.parametrize("name", WITH_DELETES_IN_USE)
def test_the_deletes_matter(moved: Moved, name: str) -> None:
    """The table has deletes that apply: a reader that missed them would read more rows."""
    files = StaticTable.from_metadata(moved.rewritten[name].metadata_location).inspect.files()
    told = dict.fromkeys((0, 1), 0)
    for content, rows in zip(files["content"].to_pylist(), files["record_count"].to_pylist(), strict=True):
        told[content] += rows
    expected = moved.written[name].rows
    assert expected is not None
    assert told[1] > 0
    assert told[0] > len(expected.rows)
