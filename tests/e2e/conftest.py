"""One lake for the end-to-end tests: the demo makes it, as a user would; and the hostile tables behind servers."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakeshare_pipelines.demo.processes import free_port, sharing_server
from lakeshare_pipelines.nessie.server import nessie_for, stop_nessie
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.apart import Apart, process_apart
from tests.builders.hostile.families import TABLES
from tests.builders.hostile.matrix import unpack
from tests.builders.hostile.on_s3 import copied
from tests.builders.hostile.place import HostileTable
from tests.builders.hostile.served import Served, ServedTable, serving
from tests.integration.s3_server import running_s3

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# The demo takes two minutes alone, and eight beside two other workers that start a Spark of their own.
COMMAND_S = 1100


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    text: str


@dataclass(frozen=True)
class DemoLake:
    """The demo's lake; commands run on it as a user types them."""

    settings: LakeSettings
    environment: Mapping[str, str]
    first: Finished

    @property
    def profile(self) -> Path:
        return self.settings.state_dir / "demo.share"

    def run(self, *command: str) -> Finished:
        """Run a command of the environment to its end."""
        # Into a file: the end of a pipe comes only when the last descendant of the command has ended, too.
        with tempfile.TemporaryFile("w+") as printed:
            ended = subprocess.run(
                [str(BIN / command[0]), *command[1:]],
                env=dict(self.environment), cwd=ROOT, check=False, timeout=COMMAND_S,
                stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip
            printed.seek(0)
            return Finished(ended.returncode, printed.read())

    def lakeshare(self, *arguments: str) -> Finished:
        """Run a `lakeshare` command."""
        return self.run("lakeshare", *arguments)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoLake]:
    home = tmp_path_factory.mktemp("dagster_home")
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
    state = tmp_path_factory.mktemp("demo") / "state"
    environment = {**os.environ, "LAKESHARE_STATE_DIR": str(state), "DAGSTER_HOME": str(home)}
    # As a user has it: the demo's Spark compiles and writes files as it usually does.
    of_tests = {"LAKESHARE_SPARK_DRIVER_OPTIONS", "SPARK_DIST_CLASSPATH"}
    users = {name: text for name, text in environment.items() if name not in of_tests}
    settings = LakeSettings(_env_file=None, state_dir=state)
    first = DemoLake(settings, users, Finished(-1, "")).lakeshare("demo", "--once")
    try:
        # Kept running, as it is beside Dagster: else each command starts one for itself.
        with nessie_for(settings, keep=False):
            yield DemoLake(settings, environment, first)
    finally:
        stop_nessie(settings)


@pytest.fixture(scope="session")
def apart(demo: DemoLake) -> Iterator[Apart]:
    """Another process that works on the demo's lake."""
    with process_apart(
        {name: demo.environment[name] for name in ("LAKESHARE_STATE_DIR", "DAGSTER_HOME")}
    ) as one:
        yield one


@pytest.fixture(scope="session")
def served(demo: DemoLake) -> Iterator[Path]:
    """The profile of the demo's recipient, pointing to a running server."""
    profile = demo.settings.state_dir / "e2e.share"
    patch = pytest.MonkeyPatch()
    patch.setenv("LAKESHARE_STATE_DIR", str(demo.settings.state_dir))
    with patch.context(), sharing_server(free_port(0), demo.settings.logs_dir / "e2e_server.log") as root:
        given = json.loads(demo.profile.read_text())
        profile.write_text(json.dumps(given | {"endpoint": f"{root}/delta-sharing"}))
        yield profile
    patch.undo()


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
def hostile_s3(matrix: dict[str, HostileTable], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Hostile tables of every family behind a server, in an S3 server."""
    folder = tmp_path_factory.mktemp("s3")
    chosen = {name: table for name, table in matrix.items() if TABLES[name].on_stores}
    with ExitStack() as stack:
        s3 = stack.enter_context(running_s3(folder))
        tables = copied(chosen, s3.client())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
        yield stack.enter_context(
            serving("s3", tables, local_places(chosen), folder, s3_endpoint=s3.endpoint)
        )


def local_places(matrix: dict[str, HostileTable]) -> dict[str, Path]:
    return {name: Path(table.location) for name, table in matrix.items()}


@pytest.fixture
def table(request: pytest.FixtureRequest) -> ServedTable:
    """The hostile table of the parameter, which is its store and its name."""
    store, name = request.param
    served: Served = request.getfixturevalue(f"hostile_{store}")
    return served.table(name)
