"""Several processes open, migrate and append to one catalog at once; nothing is lost, doubled or skipped."""

import subprocess
import sys

from lakeshare_server.catalog import Ledger, open_catalog

PROCESSES = 4
RUNS = 15


def test_processes_that_start_together_share_one_dense_ledger(empty_url: str) -> None:
    command = [sys.executable, "-m", "tests.builders.ledger_process", "append", empty_url]
    writers = [subprocess.Popen([*command, f"w{number}", str(RUNS)]) for number in range(PROCESSES)]
    assert [writer.wait(120) for writer in writers] == [0] * PROCESSES

    ledger = Ledger(open_catalog(empty_url))
    for table in ("a.x", "a.y"):
        history = ledger.history(table)
        assert [found.version for found in history] == list(range(PROCESSES * RUNS))[::-1]
        assert len({found.run_id for found in history}) == PROCESSES * RUNS
    # Both tables of a run were numbered in one transaction, so they carry the same number here.
    assert {found.run_id: found.version for found in ledger.history("a.x")} == {
        found.run_id: found.version for found in ledger.history("a.y")
    }
