"""The latest snapshot: lines, files, ids and expiry."""

import time
from collections.abc import Callable

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
    Fields,
    NothingToTry,
    expect,
    expect_fields,
    on_views,
)
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Reply, is_partition_value
from lakeshare_conformance.rows import physical_name

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


@on_views(MUST, "1.7", "0.1", "2.1", "2.2")
def a_snapshot_is_head_and_files(view: View) -> None:
    """A snapshot is the lines protocol and metaData, then lines of one key, file, and nothing else."""
    reply = view.snapshot
    reply.head  # noqa: B018 - raises when the first lines are others
    for line in reply.later:
        if line.kind != "endStreamAction":
            expect(line.kind == "file", line.where, "a file line", line.kind)
    kinds = {action.kind for action in reply.actions}
    expect(kinds <= {"add"}, reply.where, "files that are added, none removed", sorted(kinds))


@on_views(MUST, "0.1", "1.13")
def nobody_gets_an_end_that_did_not_ask(view: View) -> None:
    """No endStreamAction comes to a client that did not ask for it: the Python client dies of it."""
    kinds = [line.kind for line in view.snapshot.lines]
    expect("endStreamAction" not in kinds, view.snapshot.where, "no endStreamAction", kinds[-1])


@on_views(MUST, "2.1", "0.3", formats=(PARQUET,))
def parquet_files_have_the_documented_fields(view: View) -> None:
    """A file in parquet format has url (http or https), id, partitionValues and size, and stats as a text."""
    for action in view.snapshot.actions:
        expect_fields(action.where, action.outer, PARQUET_FILE, PARQUET_OPTIONAL)


@on_views(MUST, "2.2", "0.3", formats=(DELTA,))
def delta_files_have_the_documented_fields(view: View) -> None:
    """A file in delta format has an id and an add with path (a URL), partitionValues, size, modificationTime."""
    for action in view.snapshot.actions:
        expect_fields(action.where, action.outer, DELTA_FILE, DELTA_OPTIONAL)
        expect_fields(action.where, action.inner, DELTA_ADD, {"stats": TEXT})


@on_views(MUST, "2.1", "2.2")
def partition_values_are_of_the_partition_columns(view: View) -> None:
    """partitionValues has exactly the partition columns, by their physical names where columns are mapped."""
    columns = {physical_name(view.snapshot, name) for name in view.snapshot.partition_columns}
    for action in view.snapshot.actions:
        found = set(action.partition_values)
        expect(found == columns, action.where, f"partition values of {sorted(columns)}", sorted(found))


@on_views(MUST, "2.1")
def partition_values_are_written_as_their_type_is(view: View) -> None:
    """Partition values are texts in the form of their type: decimal numbers, yyyy-MM-dd, true and false."""
    kinds = {physical_name(view.snapshot, field["name"]): field.get("type") for field in view.snapshot.fields}
    if not view.snapshot.partition_columns:
        raise NothingToTry("no table is partitioned")
    for action in view.snapshot.actions:
        for name, value in action.partition_values.items():
            is_fit = is_partition_value(value, kinds.get(name))
            expect(is_fit, f"{action.where}, partition value {name}", f"a {kinds.get(name)} as text", value)


@on_views(MUST, "2.1")
def statistics_are_json(view: View) -> None:
    """stats holds JSON: numRecords, and minValues, maxValues and nullCount of columns of the table."""
    names = {str(field["name"]) for field in view.snapshot.fields}
    # Where columns are mapped, files may still speak of columns that were dropped.
    is_mapped = view.snapshot.is_mapped
    with_stats = [action for action in view.snapshot.actions if action.stats is not None]
    if not with_stats:
        raise NothingToTry("no file has statistics")
    for action in with_stats:
        stats, where = action.stats or {}, f"{action.where}, stats"
        expect_fields(where, stats, {}, {"numRecords": COUNT})
        for part in ("minValues", "maxValues", "nullCount"):
            of = stats.get(part) or {}
            is_fit = isinstance(of, dict) and (is_mapped or set(of) <= names)
            expect(is_fit, where, f"{part} of columns of the table", of)


@on_views(MUST, "2.6", "6.2")
def ids_are_unique(view: View) -> None:
    """Ids are unique in a reply: Spark keys its URLs by them."""
    ids = [action.id for action in view.snapshot.actions]
    repeated = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
    expect(not repeated, view.snapshot.where, "ids that are unique", repeated)


@on_views(MUST, "2.6", "4")
def ids_stay(view: View) -> None:
    """Asked again, the same version answers the same ids, with URLs that may be new."""
    again = Reply(view.ask({}))
    expect(
        again.ids == view.snapshot.ids,
        again.where,
        "the same ids again",
        sorted(again.ids ^ view.snapshot.ids),
    )


@on_views(MUST, "2.7", "6.2")
def urls_live_as_long_as_clients_need(view: View) -> None:
    """expirationTimestamp, where told, is more than 15 minutes ahead: Spark takes less for an error and guesses."""
    now_ms = int(time.time() * 1000)
    ends = [(action, action.expires_ms) for action in view.snapshot.actions]
    if all(end is None for _, end in ends):
        raise NothingToTry("no file tells when its URL ends")
    for action, end in ends:
        left_s = None if end is None else (end - now_ms) / 1000
        is_long = left_s is None or left_s > SHORTEST_LIFE_S
        expect(is_long, action.where, f"a URL that lives longer than {SHORTEST_LIFE_S} s", f"{left_s} s")


@on_views(SHOULD, "2.7")
def urls_tell_when_they_end(view: View) -> None:
    """Every file has expirationTimestamp."""
    for action in view.snapshot.actions:
        expect(action.expires_ms is not None, action.where, "expirationTimestamp", action.outer)


@on_views(SHOULD, "1.0")
def urls_do_not_hold_the_token(view: View) -> None:
    """The bearer token is not part of any URL."""
    token = view.table.client.token
    if len(token) < SHORTEST_TOKEN:
        raise NothingToTry("the token is so short that it may be part of any text")
    for action in view.snapshot.actions:
        expect(token not in action.url, action.where, "a URL without the bearer token", "one with it")


@on_views(SHOULD, "2.1", formats=(PARQUET,))
def a_plain_read_tells_no_version_in_its_lines(view: View) -> None:
    """Without version or timestamp in the request, metaData and files have no version."""
    told = [line.where for line in view.snapshot.lines[1:] if line.value.get("version") is not None]
    expect(not told, view.snapshot.where, "lines without version", told[:3])


@on_views(MUST, "1.7")
def an_empty_object_asks_for_all(view: View) -> None:
    """The body {} asks for everything, and so does one with fields that the server does not know."""
    unknown = {"lakeshareConformance": {"a": [1]}, "requested_columns": [], "queryDeltaLog": False}
    for body in ({}, unknown):
        reply = Reply(view.ask(body))
        expect(reply.ids == view.snapshot.ids, reply.where, "all files", len(reply.ids))


@on_views(SHOULD, "1.7")
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


@on_views(SHOULD, "1.7", formats=(DELTA,))
def both_formats_answer_the_same_files(view: View) -> None:
    """A table served in both formats has the same files in both."""
    other = view.table.view(PARQUET)
    if other is None:
        raise NothingToTry("no table is served in both formats")
    sizes, wanted = (sorted(action.size_bytes for action in one.snapshot.actions) for one in (view, other))
    expect(sizes == wanted, view.snapshot.where, f"files of the sizes {wanted[:20]}", sizes[:20])
