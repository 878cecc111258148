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
from lakeshare_pipelines.demo.voice import Voice
from lakeshare_server.settings import make_private

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
PARTITION = "dagster/partition"
MARK = "lakeshare/demo"
POLL_S = 0.5
STEP_ENDS = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
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
        steps = EndedSteps(on, mark)
        is_over = False
        while not is_over:
            is_over = bool(wait([running], timeout=POLL_S).done)
            for step in steps.next():
                say(step)
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


class EndedSteps:
    """The steps of a run in the order in which they ended, each read from the event log once."""

    def __init__(self, on: dg.DagsterInstance, mark: str) -> None:
        self._on, self._mark = on, mark
        self._run_id: str | None = None
        self._cursor: str | None = None

    def next(self) -> Iterator[str]:
        """Return the steps that ended since the last call."""
        if self._run_id is None:
            found = self._on.get_runs(dg.RunsFilter(tags={MARK: self._mark}), limit=1)
            if not found:
                return
            self._run_id = found[0].run_id
        events = self._on.get_records_for_run(self._run_id, self._cursor, STEP_ENDS)
        self._cursor = events.cursor
        for record in events.records:
            event = record.event_log_entry.get_dagster_event()
            step = (event.step_key or "").rsplit(".", 1)[-1].replace("_", " ")
            yield step if event.event_type is dg.DagsterEventType.STEP_SUCCESS else f"{step}: stopped"
