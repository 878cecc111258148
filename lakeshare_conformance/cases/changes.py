"""The change data feed: lines, files and rows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_conformance.case import (
    COUNT,
    DELTA,
    MUST,
    NothingToTry,
    expect,
    expect_fields,
    on_tables,
    on_views,
)
from lakeshare_conformance.cases.data_files import a_file_is_served
from lakeshare_conformance.ground import Table, View
from lakeshare_conformance.reply import Action, Reply
from lakeshare_conformance.rows import LARGEST_BYTES, count_rows, read_parquet, rows_of

LATER_KINDS = {"parquet": {"add", "remove", "cdf"}, "delta": {"file"}}
CHANGE_TYPES = {"insert", "update_preimage", "update_postimage", "delete"}
INSERTED, DELETED = ["insert", "update_postimage"], ["delete", "update_preimage"]
MOST_ROWS = 200_000


@on_views(MUST, "1.8", "1.0")
def changes_begin_with_a_head(view: View) -> None:
    """Changes are protocol, metaData, then files; NDJSON; the header tells the starting version."""
    reply = whole(view)
    reply.head  # noqa: B018 - raises when the first lines are others
    expect(reply.version == view.change_start, reply.where, f"version {view.change_start}", reply.version)
    kind = reply.answer.header("content-type").lower().replace(" ", "")
    expect(
        kind == "application/x-ndjson;charset=utf-8", reply.where, "application/x-ndjson; charset=utf-8", kind
    )
    expect(reply.format == view.format, reply.where, f"{view.format} format", reply.format)


@on_views(MUST, "1.8", "0.1")
def changes_are_added_removed_and_changed_files(view: View) -> None:
    """After the head come add, remove and cdf lines (in delta format file lines), and nothing else."""
    for line in whole(view).later:
        allowed = LATER_KINDS[view.format]
        expect(line.kind in allowed, line.where, f"one of {sorted(allowed)}", line.kind)
    for action in whole(view).actions if view.format == DELTA else ():
        is_fit = action.kind != "cdc" or action.inner.get("dataChange") is False
        expect(is_fit, action.where, "dataChange false in cdc", action.inner.get("dataChange"))


@on_views(MUST, "0.13", "2.1", "6.2")
def changes_tell_version_and_time(view: View) -> None:
    """Every file of a change has version and timestamp, and a size."""
    for action in whole(view).actions:
        expect_fields(action.where, action.outer, {"version": COUNT, "timestamp": COUNT}, {})
        expect_fields(action.where, action.inner, {"size": COUNT}, {})


@on_views(MUST, "0.13", "1.8")
def metadata_of_changes_tells_its_version(view: View) -> None:
    """The head's metaData has a version; the starting one when includeHistoricalMetadata is asked for."""
    expect_fields(whole(view).where, whole(view).head[1].value, {"version": COUNT}, {})
    reply = view.changes(startingVersion=view.change_start, includeHistoricalMetadata="true")
    told = reply.head[1].value.get("version")
    expect(told == view.change_start, reply.where, f"metaData.version {view.change_start}", told)


@on_views(MUST, "0.13", formats=(DELTA,))
def changes_in_delta_format_say_that_they_are_recorded(view: View) -> None:
    """The head's configuration has delta.enableChangeDataFeed, and the writer protocol allows it."""
    told = whole(view).configuration.get("delta.enableChangeDataFeed")
    expect(told == "true", whole(view).where, "delta.enableChangeDataFeed true", told)
    protocol = whole(view).protocol
    version, features = protocol.get("minWriterVersion"), protocol.get("writerFeatures") or []
    fits = version in (4, 5, 6) or (version == 7 and "changeDataFeed" in features)
    expect(fits, whole(view).where, "a writer protocol with the change data feed", protocol)


@on_views(MUST, "0.11", "1.8")
def booleans_are_read_in_any_case(view: View) -> None:
    """includeHistoricalMetadata=True, as the Python client writes it, is true."""
    wanted = view.changes(startingVersion=view.change_start, includeHistoricalMetadata="true")
    for text in ("True", "TRUE"):
        reply = view.changes(startingVersion=view.change_start, includeHistoricalMetadata=text)
        kinds = [[line.kind for line in one.lines] for one in (wanted, reply)]
        expect(
            kinds[0] == kinds[1], reply.where, "the lines of includeHistoricalMetadata=true", kinds[1][:10]
        )


@on_views(MUST, "1.8")
def changes_of_the_schema_are_told_when_asked_for(view: View) -> None:
    """With includeHistoricalMetadata every later change of the schema is a metaData line with its version."""
    versions = view.versions_from(view.change_start)
    changed = view.with_another_schema(versions)
    if not changed:
        raise NothingToTry("no table changed its schema within its changes")
    reply = view.changes(startingVersion=view.change_start, includeHistoricalMetadata="true")
    told = {line.value.get("version") for line in reply.later if line.kind == "metaData"}
    missing = sorted(changed - told)
    expect(not missing, reply.where, "a metaData line at each change of the schema", f"none at {missing}")


@on_views(MUST, "1.8")
def changed_rows_stand_alone(view: View) -> None:
    """A version with files of changed rows (cdf, cdc) has no others: they would count twice."""
    kinds: dict[int, set[str]] = {}
    for action in whole(view).actions:
        kinds.setdefault(action.version, set()).add(action.kind)
    for version, found in kinds.items():
        is_alone = "cdc" not in found or found == {"cdc"}
        expect(is_alone, f"{whole(view).where}, version {version}", "changed rows alone", sorted(found))


@on_views(MUST, "1.8", "2.1")
def files_of_changes_can_be_read(view: View) -> None:
    """The URLs of added, changed and removed files serve their bytes."""
    for kind in ("add", "cdc", "remove"):
        of_kind = [action for action in whole(view).actions if action.kind == kind]
        for action in of_kind[:1]:
            a_file_is_served(view, action)


@on_views(MUST, "1.8")
def changed_rows_tell_their_kind(view: View) -> None:
    """Files of changed rows have the column _change_type: insert, update_preimage, update_postimage or delete."""
    changed = [action for action in whole(view).actions if action.kind == "cdc"]
    if not changed:
        raise NothingToTry("no version has files of changed rows")
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


@on_views(MUST, "1.8")
def changes_add_up(view: View) -> None:
    """The rows of each version, with those inserted and without those deleted after it, are the next version's."""
    versions = view.versions_from(view.change_start)
    if len(versions) < 2:
        raise NothingToTry("no range of changes has two versions")
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


@on_tables(MUST, "1.8", "0.19")
def changes_that_were_not_recorded_are_400(table: Table) -> None:
    """Changes of a table that does not record or share them are 400."""
    delta = table.view(DELTA)
    answer = table.first_view.ask_changes({"startingVersion": 0})
    # Clients go by the head that comes with the changes; of other formats' tables only that one tells it.
    if answer.status == 200 and (delta is None or _records(delta.changes(startingVersion=0))):
        raise NothingToTry("every table records its changes")
    answer.refusal(400)


def whole(view: View) -> Reply:
    """All changes that can be read."""
    return view.changes(startingVersion=view.change_start)


def counted(actions: Iterable[Action]) -> Counter[tuple[str, tuple[str, str], int]]:
    """Files with their kinds and versions, whatever their order."""
    return Counter((action.kind, action.key, action.version) for action in actions)


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
        raise NothingToTry(f"{view.table.name} is too large to compare, or has deletion vectors")
    stored = {id: read_parquet(view, action) for id, action in actions.items()}
    rows = sum(table.num_rows for table in stored.values())
    if rows > MOST_ROWS:
        raise NothingToTry(f"{view.table.name} is too large to compare: {rows} rows")
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
                sign(count_rows(rows_of(schema, action, part)))
        else:
            sign = found.subtract if action.kind == "remove" else found.update
            sign(count_rows(rows_of(schema, action, rows)))
    return found
