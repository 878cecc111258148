"""Publishes some days of 100 orders, and counts what that took: run by `bench.small_publication` as a script.

`python small_publications.py FOLDER FORMAT...` with lakeshare's settings in the environment. Prints a line of JSON
before and after each day but the first, and continues after a line on its input. It uses only what older versions of
lakeshare have, too.
"""

import json
import sys
from pathlib import Path
from uuid import uuid4

from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import open_lake
from lakeshare_server.catalog import open_catalog
from tests.builders.sets import a_contract, a_delivery, orders

sys.path.append(str(Path(__file__).parent))
from spark_counts import SparkCounts

DAYS = ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04")
ROWS = 100


def main(folder: Path, formats: list[str]) -> None:
    """Publish the days of a set of each format."""
    settings = LakeSettings(_env_file=None)
    catalog = open_catalog(settings.catalog_url)
    with nessie_for(settings, keep=False), open_lake(settings) as lake:
        for form in formats:
            contract = a_contract(folder, f"small_{form}", form)
            for day in DAYS:
                a_delivery(settings, contract, day, orders(day, ROWS))
                if day != DAYS[0]:
                    report({"begins": form})
                counts, steps = SparkCounts(lake.spark), {}
                staged = stage(lake, contract, [day], str(uuid4()))
                steps["stage"] = counts.take().jobs
                verdicts = audit_and_save(lake, contract, staged)
                steps["audit"] = counts.take().jobs
                publish(lake, catalog, contract, staged, verdicts)
                steps["publish"] = counts.take().jobs
                if day != DAYS[0]:
                    report({"ends": form, "jobs": steps})


def report(line: dict[str, object]) -> None:
    """Print a line, and wait until it was read."""
    print(json.dumps(line), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
