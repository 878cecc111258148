"""The CI gate: the newest evaluation of every check; Dagster exits 0 when a non-blocking one fails."""

from collections.abc import Set as AbstractSet

import dagster as dg

from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.errors import PipelineError


class UnknownSelection(PipelineError):
    """A selection that Dagster does not understand, or that selects nothing."""

    def __init__(self, selection: str, reason: str) -> None:
        super().__init__(
            f"--select {selection!r}: {reason.rstrip('.')}. Write it as for `dagster asset materialize`: "
            "flights/departures,flights/daily_delays, or * for all."
        )
        self.selection, self.reason = selection, reason


def find_failed_checks(selection: str, *, errors_only: bool) -> list[str]:
    """One line per selected check whose newest evaluation in `DAGSTER_HOME`'s instance failed.

    A check that was never evaluated is no failure: nothing of it was published either.

    Raises:
        UnknownSelection: there is nothing to look at, which must not pass for a green run.
    """
    repository = defs().get_repository_def()
    wanted = _select_assets(repository, selection)
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


def _select_assets(repository: dg.RepositoryDefinition, selection: str) -> AbstractSet[dg.AssetKey]:
    try:
        keys = dg.AssetSelection.from_coercible(selection.split(",")).resolve(repository.asset_graph)
    except dg.DagsterError as error:
        raise UnknownSelection(selection, str(error).splitlines()[0]) from error
    if not keys:
        raise UnknownSelection(selection, "selects no asset")
    return keys
