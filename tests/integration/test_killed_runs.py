"""A run killed with SIGKILL after each of its steps: run again, and there is exactly one publication, whole.

One set walks through all steps, a day per step, so that every repair also meets what the ones before it left.
"""

import datetime as dt
import itertools
import signal
from uuid import uuid4

import pytest

from lakeshare_pipelines.share.publication import publish, publish_or_replay
from lakeshare_pipelines.share.repair import repair
from lakeshare_pipelines.share.rollback import rollback
from lakeshare_pipelines.wap.branches import drop_abandoned, places
from lakeshare_pipelines.wap.records import recorded
from lakeshare_pipelines.wap.replay import judged
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import staging_prefix
from tests.builders.killed_run import run_until_killed
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_delivery, orders

STAGING = {
    "iceberg": "lakeshare_pipelines.wap.iceberg:IcebergStaging",
    "delta": "lakeshare_pipelines.wap.delta:DeltaStaging",
}
BEFORE_PUBLISH = {
    "the staging place was made": ("{staging}.open", 1),
    "its first table was written": ("{staging}.write", 1),
    "its last table was written": ("{staging}.write", 2),
    "it was audited": ("lakeshare_pipelines.wap.replay:judged", 1),
}
WHILE_PUBLISHING = {
    "the lock was taken and debts were paid": ("lakeshare_pipelines.share.publication:pay_debts", 1),
    "the set landed on main": ("{staging}.land", 1),
    "its first index was written": ("lakeshare_pipelines.share.pin:write_index", 1),
    "its last index was written": ("lakeshare_pipelines.share.pin:write_index", 2),
    "the ledger was written": ("lakeshare_server.catalog.ledger:Ledger.append", 1),
    "the staging place was dropped": ("{staging}.discard", 1),
}
ONE_OF_TWO_LANDED = {"one of two tables landed": ("lakeshare_pipelines.wap.delta:DeltaStaging._commit", 1)}
AGAIN = ("a new run", "only a repair", "the same publish")
NEXT = (*AGAIN, "the janitor")


class Walk:
    """A set that is published day by day, each day in spite of a killed run."""

    def __init__(self, lake, catalog, ledger, contract, folder) -> None:
        self.lake, self.catalog, self.ledger, self.contract, self.folder = (
            lake,
            catalog,
            ledger,
            contract,
            folder,
        )
        self.days: list[str] = []

    def next_day(self) -> str:
        day = (dt.date(2024, 1, 1) + dt.timedelta(days=len(self.days))).isoformat()
        a_delivery(self.lake.settings, self.contract, day, orders(day))
        self.days.append(day)
        return day

    def staged_and_judged(self, day: str):
        staged = stage(self.lake, self.contract, [day], str(uuid4()))
        return staged, judged(self.lake, self.contract, staged)

    def run(self, day: str):
        return publish_or_replay(self.lake, self.catalog, self.contract, *self.staged_and_judged(day))

    def killed(self, step: tuple[str, int], day: str, run_id: str, judgement=None) -> None:
        after = step[0].format(staging=STAGING[self.contract.tables[0].format])
        code = run_until_killed(
            self.folder,
            self.lake.settings,
            self.contract,
            after,
            step[1],
            day=day,
            run_id=run_id,
            judged=judgement,
        )
        assert code == -signal.SIGKILL

    def latest(self):
        return [self.ledger.latest(table.name) for table in self.contract.tables]

    def require_each_day_once(self, step: str) -> None:
        for table in self.contract.tables:
            published = [publication.partition for publication in self.ledger.history(table.name)]
            assert published == self.days[::-1], step
        expected = [(day, row["id"]) for day in self.days for row in orders(day)]
        assert [row[:2] for row in rows_on_main(self.lake, self.contract, "orders")] == expected, step
        assert [publication.rows for publication in self.latest()] == [len(expected), len(self.days)], step
        drop_abandoned(self.lake, [self.contract])
        assert places(self.lake, [self.contract]) == [], step
        assert recorded(self.lake.settings, staging_prefix(self.contract.name)) == [], step
        assert len(rows_on_main(self.lake, self.contract, "orders")) == len(expected), step


@pytest.fixture
def walk(lake, catalog, ledger, contract, tmp_path) -> Walk:
    begun = Walk(lake, catalog, ledger, contract, tmp_path)
    begun.run(begun.next_day())
    return begun


def test_a_run_killed_before_publish_leaves_nothing_and_runs_again(walk):
    for name, step in BEFORE_PUBLISH.items():
        before = walk.latest()
        day = walk.next_day()
        walk.killed(step, day, str(uuid4()))
        assert walk.latest() == before, name
        walk.run(day)
        walk.require_each_day_once(name)


def test_a_run_killed_while_publishing_is_completed_once(walk):
    complete(walk, zip(WHILE_PUBLISHING.items(), itertools.cycle(AGAIN)))


def test_whoever_comes_next_completes_a_set_that_landed(walk):
    complete(walk, itertools.product(landing_steps(walk.contract).items(), NEXT))


def test_a_rollback_counts_from_what_landed_before_it(walk):
    first_day = rows_on_main(walk.lake, walk.contract, "orders")
    day = walk.next_day()
    staged, verdicts = walk.staged_and_judged(day)
    (step,) = landing_steps(walk.contract).values()
    walk.killed(step, day, staged.run_id, (staged, verdicts))

    rollback(walk.lake, walk.catalog, walk.contract, walk.contract.table("orders"), 0)

    numbers = [
        [(p.version, p.partition, p.rollback_of) for p in walk.ledger.history(table.name)]
        for table in walk.contract.tables
    ]
    both_days = [(1, day, None), (0, walk.days[0], None)]
    assert numbers == [[(2, walk.days[0], 0), *both_days], both_days]
    assert rows_on_main(walk.lake, walk.contract, "orders") == first_day


def landing_steps(contract) -> dict[str, tuple[str, int]]:
    """Where main shows the set, or one table of it, and the ledger does not know yet."""
    if contract.tables[0].format == "delta":
        return ONE_OF_TWO_LANDED
    return {"the set landed on main": WHILE_PUBLISHING["the set landed on main"]}


def complete(walk: Walk, cases) -> None:
    for (name, step), again in cases:
        before = walk.latest()
        day = walk.next_day()
        judgement = walk.staged_and_judged(day)
        staged = judgement[0]
        walk.killed(step, day, staged.run_id, judgement)
        shown = walk.latest()
        assert shown == before or {p.run_id for p in shown} == {staged.run_id}, "half a set is in the ledger"
        if again == "the janitor":
            # It repairs first, in a step of its own; here it meets the half-landed set before anybody else.
            drop_abandoned(walk.lake, [walk.contract])
        if again in ("only a repair", "the janitor"):
            repair(walk.lake, walk.catalog, walk.contract, wait_s=30)
        if again == "the same publish":
            publish(walk.lake, walk.catalog, walk.contract, *judgement)
        if not walk.ledger.by_run(staged.run_id):
            walk.run(day)
        walk.require_each_day_once(f"{name}, then {again}")
