"""Processes that use a catalog at the same time; each is started as `python -m tests.builders.ledger_process`."""

import sys
import threading

from lakeshare_server.catalog import AsyncQueries, Ledger, lock_set, open_catalog
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients


def append(url: str, name: str, count: str) -> None:
    """Open the catalog and append `count` runs of two tables."""
    ledger = Ledger(open_catalog(url))
    for number in range(int(count)):
        run = f"{name}-{number}"
        ledger.append([a_publication(table=table, run_id=run) for table in ("a.x", "a.y")])


def hold(url: str, name: str) -> None:
    """Take the set's lock, say so, and hold it until the end comes."""
    with lock_set(open_catalog(url), "lake", name, 30) as lease:
        print(lease.token, flush=True)
        threading.Event().wait()


def append_when_told(url: str) -> None:
    """Append one publication for each line that comes in, and say so."""
    ledger = Ledger(open_catalog(url))
    for _ in sys.stdin:
        ledger.append([a_publication()])
        print("written", flush=True)


def revoke(url: str, recipient: str) -> None:
    """End all access of a recipient."""
    Recipients(open_catalog(url)).revoke(recipient)


def claim_all(url: str) -> None:
    """Work on async queries until there are none, and name them."""
    queries = AsyncQueries(open_catalog(url))
    while (claim := queries.claim()) is not None:
        print(claim.query.id, flush=True)
        queries.finish(claim, 1)


TASKS = {
    "append": append,
    "append-when-told": append_when_told,
    "hold": hold,
    "revoke": revoke,
    "claim-all": claim_all,
}

if __name__ == "__main__":
    TASKS[sys.argv[1]](*sys.argv[2:])
