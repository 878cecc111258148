"""The tables of the matrix as Spark makes them, and what it reads of each: two at once, half of a commit is waiting."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lakeshare_pipelines.spark.session import make_catalog_conf, make_catalog_name
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.canonical import Rows
from tests.builders.iceberg_matrix.plan import Plan, Step
from tests.builders.lake_tables import IcebergState
from tests.builders.spark_iceberg import Filtered, SparkIceberg, frame_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 2
CONF = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.defaultColumn.enabled": "true",
}


@dataclass(frozen=True)
class Written:
    """A table as Spark left it, and what it reads of it; nothing where it does not know a type."""

    state: IcebergState
    rows: Rows | None
    some: Filtered = None


@dataclass(frozen=True)
class Makers:
    """The sessions that tables are made in, one of them for names that differ by case; each has its catalogs."""

    any_case: Mapping[str, SparkIceberg]
    own_case: Mapping[str, SparkIceberg]

    @classmethod
    def on(cls, lake: Lake, warehouse: Path) -> "Makers":
        """Sessions of their own beside the lake's, whose configuration stays as it is."""
        nessie, branch = lake.nessie(), f"matrix-{uuid.uuid4().hex[:12]}"
        nessie.create_branch(branch, nessie.reference("main").hash)
        any_case = _catalogs(lake, session_of_its_own(lake.spark), warehouse, branch)
        any_case["nessie"].spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {any_case['nessie'].name}.lake")
        own_case = session_of_its_own(lake.spark, **{"spark.sql.caseSensitive": "true"})
        return cls(any_case, _catalogs(lake, own_case, warehouse, branch))

    def of(self, plan: Plan) -> SparkIceberg:
        """The catalog that a table is made in."""
        return (self.own_case if plan.case_sensitive else self.any_case)[plan.catalog]

    def tell(self, name: str, plan: Plan, steps: Iterable[Step]) -> Written:
        """Go these steps with a table that Spark reads."""
        self._go(name, plan, steps)
        iceberg = self.of(plan)
        return Written(iceberg.state(name), iceberg.rows(name))

    def make(self, plans: Mapping[str, Plan]) -> "dict[str, Future[Written]]":
        """Make all these tables; what fails at one of them is raised by its own future."""
        return _all(plans, lambda name: self._made(name, plans[name]))

    def mend(self, plans: Mapping[str, tuple[Plan, Sequence[Step]]]) -> "dict[str, Future[Written]]":
        """Go more steps with tables that are made."""
        return _all(plans, lambda name: self.tell(name, *plans[name]))

    def _made(self, name: str, plan: Plan) -> Written:
        if not plan.is_read_by_spark:
            self._go(name, plan, plan.steps)
            return Written(self.of(plan).state(name), None)
        table = self.tell(name, plan, plan.steps)
        if plan.where is None:
            return table
        some = self.of(plan).spark.table(self.of(plan).table(name)).where(plan.where)
        found = frame_rows(some)
        assert found.rows, f"no row of {name} is {plan.where}"
        return replace(table, some=(plan.where, found))

    def _go(self, name: str, plan: Plan, steps: Iterable[Step]) -> None:
        iceberg = self.of(plan)
        for step in steps:
            if isinstance(step, str):
                iceberg.run(name, [step])
            else:
                step(iceberg, name)


def _all(names: Iterable[str], make: Callable[[str], Written]) -> dict[str, Future[Written]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: pool.submit(make, name) for name in names}


def session_of_its_own(spark: "SparkSession", **conf: str) -> "SparkSession":
    """A session beside a running one, set for small tables."""
    new = spark.newSession()
    for key, value in {**CONF, **conf}.items():
        new.conf.set(key, value)
    return new


def _catalogs(lake: Lake, spark: "SparkSession", warehouse: Path, branch: str) -> dict[str, SparkIceberg]:
    """One of folders, and one at a branch of Nessie, since Spark may not write on main."""
    for key, value in make_catalog_conf(lake.settings, lake.stores, lake.endpoint, branch).items():
        spark.conf.set(key, value)
    name = make_catalog_name(branch)
    spark.conf.set(f"spark.sql.catalog.{name}.warehouse", f"file://{warehouse}/of nessie")
    return {"hadoop": SparkIceberg.at(spark, "matrix", warehouse), "nessie": SparkIceberg(spark, name)}
