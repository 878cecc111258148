"""A run in a process of its own; right after a named step it kills itself, its Spark, or its Nessie (SIGKILL).

Run as `python -m tests.builders.killed_run SPEC.json`. The step is wrapped from outside: production code has no
hooks for this.
"""

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.nessie.server import nessie_status
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.spark.session import driver_pid
from lakeshare_pipelines.wap import replay
from lakeshare_pipelines.wap.lake import with_spark
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdicts
from lakeshare_server.catalog import open_catalog
from lakeshare_server.errors import LakeshareError


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
) -> int:
    """Run the set in another process, killed after the `nth` call of `after` (`module:Class.function`).

    With `judged` the run begins at publish. Returns the process's exit code: -9 when it was killed itself, 3 when
    `victim` is `spark` or `nessie` and the run ended with an error of ours, which is in `folder/error.txt`.
    """
    spec = {
        "state_dir": str(settings.state_dir),
        "contract": str(contract.path),
        "after": after,
        "nth": nth,
        "victim": victim,
        "day": day,
        "run_id": run_id,
        "judged": None if judged is None else [judged[0].as_record(), judged[1].as_record()],
    }
    return start(folder, spec).wait(timeout=300)


def start_run(
    folder: Path,
    settings: LakeSettings,
    contract: SetContract,
    *,
    day: str,
    run_id: str,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a run of the set in another process that nobody kills; `environment` is added to this one's."""
    spec = {
        "state_dir": str(settings.state_dir),
        "contract": str(contract.path),
        "day": day,
        "run_id": run_id,
    }
    spec |= {"after": None, "nth": 0, "victim": "self", "judged": None}
    return start(folder, spec, environment)


def start(
    folder: Path, spec: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start this module as a process on a specification."""
    path = folder / f"{spec['run_id']}.json"
    path.write_text(json.dumps(spec))
    command = [sys.executable, "-m", "tests.builders.killed_run", str(path)]
    return subprocess.Popen(command, env={**os.environ, **(environment or {})})


def kill_after(target: str, nth: int, victim: Callable[[], int]) -> None:
    """Wrap `module:Class.function` so that the process dies right after its `nth` call returned."""
    module_name, _, dotted = target.partition(":")
    *owners, name = dotted.split(".")
    owner: Any = importlib.import_module(module_name)
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, _deadly(getattr(owner, name), nth, victim))


def _deadly(function: Callable[..., Any], nth: int, victim: Callable[[], int]) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = function(*args, **kwargs)
        calls += 1
        if calls == nth:
            os.kill(victim(), signal.SIGKILL)
        return result

    return wrapped


def _pid(found: int | None) -> int:
    assert found is not None, "there is nothing to kill"
    return found


VICTIMS: dict[str, Callable[[LakeSettings], Callable[[], int]]] = {
    "self": lambda settings: os.getpid,
    "spark": lambda settings: lambda: _pid(driver_pid()),
    "nessie": lambda settings: lambda: _pid(nessie_status(settings).pid),
}


def main(path: Path) -> None:
    """Run what the specification says; returns only if the step was never reached."""
    spec = json.loads(path.read_text())
    settings = LakeSettings(_env_file=None, state_dir=Path(spec["state_dir"]))
    contract = load_contract(Path(spec["contract"]))
    if spec["after"] is not None:
        kill_after(spec["after"], spec["nth"], VICTIMS[spec["victim"]](settings))
    with with_spark(settings) as lake:
        if spec["judged"] is None:
            staged = stage(lake, contract, [spec["day"]], spec["run_id"])
            verdicts = replay.judged(lake, contract, staged)
        else:
            staged = Staged.from_record(spec["judged"][0])
            verdicts = Verdicts.from_record(spec["judged"][1])
        publish_or_replay(lake, open_catalog(settings.catalog_url), contract, staged, verdicts)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except LakeshareError as error:
        (Path(sys.argv[1]).parent / "error.txt").write_text(f"{type(error).__name__}: {error}")
        sys.exit(3)
