"""Starts runs on new publications of tables that another provider shares: `shared_table_sensor`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakeshare_pipelines.share.updates import SharedTableUpdates, TableUpdate
from lakeshare_server.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

INTERVAL_S = 60
MAX_RUNS = 100
TABLE_TAG, NUMBER_TAG, TIME_TAG = "lakeshare/shared_table", "lakeshare/number", "lakeshare/published_at"


def shared_table_sensor(
    profile: str | Path | dg.EnvVar,
    table: str,
    *,
    job: "dg.JobDefinition | UnresolvedAssetJobDefinition | None" = None,
    target: Any = None,  # as `target` of `dg.sensor`
    name: str | None = None,
    make_run_config: Callable[[TableUpdate], Mapping[str, Any]] | None = None,
    minimum_interval_seconds: int = INTERVAL_S,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Returns a sensor that starts one run for each new number of a shared table, of `job` or of the assets `target`.

    `profile` is the path of the profile file, or the environment variable with it (`dg.EnvVar`); `table` is
    `share.schema.table`. The first tick starts a run for the newest number. If the server has no feed of publications,
    only the newest of several numbers between two ticks is known. Runs have the tags `lakeshare/shared_table`,
    `lakeshare/number` and, with a feed, `lakeshare/published_at`.

    Example: `shared_table_sensor(dg.EnvVar("ACME_PROFILE"), "sales.lake.orders", target=[report])`

    Raises:
        BadRequest: not exactly one of `job` and `target` is given.
    """
    if (job is None) == (target is None):
        raise BadRequest("job, target", f"{job}, {target}", "Give one of the two.")

    @dg.sensor(
        name=name or f"shared_{re.sub('[^A-Za-z0-9_]', '_', table)}",
        description=f"Watches {table}, which another provider shares.",
        job=job,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        path = profile.get_value() if isinstance(profile, dg.EnvVar) else profile
        if path is None:
            raise BadRequest("profile", str(profile), "Set the variable to the path of the profile file.")
        known = None if context.cursor is None else int(context.cursor)
        found = _find_updates(SharedTableUpdates(Path(path), table), known)
        if isinstance(found, str):
            return dg.SkipReason(found)
        requests = [
            dg.RunRequest(
                run_key=f"{table}@{update.number}",
                tags=_tags(table, update),
                run_config=None if make_run_config is None else dict(make_run_config(update)),
            )
            for update in found
        ]
        return dg.SensorResult(run_requests=requests, cursor=str(found[-1].number))

    return watch


def _find_updates(updates: SharedTableUpdates, known: int | None) -> list[TableUpdate] | str:
    """The updates after a known number, the newest one without it; or why there is none."""
    try:
        newest = updates.newest()
        if known is None:
            return [TableUpdate(newest)]
        if newest > known:
            return updates.since(known, newest)[:MAX_RUNS]
    except Unavailable as outage:
        return f"{outage}. The next tick looks again."
    if newest == known:
        return f"{updates.table} is at number {known} still."
    return (
        f"{updates.table} went back from number {known} to {newest}: no run is started until there is a higher number. "
        f"If it is another table now, set the cursor to {newest}."
    )


def _tags(table: str, update: TableUpdate) -> dict[str, str]:
    tags = {TABLE_TAG: table, NUMBER_TAG: str(update.number)}
    return tags if update.published_at is None else {**tags, TIME_TAG: update.published_at.isoformat()}
