"""What cannot be used is refused by name with a remedy, changes nothing, and a rerun succeeds once it is put right."""

import datetime as dt
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import DeliveryError, NotAudited, WarehouseError
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish, publish_or_replay
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import StagingLocation, list_staging_locations, stage
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Ledger, Publication, open_catalog
from lakeshare_server.storage import normalise_location
from tests.builders.audits import of
from tests.builders.killed_run import run_until_killed
from tests.builders.main_state import main_state, rows_at_each_step
from tests.builders.sets import a_contract, a_delivery, an_order, green, orders, staged_without_reading
from tests.builders.shared_spark import SharedSpark

FIRST_DAY = "2024-01-01"
DAYS = ((dt.date(2024, 1, 1) + dt.timedelta(days=count)).isoformat() for count in itertools.count(1))
WRITE = {
    "iceberg": "lakeshare_pipelines.wap.iceberg:IcebergStaging.write",
    "delta": "lakeshare_pipelines.wap.delta:DeltaStaging.write",
}


def without_amount(day: str):
    return [{name: value for name, value in row.items() if name != "amount"} for row in orders(day)]


def renamed_amount(day: str):
    return [
        {"amounts" if name == "amount" else name: value for name, value in row.items()} for row in orders(day)
    ]


def no_files(folder: Path) -> None:
    (folder / "orders.csv").unlink()


def no_rows(folder: Path) -> None:
    (folder / "orders.csv").write_text("day,id,customer,email,amount\n")


def rows_of_another_day(folder: Path) -> None:
    """In JSON: with a number in another CSV, a column of texts would not be one of another type."""
    (folder / "orders.csv").unlink()
    (folder / "orders.jsonl").write_text(json.dumps(an_order(FIRST_DAY, 9)))


def empty_parquet(folder: Path) -> None:
    (folder / "orders.csv").unlink()
    (folder / "orders.parquet").touch()


def torn_gzip(folder: Path) -> None:
    (folder / "orders.csv").unlink()
    (folder / "orders.csv.gz").write_bytes(b"\x1f\x8b\x08\x00torn")


def latin_1(folder: Path) -> None:
    text = f"day,id,customer,email,amount\n{folder.name},1,Müller,m@example.org,1.5\n"
    (folder / "orders.csv").write_bytes(text.encode("latin-1"))


UNREADABLE = {
    "no files": (no_files, "no files"),
    "0-byte Parquet": (empty_parquet, r"orders\.parquet"),
    "torn gzip": (torn_gzip, r"orders\.csv\.gz"),
    "wrong encoding": (latin_1, "UTF-8"),
}
OTHER_SHAPES = {
    "a missing column": (without_amount, "column 'amount' is missing in {file}"),
    "an extra column": (
        lambda day: [row | {"surprise": 1} for row in orders(day)],
        "column 'surprise' is not in the contract in {file}",
    ),
    "a renamed column": (renamed_amount, "column 'amount' is missing (the file has 'amounts') in {file}"),
    "a column of another type": (
        lambda day: [row | {"amount": "much"} for row in orders(day)],
        "column 'amount' is of another type than double in {file}",
    ),
}


def run(lake, catalog, contract, *days):
    staged = stage(lake, contract, days, str(uuid4()))
    return publish_or_replay(lake, catalog, contract, staged, audit_and_save(lake, contract, staged))


def publish_first_day(lake, catalog, contract) -> None:
    a_delivery(lake.settings, contract, FIRST_DAY, orders(FIRST_DAY))
    staged = staged_without_reading(lake, contract, FIRST_DAY, orders(FIRST_DAY))
    publish(lake, catalog, contract, staged, green(contract, staged))


@pytest.fixture(scope="module", params=["iceberg", "delta"])
def contract(request, lake, catalog, tmp_path_factory) -> SetContract:
    """A set of this file, in either format, with its first day published; each test brings it another day."""
    of_file = a_contract(tmp_path_factory.mktemp("contracts"), f"bad_{request.param}", request.param)
    publish_first_day(lake, catalog, of_file)
    return of_file


@pytest.fixture
def day() -> str:
    """A day that no test has brought yet."""
    return next(DAYS)


@dataclass(frozen=True)
class Before:
    """What stood on main, in the ledger and in staging before something went wrong."""

    main: dict[str, object]
    latest: list[Publication | None]
    rows: int
    places: list[StagingLocation]

    @classmethod
    def seen(cls, lake: Lake, catalog: Catalog, contract: SetContract) -> "Before":
        ledger = Ledger(catalog)
        latest = [ledger.latest(table.name) for table in contract.tables]
        rows = len(rows_at_each_step(lake, contract, "orders"))
        return cls(main_state(lake, contract), latest, rows, list_staging_locations(lake, [contract]))


@pytest.fixture
def before(lake, catalog, contract) -> Before:
    return Before.seen(lake, catalog, contract)


def require_unchanged(lake, catalog, contract, before: Before, case: str = "", left: int = 0) -> None:
    """`left` counts the staging locations that stay for inspection."""
    after = Before.seen(lake, catalog, contract)
    assert (after.main, after.latest, after.rows) == (before.main, before.latest, before.rows), case
    assert len(after.places) == len(before.places) + left, case


def require_rerun(lake, catalog, contract, before: Before, days: Sequence[str]) -> None:
    for day in days:
        for file in (Path(lake.settings.landing_root) / contract.name / day).iterdir():
            file.unlink()
        a_delivery(lake.settings, contract, day, orders(day))
    staged = stage(lake, contract, days, str(uuid4()))
    published = publish(lake, catalog, contract, staged, green(contract, staged))
    assert [new.version for new in published] == [old.version + 1 for old in before.latest]
    assert len(rows_at_each_step(lake, contract, "orders")) == before.rows + 3 * len(days)


@pytest.mark.parametrize("contract", ["iceberg"], indirect=True)
def test_what_cannot_be_read_or_has_another_shape_changes_nothing_until_it_is_put_right(
    lake, catalog, contract, before, day
):
    require_unreadable_files_are_refused_by_name(lake, catalog, contract, before, day)
    days = [day, *require_no_rows_and_other_shapes_are_a_red_audit_not_a_stack_trace(lake, catalog, contract)]
    require_unchanged(lake, catalog, contract, before, "no rows and other shapes", left=1)
    require_rerun(lake, catalog, contract, before, days)


def require_unreadable_files_are_refused_by_name(lake, catalog, contract, before, day) -> None:
    for case, (spoil, named) in UNREADABLE.items():
        folder = Path(lake.settings.landing_root) / contract.name / day
        for file in folder.iterdir() if folder.exists() else ():
            file.unlink()
        spoil(a_delivery(lake.settings, contract, day, orders(day)))
        with pytest.raises(DeliveryError, match=named) as refusal:
            run(lake, catalog, contract, day)
        assert f"delivery {contract.name}/{day}" in str(refusal.value), case
    require_unchanged(lake, catalog, contract, before, "unreadable files")


def require_no_rows_and_other_shapes_are_a_red_audit_not_a_stack_trace(lake, catalog, contract) -> list[str]:
    """One run over a day with rows of another day, one of each shape, and one with a header only; returns the days."""
    stray = next(DAYS)
    rows_of_another_day(a_delivery(lake.settings, contract, stray, orders(stray)))
    shapes = {next(DAYS): shape for shape in OTHER_SHAPES.values()}
    for other, (rows, _) in shapes.items():
        a_delivery(lake.settings, contract, other, rows(other))
    # After the shapes: a problem names the first file with its columns, and counts the others.
    empty = next(DAYS)
    no_rows(a_delivery(lake.settings, contract, empty, orders(empty)))
    days = [stray, *shapes, empty]
    staged = stage(lake, contract, days, str(uuid4()))
    verdicts = audit_and_save(lake, contract, staged)
    with pytest.raises(NotAudited, match=r"structure.*not_empty"):
        publish_or_replay(lake, catalog, contract, staged, verdicts)
    assert of(verdicts, "not_empty", "orders").reason == f"no rows for partition {stray}, {empty}"
    problems = "; ".join(of(verdicts, "structure", "orders").observed["problems"])
    for other, (_, problem) in shapes.items():
        assert problem.format(file=f"{other}/orders.csv") in problems
    return days


def test_a_run_that_fails_while_it_stages_names_the_cause_and_publishes_when_it_is_run_again(
    lake, catalog, contract, before, day, monkeypatch
):
    """A Spark that dies, or whose disk is full, is in test_dead_spark.py."""
    a_delivery(lake.settings, contract, day, orders(day))
    with monkeypatch.context() as patch:
        require_refused_while_the_delivery_changes(lake, catalog, contract, day, patch)
    require_unchanged(lake, catalog, contract, before, "the delivery changed")
    require_rerun(lake, catalog, contract, before, [day])


def require_refused_while_the_delivery_changes(lake, catalog, contract, day, patch) -> None:
    module, _, dotted = WRITE[contract.tables[0].format].partition(":")
    owner = getattr(__import__(module, fromlist=["_"]), dotted.split(".")[0])
    write = owner.write

    def write_while_more_arrives(*args):
        a_delivery(lake.settings, contract, day, orders(day, 5))
        return write(*args)

    patch.setattr(owner, "write", write_while_more_arrives)
    with pytest.raises(DeliveryError, match=f"{contract.name}/{day}"):
        run(lake, catalog, contract, day)


@contextmanager
def deleted_by_hand(lake: Lake, contract: SetContract, latest: Publication) -> Iterator[None]:
    """A table of main that is gone, and put back at the end."""
    if latest.format == "delta":
        folder = Path(normalise_location(latest.location))
        away = folder.rename(folder.with_name("away"))
        yield
        assert not folder.exists()
        away.rename(folder)
        return
    publisher = lake.nessie("publisher")
    content = publisher.content(latest.table, "main")
    assert content is not None
    publisher.drop_table(latest.table, "main", publisher.reference("main").hash, message="by hand")
    yield
    assert publisher.content(latest.table, "main") is None
    head, restored = publisher.reference("main").hash, replace(content, id="")
    publisher.put_table(latest.table, restored, "main", head, message="put back", properties={})


def test_a_published_table_that_is_gone_from_main_is_named_and_not_begun_anew(
    lake, catalog, contract, before, day, tmp_path
):
    """Recipients would lose the days that were published before."""
    a_delivery(lake.settings, contract, day, orders(day))
    latest = before.latest[0]
    gone = f"{latest.location}: the {latest.format} table of {latest.table}, publication {latest.version}, is not on"
    with deleted_by_hand(lake, contract, latest), pytest.raises(WarehouseError, match=re.escape(gone)):
        stage(lake, contract, [day], str(uuid4()))
    if latest.format == "delta":
        settings = lake.settings.model_copy(update={"warehouse": str(tmp_path / "moved")})
        moved = Lake(settings, lambda: lake.spark)
        with pytest.raises(WarehouseError, match=r"set LAKESHARE_WAREHOUSE .* as they were"):
            stage(moved, contract, [day], str(uuid4()))
    require_unchanged(lake, catalog, contract, before)
    require_rerun(lake, catalog, contract, before, [day])


@pytest.mark.parametrize("contract", ["iceberg"], indirect=True)
def test_nessie_killed_during_a_run_is_named_and_the_rerun_publishes(lake, contract, day, tmp_path):
    # A Nessie of its own: the one of the session serves the other tests.
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    catalog = open_catalog(settings.catalog_url)
    with nessie_for(settings, keep=False):
        session = lake.spark.newSession()
        own = Lake(settings, lambda: session)
        publish_first_day(own, catalog, contract)
        before = Before.seen(own, catalog, contract)
        a_delivery(settings, contract, day, orders(day))

        code = run_until_killed(
            tmp_path,
            settings,
            contract,
            WRITE["iceberg"],
            1,
            day=day,
            run_id=str(uuid4()),
            victim="nessie",
            spark=SharedSpark.of(lake.spark),
        )

        assert code == 3
        error = (tmp_path / "error.txt").read_text()
        assert error.startswith("NessieError")
        assert "lakeshare doctor" in error
        fresh = lake.spark.newSession()
        again = Lake(settings, lambda: fresh)
        # The branch could not be dropped while Nessie was dead; it is there for the janitor.
        require_unchanged(again, catalog, contract, before, left=1)
        require_rerun(again, catalog, contract, before, [day])
