"""Queries of one version, in both response formats, and of windows of versions."""

import time
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

from lakeshare_conformance.case import (
    COUNT,
    DELTA,
    MUST,
    NAME,
    PARQUET,
    SHOULD,
    TEXT,
    TRUTH,
    URL,
    VALUES,
    WHOLE,
    Fields,
    Group,
    NotApplicable,
    expect,
    expect_fields,
)
from lakeshare_conformance.cases.files import a_file_is_served
from lakeshare_conformance.reply import Action, Reply, counted, is_partition_value, iso
from lakeshare_conformance.rows import get_physical_name
from lakeshare_conformance.targets import View

SNAPSHOTS = Group("snapshots", "The latest snapshot: lines, files, ids and expiry")

SHORTEST_LIFE_S = 15 * 60
SHORTEST_TOKEN = 10
PARQUET_FILE: Fields = {"url": URL, "id": NAME, "partitionValues": VALUES, "size": COUNT}
PARQUET_OPTIONAL: Fields = {"stats": TEXT, "version": COUNT, "timestamp": COUNT, "expirationTimestamp": COUNT}
DELTA_FILE: Fields = {"id": NAME}
DELTA_OPTIONAL: Fields = {
    "deletionVectorFileId": NAME,
    "version": COUNT,
    "timestamp": COUNT,
    "expirationTimestamp": COUNT,
}
DELTA_ADD: Fields = {
    "path": URL,
    "partitionValues": VALUES,
    "size": COUNT,
    "modificationTime": COUNT,
    "dataChange": TRUTH,
}


@SNAPSHOTS.on_views(MUST, "1.7", "0.1", "2.1", "2.2")
def a_snapshot_is_head_and_files(view: View) -> None:
    """A snapshot is the lines protocol and metaData, then lines of one key, file, and nothing else."""
    reply = view.snapshot
    reply.head  # noqa: B018 - raises when the first lines are others
    for line in reply.later:
        if line.kind != "endStreamAction":
            expect(line.kind == "file", line.where, "a file line", line.kind)
    kinds = {action.kind for action in reply.actions}
    expect(kinds <= {"add"}, reply.where, "files that are added, none removed", sorted(kinds))


@SNAPSHOTS.on_views(MUST, "0.1", "1.13")
def nobody_gets_an_end_that_did_not_ask(view: View) -> None:
    """No endStreamAction comes to a client that did not ask for it: the Python client dies of it."""
    kinds = [line.kind for line in view.snapshot.lines]
    expect("endStreamAction" not in kinds, view.snapshot.where, "no endStreamAction", kinds[-1])


@SNAPSHOTS.on_views(MUST, "2.1", "0.3", formats=(PARQUET,))
def parquet_files_have_the_documented_fields(view: View) -> None:
    """A file in parquet format has url (http or https), id, partitionValues and size, and stats as a text."""
    for action in view.snapshot.actions:
        expect_fields(action.where, action.outer, PARQUET_FILE, PARQUET_OPTIONAL)


@SNAPSHOTS.on_views(MUST, "2.2", "0.3", formats=(DELTA,))
def delta_files_have_the_documented_fields(view: View) -> None:
    """A file in delta format has an id and an add with path (a URL), partitionValues, size, modificationTime."""
    for action in view.snapshot.actions:
        expect_fields(action.where, action.outer, DELTA_FILE, DELTA_OPTIONAL)
        expect_fields(action.where, action.inner, DELTA_ADD, {"stats": TEXT})


@SNAPSHOTS.on_views(MUST, "2.1", "2.2")
def partition_values_are_of_the_partition_columns(view: View) -> None:
    """partitionValues has exactly the partition columns, by their physical names where columns are mapped."""
    columns = {get_physical_name(view.snapshot, name) for name in view.snapshot.partition_columns}
    for action in view.snapshot.actions:
        found = set(action.partition_values)
        expect(found == columns, action.where, f"partition values of {sorted(columns)}", sorted(found))


@SNAPSHOTS.on_views(MUST, "2.1")
def partition_values_are_written_as_their_type_is(view: View) -> None:
    """Partition values are texts in the form of their type: decimal numbers, yyyy-MM-dd, true and false."""
    kinds = {
        get_physical_name(view.snapshot, field["name"]): field.get("type") for field in view.snapshot.fields
    }
    if not view.snapshot.partition_columns:
        raise NotApplicable("no table is partitioned")
    for action in view.snapshot.actions:
        for name, value in action.partition_values.items():
            is_fit = is_partition_value(value, kinds.get(name))
            expect(is_fit, f"{action.where}, partition value {name}", f"a {kinds.get(name)} as text", value)


@SNAPSHOTS.on_views(MUST, "2.1")
def statistics_are_json(view: View) -> None:
    """stats holds JSON: numRecords, and minValues, maxValues and nullCount of columns of the table."""
    names = {str(field["name"]) for field in view.snapshot.fields}
    # Where columns are mapped, files may still speak of columns that were dropped.
    is_mapped = view.snapshot.is_mapped
    with_stats = [action for action in view.snapshot.actions if action.stats is not None]
    if not with_stats:
        raise NotApplicable("no file has statistics")
    for action in with_stats:
        stats, where = action.stats or {}, f"{action.where}, stats"
        expect_fields(where, stats, {}, {"numRecords": COUNT})
        for part in ("minValues", "maxValues", "nullCount"):
            of = stats.get(part) or {}
            is_fit = isinstance(of, dict) and (is_mapped or set(of) <= names)
            expect(is_fit, where, f"{part} of columns of the table", of)


@SNAPSHOTS.on_views(MUST, "2.6", "6.2")
def ids_are_unique(view: View) -> None:
    """Ids are unique in a reply: Spark keys its URLs by them."""
    ids = [action.id for action in view.snapshot.actions]
    repeated = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
    expect(not repeated, view.snapshot.where, "ids that are unique", repeated)


@SNAPSHOTS.on_views(MUST, "2.6", "4")
def ids_stay(view: View) -> None:
    """Asked again, the same version answers the same ids, with URLs that may be new."""
    again = Reply(view.ask({}))
    expect(
        again.ids == view.snapshot.ids,
        again.where,
        "the same ids again",
        sorted(again.ids ^ view.snapshot.ids),
    )


@SNAPSHOTS.on_views(MUST, "2.7", "6.2")
def urls_live_as_long_as_clients_need(view: View) -> None:
    """expirationTimestamp, where told, is more than 15 minutes ahead: Spark takes less for an error and guesses."""
    now_ms = int(time.time() * 1000)
    ends = [(action, action.expires_ms) for action in view.snapshot.actions]
    if all(end is None for _, end in ends):
        raise NotApplicable("no file tells when its URL ends")
    for action, end in ends:
        left_s = None if end is None else (end - now_ms) / 1000
        is_long = left_s is None or left_s > SHORTEST_LIFE_S
        expect(is_long, action.where, f"a URL that lives longer than {SHORTEST_LIFE_S} s", f"{left_s} s")


@SNAPSHOTS.on_views(SHOULD, "2.7")
def urls_tell_when_they_end(view: View) -> None:
    """Every file has expirationTimestamp."""
    for action in view.snapshot.actions:
        expect(action.expires_ms is not None, action.where, "expirationTimestamp", action.outer)


@SNAPSHOTS.on_views(SHOULD, "1.0")
def urls_do_not_hold_the_token(view: View) -> None:
    """The bearer token is not part of any URL."""
    token = view.table.client.token
    if len(token) < SHORTEST_TOKEN:
        raise NotApplicable("the token is so short that it may be part of any text")
    for action in view.snapshot.actions:
        expect(token not in action.url, action.where, "a URL without the bearer token", "one with it")


@SNAPSHOTS.on_views(SHOULD, "2.1", formats=(PARQUET,))
def a_plain_read_tells_no_version_in_its_lines(view: View) -> None:
    """Without version or timestamp in the request, metaData and files have no version."""
    reported = [line.where for line in view.snapshot.lines[1:] if line.value.get("version") is not None]
    expect(not reported, view.snapshot.where, "lines without version", reported[:3])


@SNAPSHOTS.on_views(MUST, "1.7")
def an_empty_object_asks_for_all(view: View) -> None:
    """The body {} asks for everything, and so does one with fields that the server does not know."""
    unknown = {"lakeshareConformance": {"a": [1]}, "requested_columns": [], "queryDeltaLog": False}
    for body in ({}, unknown):
        reply = Reply(view.ask(body))
        expect(reply.ids == view.snapshot.ids, reply.where, "all files", len(reply.ids))


@SNAPSHOTS.on_views(SHOULD, "1.7")
def the_content_type_of_a_request_is_optional(view: View) -> None:
    """A query is read with any content type and with none, and an empty body asks for everything."""
    variants: tuple[Callable[[], Reply], ...] = (
        lambda: Reply(view.ask({}, **{"Content-Type": "application/json"})),
        lambda: Reply(view.ask({}, **{"Content-Type": ""})),
        lambda: Reply(view.ask(b"")),
    )
    for variant in variants:
        reply = variant()
        expect(reply.ids == view.snapshot.ids, reply.where, "all files", len(reply.ids))


@SNAPSHOTS.on_views(SHOULD, "1.7", formats=(DELTA,))
def both_formats_answer_the_same_files(view: View) -> None:
    """A table served in both formats has the same files in both."""
    other = view.table.view(PARQUET)
    if other is None:
        raise NotApplicable("no table is served in both formats")
    sizes, wanted = (sorted(action.size_bytes for action in one.snapshot.actions) for one in (view, other))
    expect(sizes == wanted, view.snapshot.where, f"files of the sizes {wanted[:20]}", sizes[:20])


DELTA_FORMAT = Group("delta-format", "What delta format adds to a file")

SIGNATURE_KEYS = frozenset(
    ("x-amz-signature", "sp", "x-goog-credential", "x-oss-credential", "x-databricks-signature")
)


@DELTA_FORMAT.on_views(MUST, "0.2", "6.1", formats=(DELTA,))
def urls_have_a_signature_the_python_client_knows(view: View) -> None:
    """The query of each URL, of vectors too, has a key that the Python client knows, like X-Amz-Signature."""
    for action in view.snapshot.actions:
        for url in urls_of(action):
            keys = {key.lower() for key, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
            expect(
                bool(keys & SIGNATURE_KEYS),
                action.where,
                f"one of {sorted(SIGNATURE_KEYS)} in the URL",
                sorted(keys),
            )


@DELTA_FORMAT.on_views(MUST, "2.2", formats=(DELTA,))
def mapped_columns_keep_their_mapping(view: View) -> None:
    """With column mapping every column of schemaString has its id and its physical name."""
    if not view.snapshot.is_mapped:
        raise NotApplicable("no table maps its columns")
    for field in view.snapshot.fields:
        metadata, where = field.get("metadata") or {}, f"{view.snapshot.where}, column {field['name']}"
        expect_fields(where, metadata, {"delta.columnMapping.id": WHOLE}, {})
        name = metadata.get("delta.columnMapping.physicalName")
        expect(isinstance(name, str) and name != "", where, "delta.columnMapping.physicalName", metadata)


@DELTA_FORMAT.on_views(MUST, "0.18", "2.2", formats=(DELTA,))
def row_tracking_is_whole(view: View) -> None:
    """With delta.enableRowTracking every file has baseRowId and defaultRowCommitVersion; Spark fails otherwise."""
    if view.snapshot.configuration.get("delta.enableRowTracking") != "true":
        raise NotApplicable("no table is sent with row tracking")
    for action in view.snapshot.actions:
        expect_fields(action.where, action.inner, {"baseRowId": COUNT, "defaultRowCommitVersion": COUNT}, {})


def urls_of(action: Action) -> list[str]:
    """The URLs a client fetches for a file: its own, and its deletion vector's."""
    vector = action.vector or {}
    return [action.url, *([str(vector.get("pathOrInlineDv"))] if vector.get("storageType") == "p" else [])]


TIME_TRAVEL = Group("time-travel", "Snapshots of earlier versions")


@TIME_TRAVEL.on_views(MUST, "1.7", "6.2")
def a_version_is_answered_as_asked(view: View) -> None:
    """A query with version answers that version: the header says so, and metaData if it tells a version."""
    for version in view.versions:
        reply = view.query(version=version)
        expect(reply.version == version, reply.where, f"version {version}", reply.version)
        reported = reply.head[1].value.get("version")
        expect(reported in (None, version), reply.where, f"metaData.version {version}", reported)


@TIME_TRAVEL.on_views(SHOULD, "2.1")
def a_version_asked_for_is_told_in_metadata(view: View) -> None:
    """metaData.version is there when a version was asked for."""
    reply = view.query(version=view.versions[-1])
    reported = reply.head[1].value.get("version")
    expect(reported == view.versions[-1], reply.where, f"metaData.version {view.versions[-1]}", reported)


@TIME_TRAVEL.on_views(MUST, "1.7", "2.6")
def the_latest_version_is_the_latest_snapshot(view: View) -> None:
    """Asked for by its number, the latest version has the files of a plain query."""
    reply = view.query(version=view.versions[-1])
    expect(reply.ids == view.snapshot.ids, reply.where, "the files of a plain query", sorted(reply.ids))


@TIME_TRAVEL.on_views(MUST, "1.7")
def versions_are_read_from_text_too(view: View) -> None:
    """A version may be written as a text of digits, as some clients do."""
    version = view.versions[-1]
    reply = Reply(view.ask({"version": str(version)}))
    expect(reply.version == version, reply.where, f"version {version}", reply.version)


@TIME_TRAVEL.on_views(MUST, "1.7", "1.5")
def a_time_gives_the_version_of_that_time(view: View) -> None:
    """timestamp answers the latest version committed at or before it; startingTimestamp the first at or after it."""
    times = commit_times(view)
    for version, at_ms in list(times.items())[:-1]:
        for late_ms in (0, 1):
            if at_ms + late_ms < min(other for other in times.values() if other > at_ms):
                moment = iso(at_ms + late_ms)
                for response in (
                    view.ask({"timestamp": moment}),
                    view.table.metadata(view.announced, timestamp=moment),
                ):
                    found = response.expect_status(200).version
                    expect(found == version, response.request, f"version {version}", found)
        response = view.table.version(startingTimestamp=iso(at_ms)).expect_status(200)
        expect(response.version == version, response.request, f"version {version}", response.version)


@TIME_TRAVEL.on_views(MUST, "1.7", "0.19")
def a_time_out_of_reach_is_400(view: View) -> None:
    """A timestamp before the first or after the last commit is 400."""
    if view.versions:
        for text in ("1970-01-02T00:00:00Z", "2999-01-01T00:00:00Z"):
            view.ask({"timestamp": text}).refusal(400)


@TIME_TRAVEL.on_views(MUST, "1.7", "0.19")
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
        raise NotApplicable(f"{view.table.name} tells the times of fewer than two versions")
    return dict(sorted(found.items()))


WINDOWS = Group("windows", "Windows of versions, as streams read them")

LATER_KINDS = {"parquet": {"add", "remove", "metaData"}, "delta": {"file", "metaData"}}


@WINDOWS.on_views(MUST, "1.7", "6.2")
def a_window_begins_with_its_first_version(view: View) -> None:
    """The head is that of startingVersion, metaData.version tells it, and so does the header."""
    for version in view.versions_from(view.window_start):
        reply = view.query(startingVersion=version)
        expect(reply.version == version, reply.where, f"the header to tell {version}", reply.version)
        reported = reply.head[1].value.get("version")
        expect(reported == version, reply.where, f"metaData.version {version}", reported)
        wanted = view.query(version=version).metadata.get("schemaString")
        expect(
            reply.metadata.get("schemaString") == wanted,
            reply.where,
            "the schema of its first version",
            "another",
        )


@WINDOWS.on_views(MUST, "1.7", "0.1", "2.1", "2.2")
def a_window_has_adds_and_removes(view: View) -> None:
    """After the head come add, remove and later metaData lines (in delta format file and metaData), nothing else."""
    for line in _whole(view).later:
        allowed = LATER_KINDS[view.format]
        expect(line.kind in allowed, line.where, f"one of {sorted(allowed)}", line.kind)
    kinds = {action.kind for action in _whole(view).actions}
    expect(kinds <= {"add", "remove"}, _whole(view).where, "added and removed files", sorted(kinds))


@WINDOWS.on_views(MUST, "2.1", "6.2")
def files_of_a_window_tell_version_and_time(view: View) -> None:
    """Every file of a window has version and timestamp, and a size, removed ones too."""
    for action in _whole(view).actions:
        expect_fields(action.where, action.outer, {"version": COUNT, "timestamp": COUNT}, {})
        expect_fields(action.where, action.inner, {"size": COUNT}, {})


@WINDOWS.on_views(SHOULD, "1.7")
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


@WINDOWS.on_views(MUST, "1.7")
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


@WINDOWS.on_views(MUST, "1.7")
def a_window_without_an_end_goes_to_the_latest(view: View) -> None:
    """Without endingVersion the window ends with the latest version."""
    whole = Reply(view.ask({"startingVersion": view.window_start, "endingVersion": view.table.latest}))
    expect(
        counted(_whole(view).actions) == counted(whole.actions),
        _whole(view).where,
        "the same files",
        "others",
    )


@WINDOWS.on_views(MUST, "1.7", formats=(DELTA,))
def a_window_has_data_changes_only(view: View) -> None:
    """Files that only rearranged data (dataChange false) are not part of a window."""
    for action in _whole(view).actions:
        expect(
            action.inner.get("dataChange") is True,
            action.where,
            "dataChange true",
            action.inner.get("dataChange"),
        )


@WINDOWS.on_views(MUST, "1.7")
def a_change_of_the_schema_is_told_where_it_happens(view: View) -> None:
    """Each version of the window whose schema differs from the one before has a metaData line with its version."""
    versions = view.versions_from(view.window_start)
    changed = view.with_another_schema(versions)
    if not changed:
        raise NotApplicable("no table changed its schema within the window")
    later = [line for line in _whole(view).later if line.kind == "metaData"]
    for line in later:
        expect_fields(line.where, line.value, {"version": COUNT}, {})
        reported = int(line.value["version"])
        expect(reported > versions[0], line.where, f"a version after {versions[0]}", reported)
    missing = sorted(changed - {int(line.value["version"]) for line in later})
    expect(
        not missing, _whole(view).where, "a metaData line at each change of the schema", f"none at {missing}"
    )


@WINDOWS.on_views(MUST, "1.7", formats=(DELTA,))
def protocols_are_told_when_asked_for(view: View) -> None:
    """includeHistoricalProtocol gives every protocol line its version; without it there is one, without."""
    start = view.window_start
    plain = [line.value.get("version") for line in _whole(view).lines if line.kind == "protocol"]
    expect(plain == [None], _whole(view).where, "one protocol line, without version", plain)
    reply = view.query(startingVersion=start, includeHistoricalProtocol=True)
    reported = [line.value.get("version") for line in reply.lines if line.kind == "protocol"]
    is_fit = reported[:1] == [start] and all(isinstance(one, int) and one > start for one in reported[1:])
    expect(is_fit, reply.where, f"protocol lines with version, the first {start}, others later", reported)


@WINDOWS.on_views(MUST, "1.7", "0.19")
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


@WINDOWS.on_views(MUST, "2.1", "6.2")
def removed_files_can_be_read(view: View) -> None:
    """The URL of a removed file serves its bytes: the rows that were deleted are read from there."""
    removed = [action for action in _whole(view).actions if action.kind == "remove"]
    if not removed:
        raise NotApplicable("no window has a removed file")
    for action in removed[:2]:
        a_file_is_served(view, action)


@WINDOWS.on_views(MUST, "1.7")
def a_window_adds_up(view: View) -> None:
    """The rows of each version, and those added, without those removed after it, are the rows of the next version."""
    versions = view.versions_from(view.window_start)
    if len(versions) < 2:
        raise NotApplicable("no window has two versions")
    known: dict[tuple[str, str], int | None] = {}
    for version in versions:
        known.update({action.key: action.rows for action in view.query(version=version).actions})
    known.update({action.key: action.rows for action in _whole(view).actions if action.kind == "add"})
    if None in (*known.values(), *(known.get(action.key) for action in _whole(view).actions)):
        raise NotApplicable("statistics do not tell the rows of every file")
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
