"""Deliveries in every write mode: tables, changes and ledger equal a model in plain Python, in both formats."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import delta_sharing
import pandas as pd
import pyarrow as pa
import pytest

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.share import changes as recording
from lakeshare_pipelines.share import publication
from lakeshare_pipelines.share.publication import publish, publish_or_replay, rollback, unchanged_run
from lakeshare_pipelines.wap import iceberg
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.delta import DeltaStaging, table_location
from lakeshare_pipelines.wap.iceberg import CHANGES_FOLDER, FILE, PLANNED, get_state
from lakeshare_pipelines.wap.merge import find_key_problems, plan_changes
from lakeshare_pipelines.wap.stage import (
    drop_staging_location,
    find_applied,
    list_staging_locations,
    reseal,
    stage,
)
from lakeshare_pipelines.wap.staged import Lake, Staged
from lakeshare_server.catalog import Catalog, DeclaredShare, Ledger, SharedTable, apply_shares
from lakeshare_server.settings import ServerSettings
from tests.builders.campaign import IS_CAMPAIGN, campaign_size
from tests.builders.main_state import main_state
from tests.builders.recipients import Recipients
from tests.builders.sets import green
from tests.builders.sharing import Provider, a_server
from tests.builders.write_modes import (
    COLUMNS,
    MODES,
    Change,
    Model,
    Row,
    a_set_of_modes,
    deliver,
    random_changes,
    read_main,
    stage_without_reading,
)
from tests.integration.conftest import a_lake_in_catalog

# A mode costs a table in each reading, audit and publication. Rows of both modes with keys are merged in the same way:
# `make test` has one of them in each format.
MODES_OF = {"iceberg": ("append", "merge"), "delta": ("append", "scd2")}
KEYS: dict[str, Callable[[Row], object]] = {"merge": lambda row: row[0], "scd2": lambda row: (row[0], row[5])}


class Killed(Exception):
    """Stands for a run that ended here."""


@dataclass
class Walk:
    """A set with a table for each mode, its model, and the rows of each publication."""

    lake: Lake
    catalog: Catalog
    contract: SetContract
    draw: random.Random
    monkeypatch: pytest.MonkeyPatch
    model: Model = field(default_factory=Model)
    states: list[dict[str, list[Row]]] = field(default_factory=list)
    days: Iterator[str] = field(default_factory=lambda: map("2024-01-{:02d}".format, range(1, 32)))
    number: int = 0

    @property
    def modes(self) -> list[str]:
        return [table.short_name.removesuffix("_rows") for table in self.contract.tables]

    def deliver(self) -> tuple[str, list[Change]]:
        day, changes = next(self.days), random_changes(self.draw, self.number)
        self.number = min(self.number + 1, 10)
        deliver(self.lake.settings, self.contract, day, changes)
        return day, changes

    def stage(self, day: str, changes: list[Change]) -> Staged:
        return stage_without_reading(self.lake, self.contract, day, changes)

    def applied(self, changes: list[Change]) -> None:
        self.model.apply(changes)
        self.states.append({mode: self.model.rows(mode) for mode in self.modes})

    def require_as_in_model(self) -> None:
        for mode in self.modes:
            assert read_main(self.lake, self.contract, f"{mode}_rows") == self.states[-1][mode], mode
            latest = Ledger(self.catalog).latest(self.contract.table(f"{mode}_rows").name)
            assert latest is not None
            assert (latest.version, latest.rows) == (len(self.states) - 1, len(self.states[-1][mode]))
        assert list_staging_locations(self.lake, [self.contract]) == []


def a_delivery_is_published(walk: Walk) -> None:
    day, changes = walk.deliver()
    staged = walk.stage(day, changes)
    publish(walk.lake, walk.catalog, walk.contract, staged, green(walk.contract, staged))
    walk.applied(changes)


def a_crashed_run_is_completed_and_another_one_is_computed_again_on_it(walk: Walk) -> None:
    """Both were staged on the same state. The second is staged again by the real reading, and audited."""

    def killed(*_: object) -> None:
        raise Killed

    (one, ones), (other, others) = walk.deliver(), walk.deliver()
    first, second = walk.stage(one, ones), walk.stage(other, others)
    with walk.monkeypatch.context() as patched:
        patched.setattr(publication, "record_landed", killed)
        with pytest.raises(Killed):
            publish(walk.lake, walk.catalog, walk.contract, first, green(walk.contract, first))
    walk.applied(ones)
    publish_or_replay(walk.lake, walk.catalog, walk.contract, second, green(walk.contract, second))
    walk.applied(others)


def a_red_delivery_leaves_nothing(walk: Walk) -> None:
    before = main_state(walk.lake, walk.contract)
    day = next(walk.days)
    changes = [
        Change(1, "a", 1.0, "2024-01-30"),
        Change(1, "b", 1.0, "2024-01-30"),
        Change(None, "c", 1.0, "2024-01-30"),
    ]
    deliver(walk.lake.settings, walk.contract, day, changes)
    staged = walk.stage(day, changes)
    verdicts = audit(walk.lake, walk.contract, staged)
    blocking = {verdict.name: verdict.reason for verdict in verdicts.verdicts if verdict.blocks}
    for mode in ("merge", "scd2"):
        name = walk.contract.table(f"{mode}_rows").name
        assert (
            "1 values of id, at have different rows (such as id=1, at=2024-01-30)"
            in blocking[f"{name}: merge_keys"]
        )
        assert "1 values of id, at have a null (such as id=None" in blocking[f"{name}: merge_keys"]
        assert blocking[f"{name}: expect_column_values_to_not_be_null__id"]
    drop_staging_location(walk.lake, walk.contract, staged.ref)
    assert main_state(walk.lake, walk.contract) == before


def a_delivery_is_applied_once_whatever_the_contract_is_by_then(walk: Walk) -> None:
    day, changes = walk.deliver()
    staged = walk.stage(day, changes)
    publish(walk.lake, walk.catalog, walk.contract, staged, green(walk.contract, staged))
    walk.applied(changes)
    assert unchanged_run(walk.lake, walk.catalog, walk.contract, [day]) is not None
    edited = replace(walk.contract, digest=f"of another version of {walk.contract.name}")
    assert unchanged_run(walk.lake, walk.catalog, edited, [day]) is None
    again = stage(walk.lake, edited, [day], str(uuid4()))
    assert {record.table.rpartition(".")[2]: record.skipped for record in again.tables} == {
        f"{mode}_rows": () if mode == "replace" else (day,) for mode in walk.modes
    }
    publish(walk.lake, walk.catalog, edited, again, green(edited, again))
    walk.states.append(walk.states[-1])


STEPS = (
    a_delivery_is_published,
    a_crashed_run_is_completed_and_another_one_is_computed_again_on_it,
    a_red_delivery_leaves_nothing,
    a_delivery_is_applied_once_whatever_the_contract_is_by_then,
)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(campaign_size(1, 20)))
@pytest.mark.parametrize("place", ["iceberg", "delta", *(["sqlite"] if IS_CAMPAIGN else [])])
def test_random_deliveries(
    lake: Lake, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, seed: int
) -> None:
    """In Nessie, in Delta, and in a SQL catalog on SQLite."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    with (
        a_lake_in_catalog(lake, tmp_path, "local", uri=uri)
        if place == "sqlite"
        else nullcontext(lake) as there
    ):
        kind = "delta" if place == "delta" else "iceberg"
        modes = MODES if IS_CAMPAIGN else MODES_OF[kind]
        contract = a_set_of_modes(tmp_path / "contracts", f"modes_{place}_{seed}", kind, modes)
        take_steps(Walk(there, catalog, contract, random.Random(f"{place} {seed}"), monkeypatch))


def take_steps(walk: Walk) -> None:
    # Each step that reads and audits a delivery takes seconds; the others are below, with fewer tables.
    steps = (STEPS[0], *walk.draw.choices(STEPS, k=12)) if IS_CAMPAIGN else STEPS[1:2]
    for step in steps:
        step(walk)
        walk.require_as_in_model()
    removed_files_have_the_values_of_their_partition(walk)
    recipients_read_the_changes(walk)
    a_rollback_allows_what_it_undid_again(walk)


def removed_files_have_the_values_of_their_partition(walk: Walk) -> None:
    """Delta's PROTOCOL.md, "Remove File": none without partitions is an empty map."""
    for table in walk.contract.tables:
        if table.format == "delta" and table.write.has_key:
            removed = read_actions(walk.lake, table_location(walk.lake.settings, table), "remove")
            columns = {column for column, _ in table.partition_by}
            assert [each["partitionValues"].keys() for each in removed] == [columns] * len(removed)


@contextmanager
def shared(
    lake: Lake, catalog: Catalog, namespace: str, modes: Iterable[str]
) -> Iterator[Callable[[str], str]]:
    """The address of the table of each mode for a recipient, while a server shares them with their history."""
    settings = ServerSettings(
        _env_file=None, state_dir=lake.settings.state_dir, database_url=lake.settings.catalog_url, port=0
    )
    share = f"{namespace}_changes"
    tables = (SharedTable("shop", f"{mode}_rows", f"{namespace}.{mode}_rows", history=True) for mode in modes)
    apply_shares(catalog, [DeclaredShare(share, tuple(tables))])
    _, token = Recipients(catalog).add(f"{namespace}-reader", (share,))
    with a_server(Provider(settings, catalog)) as server:
        yield lambda mode: f"{server.profile(token)}#{share}.shop.{mode}_rows"


def recipients_read_the_changes(walk: Walk) -> None:
    """The official client reads inserts, updates with both images, and deletes; no row that stays."""
    with shared(walk.lake, walk.catalog, walk.contract.name, walk.modes) as locate:
        for mode in set(walk.modes) - {"replace"}:
            feed = delta_sharing.load_table_changes_as_pandas(locate(mode), starting_version=0)
            before: list[Row] = []
            for version, state in enumerate(states[mode] for states in walk.states):
                found = feed[feed["_commit_version"] == version].drop(
                    columns=["_commit_version", "_commit_timestamp"]
                )
                assert rows_of(found) == expected_changes(mode, before, state), (mode, version)
                before = state


def rows_of(frame: pd.DataFrame) -> list[Row]:
    def as_value(value: object) -> object:
        if pd.isna(value):
            return None
        return (
            value
            if isinstance(value, str | float | bool)
            else str(value)
            if hasattr(value, "year")
            else value
        )

    return sorted((tuple(map(as_value, row)) for row in frame.itertuples(index=False)), key=str)


def expected_changes(mode: str, before: list[Row], after: list[Row]) -> list[Row]:
    if mode == "append":
        left = list(before)
        return sorted(((*row, "insert") for row in after if row not in left or left.remove(row)), key=str)
    key = KEYS[mode]
    old, new = {key(row): row for row in before}, {key(row): row for row in after}
    changes: list[Row] = []
    for each in old.keys() | new.keys():
        was, is_now = old.get(each), new.get(each)
        if was == is_now:
            continue
        if was is not None:
            changes.append((*was, "delete" if is_now is None else "update_preimage"))
        if is_now is not None:
            changes.append((*is_now, "insert" if was is None else "update_postimage"))
    return sorted(changes, key=str)


def a_rollback_allows_what_it_undid_again(walk: Walk) -> None:
    mode = "merge" if "merge" in walk.modes else "scd2"
    table, ledger = walk.contract.table(f"{mode}_rows"), Ledger(walk.catalog)
    history = ledger.history(table.name)
    deliveries = {day: digest for row in history for day, digest in row.verdicts["deliveries"].items()}
    assert find_applied(ledger, table.name, deliveries) == set(deliveries)
    rollback(walk.lake, walk.catalog, walk.contract, table, 0)
    assert read_main(walk.lake, walk.contract, table.short_name) == walk.states[0][mode]
    assert find_applied(ledger, table.name, deliveries) == set(history[-1].verdicts["deliveries"])


COMPUTED = """\
  - name: people
    physicalName: {name}.people
    customProperties:
      - {{property: view, value: {{of: merge_rows, columns: [id, name], where: amount > 1}}}}
  - name: numbers
    physicalName: {name}.numbers
    customProperties:
      - {{property: write, value: replace}}
      - {{property: derive, value: "SELECT count(*) AS number, sum(amount) AS amount FROM {{merge_rows}}"}}
    properties:
      - {{name: number, logicalType: integer}}
      - {{name: amount, logicalType: number}}
"""


@dataclass
class ComputedSet:
    """A merged table with a view and a derived table of it; deliveries are really read."""

    lake: Lake
    catalog: Catalog
    contract: SetContract

    def stage(self, day: str, *changes: Change) -> Staged:
        deliver(self.lake.settings, self.contract, day, changes)
        return stage(self.lake, self.contract, [day], str(uuid4()))

    def stage_without_reading(self, day: str, *changes: Change) -> Staged:
        """A delivery to the merged table, where its reading is not the subject."""
        deliver(self.lake.settings, self.contract, day, changes)
        return stage_without_reading(self.lake, self.contract, day, changes)

    def publish(self, staged: Staged) -> None:
        publish(self.lake, self.catalog, self.contract, staged, green(self.contract, staged))

    def rows(self, short_name: str) -> list[Row]:
        return read_main(self.lake, self.contract, short_name)


ONE, OTHER, THIRD, FOURTH, FIFTH, SIXTH = (f"2024-01-0{day}" for day in range(1, 7))


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_deliveries_that_change_nothing_and_red_ones(
    lake: Lake, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    name = f"computed_of_{table_format}"
    contract = a_set_of_modes(
        tmp_path / "contracts", name, table_format, ("merge",), COMPUTED.format(name=name)
    )
    computed = ComputedSet(lake, catalog, contract)
    # A row is deleted by a vector later: alone in its file, it would be deleted with it.
    more = [Change(each, "e", 0.5, ONE) for each in range(4, 9)] if table_format == "delta" else []
    computed.publish(computed.stage(ONE, Change(1, "a", 1.0, ONE), Change(2, "b", 2.0, ONE), *more))
    numbers = [(2 + len(more), 3.0 + 0.5 * len(more))]
    assert (computed.rows("people"), computed.rows("numbers")) == ([(2, "b")], numbers)
    [table] = [table for table in contract.tables if table.short_name == "merge_rows"]
    merged = replace(contract, tables=(table,))
    if table_format == "delta":
        a_red_delivery_is_reported_by_its_keys(replace(computed, contract=merged))
        a_repair_is_in_the_changes(computed)
        computed.contract = merged
        rows_deleted_by_vectors_stay_deleted(computed)
    else:
        a_delivery_without_a_change_and_one_that_is_applied_have_a_number(computed)
        # The files of the other tables are compared.
        computed.contract = merged
        with monkeypatch.context() as patched:
            patched.setattr(recording, "find_changed_rows", not_called)
            a_changed_row_is_recorded_as_planned(computed)
        a_plan_that_does_not_add_up_is_not_taken(computed, monkeypatch)
        files_without_changed_rows_stay(computed, monkeypatch)


def a_red_delivery_is_reported_by_its_keys(computed: ComputedSet) -> None:
    before = main_state(computed.lake, computed.contract)
    rows = [Change(1, "a", 1.0, OTHER), Change(1, "b", 1.0, OTHER), Change(None, "c", 1.0, OTHER)]
    staged = computed.stage(OTHER, *rows)
    verdicts = audit(computed.lake, computed.contract, staged)
    reasons = {verdict.check: verdict.reason for verdict in verdicts.verdicts if verdict.blocks}
    assert reasons.keys() == {"merge_keys", "expect_column_values_to_not_be_null__id"}
    assert "1 values of id, at have different rows (such as id=1, at=2024-01-02)" in reasons["merge_keys"]
    assert "1 values of id, at have a null (such as id=None, at=2024-01-02)" in reasons["merge_keys"]
    drop_staging_location(computed.lake, computed.contract, staged.ref)
    assert main_state(computed.lake, computed.contract) == before


def a_delivery_without_a_change_and_one_that_is_applied_have_a_number(computed: ComputedSet) -> None:
    lake, catalog, contract = computed.lake, computed.catalog, computed.contract
    table = contract.table("merge_rows").name
    late = Change(1, "late", 9.0, "2023-12-31")
    computed.publish(computed.stage(THIRD, Change(2, "b", 2.0, ONE), late, Change(7, "x", 1.0, ONE, "D")))
    edited = replace(contract, digest=f"of another version of {contract.name}")
    assert unchanged_run(lake, catalog, contract, [ONE]) is not None
    assert unchanged_run(lake, catalog, edited, [ONE]) is None
    again = stage(lake, edited, [ONE], str(uuid4()))
    assert [(record.rows, record.skipped) for record in again.tables if record.table == table] == [
        (0, (ONE,))
    ]
    publish(lake, catalog, edited, again, green(edited, again))
    assert computed.rows("merge_rows") == [(1, "a", 1.0, ONE, "U"), (2, "b", 2.0, ONE, "U")]
    assert [row.version for row in Ledger(catalog).history(table)] == [2, 1, 0]


def not_called(*_: object) -> None:
    pytest.fail("the rows of files were compared, though a merge planned its changes")


def a_changed_row_is_recorded_as_planned(computed: ComputedSet) -> None:
    lake, table = computed.lake, computed.contract.table("merge_rows")
    changes = Change(1, "c", 3.0, OTHER), Change(2, None, 0.0, FOURTH, "D")
    computed.publish(computed.stage_without_reading(FOURTH, *changes))
    latest = Ledger(computed.catalog).latest(table.name)
    assert latest is not None
    folders = lake.stores.folders(f"{latest.location}/{CHANGES_FOLDER}")
    assert [name for name in folders if name.startswith(str(latest.snapshot_id))]


def a_plan_that_does_not_add_up_is_not_taken(computed: ComputedSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the planned changes is lost: the files are compared, and their rows are recorded."""
    lake, table = computed.lake, computed.contract.table("merge_rows")
    staged = computed.stage_without_reading(FIFTH, Change(1, "d", 4.0, FIFTH), Change(9, "e", 5.0, FIFTH))
    changes = f"{Ledger(computed.catalog).history(table.name)[0].location}/{CHANGES_FOLDER}"
    ending = f"-{get_state(lake, table.name, staged.ref).snapshot_id}"
    [folder] = [f"{changes}/{name}" for name in lake.stores.folders(changes) if name.endswith(ending)]
    kept = lake.spark.read.parquet(folder).where("_change_type = 'update_preimage'").localCheckpoint()
    kept.write.mode("overwrite").parquet(folder)
    lake.stores.write(f"{folder}/{PLANNED}", b"")
    compared, find_changed_rows = [], recording.find_changed_rows
    monkeypatch.setattr(
        recording, "find_changed_rows", lambda *given: compared.append(given) or find_changed_rows(*given)
    )
    computed.publish(staged)
    assert len(compared) == 1
    assert [row[:2] for row in computed.rows("merge_rows")] == [(1, "d"), (9, "e")]


def files_without_changed_rows_stay(computed: ComputedSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 1 and 9 are in two files. Files that are a small share of the table are written again with the others."""
    lake, table = computed.lake, computed.contract.table("merge_rows")

    def list_files(ref: str) -> dict[int, str]:
        return {row["id"]: row[FILE] for row in lake.table(table.name, ref).select("id", FILE).collect()}

    def find_rewritten(*changes: Change) -> list[int]:
        staged = computed.stage_without_reading(SIXTH, *changes)
        files = list_files(staged.ref)
        drop_staging_location(lake, computed.contract, staged.ref)
        return [number for number, file in before.items() if files[number] != file]

    before = list_files("main")
    assert find_rewritten(Change(9, "f", 6.0, SIXTH), Change(10, "new", 6.0, SIXTH)) == [9]
    monkeypatch.setattr(iceberg, "MAX_UNTOUCHED", 0.9)
    assert sorted(find_rewritten(Change(9, "f", 6.0, SIXTH))) == [1, 9]


def a_repair_is_in_the_changes(computed: ComputedSet) -> None:
    lake, contract = computed.lake, computed.contract
    changes = Change(1, "c", 3.0, OTHER), Change(2, None, 0.0, OTHER, "D"), Change(3, "d", 4.0, OTHER)
    staged, table = computed.stage(OTHER, *changes), contract.table("merge_rows")
    folder = DeltaStaging(lake, contract).staged_location(table.name, staged.ref)
    lake.spark.sql(f"DELETE FROM delta.`{folder}` WHERE id = 3")
    repaired = reseal(lake, contract, staged)
    assert repaired.head != staged.head
    computed.publish(repaired)
    assert computed.rows("people") == [(1, "c")]
    assert computed.rows("numbers") == [(7, 9.5)], "derived tables stay as they were staged"
    opened = lake.open_delta(table_location(lake.settings, table))
    assert opened is not None
    feed = pa.table(opened.load_cdf(starting_version=1).read_all()).to_pylist()
    assert sorted((row["_change_type"], row["id"], row["name"]) for row in feed) == [
        ("delete", 2, "b"),
        ("update_postimage", 1, "c"),
        ("update_preimage", 1, "a"),
    ]


def rows_deleted_by_vectors_stay_deleted(computed: ComputedSet) -> None:
    """Another writer deletes a row of main by a deletion vector; a merge then rewrites the file of that row."""
    lake, table = computed.lake, computed.contract.table("merge_rows")
    location = table_location(lake.settings, table)
    lake.spark.sql(
        f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    lake.spark.sql(f"DELETE FROM delta.`{location}` WHERE id = 4")
    [add] = read_actions(lake, location, "add")
    computed.publish(
        computed.stage_without_reading(FOURTH, *(Change(each, "g", 7.0, FOURTH) for each in (5, 8)))
    )
    [removed] = read_actions(lake, location, "remove")
    assert (removed["path"], removed["deletionVector"]) == (add["path"], add["deletionVector"])
    rows = lake.spark.read.format("delta").load(location).select("id", "name").collect()
    assert sorted(map(tuple, rows)) == [(1, "c"), (5, "g"), (6, "e"), (7, "e"), (8, "g")]


def read_actions(lake: Lake, location: str, name: str) -> list[dict[str, Any]]:
    """The actions of this name in the latest commit of a Delta table."""
    table = lake.open_delta(location)
    assert table is not None
    commit = lake.stores.read(f"{location}/_delta_log/{table.version():020d}.json")
    return [action[name] for action in map(json.loads, commit.splitlines()) if name in action]


def test_a_merge_without_a_sequence_needs_one_row_for_each_key(lake: Lake, tmp_path: Path) -> None:
    [table] = a_set_of_modes(tmp_path, "one_row", "delta", ("merge",), deleteWhen="op = 'D'").tables
    rows = lake.spark.sql(
        "SELECT * FROM VALUES (1, 'a', 1D, DATE'2024-01-01', 'U') t(id, name, amount, at, op)"
    )
    assert find_key_problems(table, rows) == ()
    [problem] = find_key_problems(table, rows.union(rows))
    assert problem.startswith("1 values of id have several rows: name a sequence that orders them")
    assert problem.endswith("(such as id=1)")


DAILY = """\
  - name: daily_rows
    physicalName: {name}.daily_rows
    customProperties:
      - {{property: source, value: daily_rows}}
      - {{property: drift, value: {{maxShrinkFraction: 0.5}}}}
    properties:
{columns}  - name: totals
    physicalName: {name}.totals
    customProperties:
      - {{property: derive, value: "SELECT at, count(*) AS number FROM {{daily_rows}} GROUP BY at"}}
    properties:
      - {{name: at, logicalType: date, partitioned: true}}
      - {{name: number, logicalType: integer}}
"""
BY_DAY = COLUMNS.replace("required: true", "required: true, partitioned: true") % ("", "")


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_day_without_rows_is_published_where_the_contract_allows_it(
    lake: Lake, catalog: Catalog, tmp_path: Path, table_format: str
) -> None:
    name = f"quiet_{table_format}"
    daily = DAILY.format(name=name, columns=BY_DAY)
    refusing = a_set_of_modes(tmp_path / "contracts", name, table_format, MODES, daily)
    text = refusing.path.read_text()
    allowing = text.replace(
        "customProperties:\n      -",
        "customProperties:\n      - {property: allowEmpty, value: true}\n      -",
    )
    source, drift = (
        "{property: source, value: replace_rows}",
        "{property: drift, value: {maxShrinkFraction: 0.5}}",
    )
    (tmp_path / "allowing.yaml").write_text(allowing.replace(source, f"{source}\n      - {drift}"))
    contract = load_contract(tmp_path / "allowing.yaml")
    quiet = ComputedSet(lake, catalog, contract)
    quiet.publish(quiet.stage(ONE, Change(1, "a", 1.0, ONE)))
    before = {table.short_name: quiet.rows(table.short_name) for table in contract.tables}
    staged = quiet.stage(OTHER)
    red = {verdict.table for verdict in audit(lake, refusing, staged).verdicts if verdict.blocks}
    verdicts = audit(lake, contract, staged)
    publish(lake, catalog, contract, staged, verdicts)
    after = {table.short_name: quiet.rows(table.short_name) for table in contract.tables}
    assert red == {table.name for table in contract.tables}
    drifted = [verdict for verdict in verdicts.verdicts if verdict.check == "drift"]
    assert ["0 rows where 1 are usual (-100%)" in verdict.reason for verdict in drifted] == [True, True]
    assert after == before | {"replace_rows": []}
    for table in contract.tables:
        latest = Ledger(catalog).latest(table.name)
        assert latest is not None
        assert latest.version == 1
    with shared(lake, catalog, name, ("replace", "append")) as locate:
        assert delta_sharing.load_as_pandas(locate("replace")).empty
        assert rows_of(delta_sharing.load_as_pandas(locate("append"))) == before["append_rows"]


@pytest.mark.parametrize("condition", ["op === 'D'", "amount", "ops = 'D'"])
def test_a_delete_condition_that_is_none_is_an_error_with_its_place(
    lake: Lake, tmp_path: Path, condition: str
) -> None:
    contract = a_set_of_modes(tmp_path, "conditions", "delta", ("merge",), deleteWhen=condition)
    rows = lake.spark.sql("SELECT 1 id, 'a' name, 1D amount, DATE'2024-01-01' at, 'U' op")
    with pytest.raises(
        ContractError, match=r"a condition in Spark SQL over the columns of merge_rows"
    ) as caught:
        plan_changes(contract, contract.tables[0], None, rows)
    assert caught.value.field == "merge_rows.write.deleteWhen"
    assert str(contract.path) in str(caught.value)
