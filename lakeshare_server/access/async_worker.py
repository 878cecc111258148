"""Working on async queries: what makes a query slow, finding versions and building indexes, is done before the poll.

Every server process has one worker; what a dead one left is taken over by another.
"""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakeshare_server.access.view import TableView, Views
from lakeshare_server.catalog import AsyncQueries, Claim, Reader
from lakeshare_server.errors import LakeshareError, Unavailable
from lakeshare_server.protocol.requests import QueryRequest, query_of

IDLE_S = 1.0
PURGE_EVERY = 600  # looks

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Submission:
    """A query as it is kept: who asked it of which table, with which fields."""

    reader: Reader
    names: tuple[str, str, str]
    fields: Mapping[str, Any]

    def as_json(self) -> str:
        """Canonical JSON: the same submission has the same text."""
        said = {"reader": [self.reader.id, self.reader.name], "names": self.names, "fields": self.fields}
        return json.dumps(said, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Submission":
        """The submission that `as_json` wrote."""
        said = json.loads(text)
        share, schema, table = said["names"]
        return cls(Reader(*said["reader"]), (share, schema, table), said["fields"])

    def asked(self) -> QueryRequest:
        """The query."""
        return query_of(self.fields)


def prepare(view: TableView, asked: QueryRequest) -> int:
    """Do what an answer needs; returns the version it has, of a window the last one.

    Raises:
        LakeshareError: there will be no answer.
    """
    if asked.starting_version is not None:
        last = view.window(asked.starting_version, asked.ending_version)
        if asked.starting_version <= last:
            view.changes(asked.starting_version, last)
        return last
    version = view.asked(asked)
    view.index(version)
    return version.number


class AsyncWorker:
    """Claims queries and prepares their answers, one at a time."""

    def __init__(self, queries: AsyncQueries, views: Views) -> None:
        self._queries, self._views = queries, views
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="async-queries", daemon=True)

    def start(self) -> None:
        """Begin to look for queries."""
        self._thread.start()

    def wake(self) -> None:
        """Look now: a query has come in."""
        self._wake.set()

    def stop(self) -> None:
        """End after the query under way."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        looks = 0
        while not self._stopping.is_set():
            looks += 1
            try:
                found = self._turn(looks)
            # The process has no other worker: whatever ends one turn, the next is tried.
            except Exception as error:
                is_foreseen = isinstance(error, LakeshareError)
                _log.warning("async queries wait, a turn failed: %s", error, exc_info=not is_foreseen)
                self._stopping.wait(IDLE_S)
            else:
                if not found and self._wake.wait(IDLE_S):
                    self._wake.clear()

    def _turn(self, look: int) -> bool:
        """Work on one query; says whether there was one.

        A query whose end cannot be noted is taken over later, like that of a dead worker.
        """
        if look % PURGE_EVERY == 0:
            self._queries.purge()
        claim = self._queries.claim()
        if claim is not None:
            self._do(claim)
        return claim is not None

    def _do(self, claim: Claim) -> None:
        try:
            with self._queries.working(claim):
                submission = Submission.from_json(claim.query.request)
                view = self._views.table(submission.reader, *submission.names)
                version = prepare(view, submission.asked())
            self._queries.finish(claim, version)
        except Unavailable as error:
            _log.warning("async query %s, attempt %s: %s", claim.query.id, claim.attempt, error)
            # It passes: the query is taken up again once this claim is silent, and may come out well then.
            if claim.is_last:
                self._queries.fail(claim, type(error).__name__, error.for_recipient())
        except LakeshareError as error:
            _log.info("async query %s is refused: %s", claim.query.id, error)
            self._queries.fail(claim, type(error).__name__, error.for_recipient())
        except Exception:
            _log.exception("async query %s failed", claim.query.id)
            message = f"The query failed; its id {claim.query.id} is in the server's log."
            self._queries.fail(claim, "INTERNAL_ERROR", message)
