"""Pages, refresh tokens, the end of a stream, and queries that are answered later."""

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress

from lakeshare_conformance import wire
from lakeshare_conformance.case import Group, NotApplicable, expect, require
from lakeshare_conformance.cases.snapshots import alter
from lakeshare_conformance.client import CAPABILITIES, END, METADATA, NOON, Response
from lakeshare_conformance.rows import TableRows
from lakeshare_conformance.targets import Table, View, read_pages

NO_TOKENS = ("nonsense", "AAAA" * 1000, "é", 1)


class Paging(Group):
    """Answers in pages, an undocumented extension that Spark knows: who offers it must offer it so."""

    def answers_come_in_pages(self, view: View) -> None:
        """optional §1.7: maxFiles splits an answer: no page has more files, and nextPageToken leads on."""
        require(len(view.snapshot.actions) >= 2, "no table has two files")
        first = view.query(maxFiles=1)
        first.expect(len(first.actions) == 1, "one file", len(first.actions))
        first.expect(first.end.next_page_token, "an endStreamAction with nextPageToken", first.kinds[-1])

    def every_page_has_an_end(self, view: View) -> None:
        """must §1.7, §0.1: With maxFiles every page ends with endStreamAction, the last one too, there without
        a token."""
        pages, last = view.pages(), view.query(maxFiles=1_000_000)
        for reply in (*pages, last):
            reply.expect_end()
        last.expect(not last.end.next_page_token, "no nextPageToken", last.end.next_page_token)

    def pages_of_a_snapshot_are_the_snapshot(self, view: View) -> None:
        """must §1.7: All pages together have each file of the unpaged answer once, and no page more than asked."""
        pages = view.pages()
        for reply in pages:
            reply.expect(len(reply.actions) <= 1, "at most one file", len(reply.actions))
        pages[0].expect_files(view.snapshot.actions, "the snapshot", pages)

    def heads_of_pages_are_the_same_bytes(self, view: View) -> None:
        """must §0.10, §1.7: protocol and metaData are the same bytes on all pages, under the same version and
        format."""
        first, *others = view.pages()
        for reply in others:
            _expect_same_head(reply, first)
            reply.expect_version(first.version)
            wanted, actual = (one.headers.get(CAPABILITIES) for one in (first, reply))
            reply.expect(actual == wanted, f"{CAPABILITIES}: {wanted}", actual)

    def pages_of_a_window_are_the_window(self, view: View) -> None:
        """must §1.7: A window of versions comes in pages too: all together are the window, later metaData lines
        included."""
        pages = view.pages(2, startingVersion=view.window_start)
        pages[0].expect_files(view.window.actions, "the window", pages)
        wanted, found = (
            sorted(line.raw for reply in replies for line in reply.later if line.kind == METADATA)
            for replies in ([view.window], pages)
        )
        pages[0].expect(found == wanted, f"{len(wanted)} later metaData lines", len(found))

    def hints_count_over_all_pages(self, view: View) -> None:
        """must §1.7, §1.14: limitHint and predicates hold over all pages together: they are the files of the
        same request without pages."""
        no_column = {"predicateHints": ["lakeshare_no_such_column = 1"]}
        for hint in ({"limitHint": 1}, {"limitHint": 1_000_000}, no_column):
            pages = view.pages(**hint)
            pages[0].expect_files(view.query(**hint).actions, f"the query with {hint}", pages)

    def predicates_lose_no_rows_over_pages(self, view: View) -> None:
        """must §1.7, §1.14, §0.15: With a JSON predicate the pages together have every file with a matching
        row, each once: a page may be empty."""
        view.require_pages()
        table = TableRows(view)
        # For each column one comparison that few files match and one that many do.
        hints = {(hint.column, hint.operator): hint for hint in table.list_comparisons()}
        tried = [hint for hint in hints.values() if hint.operator in ("equal", "lessThanOrEqual")]
        require(tried, "no table has a column to compare")
        for hint in tried:
            pages = view.pages(jsonPredicateHints=hint.json)
            ids = [action.id for reply in pages for action in reply.actions]
            pages[0].expect(len(ids) == len(set(ids)), "each file on one page", sorted(ids))
            table.expect_no_row_lost(hint, f"{len(pages)} pages of {pages[0].where}", frozenset(ids))

    def pages_of_changes_are_the_changes(self, view: View) -> None:
        """must §1.8: Changes come in pages too: all together are the changes, each once, under the same head."""
        view.require_pages()
        request = {"startingVersion": view.change_start, "maxFiles": 2}
        pages = read_pages(lambda more: view.ask_changes({**request, **more}).read())
        pages[0].expect_files(view.feed.actions, "the changes", pages)
        for reply in pages:
            _expect_same_head(reply, pages[0])
            reply.expect(reply.kinds[-1] == END, "endStreamAction as last line", reply.kinds[-1])

    def unknown_page_tokens_are_400(self, view: View) -> None:
        """must §1.7, §0.19: A page token that the server did not give is 400."""
        view.require_pages()
        view.refuse(*({"maxFiles": 1, "pageToken": token} for token in NO_TOKENS))

    def a_page_token_belongs_to_its_request(self, view: View) -> None:
        """must §1.7: A page token with another request (a version, a predicate, a limit, changes) is 400, and
        altered it is 400."""
        page: dict[str, object] = {"maxFiles": 1, "pageToken": view.page_token}
        view.refuse(
            {**page, "version": view.snapshot.version},
            {**page, "limitHint": 1},
            {**page, "predicateHints": ["lakeshare = 1"]},
            {**page, "pageToken": alter(view.page_token)},
        )
        view.refuse_changes({"startingVersion": 0, **page})

    def a_page_token_belongs_to_its_table(self, table: Table) -> None:
        """must §1.7: A page token is refused by every other table: 400."""
        token = table.first_view.page_token
        for other in table.other_views:
            other.refuse({"maxFiles": 1, "pageToken": token})

    def sizes_of_pages_are_positive(self, view: View) -> None:
        """must §1.7, §0.19: maxFiles is a whole number above 0; anything else is 400."""
        view.require_pages()
        view.refuse(*({"maxFiles": size} for size in (0, -1, "x", 1.5, [1])))

    def an_end_has_the_earliest_expiry(self, view: View) -> None:
        """must §1.13, §2.7: minUrlExpirationTimestamp is no later than the expiry of any URL of the page."""
        view.require_pages()
        reply = view.query(maxFiles=1_000_000)
        earliest = reply.end.min_url_expiration_timestamp
        if earliest is None:
            raise NotApplicable("the server does not send minUrlExpirationTimestamp")
        for end_ms in (action.expiration_timestamp for action in reply.actions):
            is_fit = end_ms is None or earliest <= end_ms
            reply.expect(is_fit, f"minUrlExpirationTimestamp up to {end_ms}", earliest)


def _expect_same_head(reply: Response, first: Response) -> None:
    wanted, actual = ([line.raw.decode() for line in one.head] for one in (first, reply))
    reply.expect(actual == wanted, f"the head {wanted}", actual)


class Refresh(Group):
    """Refresh tokens, an undocumented extension by which Spark renews URLs."""

    def a_refresh_token_is_given(self, view: View) -> None:
        """optional §1.7, §1.13: includeRefreshToken is answered with a refreshToken in the endStreamAction."""
        reply = view.query(includeRefreshToken=True)
        reply.expect(reply.end.refresh_token, "a refreshToken", reply.kinds[-1])

    def an_end_comes_last_and_once(self, view: View) -> None:
        """must §0.1, §1.13: With includeRefreshToken an endStreamAction, if there is one, is the last line, and
        the only one."""
        reply = view.query(includeRefreshToken=True)
        reply.expect_end("endStreamAction" in reply.kinds)

    def a_refreshed_answer_has_the_same_files(self, view: View) -> None:
        """must §0.16, §4: With refreshToken the same version is answered again: every id that was handed out,
        and a token to go on."""
        first, token = view.query(includeRefreshToken=True), view.refresh_token
        for _ in range(2):
            reply = view.ask({"refreshToken": token, "includeRefreshToken": True}).read()
            reply.expect_version(first.version)
            reply.expect_ids(first.ids, "the same ids")
            token = reply.end.refresh_token
            reply.expect(token, "a refreshToken", reply.kinds[-1])

    def unknown_refresh_tokens_are_400(self, view: View) -> None:
        """must §1.7, §0.19: A refresh token that the server did not give, or that was altered, is 400."""
        tokens = (alter(view.refresh_token), "nonsense", "é", 1)
        view.refuse(*({"refreshToken": token} for token in tokens))

    def a_refresh_token_stands_alone(self, view: View) -> None:
        """must §1.7, §0.16: refreshToken beside a version, a time or a window is 400: it has its version in it."""
        token = view.refresh_token
        for more in ({"version": 0}, {"timestamp": NOON}, {"startingVersion": 0}):
            view.refuse({"refreshToken": token, **more})

    def a_refresh_token_belongs_to_its_table(self, table: Table) -> None:
        """must §1.7: A refresh token is refused by every other table: 400."""
        token = table.first_view.refresh_token
        for other in table.other_views:
            other.refuse({"refreshToken": token})


END_ANNOUNCED = "includeendstreamaction=true"


class EndStream(Group):
    """The closing line, for those who ask for it in the header."""

    def an_end_can_be_asked_for(self, view: View) -> None:
        """optional §1.11, §1.13: includeendstreamaction=true is honoured: echoed in the header, and the last
        line is endStreamAction."""
        _expect_capability(view.ask({}, END_ANNOUNCED).read(), "includeendstreamaction")

    def an_end_that_is_announced_comes(self, view: View) -> None:
        """must §1.11, §0.1: The last line is endStreamAction just when the header of the answer says so, for a
        query and for changes."""
        replies = [view.ask({}, END_ANNOUNCED).read(), view.ask({}, "includeendstreamaction=false").read()]
        # Where changes are not served, the query alone is tried.
        with suppress(NotApplicable):
            replies.append(view.ask_changes({"startingVersion": view.change_start}, END_ANNOUNCED).read())
        for reply in replies:
            reply.expect_end(reply.capabilities.get("includeendstreamaction") == "true")

    def an_end_has_the_documented_fields(self, view: View) -> None:
        """must §1.13: endStreamAction has refreshToken, nextPageToken, minUrlExpirationTimestamp of their
        kinds, and no error here."""
        reply = view.ask({}, END_ANNOUNCED).read()
        require(reply.kinds[-1] == END, "the server sends no endStreamAction")
        message = reply.end.error_message
        reply.expect(message is None, "a complete answer", message)


def _expect_capability(reply: Response, name: str) -> None:
    actual = reply.capabilities.get(name)
    reply.expect(actual == "true", f"{name}=true in the answer's header", actual or "none")


ASYNC_ANNOUNCED = "asyncquery=true"
STATUS = "queryStatus"
MAX_WAIT_S = 60
PAUSE_S = 0.1


class AsyncQueries(Group):
    """Queries that are answered later: a server may always answer at once instead."""

    def queries_are_answered_later(self, view: View) -> None:
        """optional §1.9: asyncquery=true with an idempotency key is answered by a pending queryStatus."""
        reply = _submit(view).read()
        reply.expect(_parse_status(reply) is not None, "a queryStatus line", reply.kinds)

    def the_key_goes_by_both_names(self, view: View) -> None:
        """must §1.9, §0.9: idempotencyKey and idempotency_key are both taken."""
        for name in ("idempotencyKey", "idempotency_key"):
            view.ask({name: str(uuid.uuid4())}, ASYNC_ANNOUNCED).expect_status(200)

    def pending_answers_have_the_version(self, view: View) -> None:
        """must §0.7, §1.9: Every answer has Delta-Table-Version, pending ones too; those say asyncquery=true
        and have one line."""
        reply = _submit(view).read()
        reply.expect(reply.version >= 0, "a version", reply.version)
        _require_query_id(reply)
        _expect_capability(reply, "asyncquery")
        reply.expect(len(reply.lines) == 1, "one line", len(reply.lines))

    def the_answer_comes_as_if_at_once(self, view: View) -> None:
        """must §1.9, §0.7: Asked for by its queryId, a query keeps its id while pending, and is answered at
        last like one without delay."""
        done = _wait(view, _require_query_id(_submit(view).read())).read()
        done.expect(STATUS not in done.kinds, f"no {STATUS} in the answer", done.kinds)
        done.expect_ids(view.snapshot.ids, "the files of a query without delay")
        done.expect_version(view.snapshot.version)

    def pages_come_from_the_same_query(self, view: View) -> None:
        """must §1.9: A finished query is fetched in pages by its queryId."""
        require(len(view.snapshot.actions) >= 2, "no table has two files")
        query_id = _require_query_id(_submit(view, maxFiles=1).read())
        pages = read_pages(lambda more: _wait(view, query_id, {"maxFiles": 1, **more}).read())
        pages[0].expect_files(view.snapshot.actions, "the snapshot", pages)

    def a_query_sent_twice_is_one(self, view: View) -> None:
        """should §1.9: The same key with the same parameters is the same query: its queryId is the same, until
        it is answered."""
        key = {"idempotencyKey": str(uuid.uuid4())}
        first, again = (_parse_status(view.ask(key, ASYNC_ANNOUNCED).read()) for _ in range(2))
        wanted = require(first, "the server answers at once").query_id
        # Without a second status the query was finished by then.
        if again is not None:
            expect(again.query_id == wanted, view.table.path, f"queryId {wanted} again", again.query_id)

    def a_query_without_a_key_is_400(self, view: View) -> None:
        """must §1.9, §0.19: asyncquery=true without an idempotency key is 400, unless the server answers at
        once anyway."""
        _require_query_id(_submit(view).read())
        view.ask({}, ASYNC_ANNOUNCED).refusal(400)

    def an_unknown_query_is_404(self, table: Table) -> None:
        """must §1.9, §4: A queryId that the server did not give is 404."""
        for query_id in (str(uuid.uuid4()), "nonsense"):
            table.ask("POST", f"/queries/{query_id}", body={}).refusal(404)

    def a_query_belongs_to_its_table(self, table: Table) -> None:
        """should §1.9: A queryId of one table is unknown to the others."""
        query_id = _require_query_id(_submit(table.first_view).read())
        for other in table.other_views:
            other.table.ask("POST", f"/queries/{query_id}", body={}).refusal(400, 404)

    def a_query_that_fails_is_an_error(self, view: View) -> None:
        """must §0.8, §0.19: A query that cannot be answered (of a version that is not there) ends in 4xx, not
        in an unread status."""
        _require_query_id(_submit(view).read())
        response = _submit(view, version=view.table.latest + 1000)
        if response.status == 200:
            response = _wait(view, _require_query_id(response.read()))
        response.refusal()


def _submit(view: View, **more: object) -> Response:
    return view.ask({"idempotencyKey": str(uuid.uuid4()), **more}, ASYNC_ANNOUNCED)


def _parse_status(reply: Response) -> wire.QueryStatus | None:
    if reply.kinds[0] != STATUS:
        return None
    return wire.parse(wire.QueryStatus, reply.lines[0].value, reply.where)


def _require_query_id(reply: Response) -> str:
    return require(_parse_status(reply), "the server answers at once").query_id


def _wait(view: View, query_id: str, body: Mapping[str, object] | None = None) -> Response:
    """The first response of a query that is not pending."""
    until = time.monotonic() + MAX_WAIT_S
    announced = view.announce(ASYNC_ANNOUNCED)
    while True:
        response = view.table.ask("POST", f"/queries/{query_id}", body=body or {}, capabilities=announced)
        status = _parse_status(response.read()) if response.status == 200 else None
        if status is None:
            return response
        response.expect(response.version >= 0, "a version while pending", response.version)
        response.expect(status.query_id == query_id, f"queryId {query_id}", status.query_id)
        is_early, wanted = time.monotonic() < until, f"an answer within {MAX_WAIT_S} s"
        expect(is_early, f"{view.table.path}/queries", wanted, "pending still")
        time.sleep(PAUSE_S)
