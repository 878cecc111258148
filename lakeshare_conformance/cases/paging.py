"""Answers in pages, an undocumented extension that Spark knows: who offers it must offer it so."""

from collections.abc import Callable, Mapping

from lakeshare_conformance.case import MUST, OPTIONAL, NothingToTry, expect, on_tables, on_views
from lakeshare_conformance.cases.changes import counted
from lakeshare_conformance.cases.predicates import expect_no_row_lost
from lakeshare_conformance.client import CAPABILITIES, Answer
from lakeshare_conformance.ground import Table, View
from lakeshare_conformance.reply import END, Reply
from lakeshare_conformance.rows import Compare, FileRows, as_json, comparisons, read_all

MOST_PAGES = 200
TOKEN = "nextPageToken"  # noqa: S105 - the name of a field


@on_views(OPTIONAL, "1.7")
def answers_come_in_pages(view: View) -> None:
    """maxFiles splits an answer: no page has more files, and nextPageToken leads on."""
    if len(view.snapshot.actions) < 2:
        raise NothingToTry("no table has two files")
    first = view.query(maxFiles=1)
    expect(len(first.actions) == 1, first.where, "one file", len(first.actions))
    expect(
        bool((first.end or {}).get(TOKEN)),
        first.where,
        f"an endStreamAction with {TOKEN}",
        first.end or "none",
    )


@on_views(MUST, "1.7", "0.1")
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


@on_views(MUST, "1.7")
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


@on_views(MUST, "0.10", "1.7")
def heads_of_pages_are_the_same_bytes(view: View) -> None:
    """protocol and metaData are the same bytes on all pages, under the same version and format."""
    _needs_pages(view)
    first, *others = _pages(view, {})
    for reply in others:
        heads = [b"\n".join(line.raw for line in one.head) for one in (first, reply)]
        expect(heads[0] == heads[1], reply.where, heads[0].decode(), heads[1].decode())
        expect(reply.version == first.version, reply.where, f"version {first.version}", reply.version)
        told = [one.answer.headers.get(CAPABILITIES) for one in (first, reply)]
        expect(told[0] == told[1], reply.where, f"{CAPABILITIES}: {told[0]}", told[1])


@on_views(MUST, "1.7")
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


@on_views(MUST, "1.7", "1.14")
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


@on_views(MUST, "1.7", "1.14", "0.15")
def predicates_lose_no_rows_over_pages(view: View) -> None:
    """With a JSON predicate the pages together have every file with a matching row, each once: a page may be empty."""
    _needs_pages(view)
    files = read_all(view, view.snapshot)
    for hint in _paged_hints(view, files):
        found = _pages(view, {"jsonPredicateHints": as_json(hint)})
        ids = [action.id for reply in found for action in reply.actions]
        expect(len(ids) == len(set(ids)), found[0].where, "each file on one page", sorted(ids))
        expect_no_row_lost(files, hint, f"{len(found)} pages of {found[0].where}", frozenset(ids))


@on_views(MUST, "1.8")
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


@on_views(MUST, "1.7", "0.19")
def page_tokens_nobody_gave_are_400(view: View) -> None:
    """A page token that the server did not give is 400."""
    _needs_pages(view)
    for token in ("nonsense", "AAAA" * 1000, "é", 1):
        view.ask({"maxFiles": 1, "pageToken": token}).refusal(400)


@on_views(MUST, "1.7")
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


@on_tables(MUST, "1.7")
def a_page_token_belongs_to_its_table(table: Table) -> None:
    """A page token is refused by every other table: 400."""
    view = table.first_view
    token = _needs_pages(view)
    for other in table.other_views[:5]:
        other.ask({"maxFiles": 1, "pageToken": token}).refusal(400)


@on_views(MUST, "1.7", "0.19")
def sizes_of_pages_are_positive(view: View) -> None:
    """maxFiles is a whole number above 0; anything else is 400."""
    _needs_pages(view)
    for size in (0, -1, "x", 1.5, [1]):
        view.ask({"maxFiles": size}).refusal(400)


@on_views(MUST, "1.13", "2.7")
def an_end_tells_the_earliest_expiry(view: View) -> None:
    """minUrlExpirationTimestamp is no later than the expiry of any URL of the page."""
    _needs_pages(view)
    reply = view.query(maxFiles=1_000_000)
    told = (reply.end or {}).get("minUrlExpirationTimestamp")
    if told is None:
        raise NothingToTry("the server does not tell minUrlExpirationTimestamp")
    ends = [action.expires_ms for action in reply.actions if action.expires_ms is not None]
    is_fit = isinstance(told, int) and all(told <= end for end in ends)
    expect(is_fit, reply.where, f"minUrlExpirationTimestamp up to {min(ends, default=0)}", told)


def _needs_pages(view: View) -> str:
    """The token of a second page.

    Raises:
        NothingToTry: the server answers in one piece.
        Broken: it leaves files out without a token that leads to them.
    """
    answer: Answer = view.ask({"maxFiles": 1})
    if 400 <= answer.status < 500:
        raise NothingToTry("the server does not answer in pages")
    first = Reply(answer)
    end = first.end or {}
    if not end.get(TOKEN):
        missing = len(view.snapshot.actions) - len(first.actions)
        expect(missing <= 0, first.where, f"all files, or a {TOKEN}", f"{missing} files fewer and no token")
        raise NothingToTry("no answer comes in two pages")
    return str(end[TOKEN])


def _paged_hints(view: View, files: list[FileRows]) -> list[Compare]:
    """For each column one comparison that few files match and one that many do.

    Raises:
        NothingToTry: no column can be compared.
    """
    by_column: dict[str, dict[str, Compare]] = {}
    for hint in comparisons(view.snapshot, files):
        if hint.operator in ("equal", "lessThanOrEqual"):
            by_column.setdefault(hint.column, {})[hint.operator] = hint
    if not by_column:
        raise NothingToTry("no table has a column to compare")
    return [hint for of_column in by_column.values() for hint in of_column.values()]


def _pages(view: View, body: Mapping[str, object], size: int = 1) -> list[Reply]:
    return _walk(lambda more: view.query(**{**body, "maxFiles": size, **more}))


def _walk(ask: Callable[[Mapping[str, object]], Reply]) -> list[Reply]:
    found = [ask({})]
    while token := (found[-1].end or {}).get(TOKEN):
        found.append(ask({"pageToken": token}))
        expect(len(found) < MOST_PAGES, found[0].where, f"fewer than {MOST_PAGES} pages", len(found))
    return found
