"""Installs wheel and sdist into empty environments of each Python, and runs docs/first-steps.md in them.

`make check-install` runs it. Each environment publishes with Spark, serves, reads with the client of Delta Sharing and
passes the conformance suite. The start of one with the server alone is compared with the import of its libraries.
"""

import argparse
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.distributions import (
    LOCK,
    NO_TIME,
    ROOT,
    build,
    clean_variables,
    find_uv,
    format_constraints,
    make_environment,
)

USABLE = "import ctypes, sqlite3, ssl, sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
CSV = re.compile(r"^```csv\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^\$ (.*)$", re.MULTILINE)
PIPELINES = ("pipelines", "demo")
# A start of `lakeshare serve` until /healthz responds may take so many times the processor time of an import of its
# largest libraries.
LIBRARIES = "import fastapi, pyarrow.compute, sqlalchemy.orm, time; print(time.process_time())"
MAX_RATIO, MAX_STARTS = 4, 5
# Half of a short run of Spark is otherwise its just-in-time compiler.
SHORT_RUNS = {
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # No archive of classes is written at the end, for environments that are removed then.
    "LAKESHARE_SPARK_DRIVER_OPTIONS": "-Xshare:auto",
}
COMMAND_S, READY_S = 600, 60


class CheckFailed(Exception):
    """A command of an environment failed; the text has its output."""


@dataclass(frozen=True)
class Result:
    """What came of one environment; `problem` is empty if all of it worked."""

    python: str
    installed: str
    seconds: float
    detail: str
    problem: str = ""


@dataclass(frozen=True)
class Workshop:
    """What all environments are made from."""

    folder: Path
    wheel: Path
    sdist: Path
    constraints: Path


def read_supported_pythons() -> list[str]:
    """The versions that the package states, like `3.11`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.findall(r"Python :: (\d+\.\d+)", "\n".join(project["classifiers"]))


def find_pythons(versions: Sequence[str]) -> dict[str, str]:
    """Paths of the Pythons of this machine by version: pyenv's, else those of the PATH and those that uv knows."""
    found = {}
    for version in versions:
        for candidate in _list_candidates(version):
            shown = subprocess.run([candidate, "-c", USABLE], capture_output=True, text=True)
            if shown.returncode == 0 and shown.stdout.split()[0] == version:
                found[version] = shown.stdout.split()[1]
                break
    return found


def _list_candidates(version: str) -> Iterator[str]:
    yield from map(str, sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python3")))
    yield from filter(None, map(shutil.which, ("/usr/bin/python3", f"python{version}", "python3")))
    known = [find_uv(), "python", "find", "--no-project", "--no-python-downloads", version]
    yield from subprocess.run(known, capture_output=True, text=True).stdout.split()


def take_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_command(command: Sequence[str], folder: Path, variables: dict[str, str]) -> str:
    """What a command prints. Raises CheckFailed if it fails."""
    ended = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=COMMAND_S
    )
    if ended.returncode:
        raise CheckFailed(
            f"$ {shlex.join(command)}\nexit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
        )
    return ended.stdout


@dataclass(frozen=True)
class Started:
    """A server that responds: the seconds until it did, and how many of them it had a processor."""

    seconds: float
    processor_s: float


@contextmanager
def running_server(command: Sequence[str], folder: Path, variables: dict[str, str]) -> Iterator[Started]:
    """Runs a server within the block, from its first response on."""
    port, log = variables["LAKESHARE_PORT"], folder / "server.log"
    began = time.perf_counter()
    with (
        log.open("ab") as output,
        subprocess.Popen(command, cwd=folder, env=variables, stdout=output, stderr=output) as server,
    ):
        try:
            while not is_healthy(port):
                if server.poll() is not None or time.perf_counter() - began > READY_S:
                    raise CheckFailed(f"$ {shlex.join(command)}\nno response\n{log.read_text()}")
                time.sleep(0.01)
            yield Started(time.perf_counter() - began, read_processor_seconds(server.pid))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(READY_S)


def read_processor_seconds(pid: int) -> float:
    """The seconds that a running process has had a processor, in its own and the kernel's code."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def is_healthy(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=READY_S) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def follow_first_steps(commands: Path, folder: Path) -> str:
    """Runs the commands of docs/first-steps.md, and the conformance suite against its server; the last result."""
    page = (ROOT / "docs" / "first-steps.md").read_text()
    [orders] = CSV.findall(page)
    (folder / "orders.csv").write_text(orders)
    variables = clean_variables(commands, {"LAKESHARE_PORT": str(take_free_port()), **SHORT_RUNS})
    *before, serve, read = COMMANDS.findall(page)
    for command in before:
        run_command(shlex.split(command), folder, variables)
    with running_server(shlex.split(serve.removesuffix("&")), folder, variables):
        frame = run_command(shlex.split(read), folder, variables)
        if len(frame.splitlines()) != len(orders.splitlines()):
            raise CheckFailed(f"$ {read}\nread other rows than {orders}:\n{frame}")
        report = run_command(["lakeshare", "conformance", "run", "alice.share"], folder, variables)
    return f"conformance {report.splitlines()[-1]}"


def start_server_alone(commands: Path, folder: Path) -> str:
    """Compares starts of the server with imports of its libraries. Raises CheckFailed if none is fast."""
    variables = clean_variables(commands, {"LAKESHARE_PORT": str(take_free_port())})

    def import_libraries() -> str:
        return run_command(["python", "-c", LIBRARIES], folder, variables)

    def start() -> AbstractContextManager[Started]:
        return running_server(["lakeshare", "serve"], folder, variables)

    with start():  # makes the database
        pass
    return compare_starts(import_libraries, start)


def compare_starts(
    import_libraries: Callable[[], str], start: Callable[[], AbstractContextManager[Started]]
) -> str:
    """Imports the libraries, which prints its processor seconds, and starts the server in turn until a start is fast.

    On a busy or slow machine both take longer, and the fastest of each are compared. Raises CheckFailed.
    """
    starts, imports, ratio = list[Started](), list[float](), math.inf
    while len(starts) < MAX_STARTS and ratio > MAX_RATIO:
        imports.append(float(import_libraries()))
        with start() as started:
            starts.append(started)
        ratio = min(each.processor_s for each in starts) / min(imports)
    seconds = ", ".join(f"{each.seconds:.1f}" for each in starts)
    detail = f"starts respond after {seconds} s, in {ratio:.1f} times the processor time of their libraries"
    if ratio > MAX_RATIO:
        raise CheckFailed(f"{detail}: not in {MAX_RATIO} times")
    return detail


def check_environment(shop: Workshop, version: str, python: str, installed: str) -> Result:
    """Makes one environment and runs what `installed` asks for: `server`, `wheel` or `sdist`."""
    folder, began = shop.folder / f"{version}-{installed}", time.monotonic()
    work = folder / "work"
    detail = problem = ""
    try:
        distribution = shop.sdist if installed == "sdist" else shop.wheel
        extras = () if installed == "server" else PIPELINES
        is_compiled = installed == "server"
        commands = make_environment(
            folder, python, distribution, shop.constraints, extras, is_compiled=is_compiled
        )
        work.mkdir()
        run = start_server_alone if installed == "server" else follow_first_steps
        detail = run(commands, work)
    except (CheckFailed, RuntimeError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    return Result(version, installed, time.monotonic() - began, detail, problem)


def format_table(results: Sequence[Result]) -> Iterator[str]:
    yield f"{'PYTHON':8}{'INSTALLED':11}{'RESULT':8}{'SECONDS':>8}"
    for result in results:
        outcome = "FAILED" if result.problem else "ok"
        yield f"{result.python:8}{result.installed:11}{outcome:8}{result.seconds:8.1f}  {result.detail}"


def check_all(shop: Workshop, pythons: dict[str, str], jobs: int) -> list[Result]:
    """One environment for each Python with the wheel, one with the sdist, and the server alone for each Python."""
    work = [*((version, "wheel") for version in pythons), (list(pythons)[-1], "sdist")]
    with ThreadPoolExecutor(jobs) as pool:
        results = list(
            pool.map(lambda each: check_environment(shop, each[0], pythons[each[0]], each[1]), work)
        )
    # One at a time, because the seconds of the start count.
    return results + [check_environment(shop, *python, "server") for python in pythons.items()]


def main() -> None:
    options = argparse.ArgumentParser(prog="make check-install", description=__doc__)
    options.add_argument("--python", action="append", help="only this version, like 3.12; may be repeated")
    options.add_argument("--jobs", type=int, default=2, help="environments at once")
    options.add_argument("--dist", type=Path, help="folder of a wheel and an sdist, in place of new ones")
    chosen = options.parse_args()
    wanted = chosen.python or read_supported_pythons()
    pythons = find_pythons(wanted)
    if not pythons:
        sys.exit(f"check-install: none of Python {', '.join(wanted)} is on this machine")
    with tempfile.TemporaryDirectory(prefix="lakeshare-install-") as name:
        folder = Path(name)
        if chosen.dist is None:
            build(folder, commit_time=NO_TIME)
        dist = (chosen.dist or folder).resolve()
        [wheel], [sdist] = dist.glob("lakeshare-*.whl"), dist.glob("lakeshare-*.tar.gz")
        constraints = folder / "constraints.txt"
        constraints.write_text(format_constraints(LOCK.read_text()))
        results = check_all(Workshop(folder, wheel, sdist, constraints), pythons, chosen.jobs)
    for result in results:
        if result.problem:
            print(f"--- Python {result.python}, {result.installed}\n{result.problem}")
    print("\n".join(format_table(results)))
    for version in sorted(set(wanted) - set(pythons)):
        print(f"Python {version} is not on this machine: not checked")
    sys.exit(any(result.problem for result in results))


if __name__ == "__main__":
    main()
