"""The time to load the Dagster definitions of 200 sets, at most 3 s, beside as many assets of Dagster alone.

Run: `python -m bench.definitions`. Two tables in each set, with checks, landing, job, sensor and maintenance. Importing
Dagster is not part of it. The second figure is a repository of the same number of plain assets.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import dagster as dg

from tests.builders.sets import a_contract

SETS, GOAL_S = 200, 3.0


def main() -> int:
    """Prints both times; 1 if loading takes longer than the goal."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SETS):
            a_contract(Path(folder) / "contracts", f"set{number}", "delta")
        os.environ["LAKESHARE_CONTRACTS_DIR"] = f"{folder}/contracts"
        os.environ["LAKESHARE_STATE_DIR"] = f"{folder}/state"
        began = time.perf_counter()
        from lakeshare_pipelines.definitions import defs

        repository = defs().get_repository_def()
        ours_s = time.perf_counter() - began
    keys = repository.asset_graph.get_all_asset_keys()
    began = time.perf_counter()
    plain = [dg.asset(key=key)(lambda: None) for key in keys]
    dg.Definitions(assets=plain).get_repository_def()
    plain_s = time.perf_counter() - began
    verdict = "met" if ours_s <= GOAL_S else "missed"
    ours = f"{SETS} sets with {len(keys)} assets: {ours_s:.1f} s (goal: at most {GOAL_S:.0f} s: {verdict})"
    print(f"{ours}, as many plain assets of Dagster {plain_s:.1f} s: {ours_s / plain_s:.1f} times")
    return int(ours_s > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
