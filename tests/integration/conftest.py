"""One Spark, one Nessie, one catalog for all integration tests; each test has sets of its own names."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Lake, open_lake
from lakeshare_server.catalog import Catalog, Ledger, open_catalog
from tests.builders.sets import a_contract

NAMES = (f"set{number}" for number in itertools.count(1))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    return LakeSettings(
        _env_file=None, state_dir=tmp_path_factory.mktemp("state"), branch_days=0, lock_wait_s=60
    )


@pytest.fixture(scope="session")
def lake(settings: LakeSettings) -> Iterator[Lake]:
    with nessie_for(settings, keep=False), open_lake(settings) as opened:
        yield opened


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
