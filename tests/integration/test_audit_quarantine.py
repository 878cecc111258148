"""Quarantine: rows that did not parse are kept with file, line and reason, once per run, and count in the audit."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.defs.wap import check_metadata
from lakeshare_pipelines.ingest.frame import TableFrame
from lakeshare_pipelines.wap.audit import audit, audit_and_save
from lakeshare_pipelines.wap.staged import Lake, quarantine_location, read_quarantine, write_quarantine
from tests.builders.audits import a_set, carrier_rows, carriers, flight_rows, flights, of, stage_rows


def a_read(
    lake, *lines: int, table: str = "flights", reason: str = "delay: 'late' is not double"
) -> TableFrame:
    # Of literals: rows from Python start workers of Spark.
    rows = ", ".join(
        f"({table!r}, '2013-01-01/flights.csv', {line}L, {reason!r}, 'raw {line}')" for line in lines
    )
    columns = "col1 AS table, col2 AS file, col3 AS line, col4 AS reason, col5 AS raw"
    rejected = lake.spark.sql(f"SELECT {columns} FROM VALUES {rows}") if rows else None
    return TableFrame(lake.spark.range(1), 1, rejected, (), len(lines))


@pytest.fixture
def contract():
    return a_set(carriers(), flights(max_quarantined_fraction=0.1))


def kept(lake, contract, **wanted):
    return [
        (row["table"], row["run_id"], row["line"])
        for row in read_quarantine(lake.settings, contract.name, **wanted)
    ]


def test_rejected_rows_are_kept_with_their_place_until_their_run_and_table_are_written_again(lake, contract):
    one, other = contract.table("flights"), contract.table("carriers")

    assert write_quarantine(lake, contract, one, a_read(lake, 7, 3), "run1") == 2

    first, second = read_quarantine(lake.settings, contract.name)
    assert (first["line"], second["line"]) == (3, 7)
    assert first.pop("kept_at") is not None
    assert first == {
        "set": contract.name,
        "table": one.name,
        "run_id": "run1",
        "partition": "2013-01-01",
        "file": "2013-01-01/flights.csv",
        "line": 3,
        "reason": "delay: 'late' is not double",
        "raw": "raw 3",
    }

    write_quarantine(lake, contract, other, a_read(lake, 5), "run1")
    write_quarantine(lake, contract, one, a_read(lake, 9), "it's another run")
    write_quarantine(lake, contract, one, a_read(lake, 4), "run1")

    of_others = [(other.name, "run1", 5), (one.name, "it's another run", 9)]
    assert sorted(kept(lake, contract)) == sorted([(one.name, "run1", 4), *of_others])
    assert kept(lake, contract, run_id="it's another run") == [(one.name, "it's another run", 9)]
    assert kept(lake, contract, run_id="run1", table=other.name) == [(other.name, "run1", 5)]
    assert len(kept(lake, contract, limit=2)) == 2

    write_quarantine(lake, contract, one, a_read(lake), "run1")

    assert sorted(kept(lake, contract)) == sorted(of_others)


def test_nothing_is_written_for_a_run_without_rejected_rows(lake, contract):
    assert write_quarantine(lake, contract, contract.table("flights"), a_read(lake), "run1") == 0

    assert not Path(quarantine_location(lake.settings, contract.name)).exists()
    assert read_quarantine(lake.settings, contract.name) == []


def test_too_many_rejected_rows_are_red_with_samples_that_hide_personal_data(lake):
    contract = a_set(flights(max_quarantined_fraction=0.1))
    table = contract.table("flights")
    write_quarantine(lake, contract, table, a_read(lake, *range(30)), "run1")

    few = stage_rows(lake, contract, flights=flight_rows(270), rejected=30)
    many = replace(few, tables=(replace(few.tables[0], rejected=31),))

    assert of(audit(lake, contract, few), "rows_parsed").passed
    verdict = of(audit(lake, contract, many), "rows_parsed")
    assert verdict.reason == "31 of 301 delivered rows went to quarantine (10.30%); 10.00% are allowed"
    assert len(verdict.samples) == 20
    assert verdict.samples[0] == {
        "file": "2013-01-01/flights.csv",
        "line": 0,
        "reason": "delay: '***' is not double",
    }


def test_rejected_rows_are_shown_by_a_command_or_a_setting_and_their_files_are_private(lake, monkeypatch):
    contract = a_set(carriers(), partitioning="none")
    table = contract.table("carriers")
    before = os.umask(0)
    try:
        write_quarantine(lake, contract, table, a_read(lake, 3), "run1")
        staged = stage_rows(lake, contract, partitions=["all"], carriers=carrier_rows("UA"), rejected=1)
        verdicts = audit_and_save(lake, contract, staged)
    finally:
        os.umask(before)

    record = lake.settings.runs_dir / staged.ref
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (record, *record.iterdir())}
    assert modes == {staged.ref: 0o700, "staged.json": 0o600, "verdicts.json": 0o600}
    assert stat.S_IMODE(Path(quarantine_location(lake.settings, contract.name)).stat().st_mode) == 0o700

    # The verdict has no value of the row, and names the command that shows it.
    verdict = of(verdicts, "rows_parsed", "carriers")
    (sample,) = verdict.samples
    assert (sample["line"], sample["reason"]) == (3, "delay: '***' is not double")
    assert "raw 3" not in (record / "verdicts.json").read_text()
    metadata = check_metadata(verdict, staged)
    assert "raw 3" not in str(metadata)
    command = metadata["observed/show_rejected_rows"]
    assert command == f"lakeshare quarantine show {contract.name} --run run1 --table {table.name}"

    monkeypatch.setattr("lakeshare_pipelines.cli.contract.list_contracts", lambda: (contract,))
    folders = {"LAKESHARE_STATE_DIR": lake.settings.state_dir, "LAKESHARE_WAREHOUSE": lake.settings.lake_root}
    runner = CliRunner(env={name: str(folder) for name, folder in folders.items()})
    shown = runner.invoke(app, command.split()[1:])
    assert shown.exit_code == 0
    assert "raw 3" in shown.output
    other_run = runner.invoke(app, ["wap", "rejected", contract.name, "--run", "run2"])
    assert "no rejected rows" in other_run.output

    showing = Lake(lake.settings.model_copy(update={"show_rejected_values": True}), lambda: lake.spark)
    verdict = of(audit(showing, contract, staged), "rows_parsed", "carriers")
    assert [(row["line"], row["raw"]) for row in verdict.samples] == [(3, "raw 3")]
