"""Windows of versions, as streams read them."""

from itertools import pairwise

from lakeshare_conformance.case import (
    COUNT,
    DELTA,
    MUST,
    SHOULD,
    NothingToTry,
    expect,
    expect_fields,
    on_views,
)
from lakeshare_conformance.cases.changes import counted
from lakeshare_conformance.cases.data_files import a_file_is_served
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Reply

LATER_KINDS = {"parquet": {"add", "remove", "metaData"}, "delta": {"file", "metaData"}}


@on_views(MUST, "1.7", "6.2")
def a_window_begins_with_its_first_version(view: View) -> None:
    """The head is that of startingVersion, metaData.version tells it, and so does the header."""
    for version in view.versions_from(view.window_start):
        reply = view.query(startingVersion=version)
        expect(reply.version == version, reply.where, f"the header to tell {version}", reply.version)
        told = reply.head[1].value.get("version")
        expect(told == version, reply.where, f"metaData.version {version}", told)
        wanted = view.query(version=version).metadata.get("schemaString")
        expect(
            reply.metadata.get("schemaString") == wanted,
            reply.where,
            "the schema of its first version",
            "another",
        )


@on_views(MUST, "1.7", "0.1", "2.1", "2.2")
def a_window_has_adds_and_removes(view: View) -> None:
    """After the head come add, remove and later metaData lines (in delta format file and metaData), nothing else."""
    for line in _whole(view).later:
        allowed = LATER_KINDS[view.format]
        expect(line.kind in allowed, line.where, f"one of {sorted(allowed)}", line.kind)
    kinds = {action.kind for action in _whole(view).actions}
    expect(kinds <= {"add", "remove"}, _whole(view).where, "added and removed files", sorted(kinds))


@on_views(MUST, "2.1", "6.2")
def files_of_a_window_tell_version_and_time(view: View) -> None:
    """Every file of a window has version and timestamp, and a size, removed ones too."""
    for action in _whole(view).actions:
        expect_fields(action.where, action.outer, {"version": COUNT, "timestamp": COUNT}, {})
        expect_fields(action.where, action.inner, {"size": COUNT}, {})


@on_views(SHOULD, "1.7")
def times_grow_with_versions(view: View) -> None:
    """All files of a version tell one time, and later versions later ones."""
    times: dict[int, int] = {}
    for action in _whole(view).actions:
        known = times.setdefault(action.version, action.timestamp_ms)
        expect(
            known == action.timestamp_ms,
            action.where,
            f"the time {known} of its version",
            action.timestamp_ms,
        )
    in_order = [times[version] for version in sorted(times)]
    expect(in_order == sorted(set(in_order)), _whole(view).where, "times that grow with versions", times)


@on_views(MUST, "1.7")
def a_window_keeps_its_bounds(view: View) -> None:
    """startingVersion and endingVersion are both inclusive: single versions together are the whole window."""
    start, end = view.window_start, view.table.latest
    whole = Reply(view.ask({"startingVersion": start, "endingVersion": end}))
    for action in whole.actions:
        expect(
            start <= action.version <= end, action.where, f"a version from {start} to {end}", action.version
        )
    for version in view.versions_from(start):
        for first in sorted({start, version}):
            part = Reply(view.ask({"startingVersion": first, "endingVersion": version}))
            found = counted(part.actions)
            wanted = counted(action for action in whole.actions if first <= action.version <= version)
            expect(
                found == wanted,
                part.where,
                f"the {wanted.total()} files from version {first} to {version}",
                found.total(),
            )


@on_views(MUST, "1.7")
def a_window_without_an_end_goes_to_the_latest(view: View) -> None:
    """Without endingVersion the window ends with the latest version."""
    whole = Reply(view.ask({"startingVersion": view.window_start, "endingVersion": view.table.latest}))
    expect(
        counted(_whole(view).actions) == counted(whole.actions),
        _whole(view).where,
        "the same files",
        "others",
    )


@on_views(MUST, "1.7", formats=(DELTA,))
def a_window_has_data_changes_only(view: View) -> None:
    """Files that only rearranged data (dataChange false) are not part of a window."""
    for action in _whole(view).actions:
        expect(
            action.inner.get("dataChange") is True,
            action.where,
            "dataChange true",
            action.inner.get("dataChange"),
        )


@on_views(MUST, "1.7")
def a_change_of_the_schema_is_told_where_it_happens(view: View) -> None:
    """Each version of the window whose schema differs from the one before has a metaData line with its version."""
    versions = view.versions_from(view.window_start)
    changed = view.with_another_schema(versions)
    if not changed:
        raise NothingToTry("no table changed its schema within the window")
    later = [line for line in _whole(view).later if line.kind == "metaData"]
    for line in later:
        expect_fields(line.where, line.value, {"version": COUNT}, {})
        told = int(line.value["version"])
        expect(told > versions[0], line.where, f"a version after {versions[0]}", told)
    missing = sorted(changed - {int(line.value["version"]) for line in later})
    expect(
        not missing, _whole(view).where, "a metaData line at each change of the schema", f"none at {missing}"
    )


@on_views(MUST, "1.7", formats=(DELTA,))
def protocols_are_told_when_asked_for(view: View) -> None:
    """includeHistoricalProtocol gives every protocol line its version; without it there is one, without."""
    start = view.window_start
    plain = [line.value.get("version") for line in _whole(view).lines if line.kind == "protocol"]
    expect(plain == [None], _whole(view).where, "one protocol line, without version", plain)
    reply = view.query(startingVersion=start, includeHistoricalProtocol=True)
    told = [line.value.get("version") for line in reply.lines if line.kind == "protocol"]
    is_fit = told[:1] == [start] and all(isinstance(one, int) and one > start for one in told[1:])
    expect(is_fit, reply.where, f"protocol lines with version, the first {start}, others later", told)


@on_views(MUST, "1.7", "0.19")
def windows_that_are_none_are_400(view: View) -> None:
    """A window that ends before it begins or begins below 0 is 400, and so is one beside a version or a time."""
    latest = view.versions[-1]
    for body in (
        {"startingVersion": latest + 1, "endingVersion": latest},
        {"startingVersion": -1},
        {"startingVersion": "x"},
        {"startingVersion": latest, "version": latest},
        {"startingVersion": latest, "timestamp": "2022-01-01T00:00:00Z"},
        {"version": latest, "timestamp": "2022-01-01T00:00:00Z"},
    ):
        view.ask(body).refusal(400)


@on_views(MUST, "2.1", "6.2")
def removed_files_can_be_read(view: View) -> None:
    """The URL of a removed file serves its bytes: the rows that were deleted are read from there."""
    removed = [action for action in _whole(view).actions if action.kind == "remove"]
    if not removed:
        raise NothingToTry("no window has a removed file")
    for action in removed[:2]:
        a_file_is_served(view, action)


@on_views(MUST, "1.7")
def a_window_adds_up(view: View) -> None:
    """The rows of each version, and those added, without those removed after it, are the rows of the next version."""
    versions = view.versions_from(view.window_start)
    if len(versions) < 2:
        raise NothingToTry("no window has two versions")
    known: dict[tuple[str, str], int | None] = {}
    for version in versions:
        known.update({action.key: action.rows for action in view.query(version=version).actions})
    known.update({action.key: action.rows for action in _whole(view).actions if action.kind == "add"})
    if None in (*known.values(), *(known.get(action.key) for action in _whole(view).actions)):
        raise NothingToTry("statistics do not tell the rows of every file")
    for earlier, version in pairwise(versions):
        rows = _rows_at(view, earlier)
        for action in _whole(view).actions:
            if earlier < action.version <= version:
                rows += (known[action.key] or 0) * (1 if action.kind == "add" else -1)
        wanted = _rows_at(view, version)
        expect(
            rows == wanted,
            _whole(view).where,
            f"{wanted} rows at version {version}",
            f"{rows} by this window",
        )


def _rows_at(view: View, version: int) -> int:
    return sum(action.rows or 0 for action in view.query(version=version).actions)


def _whole(view: View) -> Reply:
    return view.query(startingVersion=view.window_start)
