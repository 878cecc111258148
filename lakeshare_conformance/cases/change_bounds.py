"""The bounds of a range of changes."""

from lakeshare_conformance.case import MUST, SHOULD, NothingToTry, expect, on_views
from lakeshare_conformance.cases.changes import counted, whole
from lakeshare_conformance.cases.time_travel import iso
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Reply


@on_views(MUST, "1.8")
def both_ends_belong_to_the_range(view: View) -> None:
    """startingVersion and endingVersion are both inclusive: single versions together are the whole range."""
    for version in view.versions_from(view.change_start):
        part = view.changes(startingVersion=version, endingVersion=version)
        wanted = counted(action for action in whole(view).actions if action.version == version)
        found = counted(part.actions)
        expect(found == wanted, part.where, f"the {wanted.total()} files of version {version}", found.total())
        expect(part.version == version, part.where, f"the header to tell {version}", part.version)


@on_views(MUST, "1.8")
def a_range_has_all_versions_up_to_its_end(view: View) -> None:
    """A range that begins at the first version has the changes of every version up to its end, the end included."""
    start = view.change_start
    for version in view.versions_from(start)[1:]:
        part = view.changes(startingVersion=start, endingVersion=version)
        wanted = counted(action for action in whole(view).actions if action.version <= version)
        found = counted(part.actions)
        expect(
            found == wanted, part.where, f"the {wanted.total()} files up to version {version}", found.total()
        )


@on_views(SHOULD, "1.8")
def an_end_beyond_the_latest_is_the_latest(view: View) -> None:
    """An endingVersion after the latest version stands for the latest one."""
    reply = view.changes(startingVersion=view.change_start, endingVersion=view.table.latest + 1000)
    expect(
        counted(reply.actions) == counted(whole(view).actions), reply.where, "the changes until now", "others"
    )


@on_views(MUST, "1.8")
def times_bound_a_range_too(view: View) -> None:
    """startingTimestamp is the first version at or after it, endingTimestamp the last at or before it."""
    times = {action.version: action.timestamp_ms for action in whole(view).actions}
    if not times:
        raise NothingToTry("no changes tell their times")
    first, last = min(times), max(times)
    bounds = {"startingTimestamp": iso(times[first]), "endingTimestamp": iso(times[last])}
    reply = Reply(view.ask_changes(bounds))
    wanted = counted(action for action in whole(view).actions if first <= action.version <= last)
    expect(counted(reply.actions) == wanted, reply.where, f"the changes from {first} to {last}", "others")
    if first != last:
        bounds = {"startingTimestamp": iso(times[first] + 1), "endingTimestamp": iso(times[last] - 1)}
        versions = (
            {action.version for action in Reply(view.ask_changes(bounds)).actions}
            if len(times) > 2
            else set()
        )
        inner = set(times) - {first, last} if len(times) > 2 else set()
        expect(
            versions == inner,
            view.table.path,
            f"the changes of {sorted(inner)} for {bounds}",
            sorted(versions),
        )


@on_views(MUST, "1.8", "0.19")
def ranges_that_are_none_are_400(view: View) -> None:
    """A range without a start, with two starts or two ends, ending before it begins, or out of reach, is 400."""
    start, latest = view.change_start, view.table.latest
    noon = "2022-01-01T12:00:00Z"
    for params in (
        {},
        {"endingVersion": latest},
        {"startingVersion": start, "startingTimestamp": noon},
        {"startingVersion": start, "endingVersion": latest, "endingTimestamp": noon},
        {"startingVersion": latest, "endingVersion": latest - 1},
        {"startingVersion": latest + 1000},
        {"startingVersion": -1},
        {"startingVersion": "x"},
        {"startingVersion": start, "endingVersion": "x"},
        {"startingTimestamp": "2999-01-01T00:00:00Z"},
        {"startingTimestamp": "not a time"},
        {"startingVersion": start, "endingTimestamp": "1970-01-02T00:00:00Z"},
    ):
        view.ask_changes(params).refusal(400)


@on_views(MUST, "0.1", "1.13")
def changes_end_without_an_action_unless_asked(view: View) -> None:
    """No endStreamAction comes after changes to a client that did not ask for it."""
    kinds = [line.kind for line in whole(view).lines]
    expect("endStreamAction" not in kinds, whole(view).where, "no endStreamAction", kinds[-1])
