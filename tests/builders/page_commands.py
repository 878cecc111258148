"""Commands of a page: taken from its `console` blocks, run as a user types them, compared with the output there."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from lakeshare_pipelines.demo.processes import free_port, sharing_server
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.apart import Apart, process_apart
from tests.builders.shared_spark import SharedSpark, driver_of_all_workers
from tests.builders.spark_apart import SCRIPTS, run_command

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
# What differs between runs.
VARYING = {
    "seconds": r"^ +\d+\.\d s",
    "version of Java": r"Java \d+",
    "address": r"127\.0\.0\.1:\d+",
    "run": r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    "staging location": r"(?<=-)[0-9a-f]{8}(?= )",
    "digest": r"\b[0-9a-f]{64}\b",
    "time": r"\b\d{4}-\d\d-\d\d \d\d:\d\d(?= )",
}
ANY = "..."
"""Any lines, in the output that a page shows."""


@dataclass(frozen=True)
class Step:
    """A command of a page, and the lines that it prints there."""

    command: str
    shown: tuple[str, ...]


def read_steps(page: str) -> list[Step]:
    """The steps of a page, in its order; a command may be continued by a backslash."""
    found = [step for block in BLOCK.findall(page) for step in STEP.findall(block)]
    return [Step(command, tuple(shown.splitlines())) for command, shown in found]


def mask(lines: Iterable[str]) -> list[str]:
    """Lines without what differs between runs."""
    varying = re.compile("|".join(VARYING.values()))
    return [varying.sub("N", line.rstrip()) for line in lines]


def is_shown(printed: str, shown: Iterable[str]) -> bool:
    """Whether a page shows an output, which may be shortened by lines of `...`."""
    patterns = [r"(?:.*\n)*?" if line == ANY else re.escape(f"{line}\n") for line in mask(shown)]
    text = "".join(f"{line}\n" for line in mask(printed.rstrip().splitlines()))
    return re.fullmatch("".join(patterns), text) is not None


class PageUser:
    """A user in a folder. `lakeshare`, `dagster` and `python` run in one process with the tests' Spark driver."""

    def __init__(self, folder: Path, process: Apart, variables: Mapping[str, str], stack: ExitStack) -> None:
        self.folder, self.process = folder, process
        self.port = int(variables["LAKESHARE_PORT"])
        self._variables, self._stack = dict(variables), stack
        self._code: object = 0

    def follow(self, page: str) -> None:
        """Runs the commands of a page, and compares what they print. After one that fails, the page has `echo $?`."""
        for step in read_steps(page):
            printed = self.run(step.command)
            assert is_shown(printed, step.shown), f"$ {step.command}\n{printed}"
        assert not self._code

    def run(self, command: str) -> str:
        """Runs one command; returns what it prints."""
        if command == "echo $?":
            last, self._code = self._code, 0
            return f"{last}\n"
        assert not self._code, f"the command before {command} ended with {self._code}"
        words = shlex.split(command)
        if words[:2] == ["lakeshare", "serve"]:
            assert words[2:] == ["--no-first-key", "&"]
            return self._serve()
        if words[0] in SCRIPTS:
            self._code, printed = self.process(run_command, *words)
        elif words[:2] == ["python", "-c"]:
            self._code, printed = 0, self.process(run_python, words[2])
        elif words[0] == "export":
            name, value = words[1].split("=", 1)
            self.export(name, value.replace("$PWD", str(self.folder)))
            printed = ""
        else:
            printed = self._run_in_shell(command)
        return printed

    def export(self, name: str, value: str) -> None:
        """Sets a variable for the commands that follow."""
        self._variables[name] = value
        self.process(export, name, value)

    def _run_in_shell(self, command: str) -> str:
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=os.environ | self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self._code = ended.returncode
        return ended.stdout

    def _serve(self) -> str:
        log = self.folder / "server.log"
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            self._stack.enter_context(sharing_server(self.port, log))
        [line] = [line for line in log.read_text().splitlines() if line.startswith("lakeshare serves")]
        return line


@contextmanager
def page_user(folder: Path, tmp_path_factory: pytest.TempPathFactory, **variables: str) -> Iterator[PageUser]:
    """A user in a folder without settings but a port and these variables; servers end with the block."""
    settings = LakeSettings(_env_file=None, state_dir=tmp_path_factory.mktemp("driver"))
    variables = {"LAKESHARE_PORT": str(free_port(0)), **variables}
    with (
        driver_of_all_workers(settings, tmp_path_factory) as spark,
        process_apart(variables) as process,
        ExitStack() as stack,
    ):
        process(enter, folder)
        process(SharedSpark.of(spark).serve_this_process)
        yield PageUser(folder, process, variables, stack)


def enter(folder: Path) -> None:
    """Goes to a folder as a user without an instance of Dagster."""
    os.chdir(folder)
    os.environ.pop("DAGSTER_HOME", None)


def export(name: str, value: str) -> None:
    """Sets a variable; a relative path on `PYTHONPATH` is one of the folder."""
    os.environ[name] = value
    if name == "PYTHONPATH":
        sys.path[:0] = [str(Path(part).resolve()) for part in value.split(os.pathsep)]


def run_python(code: str) -> str:
    """What `python -c` prints."""
    printed = StringIO()
    with redirect_stdout(printed):
        exec(code, {})
    return printed.getvalue()
