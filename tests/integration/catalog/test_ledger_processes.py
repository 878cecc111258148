"""Several processes open, migrate and append to one catalog at once; nothing is lost, doubled or skipped."""

from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.forks import start_process
from tests.builders.ledger_process import append

PROCESSES = 4
RUNS = 15


def test_processes_that_start_together_share_one_dense_ledger(empty_url: str) -> None:
    writers = [start_process(append, empty_url, f"w{number}", str(RUNS)) for number in range(PROCESSES)]
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * PROCESSES

    ledger = Ledger(open_catalog(empty_url))
    for table in ("a.x", "a.y"):
        history = ledger.history(table)
        assert [found.version for found in history] == list(range(PROCESSES * RUNS))[::-1]
        assert len({found.run_id for found in history}) == PROCESSES * RUNS
    # Both tables of a run were numbered in one transaction, so they carry the same number here.
    assert {found.run_id: found.version for found in ledger.history("a.x")} == {
        found.run_id: found.version for found in ledger.history("a.y")
    }
