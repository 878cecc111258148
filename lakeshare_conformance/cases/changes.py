"""The change data feed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_conformance.case import COUNT, DELTA, MUST, SHOULD, Group, NotApplicable, expect, expect_fields
from lakeshare_conformance.cases.files import a_file_is_served
from lakeshare_conformance.reply import Action, Reply, counted, iso
from lakeshare_conformance.rows import LARGEST_BYTES, count_rows, read_parquet, select_rows
from lakeshare_conformance.targets import Table, View

CHANGES = Group("changes", "The change data feed: lines, files and rows")

LATER_KINDS = {"parquet": {"add", "remove", "cdf"}, "delta": {"file"}}
CHANGE_TYPES = {"insert", "update_preimage", "update_postimage", "delete"}
INSERTED, DELETED = ["insert", "update_postimage"], ["delete", "update_preimage"]
MOST_ROWS = 200_000


@CHANGES.on_views(MUST, "1.8", "1.0")
def changes_begin_with_a_head(view: View) -> None:
    """Changes are protocol, metaData, then files; NDJSON; the header tells the starting version."""
    reply = whole(view)
    reply.head  # noqa: B018 - raises when the first lines are others
    expect(reply.version == view.change_start, reply.where, f"version {view.change_start}", reply.version)
    kind = reply.response.header("content-type").lower().replace(" ", "")
    expect(
        kind == "application/x-ndjson;charset=utf-8", reply.where, "application/x-ndjson; charset=utf-8", kind
    )
    expect(reply.format == view.format, reply.where, f"{view.format} format", reply.format)


@CHANGES.on_views(MUST, "1.8", "0.1")
def changes_are_added_removed_and_changed_files(view: View) -> None:
    """After the head come add, remove and cdf lines (in delta format file lines), and nothing else."""
    for line in whole(view).later:
        allowed = LATER_KINDS[view.format]
        expect(line.kind in allowed, line.where, f"one of {sorted(allowed)}", line.kind)
    for action in whole(view).actions if view.format == DELTA else ():
        is_fit = action.kind != "cdc" or action.inner.get("dataChange") is False
        expect(is_fit, action.where, "dataChange false in cdc", action.inner.get("dataChange"))


@CHANGES.on_views(MUST, "0.13", "2.1", "6.2")
def changes_tell_version_and_time(view: View) -> None:
    """Every file of a change has version and timestamp, and a size."""
    for action in whole(view).actions:
        expect_fields(action.where, action.outer, {"version": COUNT, "timestamp": COUNT}, {})
        expect_fields(action.where, action.inner, {"size": COUNT}, {})


@CHANGES.on_views(MUST, "0.13", "1.8")
def metadata_of_changes_tells_its_version(view: View) -> None:
    """The head's metaData has a version; the starting one when includeHistoricalMetadata is asked for."""
    expect_fields(whole(view).where, whole(view).head[1].value, {"version": COUNT}, {})
    reply = view.changes(startingVersion=view.change_start, includeHistoricalMetadata="true")
    reported = reply.head[1].value.get("version")
    expect(reported == view.change_start, reply.where, f"metaData.version {view.change_start}", reported)


@CHANGES.on_views(MUST, "0.13", formats=(DELTA,))
def changes_in_delta_format_say_that_they_are_recorded(view: View) -> None:
    """The head's configuration has delta.enableChangeDataFeed, and the writer protocol allows it."""
    reported = whole(view).configuration.get("delta.enableChangeDataFeed")
    expect(reported == "true", whole(view).where, "delta.enableChangeDataFeed true", reported)
    protocol = whole(view).protocol
    version, features = protocol.get("minWriterVersion"), protocol.get("writerFeatures") or []
    fits = version in (4, 5, 6) or (version == 7 and "changeDataFeed" in features)
    expect(fits, whole(view).where, "a writer protocol with the change data feed", protocol)


@CHANGES.on_views(MUST, "0.11", "1.8")
def booleans_are_read_in_any_case(view: View) -> None:
    """includeHistoricalMetadata=True, as the Python client writes it, is true."""
    wanted = view.changes(startingVersion=view.change_start, includeHistoricalMetadata="true")
    for text in ("True", "TRUE"):
        reply = view.changes(startingVersion=view.change_start, includeHistoricalMetadata=text)
        kinds = [[line.kind for line in one.lines] for one in (wanted, reply)]
        expect(
            kinds[0] == kinds[1], reply.where, "the lines of includeHistoricalMetadata=true", kinds[1][:10]
        )


@CHANGES.on_views(MUST, "1.8")
def changes_of_the_schema_are_told_when_asked_for(view: View) -> None:
    """With includeHistoricalMetadata every later change of the schema is a metaData line with its version."""
    versions = view.versions_from(view.change_start)
    changed = view.with_another_schema(versions)
    if not changed:
        raise NotApplicable("no table changed its schema within its changes")
    reply = view.changes(startingVersion=view.change_start, includeHistoricalMetadata="true")
    reported = {line.value.get("version") for line in reply.later if line.kind == "metaData"}
    missing = sorted(changed - reported)
    expect(not missing, reply.where, "a metaData line at each change of the schema", f"none at {missing}")


@CHANGES.on_views(MUST, "1.8")
def changed_rows_stand_alone(view: View) -> None:
    """A version with files of changed rows (cdf, cdc) has no others: they would count twice."""
    kinds: dict[int, set[str]] = {}
    for action in whole(view).actions:
        kinds.setdefault(action.version, set()).add(action.kind)
    for version, found in kinds.items():
        is_alone = "cdc" not in found or found == {"cdc"}
        expect(is_alone, f"{whole(view).where}, version {version}", "changed rows alone", sorted(found))


@CHANGES.on_views(MUST, "1.8", "2.1")
def files_of_changes_can_be_read(view: View) -> None:
    """The URLs of added, changed and removed files serve their bytes."""
    for kind in ("add", "cdc", "remove"):
        of_kind = [action for action in whole(view).actions if action.kind == kind]
        for action in of_kind[:1]:
            a_file_is_served(view, action)


@CHANGES.on_views(MUST, "1.8")
def changed_rows_tell_their_kind(view: View) -> None:
    """Files of changed rows have the column _change_type: insert, update_preimage, update_postimage or delete."""
    changed = [action for action in whole(view).actions if action.kind == "cdc"]
    if not changed:
        raise NotApplicable("no version has files of changed rows")
    for action in changed[:3]:
        rows = read_parquet(view, action)
        expect("_change_type" in rows.column_names, action.where, "a column _change_type", rows.column_names)
        found = set(pc.unique(rows.column("_change_type")).to_pylist())
        expect(
            found <= CHANGE_TYPES,
            action.where,
            f"_change_type in {sorted(CHANGE_TYPES)}",
            sorted(map(str, found)),
        )


@CHANGES.on_views(MUST, "1.8")
def changes_add_up(view: View) -> None:
    """The rows of each version, with those inserted and without those deleted after it, are the next version's."""
    versions = view.versions_from(view.change_start)
    if len(versions) < 2:
        raise NotApplicable("no range of changes has two versions")
    snapshots = {version: view.query(version=version) for version in versions}
    stored = _stored_files(view, [whole(view), *snapshots.values()])
    for earlier, version in pairwise(versions):
        after = snapshots[version]
        changed = [action for action in whole(view).actions if earlier < action.version <= version]
        rows = _count_rows(after, snapshots[earlier].actions, stored)
        rows.update(_count_rows(after, changed, stored))
        wanted = _count_rows(after, after.actions, stored)
        missing, extra = wanted - rows, rows - wanted
        expect(
            not missing and not extra,
            f"{whole(view).where}, version {version}",
            f"the rows of version {earlier} and the changes to be the {wanted.total()} rows of version {version}",
            f"{missing.total()} rows missing and {extra.total()} too many",
        )


@CHANGES.on_tables(MUST, "1.8", "0.19")
def changes_that_were_not_recorded_are_400(table: Table) -> None:
    """Changes of a table that does not record or share them are 400."""
    delta = table.view(DELTA)
    response = table.first_view.ask_changes({"startingVersion": 0})
    # Clients go by the head that comes with the changes; of other formats' tables only that one tells it.
    if response.status == 200 and (delta is None or _records(delta.changes(startingVersion=0))):
        raise NotApplicable("every table records its changes")
    response.refusal(400)


def whole(view: View) -> Reply:
    """All changes that can be read."""
    return view.changes(startingVersion=view.change_start)


def _records(reply: Reply) -> bool:
    return reply.configuration.get("delta.enableChangeDataFeed") == "true"


def _stored_files(view: View, replies: Iterable[Reply]) -> dict[str, pa.Table]:
    """Every file of the replies by its id, read once.

    Raises:
        NothingToTry: there is too much to compare, or rows are deleted by deletion vectors.
    """
    actions = {action.id: action for reply in replies for action in reply.actions}
    size = sum(action.size_bytes for action in actions.values())
    if any(action.vector for action in actions.values()) or size > LARGEST_BYTES:
        raise NotApplicable(f"{view.table.name} is too large to compare, or has deletion vectors")
    stored = {id: read_parquet(view, action) for id, action in actions.items()}
    rows = sum(table.num_rows for table in stored.values())
    if rows > MOST_ROWS:
        raise NotApplicable(f"{view.table.name} is too large to compare: {rows} rows")
    return stored


def _count_rows(
    schema: Reply, actions: Iterable[Action], stored: Mapping[str, pa.Table]
) -> Counter[tuple[object, ...]]:
    """Rows of files under the columns of a reply; what a change takes away counts negatively."""
    found: Counter[tuple[object, ...]] = Counter()
    for action in actions:
        rows = stored[action.id]
        if action.kind == "cdc":
            kinds = rows.column("_change_type")
            for sign, of_sign in ((found.update, INSERTED), (found.subtract, DELETED)):
                part = rows.filter(pc.is_in(kinds, pa.array(of_sign)))
                sign(count_rows(select_rows(schema, action, part)))
        else:
            sign = found.subtract if action.kind == "remove" else found.update
            sign(count_rows(select_rows(schema, action, rows)))
    return found


CHANGE_BOUNDS = Group("change-bounds", "The bounds of a range of changes")


@CHANGE_BOUNDS.on_views(MUST, "1.8")
def both_ends_belong_to_the_range(view: View) -> None:
    """startingVersion and endingVersion are both inclusive: single versions together are the whole range."""
    for version in view.versions_from(view.change_start):
        part = view.changes(startingVersion=version, endingVersion=version)
        wanted = counted(action for action in whole(view).actions if action.version == version)
        found = counted(part.actions)
        expect(found == wanted, part.where, f"the {wanted.total()} files of version {version}", found.total())
        expect(part.version == version, part.where, f"the header to tell {version}", part.version)


@CHANGE_BOUNDS.on_views(MUST, "1.8")
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


@CHANGE_BOUNDS.on_views(SHOULD, "1.8")
def an_end_beyond_the_latest_is_the_latest(view: View) -> None:
    """An endingVersion after the latest version stands for the latest one."""
    reply = view.changes(startingVersion=view.change_start, endingVersion=view.table.latest + 1000)
    expect(
        counted(reply.actions) == counted(whole(view).actions), reply.where, "the changes until now", "others"
    )


@CHANGE_BOUNDS.on_views(MUST, "1.8")
def times_bound_a_range_too(view: View) -> None:
    """startingTimestamp is the first version at or after it, endingTimestamp the last at or before it."""
    times = {action.version: action.timestamp_ms for action in whole(view).actions}
    if not times:
        raise NotApplicable("no changes tell their times")
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


@CHANGE_BOUNDS.on_views(MUST, "1.8", "0.19")
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


@CHANGE_BOUNDS.on_views(MUST, "0.1", "1.13")
def changes_end_without_an_action_unless_asked(view: View) -> None:
    """No endStreamAction comes after changes to a client that did not ask for it."""
    kinds = [line.kind for line in whole(view).lines]
    expect("endStreamAction" not in kinds, whole(view).where, "no endStreamAction", kinds[-1])
