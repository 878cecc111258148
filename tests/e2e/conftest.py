"""One lake for the end-to-end tests: the demo makes it, as a user would; and the hostile tables behind servers."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from lakeshare_pipelines.demo.processes import free_port, sharing_server
from lakeshare_pipelines.nessie.server import nessie_for, nessie_status, stop_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import find_packaged_java
from lakeshare_server.file_lock import hold_lock
from tests.builders.apart import Apart, process_apart
from tests.builders.hostile.families import TABLES
from tests.builders.hostile.matrix import unpack
from tests.builders.hostile.on_s3 import copied
from tests.builders.hostile.place import HostileTable
from tests.builders.hostile.served import Served, ServedTable, serving
from tests.builders.shared_spark import SharedSpark, driver_of_all_workers
from tests.builders.spark_apart import run_command
from tests.integration.s3_server import S3Server

ROOT = Path(__file__).parents[2]
# Of Chromium.
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable")
BIN = Path(sys.executable).parent
# The demo takes two minutes alone, and eight beside two other workers that start a Spark of their own.
COMMAND_S = 1100
NESSIE_POLL_S = 0.5
APT_S = 500


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: object
    text: str
    errors: str = ""


def _wait(process: "subprocess.Popen[str]") -> None:
    """Does nothing beside the command."""


@dataclass(frozen=True)
class DemoLake:
    """The demo's lake; commands run on it as a user types them, each in a process of its own."""

    settings: LakeSettings
    environment: Mapping[str, str]
    first: Finished

    @property
    def profile(self) -> Path:
        return self.settings.state_dir / "demo.share"

    def lakeshare(
        self, *arguments: str, meanwhile: Callable[["subprocess.Popen[str]"], None] = _wait
    ) -> Finished:
        """Run a `lakeshare` command to its end."""
        # Into files: the end of a pipe comes only when the last descendant of the command has ended, too.
        with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
            command = [str(BIN / "lakeshare"), *arguments]
            with subprocess.Popen(
                command, env=dict(self.environment), cwd=ROOT, stdout=printed, stderr=errors, text=True
            ) as process:
                try:
                    meanwhile(process)
                    process.wait(COMMAND_S)
                finally:
                    process.kill()
            printed.seek(0)
            errors.seek(0)
            return Finished(process.returncode, printed.read(), errors.read())


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoLake]:
    home = tmp_path_factory.mktemp("dagster_home")
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
    state = tmp_path_factory.mktemp("demo") / "state with a blank"
    environment = {**os.environ, "LAKESHARE_STATE_DIR": str(state), "DAGSTER_HOME": str(home)}
    # As a user without a Java has it; the demo's Spark generates code and writes files as it usually does. It has only
    # those options of the tests that are Java's: its driver needs 48 seconds of the processor, and 90 without them.
    users = {name: text for name, text in environment.items() if name != "SPARK_DIST_CLASSPATH"}
    options = environment["LAKESHARE_SPARK_DRIVER_OPTIONS"].split()
    users["LAKESHARE_SPARK_DRIVER_OPTIONS"] = " ".join(each for each in options if "codegen" not in each)
    users["LAKESHARE_JAVA_HOME"] = str(find_packaged_java())
    settings = LakeSettings(_env_file=None, state_dir=state)
    with ExitStack() as stack:
        stack.callback(stop_nessie, settings)

        def use_nessie(process: "subprocess.Popen[str]") -> None:
            """From now on the demo leaves it running at its end: else each command starts one for itself."""
            while process.poll() is None and not nessie_status(settings).is_running:
                time.sleep(NESSIE_POLL_S)
            stack.enter_context(nessie_for(settings, keep=False))

        first = DemoLake(settings, users, Finished(-1, "")).lakeshare("demo", "--once", meanwhile=use_nessie)
        yield DemoLake(settings, environment, first)


@pytest.fixture(scope="session")
def spark(demo: DemoLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    with driver_of_all_workers(demo.settings, tmp_path_factory) as session:
        yield SharedSpark.of(session)


@pytest.fixture(scope="session")
def apart(demo: DemoLake, spark: SharedSpark) -> Iterator[Apart]:
    """Another process that works on the demo's lake."""
    environment = {name: demo.environment[name] for name in ("LAKESHARE_STATE_DIR", "DAGSTER_HOME")}
    with process_apart(environment) as process:
        process(spark.serve_this_process)
        yield process


@pytest.fixture(scope="session")
def run(apart: Apart) -> Callable[..., Finished]:
    """Runs a command, `lakeshare` or `dagster`, in that other process, as its script does."""
    return lambda *command: Finished(*apart(run_command, *command))


@pytest.fixture(scope="session")
def served(demo: DemoLake, spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The profile of the demo's recipient, pointing to a running server, whose jobs use the driver of all tests."""
    profile = demo.settings.state_dir / "e2e.share"
    server = sharing_server(free_port(0), demo.settings.logs_dir / "e2e_server.log")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LAKESHARE_STATE_DIR", str(demo.settings.state_dir))
            for name, text in spark.make_environment(tmp_path_factory.mktemp("jobs"), "retry").items():
                patch.setenv(name, text)
            root = stack.enter_context(server)
        given = json.loads(demo.profile.read_text())
        profile.write_text(json.dumps(given | {"endpoint": f"{root}/delta-sharing"}))
        yield profile


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HostileTable]:
    """Every hostile table on the disk."""
    return unpack(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def hostile_disk(
    matrix: dict[str, HostileTable], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Every hostile table behind a server, on the disk."""
    with serving("disk", matrix, local_places(matrix), tmp_path_factory.mktemp("disk")) as served:
        yield served


@pytest.fixture(scope="session")
def hostile_s3(
    matrix: dict[str, HostileTable], s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Hostile tables of every family behind a server, in an S3 server."""
    folder = tmp_path_factory.mktemp("s3")
    chosen = {name: table for name, table in matrix.items() if TABLES[name].on_stores}
    with ExitStack() as stack:
        tables = copied(chosen, s3_server.client())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AWS_ACCESS_KEY_ID", s3_server.admin.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.admin.secret_key)
        yield stack.enter_context(
            serving("s3", tables, local_places(chosen), folder, s3_endpoint=s3_server.endpoint)
        )


def local_places(matrix: dict[str, HostileTable]) -> dict[str, Path]:
    return {name: Path(table.location) for name, table in matrix.items()}


@pytest.fixture
def table(request: pytest.FixtureRequest) -> ServedTable:
    """The hostile table of the parameter, which is its store and its name."""
    store, name = request.param
    served: Served = request.getfixturevalue(f"hostile_{store}")
    return served.table(name)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; installed by apt where that can be."""
    found = _find_browser()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        # One worker installs it, and the others find it.
        with hold_lock(Path(tempfile.gettempdir()) / "lakeshare-chromium" / "lock", wait_s=APT_S):
            found = _find_browser() or _install_browser()
    if found is None:
        pytest.skip("NO BROWSER: the pages were not looked at. Install chromium (apt-get install chromium).")
    return found


def _find_browser() -> str | None:
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def _install_browser() -> str | None:
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", "-qq", *command], check=True, timeout=APT_S)
    return _find_browser()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()
