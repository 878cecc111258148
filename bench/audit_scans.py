"""How often the audit reads a staged row, with few and with many rules, by Spark's metrics of its stages.

Run: `python -m bench.audit_scans`; `--rows` sets the rows of the audited day. The table has a primary key, which is
unique in the whole table, and one day of few rows before it; a second table is derived from it. The goal (issue 18): at
most once, whatever the number of rules. What Spark reads from its cache counts by batches of some thousand rows.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

from bench.lake.spark_counts import SparkCounts
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, open_lake
from lakeshare_server.catalog import open_catalog
from tests.builders.sets import a_contract, a_delivery, orders

FORMATS, FEW, MANY = ("iceberg", "delta"), 2, 40
ROWS, ROWS_BEFORE = 200_000, 100
# Rows of the day before, of the derived table, batches of the cache, and lines of Delta's logs.
OTHER_RECORDS = 2_000
DAYS = ("2024-01-01", "2024-01-02")


def main() -> int:
    """Prints how often a staged row was read; 1 if more than once."""
    parser = argparse.ArgumentParser(prog="python -m bench.audit_scans", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the audited day")
    rows = parser.parse_args().rows
    is_met = True
    with tempfile.TemporaryDirectory(prefix="lakeshare-audit-scans-") as folder:
        settings = LakeSettings(_env_file=None, state_dir=Path(folder) / "state", show_rejected_values=False)
        with nessie_for(settings, keep=False), open_lake(settings) as lake:
            for form in FORMATS:
                for rules in (FEW, MANY):
                    contract = contract_with(Path(folder) / "contracts", form, rules)
                    records, jobs = audited(lake, contract, rows)
                    is_once = records <= rows + OTHER_RECORDS
                    is_met &= is_once
                    print(
                        f"{form}, {rules + 5} rules: {rows:,} rows are staged, {records:,} records were read in {jobs} "
                        f"jobs: {records / rows:.2f} times (goal: at most 1: {'met' if is_once else 'missed'})",
                        flush=True,
                    )
    return int(not is_met)


def contract_with(folder: Path, form: str, rules: int) -> SetContract:
    """A daily set whose orders have so many rules on their id, beside those of the key and of required columns."""
    column = "      - {name: id, logicalType: integer, physicalType: int, primaryKey: true, primaryKeyPosition: 1}\n"
    lines = [column.replace("{", "").replace("}", "").replace(", ", "\n        "), "        quality:\n"]
    lines += [
        f"          - {{name: below_{limit}, type: custom, engine: greatExpectations, implementation: "
        f"{{type: expect_column_values_to_be_between, kwargs: {{max_value: {10**9 + limit}}}}}}}\n"
        for limit in range(rules)
    ]
    return a_contract(folder, f"scans_{form}_{rules}", form, **{column: "".join(lines)})


def audited(lake: Lake, contract: SetContract, rows: int) -> tuple[int, int]:
    """Publishes a day of few rows, and stages another one; returns records and jobs of its audit."""
    catalog = open_catalog(lake.settings.catalog_url)
    for day, count, first in zip(DAYS, (ROWS_BEFORE, rows), (1, 1_000_000), strict=True):
        a_delivery(lake.settings, contract, day, orders(day, count, first))
        staged = stage(lake, contract, [day], str(uuid4()))
        counts = SparkCounts(lake.spark)
        verdicts = audit_and_save(lake, contract, staged)
        counted = counts.take()
        if not verdicts.green:
            raise RuntimeError(f"the audit failed: {verdicts.blocking_names}")
        publish(lake, catalog, contract, staged, verdicts)
    catalog.close()
    return counted.records, counted.jobs


if __name__ == "__main__":
    sys.exit(main())
