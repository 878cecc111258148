"""No row is lost to our statistics of Iceberg tables: not to Spark, which skips by them, nor by the server's pruning.

Tables and predicates are random: a few in CI, more in the campaign. What matches is decided by Spark reading Iceberg
directly, where nothing is skipped. A failure names the seed of its table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import pytest
from pyspark.sql import DataFrame, Row

from lakeshare_pipelines.wap.staged import Lake
from tests.builders.campaign import campaign_size
from tests.builders.iceberg_matrix.made import session_of_its_own
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.random_iceberg import Predicate, make_random_table, predicates
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg, as_delta_table

SEEDS = range(campaign_size(in_ci=2, in_campaign=40))
PREDICATES = campaign_size(in_ci=24, in_campaign=64)
# Fewer of them through Spark, which needs a tenth of a second for each, than through the server.
BY_SPARK = campaign_size(in_ci=4, in_campaign=24)

pytestmark = pytest.mark.timeout(campaign_size(in_ci=600, in_campaign=7200))


@dataclass(frozen=True)
class Tables:
    """The random tables by their seeds, and one server for all."""

    iceberg: SparkIceberg
    client: httpx.Client
    data: httpx.Client


@pytest.fixture(scope="module")
def tables(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    spark = session_of_its_own(lake.spark)
    iceberg = SparkIceberg.at(spark, "statistics", tmp_path_factory.mktemp("statistics"))
    provider: Provider = a_provider(tmp_path_factory.mktemp("provider"))
    for seed in SEEDS:
        make_random_table(Random(seed), iceberg, f"random_{seed}")
        provider.publish_iceberg(f"lake.random_{seed}", iceberg.state(f"random_{seed}"))
    provider.share(*(f"lake.random_{seed}" for seed in SEEDS))
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
        yield Tables(iceberg, client, data)


@pytest.mark.campaign
def test_no_file_with_a_matching_row_is_left_out(
    tables: Tables, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    left_out = 0
    for seed in SEEDS:
        reader = ProtocolReader(tables.client, f"flights.lake.random_{seed}", "delta", tables.data)
        answer = reader.snapshot()
        delta = tables.iceberg.spark.read.format("delta").load(
            str(as_delta_table(reader, answer, tmp_path / str(seed)))
        )
        chosen = list(predicates(Random(f"predicates {seed}"), PREDICATES))
        by_file = matches(delta, chosen)
        direct = matches(tables.iceberg.spark.table(tables.iceberg.table(f"random_{seed}")), chosen)
        for number, predicate in enumerate(chosen):
            with subtests.test(seed=seed, predicate=predicate.sql):
                wanted = {row.file for row in by_file if row[f"p{number}"]}
                # Iceberg's files have other names than those of the answer: their sums are the same.
                assert sum(row[f"p{number}"] for row in by_file) == sum(row[f"p{number}"] for row in direct)
                for way, found in ways(delta if number < BY_SPARK else None, reader, predicate):
                    assert wanted <= found, f"{way} loses rows"
                    left_out += len(answer.files) - len(found)
    # Of some tables writers keep no statistics; of all together there are enough, or nothing was tested.
    assert left_out > len(SEEDS) * PREDICATES


def matches(frame: DataFrame, chosen: list[Predicate]) -> list[Row]:
    """How many rows of each file every predicate is true for; nothing is filtered, so nothing is skipped."""
    counts = ", ".join(f"count_if({one.sql}) AS p{number}" for number, one in enumerate(chosen))
    name = f"all_of_{id(frame)}"
    frame.createOrReplaceTempView(name)
    found = frame.sparkSession.sql(
        f"SELECT input_file_name() AS file, {counts} FROM {name} GROUP BY 1"
    ).collect()
    return [Row(**{**row.asDict(), "file": Path(row.file).stem}) for row in found]


def ways(
    delta: DataFrame | None, reader: ProtocolReader, predicate: Predicate
) -> Iterator[tuple[str, set[str]]]:
    """The files that are left under a predicate: to Spark, and in answers to hints of both kinds."""
    if delta is not None:
        yield "Spark's own skipping", {Path(name).stem for name in delta.where(predicate.sql).inputFiles()}
    yield "a SQL hint", set(reader.snapshot(predicateHints=[predicate.sql]).ids)
    if predicate.json is not None:
        yield "a JSON hint", set(reader.snapshot(jsonPredicateHints=predicate.json).ids)
