"""Reads of a table's history: earlier versions, windows of versions, and the change data feed."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_conformance.case import DELTA, PARQUET, Group, require
from lakeshare_conformance.cases.snapshots import fetch_whole
from lakeshare_conformance.client import FAR_AHEAD, LONG_AGO, METADATA, NOON, PROTOCOL, Response
from lakeshare_conformance.rows import MAX_BYTES, count_differences, read_parquet, select_rows
from lakeshare_conformance.targets import DeltaView, Table, View
from lakeshare_conformance.wire import Action


class TimeTravel(Group):
    """Snapshots of earlier versions."""

    def a_version_is_answered_as_asked(self, view: View) -> None:
        """must §1.7, §6.2: A query with version answers that version: it is in the header, and in metaData if
        that has a version."""
        for version in view.versions:
            reply = view.query(version=version)
            reply.expect_version(version)
            if reply.shared.version is not None:
                _expect_metadata_version(reply, version)

    def a_requested_version_is_in_metadata(self, view: View) -> None:
        """should §2.1: metaData.version is there when a version was asked for."""
        _expect_metadata_version(view.query(version=view.versions[-1]), view.versions[-1])

    def the_latest_version_is_the_latest_snapshot(self, view: View) -> None:
        """must §1.7, §2.6: Asked for by its number, the latest version has the files of a plain query."""
        reply = view.query(version=view.versions[-1])
        reply.expect_ids(view.snapshot.ids, "the files of a plain query")

    def versions_are_read_from_text_too(self, view: View) -> None:
        """must §1.7: A version may be written as a text of digits, as some clients do."""
        version = view.versions[-1]
        view.ask({"version": str(version)}).read().expect_version(version)

    def a_time_gives_the_version_of_that_time(self, view: View) -> None:
        """must §1.7, §1.5: timestamp answers the latest version committed at or before it; startingTimestamp
        the first at or after it."""
        times = {action.version: action.timestamp for action in view.window.actions}
        require(len(times) >= 2, f"{view.table.name} has the times of fewer than two versions")
        for version, at_ms in sorted(times.items())[:-1]:
            # A window has no versions without changed data, and so not their times.
            until_ms = times.get(version + 1, at_ms + 1)
            for moment in (format_time(at_ms + late_ms) for late_ms in (0, 1) if at_ms + late_ms < until_ms):
                view.ask({"timestamp": moment}).expect_status(200).expect_version(version)
                metadata = view.table.metadata(view.announced, timestamp=moment)
                metadata.expect_status(200).expect_version(version)
            response = view.table.version(startingTimestamp=format_time(at_ms))
            response.expect_status(200).expect_version(version)

    def a_time_out_of_reach_is_400(self, view: View) -> None:
        """must §1.7, §0.19: A timestamp before the first or after the last commit is 400."""
        if view.versions:
            view.refuse({"timestamp": LONG_AGO}, {"timestamp": FAR_AHEAD})

    def a_version_out_of_reach_is_400(self, view: View) -> None:
        """must §1.7, §0.19: A version after the latest is 400, not 5xx: clients would ask again for minutes."""
        if view.versions:
            view.refuse({"version": view.table.latest + 1000})


def format_time(at_ms: int) -> str:
    """A time in ISO-8601, with milliseconds."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def _expect_metadata_version(reply: Response, version: int) -> None:
    actual = reply.shared.version
    reply.expect(actual == version, f"metaData.version {version}", actual)


class Windows(Group):
    """Windows of versions, as streams read them."""

    def a_window_begins_with_its_first_version(self, view: View) -> None:
        """must §1.7, §6.2: The head is that of startingVersion, which metaData.version and the header have, too."""
        for version in view.versions_from(view.window_start):
            reply = view.query(startingVersion=version)
            reply.expect_version(version)
            _expect_metadata_version(reply, version)
            is_same = reply.metadata.schema_string == view.query(version=version).metadata.schema_string
            reply.expect(is_same, "the schema of its first version", "another")

    def a_window_has_adds_and_removes(self, view: View) -> None:
        """must §1.7, §0.1, §2.1, §2.2: After the head come add, remove and later metaData lines (in delta
        format file and metaData), nothing else."""
        view.window.expect_later(METADATA, *(("add", "remove") if view.format == PARQUET else ("file",)))
        view.window.expect_actions("add", "remove")

    def files_of_a_window_have_version_and_time(self, view: View) -> None:
        """must §2.1, §6.2: Every file of a window has version and timestamp, and a size, removed ones too."""
        view.window.expect_fields("version", "timestamp")

    def times_grow_with_versions(self, view: View) -> None:
        """should §1.7: All files of a version have one time, and later versions later ones."""
        times: dict[int, int] = {}
        for action in view.window.actions:
            known = times.setdefault(action.version, action.timestamp)
            action.expect(known == action.timestamp, f"the time {known} of its version", action.timestamp)
        in_order = [times[version] for version in sorted(times)]
        view.window.expect(in_order == sorted(set(in_order)), "times that grow with versions", times)

    def a_window_keeps_its_bounds(self, view: View) -> None:
        """must §1.7: startingVersion and endingVersion are both inclusive: single versions together are the
        whole window."""
        start, end = view.window_start, view.table.latest
        whole = view.ask({"startingVersion": start, "endingVersion": end}).read()
        for action in whole.actions:
            action.expect(start <= action.version <= end, f"a version from {start} to {end}", action.version)
        for version in view.versions_from(start):
            for first in {start, version}:
                part = view.ask({"startingVersion": first, "endingVersion": version}).read()
                part.expect_files(_select(whole, first, version), f"versions {first} to {version}")

    def a_window_without_an_end_goes_to_the_latest(self, view: View) -> None:
        """must §1.7: Without endingVersion the window ends with the latest version."""
        whole = view.ask({"startingVersion": view.window_start, "endingVersion": view.table.latest}).read()
        view.window.expect_files(whole.actions, "the window until the latest version")

    def a_window_has_data_changes_only(self, view: DeltaView) -> None:
        """must §1.7: Files that only rearranged data (dataChange false) are not part of a window."""
        for action in view.window.actions:
            action.expect(action.data_change is True, "dataChange true", action.data_change)

    def a_change_of_the_schema_is_sent_at_its_version(self, view: View) -> None:
        """must §1.7: Each version of the window whose schema differs from the one before has a metaData line
        with its version."""
        start = view.window_start
        changed, later = view.find_schema_changes(start), _list_metadata_versions(view.window)
        for version in later:
            is_fit = isinstance(version, int) and version > start
            view.window.expect(is_fit, f"metaData.version after {start}", version)
        missing = sorted(changed - set(later))
        view.window.expect(not missing, f"a metaData line at each of {sorted(changed)}", later)

    def protocols_are_sent_on_request(self, view: DeltaView) -> None:
        """must §1.7: includeHistoricalProtocol gives every protocol line its version; without it there is one,
        without."""
        start = view.window_start
        plain = [line.value.get("version") for line in view.window.lines if line.kind == PROTOCOL]
        view.window.expect(plain == [None], "one protocol line, without version", plain)
        reply = view.query(startingVersion=start, includeHistoricalProtocol=True)
        found = [line.value.get("version") for line in reply.lines if line.kind == PROTOCOL]
        is_fit = found[:1] == [start] and all(isinstance(one, int) and one > start for one in found[1:])
        reply.expect(is_fit, f"protocol lines with version, the first {start}, others later", found)

    def windows_that_are_none_are_400(self, view: View) -> None:
        """must §1.7, §0.19: A window that ends before it begins or begins below 0 is 400, and so is one beside
        a version or a time."""
        latest = view.versions[-1]
        view.refuse(
            {"startingVersion": latest + 1, "endingVersion": latest},
            {"startingVersion": -1},
            {"startingVersion": "x"},
            {"startingVersion": latest, "version": latest},
            {"startingVersion": latest, "timestamp": NOON},
            {"version": latest, "timestamp": NOON},
        )

    def removed_files_can_be_read(self, view: View) -> None:
        """must §2.1, §6.2: The URL of a removed file serves its bytes: the rows that were deleted are read from
        there."""
        removed = [action for action in view.window.actions if action.kind == "remove"]
        for action in require(removed, "no window has a removed file")[:2]:
            fetch_whole(view, action)

    def a_window_adds_up(self, view: View) -> None:
        """must §1.7: The rows of each version, and those added, without those removed after it, are the rows of
        the next version."""
        versions = view.versions_from(view.window_start)
        require(len(versions) >= 2, "no window has two versions")
        snapshots = {version: view.query(version=version).actions for version in versions}
        known = {action.key: action.rows for actions in snapshots.values() for action in actions}
        known |= {action.key: action.rows for action in view.window.actions if action.kind == "add"}
        counts = (*known.values(), *(known.get(action.key) for action in view.window.actions))
        require(None not in counts, "statistics do not have the rows of every file")
        for earlier, version in pairwise(versions):
            rows = sum(action.rows or 0 for action in snapshots[earlier])
            for action in _select(view.window, earlier + 1, version):
                rows += (known[action.key] or 0) * (1 if action.kind == "add" else -1)
            wanted = sum(action.rows or 0 for action in snapshots[version])
            found = f"{rows} by this window"
            view.window.expect(rows == wanted, f"{wanted} rows", found, f"version {version}")


def _list_metadata_versions(reply: Response) -> list[object]:
    return [line.value.get("version") for line in reply.later if line.kind == METADATA]


# The change types of rows that an action adds and takes away.
CHANGE_TYPES = {"add": ["insert", "update_postimage"], "remove": ["delete", "update_preimage"]}
MAX_ROWS = 200_000
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"


class Changes(Group):
    """The change data feed: lines, files and rows."""

    def changes_begin_with_a_head(self, view: View) -> None:
        """must §1.8, §1.0: Changes are protocol, metaData, then files; NDJSON; the header has the starting version."""
        view.feed.expect_head()
        view.feed.expect_version(view.change_start)
        view.feed.expect_media_type("application/x-ndjson")
        view.feed.expect_format(view.format)

    def changes_are_added_removed_and_changed_files(self, view: View) -> None:
        """must §1.8, §0.1: After the head come add, remove and cdf lines (in delta format file lines), and
        nothing else."""
        view.feed.expect_later(*(("add", "remove", "cdf") if view.format == PARQUET else ("file",)))
        for action in view.feed.actions if view.format == DELTA else ():
            is_fit = action.kind != "cdc" or action.data_change is False
            action.expect(is_fit, "dataChange false in cdc", action.data_change)

    def changes_have_version_and_time(self, view: View) -> None:
        """must §0.13, §2.1, §6.2: Every file of a change has version and timestamp, and a size."""
        view.feed.expect_fields("version", "timestamp")

    def metadata_of_changes_has_its_version(self, view: View) -> None:
        """must §0.13, §1.8: The head's metaData has a version; the starting one when includeHistoricalMetadata
        is asked for."""
        view.feed.expect(view.feed.shared.version is not None, "metaData.version", "none")
        _expect_metadata_version(view.feed_with_metadata, view.change_start)

    def changes_in_delta_format_say_that_they_are_recorded(self, view: DeltaView) -> None:
        """must §0.13: The head's configuration has delta.enableChangeDataFeed, and the writer protocol allows it."""
        feed, wanted = view.feed, "a writer protocol with the change data feed"
        feed.expect(feed.is_on(CHANGE_DATA_FEED), f"{CHANGE_DATA_FEED} true", "another value")
        feed.expect(feed.protocol.allows_change_data_feed, wanted, feed.protocol.fields)

    def booleans_are_read_in_any_case(self, view: View) -> None:
        """must §0.11, §1.8: includeHistoricalMetadata=True, as the Python client writes it, is true."""
        wanted = view.feed_with_metadata.kinds
        for text in ("True", "TRUE"):
            reply = view.changes(startingVersion=view.change_start, includeHistoricalMetadata=text)
            what = "the lines of includeHistoricalMetadata=true"
            reply.expect(reply.kinds == wanted, what, reply.kinds[:10])

    def changes_of_the_schema_are_sent_on_request(self, view: View) -> None:
        """must §1.8: With includeHistoricalMetadata every later change of the schema is a metaData line with
        its version."""
        changed = view.find_schema_changes(view.change_start)
        reply = view.feed_with_metadata
        found = _list_metadata_versions(reply)
        reply.expect(changed <= set(found), f"a metaData line at each of {sorted(changed)}", found)

    def changed_rows_stand_alone(self, view: View) -> None:
        """must §1.8: A version with files of changed rows (cdf, cdc) has no others: they would count twice."""
        kinds: dict[int, set[str]] = {}
        for action in view.feed.actions:
            kinds.setdefault(action.version, set()).add(action.kind)
        for version, found in kinds.items():
            is_alone = "cdc" not in found or found == {"cdc"}
            view.feed.expect(is_alone, "changed rows alone", sorted(found), f"version {version}")

    def files_of_changes_can_be_read(self, view: View) -> None:
        """must §1.8, §2.1: The URLs of added, changed and removed files serve their bytes."""
        for action in {action.kind: action for action in reversed(view.feed.actions)}.values():
            fetch_whole(view, action)

    def changed_rows_have_their_kind(self, view: View) -> None:
        """must §1.8: Files of changed rows have the column _change_type: insert, update_preimage,
        update_postimage or delete."""
        changed = [action for action in view.feed.actions if action.kind == "cdc"]
        for action in require(changed, "no version has files of changed rows")[:3]:
            rows = read_parquet(view, action)
            action.expect("_change_type" in rows.column_names, "a column _change_type", rows.column_names)
            found = set(pc.unique(rows.column("_change_type")).to_pylist())
            known = set().union(*CHANGE_TYPES.values())
            action.expect(found <= known, f"_change_type in {sorted(known)}", sorted(map(str, found)))

    def changes_add_up(self, view: View) -> None:
        """must §1.8: The rows of each version, with those inserted and without those deleted after it, are the
        next version's."""
        versions = view.versions_from(view.change_start)
        require(len(versions) >= 2, "no range of changes has two versions")
        snapshots = {version: view.query(version=version) for version in versions}
        stored = _read_stored_files(view, [view.feed, *snapshots.values()])
        for earlier, version in pairwise(versions):
            after, changed = snapshots[version], _select(view.feed, earlier + 1, version)
            found = _select_rows(after, [*snapshots[earlier].actions, *changed], stored, "add")
            wanted = _select_rows(after, after.actions, stored, "add")
            total = sum(table.num_rows for table in wanted)
            deleted = _select_rows(after, changed, stored, "remove")
            missing, extra = count_differences(found, [*wanted, *deleted])
            what, actual = (
                f"its {total} rows from version {earlier} on",
                f"{missing} missing, {extra} too many",
            )
            view.feed.expect(missing + extra == 0, what, actual, f"version {version}")

    def changes_that_were_not_recorded_are_400(self, table: Table) -> None:
        """must §1.8, §0.19: Changes of a table that does not record or share them are 400."""
        delta = table.view(DELTA)
        response = table.first_view.ask_changes({"startingVersion": 0})
        if response.status == 200:
            # Clients go by the head of the changes; for tables of other formats it is the only evidence.
            is_recorded = delta is None or delta.changes(startingVersion=0).is_on(CHANGE_DATA_FEED)
            require(not is_recorded, "every table records its changes")
        response.refusal(400)


def _read_stored_files(view: View, replies: Iterable[Response]) -> dict[str, pa.Table]:
    """Every file of the replies by its id, read once; `NotApplicable` if large or with deletion vectors."""
    actions = {action.id: action for reply in replies for action in reply.actions}
    size = sum(action.size for action in actions.values())
    is_fit = size <= MAX_BYTES and not any(action.deletion_vector for action in actions.values())
    require(is_fit, f"{view.table.name} is too large to compare, or has deletion vectors")
    stored = {id: read_parquet(view, action) for id, action in actions.items()}
    rows = sum(table.num_rows for table in stored.values())
    require(rows <= MAX_ROWS, f"{view.table.name} is too large to compare: {rows} rows")
    return stored


def _select_rows(
    schema: Response, actions: Iterable[Action], stored: Mapping[str, pa.Table], kind: str
) -> list[pa.Table]:
    """The rows that files add (`add`) or take away (`remove`), under the columns of a reply."""
    changes = pc.field("_change_type").isin(CHANGE_TYPES[kind])
    return [
        select_rows(schema, action, rows.filter(changes) if action.kind == "cdc" else rows)
        for action in actions
        for rows in [stored[action.id]]
        if action.kind in (kind, "cdc")
    ]


class ChangeBounds(Group):
    """The bounds of a range of changes."""

    def both_ends_belong_to_the_range(self, view: View) -> None:
        """must §1.8: startingVersion and endingVersion are both inclusive: single versions together are the
        whole range."""
        for version in view.versions_from(view.change_start):
            part = view.changes(startingVersion=version, endingVersion=version)
            part.expect_files(_select(view.feed, version, version), f"version {version}")
            part.expect_version(version)

    def a_range_has_all_versions_up_to_its_end(self, view: View) -> None:
        """must §1.8: A range that begins at the first version has the changes of every version up to its end,
        the end included."""
        start = view.change_start
        for version in view.versions_from(start)[1:]:
            part = view.changes(startingVersion=start, endingVersion=version)
            part.expect_files(_select(view.feed, start, version), f"the versions up to {version}")

    def an_end_beyond_the_latest_is_the_latest(self, view: View) -> None:
        """should §1.8: An endingVersion after the latest version stands for the latest one."""
        reply = view.changes(startingVersion=view.change_start, endingVersion=view.table.latest + 1000)
        reply.expect_files(view.feed.actions, "the changes until the latest version")

    def times_bound_a_range_too(self, view: View) -> None:
        """must §1.8: startingTimestamp is the first version at or after it, endingTimestamp the last at or
        before it."""
        times = {action.version: action.timestamp for action in view.feed.actions}
        require(times, "no changes have times")
        first, last = min(times), max(times)
        # All versions; and from a millisecond after the first to one before the last, without these two versions.
        for inset in (0, 1) if len(times) > 2 else (0,):
            start, end = format_time(times[first] + inset), format_time(times[last] - inset)
            bounds = {"startingTimestamp": start, "endingTimestamp": end}
            wanted = _select(view.feed, first + inset, last - inset)
            view.ask_changes(bounds).read().expect_files(wanted, f"the versions between {bounds}")

    def ranges_that_are_none_are_400(self, view: View) -> None:
        """must §1.8, §0.19: A range without a start, with two starts or two ends, ending before it begins, or
        out of reach, is 400."""
        start, latest = view.change_start, view.table.latest
        view.refuse_changes(
            {},
            {"endingVersion": latest},
            {"startingVersion": start, "startingTimestamp": NOON},
            {"startingVersion": start, "endingVersion": latest, "endingTimestamp": NOON},
            {"startingVersion": latest, "endingVersion": latest - 1},
            {"startingVersion": latest + 1000},
            {"startingVersion": -1},
            {"startingVersion": "x"},
            {"startingVersion": start, "endingVersion": "x"},
            {"startingTimestamp": FAR_AHEAD},
            {"startingTimestamp": "not a time"},
            {"startingVersion": start, "endingTimestamp": LONG_AGO},
        )

    def changes_end_without_an_action_unless_asked(self, view: View) -> None:
        """must §0.1, §1.13: No endStreamAction comes after changes to a client that did not ask for it."""
        view.feed.expect_end(False)


def _select(reply: Response, first: int, last: int) -> list[Action]:
    return [action for action in reply.actions if first <= action.version <= last]
