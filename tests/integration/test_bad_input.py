"""What cannot be used is refused by name with a remedy, changes nothing, and a rerun succeeds once it is put right."""

import resource
from pathlib import Path
from uuid import uuid4

import pytest

from lakeshare_pipelines.errors import DeliveryError, NotAudited, SparkError
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.spark.session import driver_pid
from lakeshare_pipelines.wap.branches import places
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.replay import judged
from lakeshare_pipelines.wap.stage import stage
from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.killed_run import run_until_killed
from tests.builders.main_state import main_state, rows_on_main
from tests.builders.sets import a_delivery, an_order, orders

DAY, NEXT_DAY = "2024-01-01", "2024-01-02"
WRITE = {
    "iceberg": "lakeshare_pipelines.wap.iceberg:IcebergStaging.write",
    "delta": "lakeshare_pipelines.wap.delta:DeltaStaging.write",
}


def without(column):
    return [{name: value for name, value in row.items() if name != column} for row in orders(NEXT_DAY)]


def renamed(old, new):
    return [{new if name == old else name: value for name, value in row.items()} for row in orders(NEXT_DAY)]


def no_files(folder: Path) -> None:
    (folder / "orders.csv").unlink()


def no_rows(folder: Path) -> None:
    (folder / "orders.csv").write_text("day,id,customer,email,amount\n")


def empty_parquet(folder: Path) -> None:
    (folder / "orders.csv").unlink()
    (folder / "orders.parquet").touch()


def torn_gzip(folder: Path) -> None:
    (folder / "orders.csv").unlink()
    (folder / "orders.csv.gz").write_bytes(b"\x1f\x8b\x08\x00torn")


def latin_1(folder: Path) -> None:
    text = "day,id,customer,email,amount\n2024-01-02,1,Müller,m@example.org,1.5\n"
    (folder / "orders.csv").write_bytes(text.encode("latin-1"))


UNREADABLE = {
    "no files": (no_files, "no files"),
    "0-byte Parquet": (empty_parquet, r"orders\.parquet"),
    "torn gzip": (torn_gzip, r"orders\.csv\.gz"),
    "wrong encoding": (latin_1, "UTF-8"),
}
RED = {
    "a header and no rows": ([], "not_empty"),
    "a missing column": (without("amount"), "structure"),
    "an extra column": ([row | {"surprise": 1} for row in orders(NEXT_DAY)], "structure"),
    "a renamed column": (renamed("amount", "amounts"), "structure"),
    "a column of another type": ([row | {"amount": "much"} for row in orders(NEXT_DAY)], "structure"),
    "rows of another day": ([an_order(DAY, 9)], "not_empty|within_partitions"),
}


def run(lake, catalog, contract, day):
    staged = stage(lake, contract, [day], str(uuid4()))
    return publish_or_replay(lake, catalog, contract, staged, judged(lake, contract, staged))


@pytest.fixture
def before(lake, catalog, ledger, contract):
    """A published day, and what stands on main and in the ledger because of it."""
    a_delivery(lake.settings, contract, DAY, orders(DAY))
    run(lake, catalog, contract, DAY)
    return main_state(lake, contract), [ledger.latest(table.name) for table in contract.tables]


def require_unchanged_then_rerun(lake, catalog, contract, before):
    ledger = Ledger(catalog)
    assert (main_state(lake, contract), [ledger.latest(table.name) for table in contract.tables]) == before
    for file in (lake.settings.landing / contract.name / NEXT_DAY).iterdir():
        file.unlink()
    a_delivery(lake.settings, contract, NEXT_DAY, orders(NEXT_DAY))
    assert [publication.version for publication in run(lake, catalog, contract, NEXT_DAY)] == [1, 1]
    assert len(rows_on_main(lake, contract, "orders")) == 6


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("contract", ["iceberg"], indirect=True)
def test_an_unreadable_delivery_is_refused_by_name(lake, catalog, contract, before, case):
    spoil, named = UNREADABLE[case]
    spoil(a_delivery(lake.settings, contract, NEXT_DAY, orders(NEXT_DAY)))

    with pytest.raises(DeliveryError, match=named) as refusal:
        run(lake, catalog, contract, NEXT_DAY)

    assert NEXT_DAY in str(refusal.value)
    assert places(lake, [contract]) == []
    require_unchanged_then_rerun(lake, catalog, contract, before)


@pytest.mark.parametrize("case", RED)
@pytest.mark.parametrize("contract", ["iceberg"], indirect=True)
def test_a_delivery_of_another_shape_is_a_red_audit_not_a_stack_trace(lake, catalog, contract, before, case):
    rows, check = RED[case]
    folder = a_delivery(lake.settings, contract, NEXT_DAY, rows)
    if not rows:
        no_rows(folder)

    with pytest.raises(NotAudited, match=check):
        run(lake, catalog, contract, NEXT_DAY)

    require_unchanged_then_rerun(lake, catalog, contract, before)


def test_a_delivery_that_changes_while_it_is_read_is_refused(lake, catalog, contract, before, monkeypatch):
    a_delivery(lake.settings, contract, NEXT_DAY, orders(NEXT_DAY))
    module, _, dotted = WRITE[contract.tables[0].format].partition(":")
    owner = getattr(__import__(module, fromlist=["_"]), dotted.split(".")[0])
    write = owner.write

    def write_while_more_arrives(*args):
        a_delivery(lake.settings, contract, NEXT_DAY, orders(NEXT_DAY, 5))
        write(*args)

    monkeypatch.setattr(owner, "write", write_while_more_arrives)
    with pytest.raises(DeliveryError, match=f"{contract.name}/{NEXT_DAY}"):
        run(lake, catalog, contract, NEXT_DAY)
    monkeypatch.undo()

    assert places(lake, [contract]) == []
    require_unchanged_then_rerun(lake, catalog, contract, before)


def test_a_disk_that_is_full_while_staging_is_named(lake, catalog, contract, before):
    """The kernel refuses the driver's writes beyond a few bytes, as a full disk does."""
    a_delivery(lake.settings, contract, NEXT_DAY, orders(NEXT_DAY))
    usual = resource.prlimit(driver_pid(), resource.RLIMIT_FSIZE)

    resource.prlimit(driver_pid(), resource.RLIMIT_FSIZE, (64, usual[1]))
    try:
        with pytest.raises(SparkError, match="disk") as refusal:
            run(lake, catalog, contract, NEXT_DAY)
    finally:
        resource.prlimit(driver_pid(), resource.RLIMIT_FSIZE, usual)

    assert str(lake.settings.warehouse) in str(refusal.value)
    require_unchanged_then_rerun(lake, catalog, contract, before)


def test_spark_killed_during_a_run_is_said_and_the_rerun_publishes(lake, catalog, contract, before, tmp_path):
    a_delivery(lake.settings, contract, NEXT_DAY, orders(NEXT_DAY))
    after = WRITE[contract.tables[0].format]

    code = run_until_killed(
        tmp_path, lake.settings, contract, after, 1, day=NEXT_DAY, run_id=str(uuid4()), victim="spark"
    )

    assert code == 3
    error = (tmp_path / "error.txt").read_text()
    assert error.startswith("SparkError")
    assert "spark.log" in error
    require_unchanged_then_rerun(lake, catalog, contract, before)


@pytest.mark.parametrize("contract", ["iceberg"], indirect=True)
def test_nessie_killed_during_a_run_is_said_and_the_rerun_publishes(lake, contract, tmp_path):
    # A Nessie of its own: the one of the session serves the other tests.
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    catalog = open_catalog(settings.catalog_url)
    with nessie_for(settings, keep=False):
        session = lake.spark.newSession()
        own = Lake(settings, lambda: session)
        a_delivery(settings, contract, DAY, orders(DAY))
        run(own, catalog, contract, DAY)
        ledger = Ledger(catalog)
        before = main_state(own, contract), [ledger.latest(table.name) for table in contract.tables]
        a_delivery(settings, contract, NEXT_DAY, orders(NEXT_DAY))

        code = run_until_killed(
            tmp_path,
            settings,
            contract,
            WRITE["iceberg"],
            1,
            day=NEXT_DAY,
            run_id=str(uuid4()),
            victim="nessie",
        )

        assert code == 3
        error = (tmp_path / "error.txt").read_text()
        assert error.startswith("NessieError")
        assert "lakeshare doctor" in error
        again = lake.spark.newSession()
        require_unchanged_then_rerun(Lake(settings, lambda: again), catalog, contract, before)
