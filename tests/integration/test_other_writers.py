"""Rows that another writer added to main are published only if the rules of the contract hold for them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lakeshare_pipelines.contracts import Column, SetContract
from lakeshare_pipelines.errors import Conflict
from lakeshare_pipelines.nessie.client import Merge, Nessie
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import TableAudit, audit
from lakeshare_pipelines.wap.delta import table_location, write_commit
from lakeshare_pipelines.wap.iceberg import get_state
from lakeshare_pipelines.wap.staged import Lake, Verdict, Verdicts
from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.tables.delta.log import list_log, replay
from tests.builders.audits import (
    DAY,
    FLIGHT_COLUMNS,
    NEXT_DAY,
    NOT_NULL,
    a_rule,
    a_set,
    flight_rows,
    flights,
    of,
    publish_rows,
    stage_rows,
)
from tests.builders.sets import green
from tests.builders.write_modes import Change, a_set_of_modes, deliver, stage_without_reading

FORMATS = pytest.mark.parametrize("table_format", ["iceberg", "delta"])
RULE = a_rule("carrier_set", NOT_NULL, column="carrier")
ADDED = "rows_not_of_the_run"


def write_by_hand(lake: Lake, contract: SetContract, statement: str) -> None:
    """Run a statement on the table on main, `{t}`, in its catalog `{c}`, without a run of the set."""
    [table] = contract.tables
    if table.format == "delta":
        lake.spark.sql(statement.format(t=f"delta.`{table_location(lake.settings, table)}`"))
        return
    ref, nessie, publisher = f"by-hand-{uuid4()}", lake.nessie(), lake.nessie("publisher")
    nessie.create_branch(ref, nessie.reference("main").hash)
    lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {lake.catalog(ref)}.{contract.name}")
    lake.spark.sql(statement.format(t=f"{lake.catalog(ref)}.{table.name}", c=lake.catalog(ref)))
    written = nessie.reference(ref).hash
    main = nessie.reference("main").hash
    publisher.merge(ref, written, onto_hash=main, message="by hand", author="tests", properties={})
    nessie.delete_branch(ref, written)


def run(lake: Lake, catalog: Catalog, contract: SetContract, day: str, rows: str) -> Verdicts:
    """Stage, audit, and publish if the audit passed."""
    staged = stage_rows(lake, contract, partitions=(day,), run_id=f"run-{uuid4()}", flights=rows)
    staged = replace(staged, deliveries={day: staged.run_id})
    verdicts = audit(lake, contract, staged)
    if verdicts.green:
        publish(lake, catalog, contract, staged, verdicts)
    return verdicts


def rule(verdicts: Verdicts) -> Verdict:
    return of(verdicts, "carrier_set")


@FORMATS
def test_rows_of_another_writer_are_audited_with_the_next_run(
    lake: Lake, catalog: Catalog, table_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    contract = a_set(flights(RULE, format=table_format))
    publish_rows(lake, contract, flights=flight_rows(5))
    bad = flight_rows(2, id="100L + id", carrier="if(id = 0, null, 'UA')")
    write_by_hand(lake, contract, f"INSERT INTO {{t}} {bad}")
    found = rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(3, NEXT_DAY)))
    assert not found.passed
    assert (found.observed["rows"], found.observed["failed_rows"], found.observed[ADDED]) == (5, 1, 2)
    assert "another writer changed main since publication 0: rules are about 2 more rows" in caplog.text
    # A run that replaces them is not about them.
    replaced = rule(run(lake, catalog, contract, DAY, flight_rows(4)))
    assert replaced.passed
    assert ADDED not in replaced.observed
    good = f"INSERT INTO {{t}} {flight_rows(1, id='200L')}"
    write_by_hand(lake, contract, good)
    third = rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(3, NEXT_DAY)))
    assert third.passed
    assert (third.observed["rows"], third.observed[ADDED]) == (4, 1)
    # They were published, and are no longer another writer's.
    assert ADDED not in rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(2, NEXT_DAY))).observed


@FORMATS
def test_nothing_is_compared_if_main_is_as_it_was_published(
    lake: Lake, catalog: Catalog, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableAudit, "_find_rows_of_others", None)
    contract = a_set(flights(RULE, format=table_format))
    days = (DAY, NEXT_DAY, DAY)
    assert [run(lake, catalog, contract, day, flight_rows(3, day)).green for day in days] == [True] * 3
    # Another run was published since this one began.
    late = stage_rows(lake, contract, partitions=(DAY,), run_id="late", flights=flight_rows(2))
    assert run(lake, catalog, contract, NEXT_DAY, flight_rows(4, NEXT_DAY)).green
    assert audit(lake, contract, late).green


@FORMATS
def test_files_that_another_writer_rewrote_have_no_new_rows(
    lake: Lake, catalog: Catalog, table_format: str
) -> None:
    """A rule that earlier rows do not pass is about new rows, also if another writer rewrote their files."""
    contract = a_set(flights(format=table_format))
    publish_rows(lake, contract, flights=flight_rows(5, carrier="if(id < 2, null, 'UA')"))
    write_by_hand(lake, contract, "DELETE FROM {t} WHERE id = 2013010100000 OR id = 2013010100003")
    [table] = contract.tables
    ruled = replace(contract, tables=(replace(table, rules=(replace(RULE, table=table.name),)),))
    found = rule(run(lake, catalog, ruled, NEXT_DAY, flight_rows(3, NEXT_DAY)))
    assert found.passed
    assert found.observed["rows"] == 3
    assert ADDED not in found.observed


@FORMATS
def test_a_table_that_was_there_before_its_first_publication_is_audited_whole(
    lake: Lake, catalog: Catalog, table_format: str
) -> None:
    maps = Column("counts", "map<string,int>")
    contract = a_set(flights(RULE, format=table_format, columns=(*FLIGHT_COLUMNS, maps)))
    rows = flight_rows(5, counts="map('a', 1)", carrier="if(id < 2, null, 'UA')")
    kind = f"USING {table_format} PARTITIONED BY (day)"
    write_by_hand(lake, contract, f"CREATE TABLE {{t}} {kind} AS {rows}")
    new = flight_rows(3, NEXT_DAY, counts="map('b', 2)")
    found = rule(run(lake, catalog, contract, NEXT_DAY, new))
    assert not found.passed
    assert (found.observed["rows"], found.observed["failed_rows"], found.observed[ADDED]) == (8, 2, 5)
    # Spark does not compare maps: all rows are read again.
    publish_rows(lake, contract, flights=flight_rows(5, counts="map('a', 1)"))
    write_by_hand(lake, contract, f"INSERT INTO {{t}} {rows}")
    found = rule(run(lake, catalog, contract, NEXT_DAY, new))
    assert (found.observed["rows"], found.observed["failed_rows"]) == (13, 2)


def test_all_rows_are_audited_if_the_last_publication_is_gone(
    lake: Lake, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    contract = a_set(flights(RULE, format="delta"))
    publish_rows(lake, contract, flights=flight_rows(5))
    location = table_location(lake.settings, contract.tables[0])
    before = set(Path(location).rglob("*.parquet"))
    write_by_hand(lake, contract, "UPDATE {t} SET carrier = null WHERE day = date'2013-01-01'")
    for file in before:
        file.unlink()
    found = rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(3, NEXT_DAY)))
    assert (found.observed["rows"], found.observed["failed_rows"], found.observed[ADDED]) == (8, 5, 5)
    # Flights have personal data.
    assert "FILE_NOT_EXIST (the message is withheld" in caplog.text


@FORMATS
def test_deleted_rows_that_another_writer_restores_are_audited(
    lake: Lake, catalog: Catalog, table_format: str
) -> None:
    """The row comes back in the file of another row, without the deletion that the publication has."""
    contract = a_set(flights(RULE, format=table_format))
    publish_rows(lake, contract, flights=flight_rows(5))
    [table] = contract.tables
    marks = "'delta.enableDeletionVectors' = 'true', 'write.delete.mode' = 'merge-on-read'"
    write_by_hand(lake, contract, f"ALTER TABLE {{t}} SET TBLPROPERTIES ({marks})")
    bad = flight_rows(2, id="100L + id", carrier="if(id = 0, null, 'UA')")
    write_by_hand(lake, contract, bad.replace("SELECT", "INSERT INTO {t} SELECT /*+ COALESCE(1) */"))
    restore = "RESTORE TABLE {t} TO VERSION AS OF 2"
    if table_format == "iceberg":
        snapshot = get_state(lake, table.name, "main").snapshot_id
        restore = f"CALL {{c}}.system.rollback_to_snapshot('{table.name}', {snapshot})"
    write_by_hand(lake, contract, "DELETE FROM {t} WHERE carrier IS NULL")
    deleted = rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(3, NEXT_DAY)))
    assert deleted.passed
    assert deleted.observed[ADDED] == 1
    write_by_hand(lake, contract, restore)
    found = rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(4, NEXT_DAY)))
    assert (found.observed["rows"], found.observed["failed_rows"], found.observed[ADDED]) == (5, 1, 1)


def test_files_whose_names_a_log_encodes_are_not_missed(
    lake: Lake, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """Their rows are not found by the names in the log: all rows are audited."""
    contract = a_set(flights(RULE, format="delta"))
    publish_rows(lake, contract, flights=flight_rows(5))
    location = table_location(lake.settings, contract.tables[0])
    write_by_hand(lake, contract, f"INSERT INTO {{t}} {flight_rows(1, id='100L', carrier='null')}")
    before, after = (replay(lake.stores, list_log(lake.stores, location), version).adds for version in (0, 1))
    [path] = set(after.column("path").to_pylist()) - set(before.column("path").to_pylist())
    folder = path.rpartition("/")[0]
    file = Path(shutil.copy(f"{location}/{path}", f"{location}/{folder}/a b.parquet"))
    named = {"path": f"{folder}/a%20b.parquet", "partitionValues": {"day": DAY}, "size": file.stat().st_size}
    actions = [
        {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**named, "modificationTime": 1, "dataChange": True}},
    ]
    assert write_commit(lake.stores, location, 2, actions, {"operation": "WRITE"})
    found = rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(3, NEXT_DAY)))
    assert (found.observed["rows"], found.observed["failed_rows"], found.observed[ADDED]) == (9, 1, 6)
    assert "the comparison with its last publication is" in caplog.text


def test_a_column_of_another_writer_is_not_published(lake: Lake, catalog: Catalog) -> None:
    contract = a_set(flights(RULE, format="iceberg", allow_schema_changes=True))
    publish_rows(lake, contract, flights=flight_rows(5))
    write_by_hand(lake, contract, "ALTER TABLE {t} ADD COLUMN passport string")
    verdicts = run(lake, catalog, contract, NEXT_DAY, flight_rows(3, NEXT_DAY, passport="'C01X00T47'"))
    assert of(verdicts, "structure").reason == "column passport is not in the contract"
    # A column that was published, and that the contract has no more, stays.
    older = replace(contract.tables[0], columns=tuple(c for c in FLIGHT_COLUMNS if c.name != "delay"))
    write_by_hand(lake, contract, "ALTER TABLE {t} DROP COLUMN passport")
    reduced = replace(contract, tables=(older,))
    verdicts = run(lake, catalog, reduced, NEXT_DAY, flight_rows(3, NEXT_DAY, delay="0D"))
    assert of(verdicts, "structure").passed


def test_a_table_that_another_writer_made_again_is_audited_whole(lake: Lake, catalog: Catalog) -> None:
    """Its version numbers are those of the table that was published."""
    contract = a_set(flights(RULE, format="delta"))
    publish_rows(lake, contract, flights=flight_rows(5))
    shutil.rmtree(table_location(lake.settings, contract.tables[0]))
    rows = flight_rows(6, carrier="if(id < 2, null, 'UA')")
    write_by_hand(lake, contract, f"CREATE TABLE {{t}} USING delta PARTITIONED BY (day) AS {rows}")
    found = rule(run(lake, catalog, contract, NEXT_DAY, flight_rows(3, NEXT_DAY)))
    assert (found.observed["rows"], found.observed["failed_rows"], found.observed[ADDED]) == (9, 2, 6)


def test_a_table_that_a_run_does_not_change_conflicts_with_another_writer(
    lake: Lake, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer is there after main was compared, and before Nessie merges."""
    contract = a_set_of_modes(tmp_path, f"unchanged{uuid4().hex[:8]}", "iceberg", ("merge", "scd2"))
    [merged] = (table for table in contract.tables if table.write.mode == "merge")
    alone, merge, ledger = replace(contract, tables=(merged,)), Nessie.merge, Ledger(catalog)

    def publish_row(of: SetContract, day: str, at: str) -> None:
        rows = [Change(1, "a", 1.0, at)]
        deliver(lake.settings, of, day, rows)
        staged = stage_without_reading(lake, of, day, rows)
        publish(lake, catalog, of, staged, green(of, staged))

    publish_row(contract, "2024-01-01", "2024-01-05")
    # A row with a lower sequence value changes nothing in a merged table.
    publish_row(alone, "2024-01-02", "2024-01-01")
    assert [row.version for row in ledger.history(merged.name)] == [1, 0]

    def merge_late(client: Nessie, *given: Any, **named: Any) -> Merge:
        monkeypatch.undo()
        row = "(2, 'unaudited', 0D, DATE'2024-01-02', 'U')"
        write_by_hand(lake, alone, f"INSERT INTO {{t}} VALUES {row}")
        return merge(client, *given, **named)

    monkeypatch.setattr(Nessie, "merge", merge_late)
    with pytest.raises(Conflict):
        publish_row(contract, "2024-01-03", "2024-01-02")
    assert [row.version for row in ledger.history(merged.name)] == [1, 0]
