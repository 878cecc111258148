"""Queries that are answered later: a server may always answer at once instead."""

import time
import uuid
from collections.abc import Mapping

from lakeshare_conformance.case import (
    MUST,
    NAME,
    OPTIONAL,
    SHOULD,
    Broken,
    NothingToTry,
    expect,
    expect_fields,
    on_tables,
    on_views,
    one_of,
)
from lakeshare_conformance.client import Answer
from lakeshare_conformance.ground import Table, View, announcing
from lakeshare_conformance.reply import Reply

ASKED = "asyncquery=true"
NAMES_OF_KEY = ("idempotencyKey", "idempotency_key")
STATUS = "queryStatus"
LONGEST_WAIT_S = 60
PAUSE_S = 0.1


@on_views(OPTIONAL, "1.9")
def queries_are_answered_later(view: View) -> None:
    """asyncquery=true with an idempotency key is answered by a pending queryStatus."""
    reply = _submitted(view)
    expect(_status(reply) is not None, reply.where, "a queryStatus line", [line.kind for line in reply.lines])


@on_views(MUST, "1.9", "0.9")
def the_key_goes_by_both_names(view: View) -> None:
    """idempotencyKey and idempotency_key are both taken."""
    for name in NAMES_OF_KEY:
        view.ask({name: str(uuid.uuid4())}, ASKED).expect_status(200)


@on_views(MUST, "0.7", "1.9")
def pending_answers_tell_the_version(view: View) -> None:
    """Every answer has Delta-Table-Version, pending ones too; those say asyncquery=true and have one line."""
    reply = _submitted(view)
    expect(reply.version >= 0, reply.where, "a version", reply.version)
    status = _status(reply)
    if status is None:
        raise NothingToTry("the server answers at once")
    told = reply.answer.capabilities.get("asyncquery")
    expect(told == "true", reply.where, "asyncquery=true in the answer's header", told or "none")
    expect(len(reply.lines) == 1, reply.where, "one line", len(reply.lines))
    expect_fields(reply.where, status, {"queryId": NAME, "status": one_of("pending")}, {})


@on_views(MUST, "1.9", "0.7")
def the_answer_comes_as_if_at_once(view: View) -> None:
    """Asked for by its queryId, a query keeps its id while pending, and is answered at last like one without delay."""
    query_id = _id(_submitted(view))
    done = _finished(view, query_id)
    kinds = [line.kind for line in done.lines]
    expect(STATUS not in kinds, done.where, f"no {STATUS} in the answer", kinds[0])
    expect(done.ids == view.snapshot.ids, done.where, "the files of a query without delay", sorted(done.ids))
    expect(
        done.version == view.snapshot.version, done.where, f"version {view.snapshot.version}", done.version
    )


@on_views(MUST, "1.9")
def pages_come_from_the_same_query(view: View) -> None:
    """A finished query is fetched in pages by its queryId."""
    if len(view.snapshot.actions) < 2:
        raise NothingToTry("no table has two files")
    query_id = _id(_submitted(view, {"maxFiles": 1}))
    found = [_finished(view, query_id, {"maxFiles": 1})]
    while (token := (found[-1].end or {}).get("nextPageToken")) and len(found) <= len(view.snapshot.actions):
        found.append(_finished(view, query_id, {"maxFiles": 1, "pageToken": token}))
    ids = sorted(action.id for reply in found for action in reply.actions)
    expect(ids == sorted(view.snapshot.ids), found[0].where, "every file once", ids)


@on_views(SHOULD, "1.9")
def a_query_sent_twice_is_one(view: View) -> None:
    """The same key with the same parameters is the same query: its queryId is the same, until it is answered."""
    key = str(uuid.uuid4())
    first, again = (_status(Reply(view.ask({"idempotencyKey": key}, ASKED))) for _ in range(2))
    if first is None:
        raise NothingToTry("the server answers at once")
    if again is None:
        return  # it was done by then
    expect(
        first["queryId"] == again["queryId"],
        view.table.path,
        f"queryId {first['queryId']} again",
        again["queryId"],
    )


@on_views(MUST, "1.9", "0.19")
def a_query_without_a_key_is_400(view: View) -> None:
    """asyncquery=true without an idempotency key is 400, unless the server answers at once anyway."""
    _id(_submitted(view))
    view.ask({}, ASKED).refusal(400)


@on_tables(MUST, "1.9", "4")
def an_unknown_query_is_404(table: Table) -> None:
    """A queryId that the server did not give is 404."""
    for query_id in (str(uuid.uuid4()), "nonsense"):
        table.ask("POST", f"/queries/{query_id}", body={}).refusal(404)


@on_tables(SHOULD, "1.9")
def a_query_belongs_to_its_table(table: Table) -> None:
    """A queryId of one table is unknown to the others."""
    view = table.first_view
    query_id = _id(_submitted(view))
    for other in table.other_views[:5]:
        other.table.ask("POST", f"/queries/{query_id}", body={}).refusal(400, 404)


@on_views(MUST, "0.8", "0.19")
def a_query_that_fails_is_an_error(view: View) -> None:
    """A query that cannot be answered (of a version that is not there) ends in 4xx, not in a status nobody reads."""
    _id(_submitted(view))
    beyond = {"version": view.table.latest + 1000, "idempotencyKey": str(uuid.uuid4())}
    answer = view.ask(beyond, ASKED)
    if answer.status == 200:
        answer = _wait(view, _id(Reply(answer)), {})
    answer.refusal()


def _submitted(view: View, more: Mapping[str, object] | None = None) -> Reply:
    return Reply(view.ask({"idempotencyKey": str(uuid.uuid4()), **(more or {})}, ASKED))


def _status(reply: Reply) -> dict[str, object] | None:
    return reply.lines[0].value if reply.lines[0].kind == STATUS else None


def _id(reply: Reply) -> str:
    status = _status(reply)
    if status is None:
        raise NothingToTry("the server answers at once")
    expect_fields(reply.where, status, {"queryId": NAME}, {})
    return str(status["queryId"])


def _finished(view: View, query_id: str, body: Mapping[str, object] | None = None) -> Reply:
    return Reply(_wait(view, query_id, body or {}))


def _wait(view: View, query_id: str, body: Mapping[str, object]) -> Answer:
    """The first answer of a query that is not pending."""
    until = time.monotonic() + LONGEST_WAIT_S
    headers = announcing(view.announcing(ASKED))
    while time.monotonic() < until:
        answer = view.table.ask("POST", f"/queries/{query_id}", body=body, headers=headers)
        if answer.status != 200:
            return answer
        reply = Reply(answer)
        status = _status(reply)
        if status is None:
            return answer
        expect(reply.version >= 0, reply.where, "a version while pending", reply.version)
        is_same = status.get("queryId") == query_id and status.get("status") == "pending"
        expect(is_same, reply.where, f"pending, queryId {query_id}", status)
        time.sleep(PAUSE_S)
    raise Broken(f"{view.table.path}/queries", f"an answer within {LONGEST_WAIT_S} s", "pending still")
