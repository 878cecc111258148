"""Random damage to copies and records: nothing unreadable is called verified after the next run or scrub.

What the source still has is healed, and every restore gives the rows that were backed up or refuses by name.
"""

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lakeshare_pipelines.backup.model import GOOD_STATUSES, Point, TableProof
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.restore.targets import find_mount
from lakeshare_pipelines.backup.scrub import scrub
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_damage import DAMAGES, damaged
from tests.builders.backup_lakes import Lake
from tests.builders.campaign import campaign_size
from tests.builders.lake_tables import IcebergTable, a_delta_table, append_delta

ONE, TWO, THREE = "2099-12-29", "2099-12-30", "2099-12-31"
CASES, AT_ONCE = campaign_size(in_ci=5, in_campaign=500), 125
Rows = list[tuple[int, str]]
KINDS = {
    "data": "objects/**/*.parquet",
    "logs": "objects/**/_delta_log/*.json",
    "manifests": "objects/**/*.avro",
    "metadata": "objects/**/*.metadata.json",
    "point records": "_lakeshare/lake/points/*/point.json",
    "rows of points": "_lakeshare/lake/points/*/held/*.parquet",
    "mounts": "_lakeshare/lake/points/*/mounts/**/*.*",
    "readings": "_lakeshare/lake/readings/*.parquet",
}


@dataclass
class Case:
    """A lake with two points whose target is put back before each case."""

    lake: Lake
    rows: dict[tuple[str, int], Rows] = field(default_factory=dict)
    """What a table has at a Delta version or Iceberg snapshot."""

    def fresh(self, random: Random) -> bool:
        """Put everything back, and take the source away now and then; returns whether it is there."""
        for name in ("copies", "lake"):
            shutil.rmtree(self.lake.base / name, ignore_errors=True)
            shutil.copytree(self.lake.base / f"whole-{name}", self.lake.base / name)
        for name in ("work", "restored", "state"):
            shutil.rmtree(self.lake.base / name, ignore_errors=True)
        is_there = random.random() < 0.6
        if not is_there:
            shutil.rmtree(self.lake.source)
        return is_there

    def damage(self, random: Random) -> list[str]:
        """Damage one to three files; returns what was done."""
        done = []
        for _ in range(random.choice((1, 1, 2, 3))):
            kind = random.choice(sorted(KINDS))
            files = sorted(path for path in self.lake.target.glob(KINDS[kind]) if path.is_file())
            if files:
                path, damage = random.choice(files), random.choice(DAMAGES)
                damaged(path, damage, random, files)
                done.append(f"{damage.__name__} {path.relative_to(self.lake.target)}")
        return done

    def points(self) -> Points:
        return Points(self.lake.backup)

    @cached_property
    def settings(self) -> LakeSettings:
        return LakeSettings(_env_file=None, state_dir=self.lake.base / "state")

    def restored(self, point: Point, proof: TableProof) -> Rows:
        """The rows of a table after it was restored elsewhere."""
        place = self.lake.base / "restored" / point.day / proof.table.root
        record = PointRestore(self.settings, self.lake.backup, point).elsewhere(
            proof.table.root, StoreAddress(url=str(place))
        )
        if proof.table.format == "delta":
            return as_rows(DeltaTable(place, version=record.version).to_pyarrow_table())
        return as_rows(StaticTable.from_metadata(record.location).scan().to_arrow())

    def opened(self, point: Point, proof: TableProof) -> Rows:
        """The rows of a table where its copies are."""
        found = find_mount(self.points(), point, proof.table.root)
        if proof.table.format == "delta":
            return as_rows(DeltaTable(found.location, version=found.version).to_pyarrow_table())
        return as_rows(StaticTable.from_metadata(found.location).scan().to_arrow())

    def expected(self, proof: TableProof) -> Rows:
        version = proof.version if proof.table.format == "delta" else proof.snapshot_id
        assert version is not None
        return self.rows[proof.table.root, version]


def as_rows(table: pa.Table) -> Rows:
    return sorted(zip(table["n"].to_pylist(), table["name"].to_pylist(), strict=True))


def some(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {"n": pa.array(numbers, pa.int64()), "name": [f"row {number}" * 20 for number in numbers]}
    )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    lake = Lake(tmp_path_factory.mktemp("campaign"))
    made = Case(lake)
    orders = a_delta_table(lake.source / "orders", some(0, 60), partitioned_by=())
    flights = IcebergTable(lake.source, some(0, 1).schema, partitioned_by=())
    flights.append(some(0, 60))
    for start, day in ((60, ONE), (100, TWO)):
        append_delta(orders, some(start, 20))
        flights.append(some(start, 20))
        (one, other) = lake.made(day, lake.listing()).tables
        assert (one.status, other.status) == ("verified", "verified")
    for version in range(DeltaTable(orders).version() + 1):
        made.rows["orders", version] = as_rows(DeltaTable(orders, version=version).to_pyarrow_table())
    for snapshot in flights.table.snapshots():
        found = flights.table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        made.rows["lake/flights", snapshot.snapshot_id] = as_rows(found)
    for name in ("copies", "lake"):
        shutil.copytree(lake.base / name, lake.base / f"whole-{name}")
    return made


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_damaged_copies_are_healed_or_refused_and_never_called_verified(case: Case, first: int) -> None:
    found: Counter[str] = Counter()
    seeds = range(first, min(first + AT_ONCE, CASES))
    for seed in seeds:
        random = Random(seed)
        is_there = case.fresh(random)
        done = case.damage(random)
        if points := readable(case):
            found += before_anything(case, random.choice(points), f"seed {seed}: restore after {done}")
        if is_there and random.random() < 0.5:
            found += after_a_run(case, f"seed {seed}: run after {done}")
        else:
            found += after_a_scrub(case, is_there, f"seed {seed}: scrub after {done}, source {is_there}")
    print(f"{len(seeds)} cases: {dict(found)}")
    # Most tables come back: what always refuses would never be wrong.
    assert found["equal"] > found["refused"] > 0


def before_anything(case: Case, point: Point, told: str) -> Counter[str]:
    """A restore that is the first to read what was damaged."""
    found = outcomes(case, point, told, must=False)
    shutil.rmtree(case.lake.base / "restored", ignore_errors=True)
    return found


def after_a_run(case: Case, told: str) -> Counter[str]:
    (one, other) = case.lake.made(THREE, case.lake.listing()).tables
    # The source has everything, so that everything is healed.
    assert (one.status, other.status) == ("verified", "verified"), told
    return sum((outcomes(case, point, told, must=point.day == THREE) for point in readable(case)), Counter())


def after_a_scrub(case: Case, is_there: bool, told: str) -> Counter[str]:
    record = scrub(
        case.lake.backup,
        case.points(),
        case.settings,
        dt.datetime.now(dt.UTC),
        everything=True,
        report_message=print,
    )
    if is_there:
        assert all("point " in sentence for sentence in record.damaged), (told, record)
        # Copies are whole again; what a damaged record held nobody knows.
        damages = [case.points().get(day).damage for day in record.downgraded]
        assert all(damage is not None and damage.record is not None for damage in damages), (told, record)
    return sum((outcomes(case, point, told, must=True) for point in readable(case)), Counter())


def readable(case: Case) -> list[Point]:
    return case.points().readable()[0]


def outcomes(case: Case, point: Point, told: str, *, must: bool) -> Counter[str]:
    """What became of restoring each table of a point; `must`: what is called good has to come back."""
    found: Counter[str] = Counter()
    for proof in point.verification.tables:
        for way in (case.restored, case.opened) if must else (case.restored,):
            rows, refusal = rows_or_refusal(way, point, proof)
            if refusal is None:
                assert rows == case.expected(proof), (told, point.day, proof.table.root)
            else:
                assert not (must and proof.status in GOOD_STATUSES), (
                    told,
                    point.day,
                    proof.table.root,
                    refusal,
                )
                assert proof.table.root in refusal or point.day in refusal, (told, refusal)
            found["equal" if refusal is None else "refused"] += 1
    return found


def rows_or_refusal(
    way: Callable[[Point, TableProof], Rows], point: Point, proof: TableProof
) -> tuple[Rows, str | None]:
    try:
        return way(point, proof), None
    except BackupError as error:
        return [], str(error)
