"""The project: what is in `defs/`, with one executor for all runs."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    # A run of a set is one Spark driver: other executors start one for each step.
    one_process = dg.Definitions(executor=dg.in_process_executor)
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent), one_process
    )
