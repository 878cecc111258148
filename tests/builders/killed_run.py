"""A run in a process of its own that kills itself or its Nessie (SIGKILL) right after a named step.

The step is wrapped from outside: production code has no hooks for this. The processes are forked from one that has
the imports done. With `spark` they work in a Spark driver that is already running, else they start one.
"""

import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.nessie.server import nessie_status
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.spark.stores import make_hadoop_conf
from lakeshare_pipelines.wap import audit
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, Staged, Verdicts, open_lake
from lakeshare_server.catalog import open_catalog
from lakeshare_server.errors import LakeshareError
from lakeshare_server.storage import Stores
from tests.builders.forks import start_process
from tests.builders.sets import green
from tests.builders.shared_spark import SharedSpark
from tests.builders.waiting import wait_until

RUN_S = 300


@dataclass(frozen=True)
class Run:
    """A run for another process: of a set's day from its delivery, or from what `judged` holds.

    With `gate` it is not audited: it is published as if its audit had passed, once that file exists.
    The process gives the signal `sent` to its `victim` right after the `nth` call of `after` (`module:Class.function`),
    if that is given.
    """

    settings: LakeSettings
    contract: SetContract
    day: str
    run_id: str
    spark: SharedSpark | None = None
    judged: tuple[Staged, Verdicts] | None = None
    after: str | None = None
    nth: int = 1
    victim: str = "self"
    sent: signal.Signals = signal.SIGKILL
    gate: Path | None = None


def run_until_killed(
    folder: Path,
    settings: LakeSettings,
    contract: SetContract,
    after: str,
    nth: int,
    *,
    day: str,
    run_id: str,
    judged: tuple[Staged, Verdicts] | None = None,
    victim: str = "self",
    spark: SharedSpark | None = None,
) -> int:
    """Run the set in another process, killed after the `nth` call of `after` (`module:Class.function`).

    With `judged` the run begins at publish. Returns the process's exit code: -9 when it was killed itself, 3 when
    `victim` is `nessie` and the run ended with an error of ours, which is in `folder/error.txt`.
    """
    process = start_run(folder, Run(settings, contract, day, run_id, spark, judged, after, nth, victim))
    return wait_for_exit(process)


def start_run(folder: Path, run: Run) -> BaseProcess:
    """Start a run in another process. An error of ours that ends it is written to `folder/error.txt`."""
    return start_process(carry_out, folder / "error.txt", run)


def wait_for_exit(process: BaseProcess, timeout_s: float = RUN_S) -> int:
    """Return the exit code of a process; one that does not end in time is killed.

    Raises:
        TimeoutError: it did not end in time.
    """
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{process.name} did not end within {timeout_s} s")
    return process.exitcode


def carry_out(error_file: Path, run: Run) -> None:
    """Carry out a run in this process; returns only if it is not killed."""
    if run.after is not None:
        kill_after(run.after, run.nth, VICTIMS[run.victim](run.settings), run.sent)
    try:
        with _lake(run) as lake:
            if run.judged is None:
                staged = stage(lake, run.contract, [run.day], run.run_id)
                judge = audit.audit_and_save if run.gate is None else partial(_pass_at, run.gate)
                verdicts = judge(lake, run.contract, staged)
            else:
                staged, verdicts = run.judged
            publish_or_replay(lake, open_catalog(run.settings.catalog_url), run.contract, staged, verdicts)
    except LakeshareError as error:
        error_file.write_text(f"{type(error).__name__}: {error}")
        sys.exit(3)


def _pass_at(gate: Path, lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    wait_until(gate.exists)
    return green(contract, staged)


@contextmanager
def _lake(run: Run) -> Iterator[Lake]:
    if run.spark is not None:
        yield Lake(run.settings, partial(_attach, run.spark, run.settings))
        return
    with open_lake(run.settings) as lake:
        yield lake


def _attach(spark: SharedSpark, settings: LakeSettings) -> SparkSession:
    session = spark.attach()
    for key, value in make_hadoop_conf(Stores(settings), settings.lake_root).items():
        session.conf.set(key, value)
    return session


def kill_after(target: str, nth: int, victim: Callable[[], int], sent: signal.Signals) -> None:
    """Wrap `module:Class.function` so that the process gets a signal right after its `nth` call returned."""
    module_name, _, dotted = target.partition(":")
    *owners, name = dotted.split(".")
    owner: Any = importlib.import_module(module_name)
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, _deadly(getattr(owner, name), nth, victim, sent))


def _deadly(
    function: Callable[..., Any], nth: int, victim: Callable[[], int], sent: signal.Signals
) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = function(*args, **kwargs)
        calls += 1
        if calls == nth:
            os.kill(victim(), sent)
        return result

    return wrapped


def _pid(found: int | None) -> int:
    assert found is not None, "there is nothing to kill"
    return found


VICTIMS: dict[str, Callable[[LakeSettings], Callable[[], int]]] = {
    "self": lambda settings: os.getpid,
    "nessie": lambda settings: lambda: _pid(nessie_status(settings).pid),
}
