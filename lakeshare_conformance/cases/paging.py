"""Pages, refresh tokens, the end of a stream, and queries that are answered later."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress

from lakeshare_conformance.case import (
    COUNT,
    MUST,
    NAME,
    OPTIONAL,
    SHOULD,
    TEXT,
    ExpectationFailed,
    Group,
    NotApplicable,
    expect,
    expect_fields,
    one_of,
)
from lakeshare_conformance.cases.predicates import expect_no_row_lost
from lakeshare_conformance.client import CAPABILITIES, Response
from lakeshare_conformance.reply import END, Reply, counted
from lakeshare_conformance.rows import Compare, FileRows, as_json, list_comparisons, read_all
from lakeshare_conformance.targets import Table, View, make_capabilities_header

PAGING = Group(
    "paging", "Answers in pages, an undocumented extension that Spark knows: who offers it must offer it so"
)

MOST_PAGES = 200
TOKEN = "nextPageToken"  # noqa: S105 - the name of a field


@PAGING.on_views(OPTIONAL, "1.7")
def answers_come_in_pages(view: View) -> None:
    """maxFiles splits an answer: no page has more files, and nextPageToken leads on."""
    if len(view.snapshot.actions) < 2:
        raise NotApplicable("no table has two files")
    first = view.query(maxFiles=1)
    expect(len(first.actions) == 1, first.where, "one file", len(first.actions))
    expect(
        bool((first.end or {}).get(TOKEN)),
        first.where,
        f"an endStreamAction with {TOKEN}",
        first.end or "none",
    )


@PAGING.on_views(MUST, "1.7", "0.1")
def every_page_has_an_end(view: View) -> None:
    """With maxFiles every page ends with endStreamAction, the last one too, there without a token."""
    _needs_pages(view)
    for reply in (*_pages(view, {}), view.query(maxFiles=1_000_000)):
        kinds = [line.kind for line in reply.lines]
        expect(
            kinds.count(END) == 1 and kinds[-1] == END,
            reply.where,
            "endStreamAction as last line",
            kinds[-3:],
        )
    last = view.query(maxFiles=1_000_000)
    expect(not (last.end or {}).get(TOKEN), last.where, f"no {TOKEN}", last.end)


@PAGING.on_views(MUST, "1.7")
def pages_of_a_snapshot_are_the_snapshot(view: View) -> None:
    """All pages together have each file of the unpaged answer once, and no page more than asked."""
    _needs_pages(view)
    found = _pages(view, {})
    for reply in found:
        expect(len(reply.actions) <= 1, reply.where, "at most one file", len(reply.actions))
    ids = sorted(action.id for reply in found for action in reply.actions)
    expect(
        ids == sorted(view.snapshot.ids),
        found[0].where,
        f"the {len(view.snapshot.ids)} files, each once",
        ids,
    )


@PAGING.on_views(MUST, "0.10", "1.7")
def heads_of_pages_are_the_same_bytes(view: View) -> None:
    """protocol and metaData are the same bytes on all pages, under the same version and format."""
    _needs_pages(view)
    first, *others = _pages(view, {})
    for reply in others:
        heads = [b"\n".join(line.raw for line in one.head) for one in (first, reply)]
        expect(heads[0] == heads[1], reply.where, heads[0].decode(), heads[1].decode())
        expect(reply.version == first.version, reply.where, f"version {first.version}", reply.version)
        reported = [one.response.headers.get(CAPABILITIES) for one in (first, reply)]
        expect(reported[0] == reported[1], reply.where, f"{CAPABILITIES}: {reported[0]}", reported[1])


@PAGING.on_views(MUST, "1.7")
def pages_of_a_window_are_the_window(view: View) -> None:
    """A window of versions comes in pages too: all together are the window, later metaData lines included."""
    _needs_pages(view)
    start = view.window_start
    whole = view.query(startingVersion=start)
    found = _pages(view, {"startingVersion": start}, size=2)
    actions = [action for reply in found for action in reply.actions]
    expect(
        counted(actions) == counted(whole.actions),
        found[0].where,
        "the files of the window, each once",
        len(actions),
    )
    later = sorted(line.raw for reply in found for line in reply.later if line.kind == "metaData")
    wanted = sorted(line.raw for line in whole.later if line.kind == "metaData")
    expect(later == wanted, found[0].where, f"{len(wanted)} later metaData lines", len(later))


@PAGING.on_views(MUST, "1.7", "1.14")
def hints_count_over_all_pages(view: View) -> None:
    """limitHint and predicates hold over all pages together: they are the files of the same request without pages."""
    _needs_pages(view)
    hints: tuple[dict[str, object], ...] = (
        {"limitHint": 1},
        {"limitHint": 1_000_000},
        {"predicateHints": ["lakeshare_no_such_column = 1"]},
    )
    for hint in hints:
        found = [action.id for reply in _pages(view, hint) for action in reply.actions]
        wanted = view.query(**hint).ids
        expect(
            sorted(found) == sorted(wanted),
            f"pages of {view.table.path} for {hint}",
            str(sorted(wanted)),
            found,
        )


@PAGING.on_views(MUST, "1.7", "1.14", "0.15")
def predicates_lose_no_rows_over_pages(view: View) -> None:
    """With a JSON predicate the pages together have every file with a matching row, each once: a page may be empty."""
    _needs_pages(view)
    files = read_all(view, view.snapshot)
    for hint in _paged_hints(view, files):
        found = _pages(view, {"jsonPredicateHints": as_json(hint)})
        ids = [action.id for reply in found for action in reply.actions]
        expect(len(ids) == len(set(ids)), found[0].where, "each file on one page", sorted(ids))
        expect_no_row_lost(files, hint, f"{len(found)} pages of {found[0].where}", frozenset(ids))


@PAGING.on_views(MUST, "1.8")
def pages_of_changes_are_the_changes(view: View) -> None:
    """Changes come in pages too: all together are the changes, each once, under the same head."""
    _needs_pages(view)
    start = view.change_start
    whole = view.changes(startingVersion=start)

    def ask(more: Mapping[str, object]) -> Reply:
        return Reply(view.ask_changes({"startingVersion": start, "maxFiles": 2, **more}))

    found = _walk(ask)
    actions = [action for reply in found for action in reply.actions]
    expect(counted(actions) == counted(whole.actions), found[0].where, "the changes, each once", len(actions))
    for reply in found:
        expect(
            [line.raw for line in reply.head] == [line.raw for line in found[0].head],
            reply.where,
            "one head",
            "two",
        )
        expect(reply.end is not None, reply.where, "endStreamAction as last line", reply.lines[-1].kind)


@PAGING.on_views(MUST, "1.7", "0.19")
def page_tokens_nobody_gave_are_400(view: View) -> None:
    """A page token that the server did not give is 400."""
    _needs_pages(view)
    for token in ("nonsense", "AAAA" * 1000, "é", 1):
        view.ask({"maxFiles": 1, "pageToken": token}).refusal(400)


@PAGING.on_views(MUST, "1.7")
def a_page_token_belongs_to_its_request(view: View) -> None:
    """A page token with another request (a version, a predicate, a limit, changes) is 400, and altered it is 400."""
    token = _needs_pages(view)
    altered = (
        token[: len(token) // 2]
        + ("B" if token[len(token) // 2] != "B" else "C")
        + token[len(token) // 2 + 1 :]
    )
    for body in (
        {"maxFiles": 1, "pageToken": token, "version": view.snapshot.version},
        {"maxFiles": 1, "pageToken": token, "limitHint": 1},
        {"maxFiles": 1, "pageToken": token, "predicateHints": ["lakeshare = 1"]},
        {"maxFiles": 1, "pageToken": altered},
    ):
        view.ask(body).refusal(400)
    view.ask_changes({"startingVersion": 0, "maxFiles": 1, "pageToken": token}).refusal(400)


@PAGING.on_tables(MUST, "1.7")
def a_page_token_belongs_to_its_table(table: Table) -> None:
    """A page token is refused by every other table: 400."""
    view = table.first_view
    token = _needs_pages(view)
    for other in table.other_views[:5]:
        other.ask({"maxFiles": 1, "pageToken": token}).refusal(400)


@PAGING.on_views(MUST, "1.7", "0.19")
def sizes_of_pages_are_positive(view: View) -> None:
    """maxFiles is a whole number above 0; anything else is 400."""
    _needs_pages(view)
    for size in (0, -1, "x", 1.5, [1]):
        view.ask({"maxFiles": size}).refusal(400)


@PAGING.on_views(MUST, "1.13", "2.7")
def an_end_tells_the_earliest_expiry(view: View) -> None:
    """minUrlExpirationTimestamp is no later than the expiry of any URL of the page."""
    _needs_pages(view)
    reply = view.query(maxFiles=1_000_000)
    reported = (reply.end or {}).get("minUrlExpirationTimestamp")
    if reported is None:
        raise NotApplicable("the server does not tell minUrlExpirationTimestamp")
    ends = [action.expires_ms for action in reply.actions if action.expires_ms is not None]
    is_fit = isinstance(reported, int) and all(reported <= end for end in ends)
    expect(is_fit, reply.where, f"minUrlExpirationTimestamp up to {min(ends, default=0)}", reported)


def _needs_pages(view: View) -> str:
    """The token of a second page.

    Raises:
        NothingToTry: the server answers in one piece.
        Broken: it leaves files out without a token that leads to them.
    """
    response: Response = view.ask({"maxFiles": 1})
    if 400 <= response.status < 500:
        raise NotApplicable("the server does not answer in pages")
    first = Reply(response)
    end = first.end or {}
    if not end.get(TOKEN):
        missing = len(view.snapshot.actions) - len(first.actions)
        expect(missing <= 0, first.where, f"all files, or a {TOKEN}", f"{missing} files fewer and no token")
        raise NotApplicable("no answer comes in two pages")
    return str(end[TOKEN])


def _paged_hints(view: View, files: list[FileRows]) -> list[Compare]:
    """For each column one comparison that few files match and one that many do.

    Raises:
        NothingToTry: no column can be compared.
    """
    by_column: dict[str, dict[str, Compare]] = {}
    for hint in list_comparisons(view.snapshot, files):
        if hint.operator in ("equal", "lessThanOrEqual"):
            by_column.setdefault(hint.column, {})[hint.operator] = hint
    if not by_column:
        raise NotApplicable("no table has a column to compare")
    return [hint for of_column in by_column.values() for hint in of_column.values()]


def _pages(view: View, body: Mapping[str, object], size: int = 1) -> list[Reply]:
    return _walk(lambda more: view.query(**{**body, "maxFiles": size, **more}))


def _walk(ask: Callable[[Mapping[str, object]], Reply]) -> list[Reply]:
    found = [ask({})]
    while token := (found[-1].end or {}).get(TOKEN):
        found.append(ask({"pageToken": token}))
        expect(len(found) < MOST_PAGES, found[0].where, f"fewer than {MOST_PAGES} pages", len(found))
    return found


REFRESH = Group("refresh", "Refresh tokens, an undocumented extension by which Spark renews URLs")


@REFRESH.on_views(OPTIONAL, "1.7", "1.13")
def a_refresh_token_is_given(view: View) -> None:
    """includeRefreshToken is answered with a refreshToken in the endStreamAction."""
    reply = view.query(includeRefreshToken=True)
    expect_fields(reply.where, reply.end or {}, {"refreshToken": NAME}, {})


@REFRESH.on_views(MUST, "0.1", "1.13")
def an_end_comes_last_and_once(view: View) -> None:
    """With includeRefreshToken an endStreamAction, if there is one, is the last line, and the only one."""
    kinds = [line.kind for line in view.query(includeRefreshToken=True).lines]
    is_fit = END not in kinds or (kinds.count(END) == 1 and kinds[-1] == END)
    expect(is_fit, view.query(includeRefreshToken=True).where, "endStreamAction as last line", kinds[-3:])


@REFRESH.on_views(MUST, "0.16", "4")
def a_refreshed_answer_has_the_same_files(view: View) -> None:
    """With refreshToken the same version is answered again: every id that was handed out, and a token to go on."""
    first, token = _token(view)
    for _ in range(2):
        reply = Reply(view.ask({"refreshToken": token, "includeRefreshToken": True}))
        expect(reply.version == first.version, reply.where, f"version {first.version}", reply.version)
        expect(reply.ids == first.ids, reply.where, "the same ids", sorted(reply.ids ^ first.ids))
        expect_fields(reply.where, reply.end or {}, {"refreshToken": NAME}, {})
        token = str((reply.end or {})["refreshToken"])


@REFRESH.on_views(MUST, "1.7", "0.19")
def refresh_tokens_nobody_gave_are_400(view: View) -> None:
    """A refresh token that the server did not give, or that was altered, is 400."""
    _, token = _token(view)
    middle = len(token) // 2
    altered = token[:middle] + ("B" if token[middle] != "B" else "C") + token[middle + 1 :]
    for wrong in ("nonsense", altered, "é", 1):
        view.ask({"refreshToken": wrong}).refusal(400)


@REFRESH.on_views(MUST, "1.7", "0.16")
def a_refresh_token_stands_alone(view: View) -> None:
    """refreshToken beside a version, a time or a window is 400: it has its version in it."""
    _, token = _token(view)
    for more in ({"version": 0}, {"timestamp": "2022-01-01T00:00:00Z"}, {"startingVersion": 0}):
        view.ask({"refreshToken": token, **more}).refusal(400)


@REFRESH.on_tables(MUST, "1.7")
def a_refresh_token_belongs_to_its_table(table: Table) -> None:
    """A refresh token is refused by every other table: 400."""
    view = table.first_view
    _, token = _token(view)
    for other in table.other_views[:5]:
        other.ask({"refreshToken": token}).refusal(400)


def _token(view: View) -> tuple[Reply, str]:
    reply = view.query(includeRefreshToken=True)
    token = (reply.end or {}).get("refreshToken")
    if not isinstance(token, str) or not token:
        raise NotApplicable("the server gives no refresh tokens")
    return reply, token


END_STREAM = Group("end-stream", "The closing line, for those who ask for it in the header")

ASKED = "includeendstreamaction=true"


@END_STREAM.on_views(OPTIONAL, "1.11", "1.13")
def an_end_can_be_asked_for(view: View) -> None:
    """includeendstreamaction=true is honoured: echoed in the header, and the last line is endStreamAction."""
    reply = Reply(view.ask({}, ASKED))
    reported = reply.response.capabilities.get("includeendstreamaction")
    expect(
        reported == "true",
        reply.where,
        "includeendstreamaction=true in the answer's header",
        reported or "none",
    )


@END_STREAM.on_views(MUST, "1.11", "0.1")
def an_end_that_is_announced_comes(view: View) -> None:
    """The last line is endStreamAction just when the header of the answer says so, for a query and for changes."""
    replies = [Reply(view.ask({}, ASKED)), Reply(view.ask({}, "includeendstreamaction=false"))]
    # Where changes are not served, the query alone is tried.
    with suppress(NotApplicable):
        replies.append(Reply(view.ask_changes({"startingVersion": view.change_start}, ASKED)))
    for reply in replies:
        is_announced = reply.response.capabilities.get("includeendstreamaction") == "true"
        kinds = [line.kind for line in reply.lines]
        is_fit = kinds[-1] == END and kinds.count(END) == 1 if is_announced else END not in kinds
        wanted = "endStreamAction as last line" if is_announced else "no endStreamAction"
        expect(is_fit, reply.where, wanted, kinds[-3:])


@END_STREAM.on_views(MUST, "1.13")
def an_end_has_the_documented_fields(view: View) -> None:
    """endStreamAction has refreshToken, nextPageToken, minUrlExpirationTimestamp of their kinds, and no error here."""
    reply = Reply(view.ask({}, ASKED))
    if reply.end is None:
        raise NotApplicable("the server sends no endStreamAction")
    kinds = {"refreshToken": TEXT, "nextPageToken": TEXT, "minUrlExpirationTimestamp": COUNT}
    expect_fields(f"{reply.where}, endStreamAction", reply.end, {}, kinds)
    expect("errorMessage" not in reply.end, reply.where, "an answer that is whole", reply.end)


ASYNC_QUERIES = Group(
    "async-queries", "Queries that are answered later: a server may always answer at once instead"
)

ASYNC_ASKED = "asyncquery=true"
NAMES_OF_KEY = ("idempotencyKey", "idempotency_key")
STATUS = "queryStatus"
LONGEST_WAIT_S = 60
PAUSE_S = 0.1


@ASYNC_QUERIES.on_views(OPTIONAL, "1.9")
def queries_are_answered_later(view: View) -> None:
    """asyncquery=true with an idempotency key is answered by a pending queryStatus."""
    reply = _submitted(view)
    expect(_status(reply) is not None, reply.where, "a queryStatus line", [line.kind for line in reply.lines])


@ASYNC_QUERIES.on_views(MUST, "1.9", "0.9")
def the_key_goes_by_both_names(view: View) -> None:
    """idempotencyKey and idempotency_key are both taken."""
    for name in NAMES_OF_KEY:
        view.ask({name: str(uuid.uuid4())}, ASYNC_ASKED).expect_status(200)


@ASYNC_QUERIES.on_views(MUST, "0.7", "1.9")
def pending_answers_tell_the_version(view: View) -> None:
    """Every answer has Delta-Table-Version, pending ones too; those say asyncquery=true and have one line."""
    reply = _submitted(view)
    expect(reply.version >= 0, reply.where, "a version", reply.version)
    status = _status(reply)
    if status is None:
        raise NotApplicable("the server answers at once")
    reported = reply.response.capabilities.get("asyncquery")
    expect(reported == "true", reply.where, "asyncquery=true in the answer's header", reported or "none")
    expect(len(reply.lines) == 1, reply.where, "one line", len(reply.lines))
    expect_fields(reply.where, status, {"queryId": NAME, "status": one_of("pending")}, {})


@ASYNC_QUERIES.on_views(MUST, "1.9", "0.7")
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


@ASYNC_QUERIES.on_views(MUST, "1.9")
def pages_come_from_the_same_query(view: View) -> None:
    """A finished query is fetched in pages by its queryId."""
    if len(view.snapshot.actions) < 2:
        raise NotApplicable("no table has two files")
    query_id = _id(_submitted(view, {"maxFiles": 1}))
    found = [_finished(view, query_id, {"maxFiles": 1})]
    while (token := (found[-1].end or {}).get("nextPageToken")) and len(found) <= len(view.snapshot.actions):
        found.append(_finished(view, query_id, {"maxFiles": 1, "pageToken": token}))
    ids = sorted(action.id for reply in found for action in reply.actions)
    expect(ids == sorted(view.snapshot.ids), found[0].where, "every file once", ids)


@ASYNC_QUERIES.on_views(SHOULD, "1.9")
def a_query_sent_twice_is_one(view: View) -> None:
    """The same key with the same parameters is the same query: its queryId is the same, until it is answered."""
    key = str(uuid.uuid4())
    first, again = (_status(Reply(view.ask({"idempotencyKey": key}, ASYNC_ASKED))) for _ in range(2))
    if first is None:
        raise NotApplicable("the server answers at once")
    if again is None:
        return  # it was done by then
    expect(
        first["queryId"] == again["queryId"],
        view.table.path,
        f"queryId {first['queryId']} again",
        again["queryId"],
    )


@ASYNC_QUERIES.on_views(MUST, "1.9", "0.19")
def a_query_without_a_key_is_400(view: View) -> None:
    """asyncquery=true without an idempotency key is 400, unless the server answers at once anyway."""
    _id(_submitted(view))
    view.ask({}, ASYNC_ASKED).refusal(400)


@ASYNC_QUERIES.on_tables(MUST, "1.9", "4")
def an_unknown_query_is_404(table: Table) -> None:
    """A queryId that the server did not give is 404."""
    for query_id in (str(uuid.uuid4()), "nonsense"):
        table.ask("POST", f"/queries/{query_id}", body={}).refusal(404)


@ASYNC_QUERIES.on_tables(SHOULD, "1.9")
def a_query_belongs_to_its_table(table: Table) -> None:
    """A queryId of one table is unknown to the others."""
    view = table.first_view
    query_id = _id(_submitted(view))
    for other in table.other_views[:5]:
        other.table.ask("POST", f"/queries/{query_id}", body={}).refusal(400, 404)


@ASYNC_QUERIES.on_views(MUST, "0.8", "0.19")
def a_query_that_fails_is_an_error(view: View) -> None:
    """A query that cannot be answered (of a version that is not there) ends in 4xx, not in a status nobody reads."""
    _id(_submitted(view))
    beyond = {"version": view.table.latest + 1000, "idempotencyKey": str(uuid.uuid4())}
    response = view.ask(beyond, ASYNC_ASKED)
    if response.status == 200:
        response = _wait(view, _id(Reply(response)), {})
    response.refusal()


def _submitted(view: View, more: Mapping[str, object] | None = None) -> Reply:
    return Reply(view.ask({"idempotencyKey": str(uuid.uuid4()), **(more or {})}, ASYNC_ASKED))


def _status(reply: Reply) -> dict[str, object] | None:
    return reply.lines[0].value if reply.lines[0].kind == STATUS else None


def _id(reply: Reply) -> str:
    status = _status(reply)
    if status is None:
        raise NotApplicable("the server answers at once")
    expect_fields(reply.where, status, {"queryId": NAME}, {})
    return str(status["queryId"])


def _finished(view: View, query_id: str, body: Mapping[str, object] | None = None) -> Reply:
    return Reply(_wait(view, query_id, body or {}))


def _wait(view: View, query_id: str, body: Mapping[str, object]) -> Response:
    """The first answer of a query that is not pending."""
    until = time.monotonic() + LONGEST_WAIT_S
    headers = make_capabilities_header(view.announcing(ASYNC_ASKED))
    while time.monotonic() < until:
        response = view.table.ask("POST", f"/queries/{query_id}", body=body, headers=headers)
        if response.status != 200:
            return response
        reply = Reply(response)
        status = _status(reply)
        if status is None:
            return response
        expect(reply.version >= 0, reply.where, "a version while pending", reply.version)
        is_same = status.get("queryId") == query_id and status.get("status") == "pending"
        expect(is_same, reply.where, f"pending, queryId {query_id}", status)
        time.sleep(PAUSE_S)
    raise ExpectationFailed(
        f"{view.table.path}/queries", f"an answer within {LONGEST_WAIT_S} s", "pending still"
    )
