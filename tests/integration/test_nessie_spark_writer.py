"""Spark writes to branches and is refused on main by the catalog.

On the Java that comes from PyPI, and in a folder with a blank: tests/e2e/test_whole_path.py.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.wap.staged import Lake
from tests.integration.nessie_fixtures import a_table


@pytest.fixture(scope="module")
def published(lake: Lake) -> Iterator[str]:
    """A table that Spark wrote on a branch, with two rows on main."""
    table, publisher = a_table(), lake.nessie("publisher")
    base = publisher.reference("main").hash
    branch = publisher.create_branch(f"wap-{table}", base).name
    on_branch = lake.catalog(branch)
    lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {on_branch}.flights")
    lake.spark.sql(
        f"CREATE TABLE {on_branch}.{table} (day date, delay int) USING iceberg PARTITIONED BY (day)"
    )
    lake.spark.sql(f"INSERT INTO {on_branch}.{table} VALUES (DATE'2013-01-01', 5), (DATE'2013-01-02', 7)")
    head = publisher.reference(branch).hash
    publisher.merge(branch, head, onto_hash=base, message="Publish", author="test", properties={})
    yield table
    publisher.delete_branch(branch, head)
    publisher.drop_table(table, "main", publisher.reference("main").hash, message="Remove")


@pytest.mark.parametrize(
    "write",
    [
        lambda table: f"CREATE TABLE lake.{table}_sneaked (a int) USING iceberg",
        lambda table: f"INSERT INTO lake.{table} VALUES (DATE'2013-01-03', 9)",
    ],
    ids=["create", "insert"],
)
def test_spark_is_refused_on_main_which_stays_as_it_was_published(
    lake: Lake, published: str, write: Callable[[str], str]
) -> None:
    assert lake.catalog("main") == "lake"
    before = lake.nessie().reference("main").hash
    refusal = r"is not allowed for role 'writer' on reference 'main'"
    with pytest.raises(Exception, match=refusal):  # py4j and Spark wrap Nessie's error in turn
        lake.spark.sql(write(published))
    assert lake.nessie().reference("main").hash == before
    assert lake.spark.table(f"lake.{published}").count() == 2
    assert f"{published}_sneaked" not in lake.nessie().tables("main")


def test_the_metadata_lies_in_the_warehouse_folder(lake: Lake, published: str) -> None:
    content = lake.nessie().content(published, "main")
    assert content is not None
    path = Path(content.metadata_location.removeprefix("file:"))
    assert path.is_file()
    assert path.is_relative_to(lake.settings.lake_root)
