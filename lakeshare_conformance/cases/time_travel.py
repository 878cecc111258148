"""Snapshots of earlier versions."""

from datetime import UTC, datetime

from lakeshare_conformance.case import MUST, SHOULD, NothingToTry, expect, on_views
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Reply


@on_views(MUST, "1.7", "6.2")
def a_version_is_answered_as_asked(view: View) -> None:
    """A query with version answers that version: the header says so, and metaData if it tells a version."""
    for version in view.versions:
        reply = view.query(version=version)
        expect(reply.version == version, reply.where, f"version {version}", reply.version)
        told = reply.head[1].value.get("version")
        expect(told in (None, version), reply.where, f"metaData.version {version}", told)


@on_views(SHOULD, "2.1")
def a_version_asked_for_is_told_in_metadata(view: View) -> None:
    """metaData.version is there when a version was asked for."""
    reply = view.query(version=view.versions[-1])
    told = reply.head[1].value.get("version")
    expect(told == view.versions[-1], reply.where, f"metaData.version {view.versions[-1]}", told)


@on_views(MUST, "1.7", "2.6")
def the_latest_version_is_the_latest_snapshot(view: View) -> None:
    """Asked for by its number, the latest version has the files of a plain query."""
    reply = view.query(version=view.versions[-1])
    expect(reply.ids == view.snapshot.ids, reply.where, "the files of a plain query", sorted(reply.ids))


@on_views(MUST, "1.7")
def versions_are_read_from_text_too(view: View) -> None:
    """A version may be written as a text of digits, as some clients do."""
    version = view.versions[-1]
    reply = Reply(view.ask({"version": str(version)}))
    expect(reply.version == version, reply.where, f"version {version}", reply.version)


@on_views(MUST, "1.7", "1.5")
def a_time_gives_the_version_of_that_time(view: View) -> None:
    """timestamp answers the latest version committed at or before it; startingTimestamp the first at or after it."""
    times = commit_times(view)
    for version, at_ms in list(times.items())[:-1]:
        for late_ms in (0, 1):
            if at_ms + late_ms < min(other for other in times.values() if other > at_ms):
                moment = iso(at_ms + late_ms)
                for answer in (
                    view.ask({"timestamp": moment}),
                    view.table.metadata(view.announced, timestamp=moment),
                ):
                    found = answer.expect_status(200).version
                    expect(found == version, answer.asked, f"version {version}", found)
        answer = view.table.version(startingTimestamp=iso(at_ms)).expect_status(200)
        expect(answer.version == version, answer.asked, f"version {version}", answer.version)


@on_views(MUST, "1.7", "0.19")
def a_time_out_of_reach_is_400(view: View) -> None:
    """A timestamp before the first or after the last commit is 400."""
    if view.versions:
        for text in ("1970-01-02T00:00:00Z", "2999-01-01T00:00:00Z"):
            view.ask({"timestamp": text}).refusal(400)


@on_views(MUST, "1.7", "0.19")
def a_version_out_of_reach_is_400(view: View) -> None:
    """A version after the latest is 400, not 5xx: clients would ask again for minutes."""
    if view.versions:
        view.ask({"version": view.table.latest + 1000}).refusal(400)


def commit_times(view: View) -> dict[int, int]:
    """When versions were committed, in milliseconds, as file lines of a window tell it.

    Raises:
        NothingToTry: fewer than two versions have file lines.
    """
    actions = view.query(startingVersion=view.window_start).actions
    found = {action.version: action.timestamp_ms for action in actions}
    if len(found) < 2:
        raise NothingToTry(f"{view.table.name} tells the times of fewer than two versions")
    return dict(sorted(found.items()))


def iso(at_ms: int) -> str:
    """A time in ISO-8601, with milliseconds."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
