"""Dagster runs of the demo, in this process, with a line for each step as it ends."""

import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.demo.voice import Say, Voice
from lakeshare_server.settings import make_private

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
PARTITION = "dagster/partition"
MARK = "lakeshare/demo"
POLL_S = 0.2
# The event log has everything; the terminal is for the story.
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class Ran:
    """How a run ended, and the error-severity checks that failed in it."""

    run_id: str
    succeeded: bool
    failed_checks: tuple[str, ...]


def use_dagster_home(state_dir: Path) -> Path:
    """Set `DAGSTER_HOME` to the demo's own, unless it is set."""
    if "DAGSTER_HOME" not in os.environ:
        home = own_dagster_home(state_dir)
        make_private(home)
        os.environ["DAGSTER_HOME"] = str(home)
    return Path(os.environ["DAGSTER_HOME"]).resolve()


def own_dagster_home(state_dir: Path) -> Path:
    """`dagster_home/` of the checkout, else a folder in the state folder."""
    here = Path("dagster_home").resolve()
    return here if (here / "dagster.yaml").exists() else state_dir / "dagster_home"


@contextmanager
def instance() -> Iterator[dg.DagsterInstance]:
    """The instance at `DAGSTER_HOME`, its tables made before several processes want them at once."""
    with dg.DagsterInstance.get() as found:
        found.get_runs(limit=1)
        found.all_instigator_state()
        yield found


def run_job(name: str) -> dg.JobDefinition:
    """A job of the code location, by name; Dagster calls this to rebuild it."""
    return defs().resolve_job_def(name)


def launch(voice: Voice, on: dg.DagsterInstance, job: str, title: str, partitions: Sequence[str] = ()) -> Ran:
    """Run a job for one partition, a range, or none, telling its steps as they end."""
    mark = str(uuid.uuid4())
    target = dg.build_reconstructable_job(__name__, run_job.__name__, reconstructable_args=(job,))
    with ThreadPoolExecutor(max_workers=1) as pool, voice.working(title) as say:
        running = pool.submit(
            dg.execute_job, target, on, run_config=QUIET, tags={MARK: mark, **_partition_tags(partitions)}
        )
        told: set[str] = set()
        is_over = False
        while not is_over:
            is_over = bool(wait([running], timeout=POLL_S).done)
            _tell_steps(on, mark, told, say)
        result = running.result()
    failed = tuple(
        f"{check.asset_key.to_user_string()}: {check.check_name}"
        for check in result.get_asset_check_evaluations()
        if not check.passed and check.severity is dg.AssetCheckSeverity.ERROR
    )
    return Ran(result.run_id, result.success, failed)


def _partition_tags(partitions: Sequence[str]) -> dict[str, str]:
    if not partitions:
        return {}
    if len(partitions) == 1:
        return {PARTITION: partitions[0]}
    return {RANGE_START: partitions[0], RANGE_END: partitions[-1]}


def _tell_steps(on: dg.DagsterInstance, mark: str, told: set[str], say: Say) -> None:
    for run in on.get_runs(dg.RunsFilter(tags={MARK: mark})):
        for event in on.all_logs(
            run.run_id, of_type={dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
        ):
            step = event.step_key or ""
            if step in told:
                continue
            told.add(step)
            ended = event.get_dagster_event().event_type is dg.DagsterEventType.STEP_SUCCESS
            say(f"{step.rsplit('.', 1)[-1].replace('_', ' ')}{'' if ended else ': stopped'}")
