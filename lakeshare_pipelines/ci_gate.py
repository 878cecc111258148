"""The CI gate: the newest evaluation of every check; Dagster exits 0 when a non-blocking one fails."""

import dagster as dg

from lakeshare_pipelines.definitions import defs


def failed_checks(selection: str, *, errors_only: bool) -> list[str]:
    """One line per selected check whose newest evaluation in `DAGSTER_HOME`'s instance failed.

    A check that was never evaluated is no failure: nothing of it was published either.
    """
    repository = defs().get_repository_def()
    wanted = dg.AssetSelection.from_string(selection).resolve(repository.asset_graph)
    failed = []
    with dg.DagsterInstance.get() as instance:
        for key in sorted(repository.asset_graph.asset_check_keys, key=str):
            if key.asset_key not in wanted:
                continue
            record = instance.get_latest_asset_check_evaluation_record(key)
            evaluation = record.event.asset_check_evaluation if record and record.event else None
            if evaluation is None or evaluation.passed:
                continue
            if errors_only and evaluation.severity is not dg.AssetCheckSeverity.ERROR:
                continue
            failed.append(f"{key.asset_key.to_user_string()} {key.name}: {evaluation.severity.value} failed")
    return failed
