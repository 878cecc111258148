"""A standalone Spark cluster over S3 and PostgreSQL: nothing but the store, the database and Nessie is shared.

The servers are those of `lakeshare demo --store s3`. The driver is a process of its own, with executors on two workers.
The campaign has a Spark Connect server there, too, and runs tests there that others run with a local Spark.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import delta_sharing
import psutil
import pyspark
import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.demo.processes import (
    ProgressReporter,
    object_store_servers,
    postgres_folder,
    spark_cluster,
)
from lakeshare_pipelines.settings import SHORT_RUNS, LakeSettings
from lakeshare_pipelines.spark.jars import find_java
from lakeshare_pipelines.spark.session import prepare_java_home
from lakeshare_pipelines.wap.stage import list_staging_locations
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import DeclaredShare, Ledger, SharedTable, apply_shares, open_catalog
from lakeshare_server.settings import ServerSettings
from tests.builders.apart import process_apart
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.cluster_run import MONDAY, executors_on, publish_sets, sets_in
from tests.builders.killed_run import Run, start_run, wait_for_exit
from tests.builders.main_state import main_state
from tests.builders.recipients import Recipients
from tests.builders.sets import a_contract, a_delivery, orders
from tests.builders.sharing import Provider, a_server
from tests.builders.waiting import wait_until
from tests.conftest import UNVERIFIED
from tests.integration.processes import connect, free_ports, running
from tests.integration.s3_server import S3Server
from tests.integration.test_killed_runs import STAGING

CAMPAIGN_S, TEST_S, LOST_S = 3600, 1800, 120
CRASHES = "test_killed_runs.py"
CAMPAIGN = {
    "killed_iceberg": [CRASHES, "-k", "iceberg"],
    "killed_delta": [CRASHES, "-k", "delta"],
    "killed_jdbc": [CRASHES, "-k", "jdbc"],
    "two_runs": ["test_two_runs_at_once.py"],
    "backup_copies": ["test_backup_spark_copies.py", "-k", "whole or vacuumed"],
    "backup_verify": ["test_backup_verify_spark.py"],
    "maintenance": ["test_maintenance.py", "-k", "not year"],
}
"""Tests that the campaign runs on the cluster."""
# A run that the tests begin has one worker, and their own driver the other one.
ONE_WORKER_EACH = """\
spark.cores.max 1
spark.sql.shuffle.partitions 2
spark.sql.adaptive.enabled false
spark.databricks.delta.snapshotPartitions 2
"""
OF_THESE_TESTS = ("PYTEST_", "LAKESHARE_", "AWS_")
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def cluster(lake) -> Iterator[Mapping[str, str]]:
    """The variables that lead to the servers, and to the tests' own Nessie."""
    assert lake.endpoint.uri
    with (
        object_store_servers(lake.settings, ProgressReporter()) as variables,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**variables, "LAKESHARE_STATE_DIR": str(lake.settings.state_dir)}.items():
            patch.setenv(name, value)
        with Path(variables["LAKESHARE_SPARK_CONF"]).open("a") as properties:
            properties.write(f"spark.executor.extraJavaOptions {SHORT_RUNS} {UNVERIFIED}\n")
        yield variables
    # Of root's PostgreSQL it is outside of the tests' folders.
    shutil.rmtree(postgres_folder(lake.settings))


def require_served(
    database: str, contracts: list[SetContract], found: Mapping[str, list[Any]], folder: Path
) -> None:
    """A recipient reads the rows that Spark reads, from each of two server hosts with a state folder of its own."""
    catalog, share = open_catalog(database), contracts[0].name
    shared = tuple(SharedTable(contract.name, "orders", contract.tables[0].name) for contract in contracts)
    apply_shares(catalog, [DeclaredShare(share, shared)])
    _, token = Recipients(catalog).add(f"{share}-reader", (share,))
    one, other = (
        Provider(ServerSettings(_env_file=None, port=0, state_dir=folder / name), catalog)
        for name in ("host 1", "host 2")
    )
    with a_server(one) as first, a_server(other) as second:
        for contract, host in itertools.product(contracts, (first, second)):
            latest = Ledger(catalog).latest(contract.tables[0].name)
            assert latest is not None
            assert latest.location.startswith("s3://lake/tables/")
            frame = delta_sharing.load_as_pandas(f"{host.profile(token)}#{share}.{contract.name}.orders")
            rows = sorted((str(row[0]), *row[1:]) for row in frame.itertuples(index=False))
            assert rows == found[contract.name]
            assert latest.rows == len(rows)


def test_sets_are_published_on_a_cluster_also_when_an_executor_dies(cluster, lake, tmp_path):
    with process_apart({}) as apart:
        found, executors = apart(publish_sets, tmp_path, "cluster", False)
    assert executors == 2
    contracts = sets_in(tmp_path, "cluster")
    require_served(cluster["LAKESHARE_DATABASE_URL"], contracts, found, tmp_path)
    ledger = Ledger(open_catalog(cluster["LAKESHARE_DATABASE_URL"]))
    latest = [ledger.latest(contract.tables[0].name) for contract in contracts]
    assert [(row.version, row.rows) for row in latest if row] == [(1, 2), (0, 2)]
    assert not (lake.settings.state_dir / "warehouse" / "cluster_delta").exists()


@contextmanager
def connect_server(folder: Path) -> Iterator[Mapping[str, str]]:
    """A Spark Connect server on the cluster, configured by `lakeshare spark-conf`; yields the variables of its runs."""
    environment = {**os.environ, "LAKESHARE_SPARK_MODE": "connect"}
    command = [Path(sys.executable).with_name("lakeshare"), "spark-conf"]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    properties, (port,) = folder / "connect.properties", free_ports(1)
    address = {"address": "127.0.0.1", "port": port}
    lines = [f"spark.connect.grpc.binding.{name} {value}" for name, value in address.items()]
    properties.write_text("\n".join([printed.stdout, *lines]))
    settings, home = LakeSettings(_env_file=None), Path(pyspark.__file__).parent
    environment["JAVA_HOME"] = str(prepare_java_home(find_java("spark", settings), settings))
    server = [home / "bin" / "spark-submit", "--properties-file", properties, "--class", CONNECT_SERVER]
    with running(
        [*map(str, server), "spark-internal"], folder / "log", lambda: connect(port), env=environment
    ):
        yield {"LAKESHARE_SPARK_MODE": "connect", "LAKESHARE_SPARK_REMOTE": f"sc://127.0.0.1:{port}"}


if IS_CAMPAIGN:

    @pytest.mark.campaign
    @pytest.mark.parametrize("mode", ["cluster", "connect"])
    def test_sets_are_audited_corrected_and_compacted(cluster, mode, tmp_path):
        server = connect_server(tmp_path) if mode == "connect" else nullcontext({})
        with server as variables, process_apart(variables) as apart:
            found, _ = apart(publish_sets, tmp_path, f"kept_{mode}", True)
        assert [len(rows) for rows in found.values()] == [8, 8]
        contracts = sets_in(tmp_path, f"kept_{mode}")
        require_served(cluster["LAKESHARE_DATABASE_URL"], contracts, found, tmp_path)

    @pytest.mark.campaign
    @pytest.mark.parametrize("tests", CAMPAIGN.values(), ids=CAMPAIGN)
    def test_what_passes_with_a_local_spark_passes_on_the_cluster(cluster, postgres, tests, tmp_path):
        properties = tmp_path / "spark.properties"
        # They have a store of their own.
        keys = {
            "AWS_ACCESS_KEY_ID": S3Server.admin.access_key,
            "AWS_SECRET_ACCESS_KEY": S3Server.admin.secret_key,
        }
        of_executors = "".join(f"spark.executorEnv.{name} {value}\n" for name, value in keys.items())
        properties.write_text(ONE_WORKER_EACH + of_executors)
        variables = {name: value for name, value in os.environ.items() if not name.startswith(OF_THESE_TESTS)}
        for name in ("LAKESHARE_SPARK_MODE", "LAKESHARE_SPARK_MASTER"):
            variables[name] = cluster[name]
        variables |= {
            "LAKESHARE_SPARK_CONF": str(properties),
            "LAKESHARE_DATABASE_URL": postgres.new_database(),
            "LAKESHARE_SPARK_DRIVER_OPTIONS": os.environ["LAKESHARE_SPARK_DRIVER_OPTIONS"],
        }
        options = [f"--basetemp={tmp_path / 'tests'}", f"--timeout={TEST_S}", "--durations=20"]
        file = Path(__file__).with_name(tests[0])
        command = [sys.executable, "-m", "pytest", "-x", *options, str(file), *tests[1:]]
        ran = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=CAMPAIGN_S, check=False
        )
        print(ran.stdout[-3000:])
        assert ran.returncode == 0, ran.stdout[-8000:]

    @pytest.mark.campaign
    @pytest.mark.parametrize("table_format", ["iceberg", "delta"])
    def test_a_cluster_that_is_lost_while_a_set_is_staged_is_an_error_and_a_rerun_publishes(
        cluster, lake, table_format, tmp_path
    ):
        settings = LakeSettings(_env_file=None, spark_wait_s=5)
        contract = a_contract(tmp_path, f"lost_{table_format}", table_format)
        a_delivery(settings, contract, MONDAY, orders(MONDAY))
        keys = {name: value for name, value in cluster.items() if name.startswith("AWS_")}
        ledger, there = Ledger(open_catalog(settings.catalog_url)), Lake(settings, lambda: lake.spark)

        def start(master: str, stops_after: str | None = None) -> BaseProcess:
            on_it = settings.model_copy(update={"spark_master": master})
            run = Run(on_it, contract, MONDAY, str(uuid4()), after=stops_after, sent=signal.SIGSTOP)
            return start_run(tmp_path, run)

        own = settings.model_copy(update={"state_dir": tmp_path / "cluster"})
        with spark_cluster(own, keys) as master:
            # Its second table is still to be written.
            run = start(master, f"{STAGING[table_format]}.write")
            stopped = psutil.Process(run.pid)
            wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED)
            executors = [process for of_run in executors_on(master).values() for process in of_run]
        assert executors
        assert psutil.wait_procs(executors, timeout=LOST_S)[1] == []
        stopped.resume()
        assert wait_for_exit(run, LOST_S) == 3
        assert "had no executor for this run within 5 s" in (tmp_path / "error.txt").read_text()
        assert list_staging_locations(there, [contract]) == []
        assert set(main_state(there, contract).values()) == {None}
        with spark_cluster(own, keys) as master:
            assert wait_for_exit(start(master)) == 0
        published = ledger.latest(contract.tables[0].name)
        assert published is not None
        assert published.rows == 3

    @pytest.mark.campaign
    def test_a_master_that_does_not_respond_is_an_error_that_names_it(cluster, tmp_path):
        settings = LakeSettings(_env_file=None, spark_master=f"spark://127.0.0.1:{free_ports(1)[0]}")
        contract = a_contract(tmp_path, "no_master", "iceberg")
        a_delivery(settings, contract, MONDAY, orders(MONDAY))
        assert wait_for_exit(start_run(tmp_path, Run(settings, contract, MONDAY, str(uuid4())))) == 3
        error = (tmp_path / "error.txt").read_text()
        assert f"Spark lost its cluster. check {settings.spark_master}" in error
