"""One small publication on a table with many earlier ones, against one with few: `python -m bench.publication`.

Two daily Delta sets of two tables are published on the local disk, day by day in turn; the ledger of one has the
numbers of years of publications. Staged by deltalake, without Spark, whose seconds would hide a difference. The goal
(issue 18): at most 1.2 times.
"""

import statistics
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

from sqlalchemy import insert

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.staged import Lake, open_lake_without_spark
from lakeshare_server.catalog import Catalog, Ledger, open_catalog
from lakeshare_server.catalog.models import PublicationRow
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading

FEW, MANY, TURNS, GOAL = 10, 10_000, 15, 1.2
FIRST = date(2024, 1, 1)


def main() -> int:
    """Prints both medians and their ratio; 1 if the ratio is over the goal."""
    with tempfile.TemporaryDirectory() as folder:
        settings = LakeSettings(_env_file=None, state_dir=Path(folder) / "state", lock_wait_s=60)
        lake, catalog = open_lake_without_spark(settings), open_catalog(settings.catalog_url)
        sets = {}
        for count in (FEW, MANY):
            contract = a_contract(Path(folder) / "contracts", f"with{count}", "delta")
            publish_day(lake, catalog, contract, 0)
            add_earlier(catalog, contract, count)
            sets[count] = contract
        seconds: dict[int, list[float]] = {FEW: [], MANY: []}
        for turn in range(1, TURNS + 1):
            for count in (FEW, MANY) if turn % 2 else (MANY, FEW):
                seconds[count].append(publish_day(lake, catalog, sets[count], turn))
    few, many = (statistics.median(seconds[count]) for count in (FEW, MANY))
    print(
        f"one publication of two Delta tables: {few * 1000:.0f} ms with {FEW} earlier ones, {many * 1000:.0f} ms with "
        f"{MANY:,}: {many / few:.2f} times (goal: at most {GOAL})"
    )
    return int(many / few > GOAL)


def publish_day(lake: Lake, catalog: Catalog, contract: SetContract, number: int) -> float:
    """Stages and publishes one day; returns the seconds."""
    day = (FIRST + timedelta(days=number)).isoformat()
    rows = orders(day, 100)
    a_delivery(lake.settings, contract, day, rows)
    began = time.perf_counter()
    staged = staged_without_reading(lake, contract, day, rows)
    publish(lake, catalog, contract, staged, green(contract, staged))
    return time.perf_counter() - began


def add_earlier(catalog: Catalog, contract: SetContract, count: int) -> None:
    """Adds rows to the ledger below the first number of each table: of days before the first one."""
    for table in contract.tables:
        [first] = Ledger(catalog).history(table.name)
        names = [column.key for column in PublicationRow.__mapper__.column_attrs]
        with catalog.writing() as session:
            row = session.query(PublicationRow).filter_by(table=table.name).one()
            fields = {key: getattr(row, key) for key in names if key != "key"}
            earlier = []
            for number in range(1, count + 1):
                day = (FIRST - timedelta(days=number)).isoformat()
                verdicts = {**first.verdicts, "deliveries": {day: "d" * 64}}
                changed = {
                    "version": -number,
                    "partition": day,
                    "run_id": f"earlier-{number}",
                    "verdicts": verdicts,
                }
                earlier.append({**fields, **changed})
            session.execute(insert(PublicationRow), earlier)


if __name__ == "__main__":
    sys.exit(main())
