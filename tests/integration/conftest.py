"""One Nessie and one catalog for the integration tests of a worker, one Spark for all; sets have names of their own."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Ledger, open_catalog
from tests.builders.sets import a_contract
from tests.builders.shared_spark import driver_of_all_workers

NAMES = (f"set{number}" for number in itertools.count(1))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    return LakeSettings(
        _env_file=None, state_dir=tmp_path_factory.mktemp("state"), branch_days=0, lock_wait_s=60
    )


@pytest.fixture(scope="session")
def lake(settings: LakeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    driver = driver_of_all_workers(settings, tmp_path_factory)
    with nessie_for(settings, keep=False), ExitStack() as stack:
        yield Lake(settings, lambda: stack.enter_context(driver))


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
