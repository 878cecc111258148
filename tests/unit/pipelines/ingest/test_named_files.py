"""Files get the names that a set expects when it has one delivered table."""

from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.delivery import name_files
from lakeshare_pipelines.ingest.landing import FolderLanding, StoreLanding
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores
from tests.builders.sets import a_contract


@pytest.fixture
def contract(tmp_path: Path) -> SetContract:
    return a_contract(tmp_path / "contracts", "shop", "delta")


def test_names_that_fit_stay_and_others_become_those_of_the_table(
    contract: SetContract, tmp_path: Path
) -> None:
    names = ["orders-eu.csv", "June 2024.csv.gz", "orders.parquet", "july.jsonl"]
    for name in names:
        (tmp_path / name).write_text(name)
    named = name_files(contract, [tmp_path / name for name in names])
    assert {new: path.name for new, path in named.items()} == {
        "orders-eu.csv": "orders-eu.csv",
        "orders-2.csv.gz": "June 2024.csv.gz",
        "orders.parquet": "orders.parquet",
        "orders-4.jsonl": "july.jsonl",
    }
    folder, store = str(tmp_path / "landing"), str(tmp_path / "store")
    for landing in (FolderLanding(folder), StoreLanding(store, Stores(StoreSettings(_env_file=None)))):
        landing.replace("shop", "all", named)
        delivered = Path(landing.root) / "shop" / "all"
        assert (delivered / "orders-4.jsonl").read_text() == "july.jsonl"
        assert (delivered / "_SUCCESS").exists()


def test_missing_files_and_two_of_one_name_are_refused(contract: SetContract, tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match=r"none\.csv is no file"):
        name_files(contract, [tmp_path / "none.csv"])
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "orders.csv", tmp_path / "a" / "orders.csv"):
        path.write_text("id\n")
    with pytest.raises(DeliveryError, match=r"are both named orders\.csv"):
        name_files(contract, [tmp_path / "orders.csv", tmp_path / "a" / "orders.csv"])
