"""Iceberg metadata for recipients: the published snapshots and what their readers need.

A provider's file also has other snapshots, branches, tags, locations and names of writers. This module lists the parts
to publish; all others are left out, including those of later format versions.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lakeshare_server.access.table_access import TableView
from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.locations import local_path
from lakeshare_server.storage import Stores
from lakeshare_server.storage.location_columns import find_outside_files, find_roots
from lakeshare_server.tables.iceberg.manifests import Manifest, delete_files, live_files, parse_manifest_list
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, OPERATIONS, open_metadata, readers_schema_id
from lakeshare_server.tables.index import TableFolder
from lakeshare_server.tables.serveability import is_read_by_iceberg_clients
from lakeshare_server.versions import PinnedSnapshot

Fields = dict[str, Any]

NAME_MAPPING = "schema.name-mapping.default"
# Properties that describe how to read the files; others are the provider's, and many have locations.
PROPERTIES = (
    "write.format.default",
    "read.split.target-size",
    "read.split.metadata-target-size",
    "read.split.planning-lookback",
    "read.split.open-file-cost",
)
SNAPSHOT_FIELDS = (
    "snapshot-id", "sequence-number", "timestamp-ms", "manifest-list", "manifests", "schema-id", "first-row-id",
    "added-rows",
)  # fmt: skip
OF_ROWS = frozenset({"first-row-id", "added-rows", "summary"})
TABLE_FIELDS = ("format-version", "table-uuid", "location", "last-column-id", "last-partition-id")
# Only counts of summaries are published: engines and jobs add names, ids and other fields.
COUNTS = re.compile(
    r"changed-partition-count|(added|removed|deleted|total)-"
    r"(data-files|(equality-|position-)?delete-files|dvs|records|files-size|(position|equality)-deletes)"
)
UNSORTED: Fields = {"order-id": 0, "fields": []}


def published_metadata(
    pins: Sequence[PinnedSnapshot],
    read: Callable[[str], Fields | None],
    specs_of: Callable[[Fields], Iterable[int]],
) -> Fields:
    """The metadata of a table whose readable snapshots are `pins`, the newest last (Iceberg spec, table metadata).

    `read` reads a metadata file, None if it is missing; `specs_of` lists the partition specs of a snapshot's manifests.
    Raises Unserveable if the newest snapshot is missing or encrypted; older ones that do not fit are left out.
    """
    newest = pins[-1]
    own = read(newest.metadata_location)
    snapshots = _kept_snapshots(pins, own, read)
    is_empty = newest.snapshot_id == NO_SNAPSHOT
    if own is None or (newest.snapshot_id not in snapshots and not is_empty):
        raise Unserveable(
            "The metadata file of the newest publication, or its snapshot, is not there any more.",
            "Provider: publish the table again.",
        )
    kept = list(snapshots.values())
    current = int(own.get("current-schema-id", 0))
    if not is_empty:
        snapshot = snapshots[newest.snapshot_id]
        current = readers_schema_id(
            is_newest=newest.snapshot_id == own.get("current-snapshot-id"),
            written_with=snapshot.get("schema-id"),
            today=current,
            known={schema.get("schema-id", 0) for schema in _all_schemas(own)},
        )
    schema_ids = {current, *(snapshot["schema-id"] for snapshot in kept if "schema-id" in snapshot)}
    schemas = [schema for schema in _all_schemas(own) if schema.get("schema-id", 0) in schema_ids]
    specs, default_spec = _specs(own, kept, specs_of)
    fields = _select_fields(own, TABLE_FIELDS)
    fields.update(
        {
            "last-updated-ms": newest.version.timestamp_ms,
            "schemas": schemas,
            "current-schema-id": current,
            "partition-specs": specs,
            "default-spec-id": default_spec,
            **_sort_orders(own, schemas),
            "properties": _properties(own.get("properties") or {}, schemas),
            # Without a snapshot, readers of all versions expect -1 and no branch.
            "current-snapshot-id": newest.snapshot_id,
            "refs": {} if is_empty else {"main": {"snapshot-id": newest.snapshot_id, "type": "branch"}},
            "snapshots": [_snapshot(snapshot, snapshots) for snapshot in kept],
            # The times of publication, as in a query of the shared table.
            "snapshot-log": [
                {"timestamp-ms": pin.version.timestamp_ms, "snapshot-id": pin.snapshot_id}
                for pin in pins
                if pin.snapshot_id in snapshots
            ],
            "metadata-log": [],
        }
    )
    return fields | _of_format(own, fields, kept)


def _kept_snapshots(
    pins: Sequence[PinnedSnapshot], own: Fields | None, read: Callable[[str], Fields | None]
) -> dict[int, Fields]:
    """The pinned snapshots by id; those that the newest file does not list are read from their own."""
    if own is None:
        return {}
    listed = {snapshot["snapshot-id"]: snapshot for snapshot in own.get("snapshots") or ()}
    kept: dict[int, Fields] = {}
    for pin in pins:
        if pin.snapshot_id == NO_SNAPSHOT:
            continue
        snapshot = listed.get(pin.snapshot_id) or _from_older(pin, own, read)
        if snapshot is not None:
            kept[pin.snapshot_id] = snapshot
    return kept


def _from_older(pin: PinnedSnapshot, own: Fields, read: Callable[[str], Fields | None]) -> Fields | None:
    """A snapshot from an older publication's file, if its schemas and specs are also in the newest file."""
    older = read(pin.metadata_location)
    if older is None or older.get("table-uuid") != own.get("table-uuid"):
        return None
    # Ids are reused after a rollback: one id must not mean two schemas or specs in one file.
    if not all(part in every(own) for every in (_all_schemas, _all_specs) for part in every(older)):
        return None
    listed = older.get("snapshots") or ()
    return next((snapshot for snapshot in listed if snapshot["snapshot-id"] == pin.snapshot_id), None)


def _all_schemas(metadata: Fields) -> list[Fields]:
    return metadata.get("schemas") or [{"schema-id": 0, **metadata["schema"]}]


def _all_specs(metadata: Fields) -> list[Fields]:
    return metadata.get("partition-specs") or [{"spec-id": 0, "fields": metadata["partition-spec"]}]


def _specs(
    own: Fields, kept: list[Fields], specs_of: Callable[[Fields], Iterable[int]]
) -> tuple[list[Fields], int]:
    every, default = _all_specs(own), int(own.get("default-spec-id", 0))
    if len(every) == 1:
        return every, int(every[0]["spec-id"])
    used = {spec for snapshot in kept for spec in specs_of(snapshot)} or {default}
    return [spec for spec in every if spec["spec-id"] in used], default if default in used else max(used)


def _sort_orders(own: Fields, schemas: list[Fields]) -> Fields:
    ids = field_ids(schemas)
    orders = [
        order
        for order in own.get("sort-orders") or [UNSORTED]
        if all(field.get("source-id") in ids for field in order["fields"])
    ]
    default = own.get("default-sort-order-id", 0)
    if default not in {order["order-id"] for order in orders}:
        default, orders = 0, [UNSORTED, *(order for order in orders if order["order-id"] != 0)]
    return {"sort-orders": orders, "default-sort-order-id": default}


def _properties(properties: Mapping[str, Any], schemas: list[Fields]) -> dict[str, str]:
    selected = {name: str(properties[name]) for name in PROPERTIES if name in properties}
    if NAME_MAPPING in properties:
        ids = field_ids(schemas)
        selected[NAME_MAPPING] = json.dumps(_filter_name_mapping(json.loads(properties[NAME_MAPPING]), ids))
    return selected


def _filter_name_mapping(mapping: list[Fields], ids: set[int]) -> list[Fields]:
    return [
        {**name, "fields": _filter_name_mapping(name["fields"], ids)} if name.get("fields") else name
        for name in mapping
        if name.get("field-id") in ids
    ]


def without_counts(fields: Fields) -> Fields:
    snapshots = [
        {
            **{name: value for name, value in snapshot.items() if name not in OF_ROWS},
            **({"summary": {"operation": snapshot["summary"]["operation"]}} if "summary" in snapshot else {}),
        }
        for snapshot in fields["snapshots"]
    ]
    # Only writers need the number of the next row.
    return {**fields, "snapshots": snapshots, **({"next-row-id": 0} if "next-row-id" in fields else {})}


def walk_fields(fields: Iterable[Fields], above: str = "") -> Iterator[tuple[str, Fields]]:
    """The fields of a schema, also those in structs, with their names from the top."""
    for field in fields:
        name = above + field["name"]
        yield name, field
        if isinstance(field["type"], dict):
            yield from walk_fields(field["type"].get("fields", ()), f"{name}.")


def field_ids(schemas: Iterable[Fields]) -> set[int]:
    ids: set[int] = set()

    def collect(kind: Any) -> None:
        if not isinstance(kind, dict):
            return
        for field in kind.get("fields", ()):
            ids.add(field["id"])
            collect(field["type"])
        for part in ("element", "key", "value"):
            if f"{part}-id" in kind:
                ids.add(kind[f"{part}-id"])
                collect(kind[part])

    for schema in schemas:
        collect(schema)
    return ids


def _snapshot(snapshot: Fields, kept: Mapping[int, Fields]) -> Fields:
    if snapshot.get("key-id") is not None:
        raise Unserveable(
            "The table's manifests are encrypted.", "Provider: share a copy that is not encrypted."
        )
    fields = _select_fields(snapshot, SNAPSHOT_FIELDS)
    # Never the nearest published ancestor: incremental readers would miss the changes in between.
    if snapshot.get("parent-snapshot-id") in kept:
        fields["parent-snapshot-id"] = snapshot["parent-snapshot-id"]
    summary = snapshot.get("summary")
    if summary is not None:
        operation = summary.get("operation")
        fields["summary"] = {
            "operation": operation if operation in OPERATIONS else "overwrite",
            **{
                name: str(value)
                for name, value in summary.items()
                if COUNTS.fullmatch(name) and str(value).isdigit()
            },
        }
    return fields


def _of_format(own: Fields, fields: Fields, kept: list[Fields]) -> Fields:
    version = own["format-version"]
    if version == 1:
        schema_id, spec_id = fields["current-schema-id"], fields["default-spec-id"]
        schema = next(schema for schema in fields["schemas"] if schema.get("schema-id", 0) == schema_id)
        spec = next(spec for spec in fields["partition-specs"] if spec["spec-id"] == spec_id)
        return {"schema": schema, "partition-spec": spec["fields"]}
    numbers = (int(snapshot.get("sequence-number", 0)) for snapshot in kept)
    extra: Fields = {"last-sequence-number": max(numbers, default=0)}
    if version >= 3:
        ends = (
            int(snapshot.get("first-row-id") or 0) + int(snapshot.get("added-rows") or 0) for snapshot in kept
        )
        extra["next-row-id"] = max(ends, default=0)
    return extra


def _select_fields(fields: Mapping[str, Any], names: Iterable[str]) -> Fields:
    return {name: fields[name] for name in names if fields.get(name) is not None}


_log = logging.getLogger(__name__)


@contextmanager
def replace_errors(what: str, kinds: tuple[type[Exception], ...], reason: str, fix: str) -> Iterator[None]:
    """Logs errors of these kinds, which name locations of the server, and raises others in their place.

    Raises:
        Unavailable: the store does not answer, if `kinds` has this error.
        Unserveable: with this reason and fix, for all other errors.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, Unavailable):
            _log.warning("%s now: %s", what, error)
            raise Unavailable("the table's store does not answer", "Try again in a moment.") from error
        _log.error("%s: %r", what, error)
        raise Unserveable(reason, fix) from error


def list_manifests(snapshot: Mapping[str, Any], stores: Stores) -> Sequence[Manifest]:
    """A snapshot's manifests. Raises Unserveable without a manifest list, StoreError, Unavailable or ValueError."""
    location = snapshot.get("manifest-list")
    if location is None:
        raise Unserveable(
            "A snapshot of the table has no manifest list.",
            "Provider: write to the table and publish it again.",
        )
    return parse_manifest_list(stores.read(location))


def list_readable_files(snapshot: Mapping[str, Any], stores: Stores) -> frozenset[str]:
    """Locations of a snapshot's manifests and delete files. Raises Unserveable, StoreError or Unavailable."""
    what = f"the manifests of {snapshot.get('manifest-list')} cannot be read"
    reason, fix = (
        "A manifest of the table cannot be read.",
        "Provider: the server's log says which one it is.",
    )
    with replace_errors(what, (ValueError, OverflowError), reason, fix):
        manifests = list_manifests(snapshot, stores)
        locations = {snapshot["manifest-list"], *(manifest.path for manifest in manifests)}
        for manifest in manifests:
            if manifest.has_deletes:
                locations |= {delete.path for delete in delete_files(manifest, stores.read(manifest.path))}
    return frozenset(stores.place(location).location for location in locations)


def read_folder(view: TableView, stores: Stores) -> TableFolder:
    """The folder of a table's newest version, by its manifests if only Iceberg clients can read that version.

    Raises NotFound before the first publication, Unserveable, StoreError or Unavailable.
    """
    latest = view.latest()
    try:
        return view.versions.index(latest).header
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
    [pin] = view.versions.snapshots(latest.number, latest.number)
    location, paths = _list_from_manifests(pin, stores)
    others = find_outside_files(location, pa.table({"path": pa.array(paths, pa.string())}))
    roots = tuple(sorted(find_roots(location, others)))
    return TableFolder(location=location, roots=roots, elsewhere=len(others))


def list_data_files(view: TableView, pin: PinnedSnapshot, stores: Stores) -> frozenset[str]:
    paths: set[str] = set()
    try:
        index = view.index(pin.version)
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
        paths.update(_list_from_manifests(pin, stores)[1])
    else:
        for batch in index.batches():
            paths.update(batch.column("path").to_pylist())
            index.give_back(batch)
    return frozenset(stores.place(path).location for path in paths)


def _list_from_manifests(pin: PinnedSnapshot, stores: Stores) -> tuple[str, list[str]]:
    what = f"the files of {pin.metadata_location} cannot be listed"
    reason, fix = "The manifests of the table cannot be read.", "Provider: the server's log names the file."
    with replace_errors(what, (Unserveable,), reason, fix):
        table, snapshot = open_metadata(stores, pin.metadata_location, pin.snapshot_id)
        location = local_path(table.location)
        live = live_files(stores, snapshot, location)
    return location, [local_path(path) for path in live.data.column("path").to_pylist()]
