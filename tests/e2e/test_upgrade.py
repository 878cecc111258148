"""A state that the last release made serves, publishes and restores after an upgrade, which no client notices.

The last release is a wheel in tests/releases, beside the packages of the lock.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import delta_sharing
import httpx
import pytest

from lakeshare_pipelines.demo.processes import free_port, running_process
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import database
from tests.builders.page_commands import PageUser, page_user
from tests.builders.shared_spark import SharedSpark, driver_of_all_workers
from tests.builders.spark_apart import run_command
from tests.builders.waiting import wait_until
from tests.integration.postgres_server import PostgresServer

ROOT = Path(__file__).parents[2]
[WHEEL] = (ROOT / "tests" / "releases").glob("lakeshare-*.whl")
FIRST = "order_id,amount\n1,1.50\n2,2.50\n"
SECOND = FIRST + "3,3.50\n"
# Commands of the old release, in one process with the tests' Spark driver.
RUN_LINES = """
import json, shlex, sys
from pyspark.sql import SparkSession
from lakeshare_pipelines.cli.main import main
from tests.builders.shared_spark import SharedSpark

SharedSpark(**json.loads(sys.argv[1])).attach()
SparkSession.stop = lambda _: None
for line in sys.stdin:
    sys.argv = ["lakeshare", *shlex.split(line)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
OLD_COMMANDS = """
contract draft orders.csv --share partners
publish orders --on orders.csv
recipient add alice --share partners
backup run
"""
COMMAND_S = 300
IN_TURN = 12
# Without a pause they would take the processor from what is upgraded.
PAUSE_S = 0.05


@dataclass
class Clients:
    """A recipient's requests, to the running servers in turn, all the time; `refused` are those without a 200."""

    token: str
    ports: list[int] = field(default_factory=list)
    answered: int = 0
    refused: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        path = "/delta-sharing/shares/partners/schemas/orders/tables/orders/query"
        headers = {"Authorization": f"Bearer {self.token}"}
        for turn in itertools.count():
            if self._ended.wait(PAUSE_S):
                return
            port = self.ports[turn % len(self.ports)]
            try:
                response = httpx.post(f"http://127.0.0.1:{port}{path}", json={}, headers=headers, timeout=30)
            except httpx.HTTPError as error:
                self.refused.append(f"{port}: {error!r}")
                continue
            self.answered += 1
            if response.status_code != 200:
                self.refused.append(f"{port}: {response.status_code} {response.text}")

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self.ask)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def wait_for_more(self) -> None:
        """Until each server has had several requests."""
        wanted = self.answered + IN_TURN
        wait_until(lambda: self.answered >= wanted or bool(self.refused))
        assert not self.refused, self.refused[0]


@contextmanager
def a_server(folder: Path, variables: Mapping[str, str]) -> Iterator[int]:
    """A server process in a folder, ready; it ends with the block."""
    port = free_port(0)
    command = [sys.executable, "-m", "lakeshare_server", "serve", "--port", str(port), "--no-first-key"]
    environment = os.environ | variables

    def probe() -> None:
        httpx.get(f"http://127.0.0.1:{port}/readyz").raise_for_status()

    with running_process(command, folder / f"{port}.log", probe, environment=environment, cwd=folder):
        yield port


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which Python runs the last release."""
    folder = tmp_path_factory.mktemp("release")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def variables(postgres: PostgresServer) -> dict[str, str]:
    """What old and new hosts have in common."""
    return {
        "LAKESHARE_STATE_DIR": "state",
        "LAKESHARE_CONTRACTS_DIR": "contracts",
        "LAKESHARE_LANDING": "landing",
        "LAKESHARE_DATABASE_URL": postgres.new_database(),
        "LAKESHARE_PUBLIC_URL": "http://127.0.0.1:1",
    }


@pytest.fixture(scope="module")
def old_state(
    old_release: Mapping[str, str], variables: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder in which the last release has published a table, backed it up, and let a recipient in."""
    settings = LakeSettings(_env_file=None, state_dir=tmp_path_factory.mktemp("driver"))
    folder = tmp_path_factory.mktemp("upgrade") / "shop"
    folder.mkdir()
    (folder / "orders.csv").write_text(FIRST)
    (folder / "contracts").mkdir()
    path = os.pathsep.join((old_release["PYTHONPATH"], str(ROOT)))
    with driver_of_all_workers(settings, tmp_path_factory) as spark:
        ended = subprocess.run(
            [sys.executable, "-c", RUN_LINES, json.dumps(asdict(SharedSpark.of(spark)))],
            input=OLD_COMMANDS.strip(),
            cwd=folder,
            env=os.environ | variables | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture(scope="module")
def user(
    old_state: Path, variables: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PageUser]:
    """The operator, who has the new release."""
    with page_user(old_state, tmp_path_factory, **variables) as user:
        yield user


def run(user: PageUser, *words: str) -> str:
    code, printed = user.process(run_command, "lakeshare", *words)
    assert not code, printed
    return printed


def test_a_state_of_the_last_release_is_upgraded_while_both_serve_it(
    user: PageUser, old_state: Path, old_release: Mapping[str, str], variables: Mapping[str, str]
) -> None:
    profile = old_state / "alice.share"
    clients = Clients(delta_sharing.protocol.DeltaSharingProfile.read_from_file(str(profile)).bearer_token)
    old = dict(variables) | old_release
    with ExitStack() as new_stack, ExitStack() as old_stack:
        clients.ports = [old_stack.enter_context(a_server(old_state, old))]
        with clients.asking():
            clients.wait_for_more()
            assert "upgraded the catalog from revision 0018" in run(user, "db", "upgrade")
            clients.wait_for_more()
            # A new server joins, and an old one that starts again.
            again = old_stack.enter_context(a_server(old_state, old))
            new = new_stack.enter_context(a_server(old_state, variables))
            clients.ports = [*clients.ports, again, new]
            clients.wait_for_more()
            # The new release publishes; old servers serve it.
            (old_state / "more.csv").write_text(SECOND)
            assert "orders.orders is publication 1: 3 rows" in run(
                user, "publish", "orders", "--on", "more.csv"
            )
            for port in clients.ports:
                assert _newest(port, clients.token) == "1"
            clients.wait_for_more()
            clients.ports = [new]
            # The last request to an old server may be under way.
            clients.wait_for_more()
            old_stack.close()
            clients.wait_for_more()
    assert not clients.refused


def _newest(port: int, token: str) -> str:
    url = f"http://127.0.0.1:{port}/delta-sharing/shares/partners/schemas/orders/tables/orders/version"
    return str(httpx.get(url, headers={"Authorization": f"Bearer {token}"}).headers["delta-table-version"])


def test_what_the_last_release_backed_up_comes_back(
    user: PageUser, old_state: Path, postgres: PostgresServer
) -> None:
    """Runs after the upgrade."""
    table = old_state / "state" / "warehouse" / "orders" / "orders"
    shutil.rmtree(table)
    assert "orders.orders" in run(user, "restore", "table", "orders.orders", "--in-place")
    assert (table / "_delta_log").exists()
    [point] = re.findall(r"\d{4}-\d\d-\d\dT\d{6}Z", run(user, "backup", "list"))
    url = postgres.new_database()
    user.export("LAKESHARE_DATABASE_URL", url)
    run(user, "restore", "catalog", point)
    assert f"revision   {database.HEAD}" in run(user, "db", "check")
    assert "alice" in run(user, "recipient", "list")
