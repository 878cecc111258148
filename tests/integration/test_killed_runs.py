"""A run killed with SIGKILL after each of its steps: run again, and there is exactly one publication, whole.

One set of each format, in S3, walks through the steps, so that every repair also meets what the ones before it left. A
set in a SQL catalog, whose tables land one after another, walks through those that are not Nessie's. On a cluster each
run that is killed is a driver, whose executors end with it (test_spark_cluster.py).
"""

import datetime as dt
import itertools
import signal
from uuid import uuid4

import pytest

from lakeshare_pipelines.share.publication import publish, publish_or_replay, repair, rollback
from lakeshare_pipelines.wap.stage import drop_abandoned, list_staging_locations, stage
from lakeshare_pipelines.wap.staged import list_recorded_names, make_staging_prefix
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.cluster_run import wait_until_executors_ended
from tests.builders.killed_run import run_until_killed
from tests.builders.main_state import rows_at_each_step, rows_on_main
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading
from tests.builders.shared_spark import SharedSpark, forget_cached

STAGING = {
    "iceberg": "lakeshare_pipelines.wap.iceberg:IcebergStaging",
    "delta": "lakeshare_pipelines.wap.delta:DeltaStaging",
    "jdbc": "lakeshare_pipelines.wap.branches:BranchStaging",
}
FIRST_WRITTEN = "its first table was written"
BEFORE_PUBLISH = {
    "the staging location was made": ("{staging}.open", 1),
    FIRST_WRITTEN: ("{staging}.write", 1),
    "its last table was written": ("{staging}.write", 2),
    "it was audited": ("lakeshare_pipelines.wap.audit:audit_and_save", 1),
}
BEFORE_IT_LANDED, LANDED = "earlier runs were completed", "the set landed on main"
FIRST_INDEX, LAST_INDEX = "its first index was written", "its last index was written"
WRITTEN, DROPPED = "the ledger was written", "the staging location was dropped"
WHILE_PUBLISHING = {
    BEFORE_IT_LANDED: ("lakeshare_pipelines.share.publication:complete_publications", 1),
    LANDED: ("{staging}.land", 1),
    FIRST_INDEX: ("lakeshare_pipelines.share.publication:keep_index", 1),
    LAST_INDEX: ("lakeshare_pipelines.share.publication:keep_index", 2),
    WRITTEN: ("lakeshare_server.catalog.ledger:Ledger.append", 1),
    DROPPED: ("{staging}.discard", 1),
}
ONE_LANDED = "one of two tables landed"
ONE_OF_TWO_LANDED = {ONE_LANDED: ("{staging}._commit", 1)}
AGAIN = NEW_RUN, REPAIR, SAME = ("a new run", "only a repair", "the same publish")
JANITOR = "the janitor"
# `make test` has each step, and for each set each way to complete what landed, once: most steps are the same for all
# sets, and before publication each takes a delivery through Spark and the audit. The campaign, and its walk on a
# cluster, has all of them for each set.
BEFORE_PUBLISH_OF_MAKE_TEST = {
    "iceberg": ("the staging location was made", "it was audited"),
    "delta": ("its last table was written",),
    "jdbc": (FIRST_WRITTEN,),
}
WHILE_PUBLISHING_OF_MAKE_TEST = {
    "iceberg": ((BEFORE_IT_LANDED, NEW_RUN), (LANDED, REPAIR), (FIRST_INDEX, SAME), (LANDED, JANITOR)),
    "delta": ((ONE_LANDED, NEW_RUN), (LAST_INDEX, SAME), (WRITTEN, REPAIR), (ONE_LANDED, JANITOR)),
    "jdbc": ((LANDED, NEW_RUN), (ONE_LANDED, SAME), (DROPPED, REPAIR), (ONE_LANDED, JANITOR)),
}


class Walk:
    """A set that is published day by day, each day in spite of a killed run."""

    def __init__(self, lake, catalog, ledger, contract, folder) -> None:
        self.lake, self.catalog, self.ledger = lake, catalog, ledger
        self.kind = "jdbc" if lake.named_catalog else contract.tables[0].format
        self.contract, self.folder = contract, folder
        self.days: list[str] = []
        self.spark = SharedSpark.for_runs(lake)
        self.is_whole = IS_CAMPAIGN or self.spark is None
        publish(lake, catalog, contract, *self.staged_and_green(self.next_day()))

    def next_day(self) -> str:
        day = (dt.date(2024, 1, 1) + dt.timedelta(days=len(self.days))).isoformat()
        a_delivery(self.lake.settings, self.contract, day, orders(day))
        self.days.append(day)
        return day

    def staged_from_its_delivery(self, day: str):
        staged = stage(self.lake, self.contract, [day], str(uuid4()))
        return staged, green(self.contract, staged)

    def staged_and_green(self, day: str):
        """A day that is ready to be published: no reading and no audit is killed here."""
        staged = staged_without_reading(self.lake, self.contract, day, orders(day))
        return staged, green(self.contract, staged)

    def killed(self, step: tuple[str, int], day: str, run_id: str, judgement=None) -> None:
        after = step[0].format(staging=STAGING[self.kind])
        code = run_until_killed(
            self.folder,
            self.lake.settings,
            self.contract,
            after,
            step[1],
            day=day,
            run_id=run_id,
            judged=judgement,
            spark=self.spark,
        )
        assert code == -signal.SIGKILL
        if self.spark is None:
            own = self.lake.spark.sparkContext.applicationId
            wait_until_executors_ended(self.lake.settings.spark_master, own)
        if judgement is None:
            forget_cached(self.lake.spark)

    def publish(self, staged, verdicts) -> None:
        publish_or_replay(self.lake, self.catalog, self.contract, staged, verdicts)

    def latest(self):
        return [self.ledger.latest(table.name) for table in self.contract.tables]

    def history(self, table):
        return self.ledger.history(table.name)

    def rows(self):
        return rows_at_each_step(self.lake, self.contract, "orders")

    def require_each_day_once(self, step: str) -> None:
        drop_abandoned(self.lake, self.contract)
        assert list_staging_locations(self.lake, [self.contract]) == [], step
        assert list_recorded_names(self.lake, make_staging_prefix(self.contract.name)) == [], step
        for table in self.contract.tables:
            assert [publication.partition for publication in self.history(table)] == self.days[::-1], step
        expected = [(day, row["id"]) for day in self.days for row in orders(day)]
        assert [row[:2] for row in self.rows()] == expected, step
        assert [publication.rows for publication in self.latest()] == [len(expected), len(self.days)], step


@pytest.fixture(scope="module", params=["iceberg", "delta", "jdbc"])
def walk(request, s3_lake, catalog, ledger, tmp_path_factory) -> Walk:
    folder, table_format, lake = tmp_path_factory.mktemp("killed"), request.param, s3_lake
    if request.param == "jdbc":
        lake, table_format = request.getfixturevalue("jdbc_lake"), "iceberg"
    return Walk(lake, catalog, ledger, a_contract(folder, f"killed{request.param}", table_format), folder)


@pytest.mark.campaign
def test_runs_killed_at_each_step_before_publish_leave_nothing_and_the_next_run_publishes(walk):
    before, day = walk.latest(), walk.next_day()
    for name in BEFORE_PUBLISH if walk.is_whole else BEFORE_PUBLISH_OF_MAKE_TEST[walk.kind]:
        walk.killed(BEFORE_PUBLISH[name], day, str(uuid4()))
        assert walk.latest() == before, name
    walk.publish(*walk.staged_from_its_delivery(day))
    walk.require_each_day_once("a run beside what the killed ones left")
    assert rows_on_main(walk.lake, walk.contract, "orders") == walk.rows()


@pytest.mark.campaign
def test_a_run_killed_while_publishing_is_completed_once_by_the_next_one(walk):
    landing = landing_steps(walk)
    steps, each_step = WHILE_PUBLISHING | landing, WHILE_PUBLISHING_OF_MAKE_TEST[walk.kind]
    if walk.is_whole:
        of_landing = itertools.product(landing, (*AGAIN, JANITOR))
        each_step = dict.fromkeys([*zip(WHILE_PUBLISHING, itertools.cycle(AGAIN)), *of_landing])
    for name, again in each_step:
        before = walk.latest()
        day = walk.next_day()
        judgement = walk.staged_and_green(day)
        staged = judgement[0]
        walk.killed(steps[name], day, staged.run_id, judgement)
        shown = walk.latest()
        assert shown == before or {p.run_id for p in shown} == {staged.run_id}, "half a set is in the ledger"
        if again == JANITOR:
            # It repairs first, in a step of its own; here it is the first to meet the half-landed set.
            drop_abandoned(walk.lake, walk.contract)
        if again in (REPAIR, JANITOR):
            repair(walk.lake, walk.catalog, walk.contract)
        if again == SAME:
            publish(walk.lake, walk.catalog, walk.contract, *judgement)
        if not walk.ledger.by_run(staged.run_id):
            walk.publish(*walk.staged_and_green(day))
        completed = bool(walk.ledger.by_run(staged.run_id))
        assert completed is (name != BEFORE_IT_LANDED or again == SAME), f"{name}, then {again}"
        walk.require_each_day_once(f"{name}, then {again}")
    assert rows_on_main(walk.lake, walk.contract, "orders") == walk.rows()


def test_a_rollback_counts_from_what_landed_before_it(walk):
    rows, shown = walk.rows(), walk.latest()
    last_day, day = walk.days[-1], walk.next_day()
    judgement = walk.staged_and_green(day)
    (step,) = landing_steps(walk).values()
    walk.killed(step, day, judgement[0].run_id, judgement)

    to = shown[0].version
    rollback(walk.lake, walk.catalog, walk.contract, walk.contract.table("orders"), to)

    numbers = [
        [(p.version - before.version, p.partition, p.rollback_of) for p in walk.history(table)]
        for table, before in zip(walk.contract.tables, shown, strict=True)
    ]
    assert numbers[0][:3] == [(2, last_day, to), (1, day, None), (0, last_day, None)]
    assert numbers[1][:2] == [(1, day, None), (0, last_day, None)]
    assert rows_on_main(walk.lake, walk.contract, "orders") == rows


def landing_steps(walk) -> dict[str, tuple[str, int]]:
    """Where main shows the set, or one table of it, and the ledger does not know yet."""
    if walk.kind != "iceberg":
        return ONE_OF_TWO_LANDED
    return {LANDED: WHILE_PUBLISHING[LANDED]}
