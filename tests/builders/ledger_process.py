"""Processes that use a catalog at the same time; each is started as `python -m tests.builders.ledger_process`."""

import sys
import threading

from lakeshare_server.catalog import Ledger, open_catalog, set_lock
from tests.builders.publications import a_publication


def append(url: str, name: str, count: int) -> None:
    """Open the catalog and append `count` runs of two tables."""
    ledger = Ledger(open_catalog(url))
    for number in range(count):
        run = f"{name}-{number}"
        ledger.append([a_publication(table=table, run_id=run) for table in ("a.x", "a.y")])


def hold(url: str, name: str) -> None:
    """Take the set's lock, say so, and hold it until the end comes."""
    with set_lock(open_catalog(url), "lake", name, 30) as lease:
        print(lease.token, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    task, url, name = sys.argv[1:4]
    if task == "append":
        append(url, name, int(sys.argv[4]))
    else:
        hold(url, name)
