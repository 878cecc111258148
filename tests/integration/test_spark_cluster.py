"""A standalone Spark cluster over S3 and PostgreSQL: nothing but the store, the database and Nessie is shared.

The servers are those of `lakeshare demo --store s3`. The driver is a process of its own, with executors on two workers.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping

import delta_sharing
import pytest

from lakeshare_pipelines.demo.processes import ProgressReporter
from lakeshare_pipelines.demo.servers import object_store_servers, postgres_folder
from lakeshare_server.catalog import (
    DeclaredShare,
    Ledger,
    Recipients,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.settings import ServerSettings
from tests.builders.cluster_run import sets_in
from tests.builders.sharing import Provider, a_server

RUN_S = 300


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
        yield variables
    # Of root's PostgreSQL it is outside of the tests' folders.
    shutil.rmtree(postgres_folder(lake.settings))


def test_sets_are_published_on_a_cluster_also_when_an_executor_dies(cluster, lake, tmp_path):
    command = [sys.executable, "-m", "tests.builders.cluster_run", str(tmp_path / "contracts")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False, env=os.environ)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "2 executors" in ran.stderr
    found = {line["set"]: line for line in map(json.loads, ran.stdout.splitlines())}
    settings = ServerSettings(_env_file=None, port=0)
    catalog = open_catalog(cluster["LAKESHARE_DATABASE_URL"])
    contracts = sets_in(tmp_path / "contracts")
    shared = tuple(SharedTable(contract.name, "orders", contract.tables[0].name) for contract in contracts)
    apply_shares(catalog, [DeclaredShare("cluster", shared)])
    _, token = Recipients(catalog).add("reader", ("cluster",))
    with a_server(Provider(settings, catalog)) as server:
        profile = server.profile(token)
        for contract in contracts:
            latest = Ledger(catalog).latest(contract.tables[0].name)
            assert latest is not None
            assert (latest.version, latest.rows) == (int(latest.format == "iceberg"), 2)
            assert latest.location.startswith("s3://lake/tables/")
            frame = delta_sharing.load_as_pandas(f"{profile}#cluster.{contract.name}.orders")
            rows = sorted([str(row[0]), *row[1:]] for row in frame.itertuples(index=False))
            assert rows == found[contract.name]["rows"]
    assert not (lake.settings.state_dir / "warehouse" / "cluster_delta").exists()
