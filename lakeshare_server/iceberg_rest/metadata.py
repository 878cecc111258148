"""Iceberg metadata as recipients get it: the published snapshots and what their readers need, nothing else.

A provider's own file lists every snapshot, branch and tag, and says where the table is written to and by whom. Here
each part is named that goes out; whatever is not named stays, also what later versions of the format bring.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakeshare_server.access.table_access import TableFolder, TableView
from lakeshare_server.errors import Unserveable
from lakeshare_server.storage import Stores
from lakeshare_server.storage.locations import find_outside_files, find_roots, local_path
from lakeshare_server.tables.iceberg.manifests import Manifest, delete_files, live_files, parse_manifest_list
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, open_metadata, readers_schema_id
from lakeshare_server.tables.serveability import is_read_by_iceberg_clients
from lakeshare_server.versions import PinnedSnapshot

Fields = dict[str, Any]

NAME_MAPPING = "schema.name-mapping.default"
# How to read the files; all other properties are the provider's business, and many name places.
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
# Engines write their own names and ids into summaries, and jobs whatever they like: counts alone go out.
COUNTS = re.compile(
    r"changed-partition-count|(added|removed|deleted|total)-"
    r"(data-files|(equality-|position-)?delete-files|dvs|records|files-size|(position|equality)-deletes)"
)
OPERATIONS = ("append", "replace", "overwrite", "delete")
UNSORTED: Fields = {"order-id": 0, "fields": []}


def published_metadata(
    pins: Sequence[PinnedSnapshot],
    read: Callable[[str], Fields | None],
    specs_of: Callable[[Fields], Iterable[int]],
) -> Fields:
    """The metadata of a table whose readable snapshots are `pins`, the newest last (Iceberg spec, table metadata).

    `read` gets a metadata file, None where it is gone; `specs_of` the partition specs that a snapshot's manifests use.
    Older snapshots that cannot be told beside the newest are left out: clients then know no such snapshot.

    Raises:
        Unserveable: the newest publication's metadata is gone, lacks its snapshot or has encrypted manifests.
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
        current = _current_schema_id(own, snapshots[newest.snapshot_id])
    schemas = _schemas(own, {current, *(one["schema-id"] for one in kept if "schema-id" in one)})
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
            # Without a snapshot, readers of all versions take -1, and no branch.
            "current-snapshot-id": newest.snapshot_id,
            "refs": {} if is_empty else {"main": {"snapshot-id": newest.snapshot_id, "type": "branch"}},
            "snapshots": [_snapshot(one, snapshots) for one in kept],
            # By the times of publication, so that a time means the same here as in a query of the shared table.
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
    """The pinned snapshots by id; those that the newest file does not list are looked up in their own."""
    if own is None:
        return {}
    listed = {one["snapshot-id"]: one for one in own.get("snapshots") or ()}
    found: dict[int, Fields] = {}
    for pin in pins:
        if pin.snapshot_id == NO_SNAPSHOT:
            continue
        snapshot = listed.get(pin.snapshot_id) or _from_older(pin, own, read)
        if snapshot is not None:
            found[pin.snapshot_id] = snapshot
    return found


def _from_older(pin: PinnedSnapshot, own: Fields, read: Callable[[str], Fields | None]) -> Fields | None:
    """A snapshot from an older publication's file, if what its readers need is the same in the newest one."""
    older = read(pin.metadata_location)
    if older is None or older.get("table-uuid") != own.get("table-uuid"):
        return None
    snapshot = next(
        (one for one in older.get("snapshots") or () if one["snapshot-id"] == pin.snapshot_id), None
    )
    # Ids are given anew after a rollback: one id must not mean two schemas or specs in one file.
    same = snapshot is not None and all(
        _is_part(all_of(older), all_of(own)) for all_of in (_all_schemas, _all_specs)
    )
    return snapshot if same else None


def _is_part(some: list[Fields], of: list[Fields]) -> bool:
    return all(one in of for one in some)


def _all_schemas(metadata: Fields) -> list[Fields]:
    found: list[Fields] = metadata.get("schemas") or [{"schema-id": 0, **metadata["schema"]}]
    return found


def _all_specs(metadata: Fields) -> list[Fields]:
    found: list[Fields] = metadata.get("partition-specs") or [
        {"spec-id": 0, "fields": metadata["partition-spec"]}
    ]
    return found


def _current_schema_id(own: Fields, newest: Fields) -> int:
    return readers_schema_id(
        is_newest=newest["snapshot-id"] == own.get("current-snapshot-id"),
        written_with=newest.get("schema-id"),
        today=int(own.get("current-schema-id", 0)),
        known={schema.get("schema-id", 0) for schema in _all_schemas(own)},
    )


def _schemas(own: Fields, ids: set[int]) -> list[Fields]:
    return [schema for schema in _all_schemas(own) if schema.get("schema-id", 0) in ids]


def _specs(
    own: Fields, kept: list[Fields], specs_of: Callable[[Fields], Iterable[int]]
) -> tuple[list[Fields], int]:
    """The partition specs that the manifests use, and which of them is the default."""
    every, default = _all_specs(own), int(own.get("default-spec-id", 0))
    if len(every) == 1:
        return every, int(every[0]["spec-id"])
    used = {spec for snapshot in kept for spec in specs_of(snapshot)} or {default}
    return [one for one in every if one["spec-id"] in used], default if default in used else max(used)


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
    """The names of columns that readers get; other columns may be of a state that was never published."""
    return [
        {**one, "fields": _filter_name_mapping(one["fields"], ids)} if one.get("fields") else one
        for one in mapping
        if one.get("field-id") in ids
    ]


def without_counts(fields: Fields) -> Fields:
    """The metadata for whoever may not read all rows: how many there are, and what else summaries count, stays here."""
    snapshots = [
        {
            **{name: value for name, value in one.items() if name not in OF_ROWS},
            **({"summary": {"operation": one["summary"]["operation"]}} if "summary" in one else {}),
        }
        for one in fields["snapshots"]
    ]
    # It is where the next row would be numbered from, which only writers have to know.
    return {**fields, "snapshots": snapshots, **({"next-row-id": 0} if "next-row-id" in fields else {})}


def field_ids(schemas: Iterable[Fields]) -> set[int]:
    """The ids of all columns, nested ones too."""
    found: set[int] = set()
    for schema in schemas:
        _collect(schema, found)
    return found


def _collect(kind: Any, into: set[int]) -> None:
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        into.add(field["id"])
        _collect(field["type"], into)
    for part in ("element", "key", "value"):
        if f"{part}-id" in kind:
            into.add(kind[f"{part}-id"])
            _collect(kind[part], into)


def _snapshot(snapshot: Fields, kept: Mapping[int, Fields]) -> Fields:
    if snapshot.get("key-id") is not None:
        raise Unserveable(
            "The table's manifests are encrypted.", "Provider: share a copy that is not encrypted."
        )
    fields = _select_fields(snapshot, SNAPSHOT_FIELDS)
    # Never the nearest published one instead: incremental readers would take what lies between for nothing.
    if snapshot.get("parent-snapshot-id") in kept:
        fields["parent-snapshot-id"] = snapshot["parent-snapshot-id"]
    summary = snapshot.get("summary")
    if summary is not None:
        fields["summary"] = _summary(summary)
    return fields


def _summary(summary: Mapping[str, Any]) -> dict[str, str]:
    operation = summary.get("operation")
    counts = {
        name: str(value) for name, value in summary.items() if COUNTS.fullmatch(name) and str(value).isdigit()
    }
    return {"operation": operation if operation in OPERATIONS else "overwrite", **counts}


def _of_format(own: Fields, told: Fields, kept: list[Fields]) -> Fields:
    """What only some versions of the format have."""
    version = own["format-version"]
    if version == 1:
        schema = next(one for one in told["schemas"] if one.get("schema-id", 0) == told["current-schema-id"])
        spec = next(one for one in told["partition-specs"] if one["spec-id"] == told["default-spec-id"])
        return {"schema": schema, "partition-spec": spec["fields"]}
    fields: Fields = {
        "last-sequence-number": max((int(one.get("sequence-number", 0)) for one in kept), default=0)
    }
    if version >= 3:
        ends = (int(one.get("first-row-id") or 0) + int(one.get("added-rows") or 0) for one in kept)
        fields["next-row-id"] = max(ends, default=0)
    return fields


def _select_fields(fields: Mapping[str, Any], names: Iterable[str]) -> Fields:
    return {name: fields[name] for name in names if fields.get(name) is not None}


_log = logging.getLogger(__name__)


def list_manifests(snapshot: Mapping[str, Any], stores: Stores) -> Sequence[Manifest]:
    """The manifests of a snapshot, as its entry in the table's metadata says it.

    Raises:
        Unserveable: it has no manifest list, as the oldest tables of format version 1.
        StoreError, Unavailable: the list cannot be read, or not now.
        ValueError: it is not whole.
    """
    location = snapshot.get("manifest-list")
    if location is None:
        raise Unserveable(
            "A snapshot of the table has no manifest list.",
            "Provider: write to the table and publish it again.",
        )
    return parse_manifest_list(stores.read(location))


def list_readable_files(snapshot: Mapping[str, Any], stores: Stores) -> frozenset[str]:
    """Locations of the files of a snapshot beside its data: manifest list, manifests, and files of deletes.

    Raises:
        Unserveable: it has no manifest list, or a manifest is not whole.
        StoreError, Unavailable: one cannot be read, or not now.
    """
    try:
        manifests = list_manifests(snapshot, stores)
        found = {snapshot["manifest-list"], *(manifest.path for manifest in manifests)}
        for manifest in manifests:
            if manifest.has_deletes:
                found |= {delete.path for delete in delete_files(manifest, stores.read(manifest.path))}
    except (ValueError, OverflowError) as error:
        _log.error("the manifests of %s cannot be read: %s", snapshot["manifest-list"], error)
        raise Unserveable(
            "A manifest of the table cannot be read.", "Provider: the server's log says which one it is."
        ) from error
    return frozenset(stores.place(location).location for location in found)


@dataclass(frozen=True)
class ListedFolder:
    """The folder of a table as the manifests of one of its snapshots tell it."""

    location: str
    roots: tuple[str, ...]
    elsewhere: int


def read_folder(view: TableView, stores: Stores) -> TableFolder:
    """The folder of a table's newest version; a version that only Iceberg clients can read has no index.

    Raises:
        NotFound: nothing was published yet.
        Unserveable: no API can serve it.
        StoreError, Unavailable: its metadata cannot be read, or not now.
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
    return ListedFolder(location, tuple(sorted(find_roots(location, others))), len(others))


def list_data_files(view: TableView, pin: PinnedSnapshot, stores: Stores) -> frozenset[str]:
    """Locations of the data files of a publication, by its index; without one, by its manifests.

    Raises:
        Unserveable: no API can serve it.
        StoreError, Unavailable: its metadata cannot be read, or not now.
    """
    found: set[str] = set()
    try:
        index = view.index(pin.version)
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
        found.update(_list_from_manifests(pin, stores)[1])
    else:
        for batch in index.batches():
            found.update(batch.column("path").to_pylist())
            index.give_back(batch)
    return frozenset(stores.place(path).location for path in found)


def _list_from_manifests(pin: PinnedSnapshot, stores: Stores) -> tuple[str, list[str]]:
    """The location of a table, and the data files that the manifests of a snapshot name."""
    try:
        table, snapshot = open_metadata(stores, pin.metadata_location, pin.snapshot_id)
        location = local_path(table.location)
        live = live_files(stores, snapshot, location)
    except Unserveable as error:
        _log.error("the files of %s cannot be listed: %s", pin.metadata_location, error)
        raise Unserveable(
            "The manifests of the table cannot be read.", "Provider: the server's log names the file."
        ) from error
    return location, [local_path(path) for path in live.data.column("path").to_pylist()]
