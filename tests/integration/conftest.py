"""One Nessie and one catalog for the integration tests of a worker, one Spark for all; sets have names of their own."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import yaml

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import make_catalog_name
from lakeshare_pipelines.spark.stores import list_warehouses, make_hadoop_conf
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Ledger, open_catalog
from tests.builders.sets import a_contract
from tests.builders.shared_spark import driver_of_all_workers
from tests.integration.postgres_server import PostgresServer

if TYPE_CHECKING:
    from tests.integration.s3_server import S3Server

NAMES = (f"set{number}" for number in itertools.count(1))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    return LakeSettings(
        _env_file=None, state_dir=tmp_path_factory.mktemp("state"), branch_days=0, lock_wait_s=60
    )


@pytest.fixture(scope="session")
def lake_of_worker(settings: LakeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    driver = driver_of_all_workers(settings, tmp_path_factory)
    with nessie_for(settings, keep=False), ExitStack() as stack:
        yield Lake(settings, lambda: stack.enter_context(driver))


@pytest.fixture(scope="module")
def lake(lake_of_worker: Lake) -> Iterator[Lake]:
    """The lake of this worker, whose session forgets the branches of each file of tests.

    Spark copies the properties of their catalogs into each configuration of Hadoop, and sends them with each query.
    """
    yield lake_of_worker
    if "spark" in vars(lake_of_worker):
        conf = lake_of_worker.spark.conf
        for name in conf.getAll:
            if name.startswith(f"spark.sql.catalog.{make_catalog_name('wap-')}"):
                conf.unset(name)


@pytest.fixture(scope="session")
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings.catalog_url)


@pytest.fixture(scope="session")
def ledger(catalog: Catalog) -> Ledger:
    return Ledger(catalog)


@pytest.fixture(params=["iceberg", "delta"])
def contract(request: pytest.FixtureRequest, tmp_path: Path) -> SetContract:
    """A set of its own, once in each format."""
    return a_contract(tmp_path / "contracts", next(NAMES), request.param)


@pytest.fixture(scope="module")
def s3_keys(s3: "S3Server", lake: Lake) -> Iterator[None]:
    """The keys of the store in the environment, and in the driver as its chain of credentials finds them.

    They stay in the driver, which another worker's tests may use with the same keys.
    """
    java = lake.spark.sparkContext._jvm.java.lang.System
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
        java.setProperty("aws.accessKeyId", s3.admin.access_key)
        java.setProperty("aws.secretAccessKey", s3.admin.secret_key)
        yield


def a_lake_at(lake: Lake, endpoint: str, location: str, **more: object) -> Lake:
    """A lake of the tests' Spark and Nessie with its tables at a location in S3."""
    return a_lake_with(lake, warehouse=location, s3_endpoint=endpoint, s3_region="us-east-1", **more)


def a_lake_with(lake: Lake, warehouse: str, **more: object) -> Lake:
    """A lake of the tests' Spark and Nessie with its tables at a location, in a session with its own catalogs."""
    places = {"warehouse": warehouse, **more}
    settings, session = lake.settings.model_copy(update=places), lake.spark.newSession()
    there = Lake(settings, lambda: session)
    there.__dict__["endpoint"] = lake.endpoint
    buckets = there.named_catalog.locations if there.named_catalog else ()
    for bucket in (*list_warehouses(settings), *buckets):
        for key, value in make_hadoop_conf(there.stores, bucket).items():
            session.conf.set(key, value)
    return there


@contextmanager
def a_lake_in_catalog(lake: Lake, folder: Path, name: str, **properties: str) -> Iterator[Lake]:
    """A lake of the tests' Spark whose Iceberg tables are in a catalog of pyiceberg's configuration."""
    (folder / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {name: properties}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYICEBERG_HOME", str(folder))
        session = lake.spark.newSession()
        for key, value in make_hadoop_conf(lake.stores, lake.settings.lake_root).items():
            session.conf.set(key, value)
        yield Lake(lake.settings.model_copy(update={"iceberg_catalog": name}), lambda: session)


@pytest.fixture(scope="module")
def jdbc_lake(
    s3_lake: Lake, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lake]:
    """A lake in a bucket whose Iceberg tables are in a SQL catalog on PostgreSQL."""
    folder, url = tmp_path_factory.mktemp("catalog"), postgres.new_database()
    with a_lake_in_catalog(s3_lake, folder, "jdbc", type="sql", uri=url) as there:
        yield there


@pytest.fixture(scope="module")
def s3_lake(s3: "S3Server", lake: Lake, s3_keys: None) -> Lake:
    """The tests' lake with its tables in a bucket, whose name is new: a Spark driver keeps how it reached one."""
    bucket = f"lake-{uuid4().hex[:8]}"
    s3.client().create_bucket(Bucket=bucket)
    return a_lake_at(lake, s3.endpoint, f"s3://{bucket}/a lake")
