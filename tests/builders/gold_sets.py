"""A daily set of transformed tables over two delivered ones, and the Python file of its transforms."""

from pathlib import Path

import yaml

DAY = {"name": "day", "logicalType": "date", "partitioned": True, "partitionKeyPosition": 1}

MODULE = '''
import time
from pyspark.sql import functions as F


def enrich(inputs):
    """Orders of the run's days, beside the sum over all days of the other set."""
    [total] = inputs.table("OTHER.totals", whole=True).agg(F.sum("amount")).collect()
    return inputs.table("SHOP.orders").select("day", "id", F.col("amount").alias("paid"), F.lit(total[0]).alias("of"))


def fail(inputs):
    raise ValueError("no rate for SEK")


def fail_late(inputs):
    return inputs.table("SHOP.orders").selectExpr("day", "customer AS id", "amount AS paid", "amount AS of")


def select_others(inputs):
    return inputs.table("SHOP.orders").select("day", "id", "customer")


def select_arrays(inputs):
    return inputs.table("SHOP.orders").selectExpr("day", "array(id) AS id", "amount AS paid", "amount AS of")


def return_rows(inputs):
    return inputs.table("SHOP.orders").collect()


def wait(inputs):
    while True:
        time.sleep(0.1)


def count_forever(inputs):
    numbers = inputs.spark.range(1 << 44).where("hash(id) = 1")
    return inputs.table("SHOP.orders").selectExpr("day", "id", "amount AS paid", f"{numbers.count()} AS of")


def read_undeclared(inputs):
    return inputs.table("OTHER.orders")


def read_branch(inputs):
    return inputs.table("SHOP.orders@wap-SHOP-1")


# A branch, and paths in the lake and outside of it, which a test sets.
BRANCH = STAGED = OUTSIDE = ""


def read_by_name(inputs):
    return inputs.spark.table(f"lake.OTHER.`orders@{BRANCH}`").selectExpr("day", "id", "amount AS paid", "amount AS of")


def read_by_subquery(inputs):
    rows = inputs.spark.table(f"lake.OTHER.`orders@{BRANCH}`")
    rows.createOrReplaceTempView("staged_orders")
    inputs.table("SHOP.orders").createOrReplaceTempView("permitted_orders")
    return inputs.spark.sql(
        "SELECT day, id, amount AS paid, (SELECT max(amount) FROM staged_orders) AS of FROM permitted_orders"
    )


def read_by_path(inputs):
    rows = inputs.spark.read.parquet(STAGED)
    return inputs.table("SHOP.orders").join(rows.select("id"), "id").selectExpr(
        "day", "id", "amount AS paid", "amount AS of"
    )


def read_outside(inputs):
    rates = inputs.spark.read.csv(OUTSIDE, header=True, schema="id int, rate double")
    orders = inputs.table("SHOP.orders").join(rates, "id", "left")
    return orders.join(inputs.table("SHOP.orders").select("id"), "id").selectExpr(
        "day", "id", "amount AS paid", "coalesce(rate, 0) AS of"
    )


def use_another_session(inputs):
    rows = inputs.spark.newSession().sql("SELECT date'2024-01-01' AS day, 1 AS id, 1D AS paid, 1D AS of")
    return rows


def take_two(inputs, more):
    return None
'''


def write_module(folder: Path, name: str, shop: str, other: str) -> None:
    """Writes the module `name` with the transforms, which read tables of these sets."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(MODULE.replace("SHOP", shop).replace("OTHER", other))


def write_gold(folder: Path, name: str, transform: str, shop: str, other: str, table_format: str) -> None:
    """Writes the contract of a set with `enriched`, of a transform, and `days`, of SQL over it and an input."""
    enriched = {
        "name": "enriched",
        "customProperties": [
            {"property": "transform", "value": transform},
            {"property": "inputs", "value": [f"{shop}.orders", f"{other}.totals"]},
        ],
        "properties": [
            DAY,
            {"name": "id", "logicalType": "integer", "physicalType": "int"},
            {"name": "paid", "logicalType": "number"},
            {"name": "of", "logicalType": "number"},
        ],
    }
    sql = (
        "SELECT day, count(*) AS n, max(orders) AS of FROM {enriched} JOIN {totals} USING (day) GROUP BY day"
    )
    days = {
        "name": "days",
        "customProperties": [
            {"property": "derive", "value": sql},
            {"property": "inputs", "value": [f"{shop}.totals"]},
        ],
        "properties": [
            DAY,
            {"name": "n", "logicalType": "integer"},
            {"name": "of", "logicalType": "integer"},
        ],
    }
    document = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": name,
        "name": name,
        "version": "1.0.0",
        "status": "active",
        "servers": [{"server": "lake", "type": "local", "format": table_format}],
        "schema": [enriched, days],
        "customProperties": [
            {"property": "partitioning", "value": "daily"},
            {"property": "firstPartition", "value": "2024-01-01"},
        ],
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def write_sums(folder: Path, name: str, gold: str, table_format: str) -> None:
    """Writes the contract of a set `name` that is replaced as a whole: the sums over all days of the set `gold`."""
    table = {
        "name": "sums",
        "customProperties": [
            {"property": "derive", "value": "SELECT sum(n) AS n, count(DISTINCT day) AS days FROM {days}"},
            {"property": "inputs", "value": [f"{gold}.days"]},
        ],
        "properties": [{"name": "n", "logicalType": "integer"}, {"name": "days", "logicalType": "integer"}],
    }
    document = yaml.safe_load((folder / f"{gold}.yaml").read_text())
    document |= {"id": name, "name": name, "schema": [table], "customProperties": []}
    document["servers"][0]["format"] = table_format
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
