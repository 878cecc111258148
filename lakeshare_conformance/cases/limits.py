"""limitHint: how many rows the client wants."""

from lakeshare_conformance.case import MUST, OPTIONAL, SHOULD, NothingToTry, expect, on_views
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Action, Reply
from lakeshare_conformance.rows import as_json, comparisons, matches, read_all


@on_views(MUST, "1.7", "2.3")
def a_limit_leaves_enough_rows(view: View) -> None:
    """limitHint leaves files with at least as many rows as asked for, deleted rows not counted."""
    rows = _rows(view)
    total = sum(rows.values())
    for limit in sorted({1, 2, total // 2, max(0, total - 1), total, total + 1}):
        reply = view.query(limitHint=limit)
        found = sum(rows.get(action.id, 0) for action in reply.actions)
        expect(found >= min(limit, total), reply.where, f"files with {min(limit, total)} rows", found)


@on_views(OPTIONAL, "1.7")
def a_limit_leaves_files_out(view: View) -> None:
    """limitHint leaves out files that are not needed for that many rows."""
    rows = _rows(view)
    if len(rows) < 2 or min(rows.values()) < 1:
        raise NothingToTry("no table has two files with rows")
    reply = view.query(limitHint=1)
    expect(
        len(reply.actions) < len(rows), reply.where, f"fewer than all {len(rows)} files", len(reply.actions)
    )


@on_views(MUST, "1.7", "6.1")
def a_limit_of_none_has_a_head(view: View) -> None:
    """limitHint 0 is answered with protocol and metaData: clients read the schema from it."""
    reply = view.query(limitHint=0)
    told = [line.value for line in reply.head]
    expect(
        told[1].get("size") == view.snapshot.head[1].value.get("size"),
        reply.where,
        "the head of a query",
        told,
    )


@on_views(MUST, "1.7", "1.14")
def a_limit_counts_rows_that_match(view: View) -> None:
    """With a predicate and limitHint, the files left hold that many rows that match, if there are so many."""
    files = read_all(view, view.snapshot)
    if any(action.vector for action in view.snapshot.actions):
        raise NothingToTry("only tables with deletion vectors are there")
    tried = [one for one in comparisons(view.snapshot, files) if one.operator in ("equal", "lessThanOrEqual")]
    if not tried:
        raise NothingToTry("no table has a column to compare")
    for hint in tried:
        counts = {one.action.id: matches(hint, one) for one in files}
        for limit in (1, max(1, sum(counts.values()))):
            reply = Reply(view.ask({"limitHint": limit, "jsonPredicateHints": as_json(hint)}))
            found = sum(counts.get(action.id, 0) for action in reply.actions)
            wanted = min(limit, sum(counts.values()))
            expect(found >= wanted, reply.where, f"files with {wanted} rows that match", found)


@on_views(SHOULD, "1.7", "0.19")
def limits_that_are_none_are_400(view: View) -> None:
    """A limitHint that is negative, no whole number, or larger than 32 bits, is 400."""
    for limit in (-1, "x", 1.5, 2**40, [1]):
        view.ask({"limitHint": limit}).refusal(400)


def _rows(view: View) -> dict[str, int]:
    """The live rows of every file.

    Raises:
        NothingToTry: statistics do not tell them.
    """
    found = {action.id: _live(action) for action in view.snapshot.actions}
    if not sum(found.values()):
        raise NothingToTry("no table has rows")
    return found


def _live(action: Action) -> int:
    if action.rows is None:
        raise NothingToTry("statistics do not tell the rows of every file")
    return action.rows
