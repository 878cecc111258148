"""The files of a snapshot: a log's `add` actions with their places, values and statistics made usable."""

import json
import math
import posixpath
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.storage.locations import is_printable, local_path, resolve_names
from lakeshare_server.tables.lines import PLAIN as PLAIN_JSON
from lakeshare_server.tables.lines import Part, column_of, decode_z85, join_parts
from lakeshare_server.tables.snapshot import DECIMAL, arrow_type, parse_schema

Action = dict[str, Any]
# Column, type, and where the log has it.
PLAIN: tuple[tuple[str, pa.DataType, str], ...] = (
    ("path", pa.string(), "path"),
    ("size", pa.int64(), "size"),
    ("modification_time", pa.int64(), "modificationTime"),
    ("stats", pa.string(), "stats"),
    ("base_row_id", pa.int64(), "baseRowId"),
    ("default_row_commit_version", pa.int64(), "defaultRowCommitVersion"),
    ("clustering_provider", pa.string(), "clusteringProvider"),
)
VECTOR: tuple[tuple[str, pa.DataType, str], ...] = (
    ("dv_storage", pa.string(), "storageType"),
    ("dv_path", pa.string(), "pathOrInlineDv"),
    ("dv_offset", pa.int64(), "offset"),
    ("dv_size", pa.int64(), "sizeInBytes"),
    ("dv_cardinality", pa.int64(), "cardinality"),
)


def from_actions(actions: Sequence[Action], partition_columns: Sequence[str]) -> pa.Table:
    """The actions of commits; `partition_columns` are the names the log uses for them.

    Raises:
        KeyError, TypeError, pa.ArrowInvalid: an action is not what the specification says.
    """
    columns: dict[str, pa.Array] = {
        name: pa.array([action.get(key) for action in actions], kind) for name, kind, key in PLAIN
    }
    vectors = [action.get("deletionVector") or {} for action in actions]
    for name, kind, key in VECTOR:
        columns[name] = pa.array([vector.get(key) for vector in vectors], kind)
    columns["tags"] = pa.array([_tags(action.get("tags")) for action in actions], pa.string())
    values = [action.get("partitionValues") or {} for action in actions]
    columns["partition_values"] = _struct(
        partition_columns,
        len(actions),
        lambda column: pa.array([value.get(column) for value in values], pa.string()),
    )
    return pa.table(columns)


def from_checkpoint(adds: pa.StructArray, partition_columns: Sequence[str]) -> pa.Table:
    """The `add` column of a checkpoint, its rows that are not null; `stats_parsed` is handled by the caller."""
    count = len(adds)
    columns = {name: _member(adds, key, kind) for name, kind, key in PLAIN}
    vector = _member(adds, "deletionVector", None)
    for name, kind, key in VECTOR:
        columns[name] = pa.nulls(count, kind) if vector is None else _member(vector, key, kind)
    columns["tags"] = _tag_texts(_member(adds, "tags", None), count)
    values = _member(adds, "partitionValues", None)
    columns["partition_values"] = _struct(
        partition_columns,
        count,
        lambda column: pa.nulls(count, pa.string()) if values is None else _find_in_maps(values, column),
    )
    return pa.table(columns)


def keys_of(adds: pa.Table) -> list[tuple[str, str | None]]:
    """What tells logical files apart: the path and the deletion vector."""
    paths = [file_name(path) for path in adds.column("path").to_pylist()]
    return list(zip(paths, vector_ids(adds).to_pylist(), strict=True))


def key_of(action: Action) -> tuple[str, str | None]:
    """The same, for an action of a commit."""
    return file_name(action["path"]), vector_id(action.get("deletionVector"))


def file_name(path: str) -> str:
    """A path as the log has it, in one spelling: absolute ones are written in several ways."""
    return local_path(unquote(path)) if path.startswith(("/", "file:")) else path


def vector_ids(adds: pa.Table) -> pa.Array:
    """Per file the unique id of its deletion vector, null without one ("Deletion Vector Descriptor Schema")."""
    storage = column_of(adds, "dv_storage")
    offset = pc.cast(column_of(adds, "dv_offset"), pa.string())
    at = pc.fill_null(pc.binary_join_element_wise("@", offset, ""), "")
    return pc.binary_join_element_wise(storage, column_of(adds, "dv_path"), at, "")


def vector_id(vector: Action | None) -> str | None:
    """The unique id of a descriptor as the log has it."""
    if not vector:
        return None
    offset = vector.get("offset")
    return f"{vector['storageType']}{vector['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


def _member(values: pa.StructArray, name: str, kind: pa.DataType | None) -> Any:
    if values.type.get_field_index(name) < 0:
        return None if kind is None else pa.nulls(len(values), kind)
    member = pc.struct_field(values, [name])
    return member if kind is None else pc.cast(member, kind)


def _find_in_maps(values: pa.MapArray, column: str) -> pa.Array:
    name = pa.scalar(column, values.type.key_type)
    first, end = values.offsets[0].as_py(), values.offsets[len(values)].as_py()
    keys = values.keys.slice(first, end - first)
    # With one partition column no map has to be searched: keys of a map differ, so each has just this one.
    is_alone = end - first == len(values) and not values.null_count
    if is_alone and pc.all(pc.equal(keys, name), min_count=0).as_py():
        return pc.cast(values.items.slice(first, end - first), pa.string())
    return pc.cast(pc.map_lookup(values, name, "first"), pa.string())


def _struct(columns: Sequence[str], count: int, values: Callable[[str], pa.Array]) -> pa.StructArray:
    if not columns:
        return pa.nulls(count, pa.struct([]))
    return pa.StructArray.from_arrays([values(column) for column in columns], list(columns))


def _tags(tags: object) -> str | None:
    return json.dumps(tags, separators=(",", ":"), ensure_ascii=False) if isinstance(tags, dict) else None


def _tag_texts(tags: pa.MapArray | None, count: int) -> pa.Array:
    if tags is None or tags.null_count == count:
        return pa.nulls(count, pa.string())
    return pa.array([_tags(None if tag is None else dict(tag)) for tag in tags.to_pylist()], pa.string())


WITH_EMPTY_VALUES = ("string", "binary")


def empty_as_null(texts: pa.StructArray, types: Sequence[str]) -> pa.StructArray:
    """The texts with null for the empty ones that are no values; `types` are those of the columns, in their order."""
    if not texts.type.num_fields:
        return texts
    arrays = []
    for place, type_name in enumerate(types):
        values = pc.struct_field(texts, [place])
        is_value = type_name in WITH_EMPTY_VALUES
        arrays.append(values if is_value else pc.if_else(pc.equal(values, ""), None, values))
    return pa.StructArray.from_arrays(arrays, [member.name for member in texts.type])


def parse_partition_values(texts: pa.StructArray, columns: list[tuple[str, str]]) -> pa.StructArray:
    """The texts as values; `columns` are the logical names and types, in the struct's order.

    A column with a text that is no value of its type is left out: nothing is known of it.
    """
    arrays, names = [], []
    for place, (name, type_name) in enumerate(columns):
        values = _values(pc.struct_field(texts, [place]), type_name)
        if values is not None:
            arrays.append(values)
            names.append(name)
    if not arrays:
        return pa.nulls(len(texts), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, names)


def _values(texts: pa.Array, type_name: str) -> pa.Array | None:
    kind = arrow_type(type_name)
    if kind is None or pa.types.is_binary(kind):
        return None
    if pa.types.is_timestamp(kind):
        # With or without a zone, by writer; whose zone is meant is known to the client only.
        texts, kind = pc.replace_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$", ""), pa.timestamp("us")
    try:
        values = pc.cast(texts, kind)
    except pa.ArrowInvalid:
        return None
    return pc.cast(values, pa.timestamp("us", "UTC")) if type_name == "timestamp" else values


UUID_CHARS = 20


def vector_paths(root: str, adds: pa.Table) -> pa.Array:
    """Absolute locations of the files that hold deletion vectors; null for inline ones and for files without.

    Raises:
        TableFilesMissing: a descriptor is not what the specification says.
    """
    storage = column_of(adds, "dv_storage")
    described = column_of(adds, "dv_path")
    if storage.null_count == len(storage):
        return pa.nulls(len(storage), pa.string())
    pairs = zip(storage.to_pylist(), described.to_pylist(), strict=True)
    names = pa.array([_name(root, kind, path) for kind, path in pairs], pa.string())
    absolute = pc.equal(storage, "p")
    return pc.if_else(absolute, resolve_names(root, pc.if_else(absolute, names, None)), names)


def require_whole(root: str, adds: pa.Table) -> None:
    """Refuse descriptors that lack what clients cannot do without.

    Raises:
        TableFilesMissing: one does.
    """
    described = pc.is_valid(adds.column("dv_storage"))
    for name in ("dv_path", "dv_size", "dv_cardinality"):
        if pc.any(pc.and_(described, pc.is_null(adds.column(name))), min_count=0).as_py():
            raise TableFilesMissing(root, "the description of a deletion vector in its log is not whole")


def _name(root: str, storage: str | None, described: str | None) -> str | None:
    if storage is None or storage == "i":
        return None
    if described is None or storage not in ("u", "p"):
        raise TableFilesMissing(root, f"a deletion vector of storage type {storage!r} has no known place")
    if storage == "p":
        return described
    prefix, encoded = described[:-UUID_CHARS], described[-UUID_CHARS:]
    try:
        name = f"deletion_vector_{uuid.UUID(bytes=decode_z85(encoded))}.bin"
    except (KeyError, ValueError, OverflowError) as error:
        raise TableFilesMissing(root, f"a deletion vector has the unreadable name {described!r}") from error
    location = "/".join(part for part in (root.rstrip("/"), prefix, name) if part)
    # As for data files: whether a file is the table's own is told by its folded path.
    return posixpath.normpath(location) if location.startswith("/") else location


PHYSICAL = "delta.columnMapping.physicalName"


def mapping_mode(configuration: Mapping[str, str | None]) -> str:
    """`none`, `name` or `id`."""
    return (configuration.get("delta.columnMapping.mode") or "none").lower()


def physical_name(member: Mapping[str, Any]) -> str:
    """The name of a schema's field in log and files."""
    name = (member.get("metadata") or {}).get(PHYSICAL)
    return str(member["name"] if name is None else name)


def physical_partition_columns(metadata: Mapping[str, Any]) -> list[str]:
    """The partition columns as `partitionValues` names them, in the table's order."""
    return list(partition_types(metadata))


def partition_types(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The types of the partition columns, by their names in `partitionValues`, in the table's order."""
    is_mapped = mapping_mode(metadata.get("configuration") or {}) != "none"
    members = {member["name"]: member for member in json.loads(metadata["schemaString"])["fields"]}
    columns = [(column, members[column]) for column in metadata.get("partitionColumns") or ()]
    return {
        physical_name(member) if is_mapped else str(column): str(member["type"]) for column, member in columns
    }


DOUBLE_ERROR = 1e-15


@dataclass(frozen=True)
class Leaf:
    """A column, or with `members` a struct of columns; `type` is the protocol's name of a primitive."""

    name: str
    physical: str
    type: str | None = None
    members: tuple["Leaf", ...] = ()

    @property
    def read_as(self) -> pa.DataType | None:
        """The Arrow type its bounds are read from JSON as; None for a type that has no bounds."""
        if self.type is None or self.type in ("boolean", "binary"):
            return None
        if DECIMAL.fullmatch(self.type):
            return pa.float64()
        kind = arrow_type(self.type)
        if kind is None:
            return None
        if pa.types.is_integer(kind):
            return pa.int64()
        if pa.types.is_floating(kind):
            return pa.float64()
        # Read as text, so that each is judged on its own, and a time without the zone it should have is none.
        return pa.string() if pa.types.is_temporal(kind) else kind

    def low(self, values: pa.Array) -> pa.Array:
        """Lower bounds as read, in the type they are compared in."""
        return self._bound(values, -DOUBLE_ERROR)

    def high(self, values: pa.Array) -> pa.Array:
        """Upper bounds as read, in the type they are compared in."""
        return self._bound(values, DOUBLE_ERROR)

    def _bound(self, values: pa.Array, error: float) -> pa.Array:
        if self.type is not None and DECIMAL.fullmatch(self.type):
            return pc.add(values, pc.multiply(pc.abs(values), error))
        kind = arrow_type(self.type) if self.type is not None else None
        if kind is not None and pa.types.is_temporal(kind):
            return _moments(values, kind)
        if kind is not None and pa.types.is_integer(kind) and kind != values.type:
            return _narrow(values, kind)
        return values


def list_leaves(schema_string: str, left_out: Sequence[str] = ()) -> tuple[Leaf, ...]:
    """The columns of a schema, without those named, which are partition columns."""
    members = json.loads(schema_string)["fields"]
    return tuple(_leaf_of(member) for member in members if member["name"] not in left_out)


def arrow_struct(leaves: Sequence[Leaf], kind: Callable[[Leaf], pa.DataType | None]) -> pa.StructType:
    """A struct of the leaves' physical names; leaves without a type are left out."""
    fields = []
    for leaf in leaves:
        its = arrow_struct(leaf.members, kind) if leaf.members else kind(leaf)
        if its is not None and not (leaf.members and not its.num_fields):
            fields.append(pa.field(leaf.physical, its))
    return pa.struct(fields)


def shape_values(
    values: pa.StructArray, leaves: Sequence[Leaf], convert: Callable[[Leaf, pa.Array], pa.Array]
) -> pa.StructArray:
    """The values under logical names; columns that are null in every file are left out."""
    arrays, names = [], []
    for leaf in leaves:
        if values.type.get_field_index(leaf.physical) < 0:
            continue
        inner = pc.struct_field(values, [leaf.physical])
        inner = shape_values(inner, leaf.members, convert) if leaf.members else convert(leaf, inner)
        if (leaf.members and inner.type.num_fields) or (not leaf.members and inner.null_count < len(inner)):
            arrays.append(inner)
            names.append(leaf.name)
    if not arrays:
        return pa.nulls(len(values), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, names)


def _leaf_of(member: Mapping[str, Any]) -> Leaf:
    kind = member["type"]
    if isinstance(kind, dict) and kind["type"] == "struct":
        inner = tuple(_leaf_of(one) for one in kind["fields"])
        return Leaf(member["name"], physical_name(member), members=inner)
    return Leaf(member["name"], physical_name(member), type=kind if isinstance(kind, str) else None)


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Dates or times; null for a text that is none. Bad ones are searched for by halves: there are few."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_moments(texts.slice(0, half), kind), _moments(texts.slice(half), kind)])


def _narrow(values: pa.Array, kind: pa.DataType) -> pa.Array:
    limit = 1 << (kind.bit_width - 1)
    fits = pc.and_(pc.greater_equal(values, -limit), pc.less(values, limit))
    return pc.cast(pc.if_else(fits, values, None), kind)


BLOCK_BYTES = 1 << 22
# A block that does not parse is halved down to this size, then read row by row.
ROW_BY_ROW = 256
# What does not stand behind an object, within another one or at the end of a text: something else begins there.
BEHIND_OBJECT = r"\}\s*[^\s,}\]\"]"


@dataclass(frozen=True)
class Statistics:
    """Typed statistics, one row per file; `text` is null where the log has none that a reader could use."""

    rows: pa.Array
    min: pa.StructArray
    max: pa.StructArray
    null_count: pa.StructArray
    text: pa.Array


def parse_stats(texts: pa.Array, leaves: Sequence[Leaf]) -> Statistics:
    """The statistics in the log's texts."""
    schema = pa.schema(
        [
            ("numRecords", pa.int64()),
            ("minValues", arrow_struct(leaves, lambda leaf: leaf.read_as)),
            ("maxValues", arrow_struct(leaves, lambda leaf: leaf.read_as)),
            ("nullCount", arrow_struct(leaves, lambda _: pa.int64())),
        ]
    )
    table, is_json = _parsed(texts, schema)
    rows = column_of(table, "numRecords")
    rows = pc.if_else(pc.greater_equal(rows, 0), rows, None)
    usable = pc.and_(is_json, pc.is_valid(rows))
    return Statistics(
        rows=rows,
        min=shape_values(column_of(table, "minValues"), leaves, lambda leaf, values: leaf.low(values)),
        max=shape_values(column_of(table, "maxValues"), leaves, lambda leaf, values: leaf.high(values)),
        null_count=shape_values(column_of(table, "nullCount"), leaves, lambda _, values: values),
        text=texts if pc.all(usable, min_count=0).as_py() else pc.if_else(usable, texts, None),
    )


def stats_texts(texts: pa.Array, adds: pa.StructArray) -> pa.Array:
    """The JSON texts of a checkpoint's files; those it has as a struct only are written as JSON here."""
    if not texts.null_count or adds.type.get_field_index("stats_parsed") < 0:
        return texts
    parsed = pc.struct_field(adds, ["stats_parsed"])
    return pc.coalesce(texts, pc.if_else(pc.is_valid(parsed), join_parts(_object(parsed), null=""), None))


def _object(values: pa.StructArray) -> list[Part]:
    members: list[tuple[str, list[Part]]] = []
    for position, member in enumerate(values.type):
        inner = pc.struct_field(values, [position])
        if pa.types.is_struct(member.type):
            members.append((member.name, _object(inner)))
        elif pa.types.is_boolean(member.type):
            members.append((member.name, [pc.cast(inner, pa.string())]))
        else:
            value = PLAIN_JSON.value(inner)
            if value is not None:
                members.append((member.name, value))
    return PLAIN_JSON.object(members)


def _parsed(texts: pa.Array, schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    """The texts as columns, and which of them are JSON; a text that is missing has nothing but nulls."""
    try:
        return _by_arrow(texts, schema), pc.is_valid(texts)
    except pa.ArrowInvalid:
        if len(texts) <= ROW_BY_ROW:
            return _by_row(texts, schema)
    half = len(texts) // 2
    first, second = _parsed(texts.slice(0, half), schema), _parsed(texts.slice(half), schema)
    return pa.concat_tables([first[0], second[0]]), pa.concat_arrays([first[1], second[1]])


def _by_arrow(texts: pa.Array, schema: pa.Schema) -> pa.Table:
    if not len(texts):
        return schema.empty_table()
    texts = pc.fill_null(texts, "{}")
    _require_one_object_each(texts)
    one_line = texts if is_printable(texts) else pc.replace_substring(texts, "\n", " ")
    lines = pc.binary_join_element_wise(one_line, "", "\n")
    table = pj.read_json(
        pa.BufferReader(_bytes_of(lines)),
        read_options=pj.ReadOptions(block_size=BLOCK_BYTES),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("a statistics text is more or less than one JSON object")
    return table


def _require_one_object_each(texts: pa.Array) -> None:
    """Refuse what Arrow would read on into the next text, or crash on: it takes a bare null for an empty column."""
    bounded = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    one = pc.and_(bounded, pc.invert(pc.match_substring_regex(texts, BEHIND_OBJECT)))
    if not pc.all(one, min_count=0).as_py():
        raise pa.ArrowInvalid("a statistics text is not one JSON object")


def _bytes_of(lines: pa.StringArray) -> pa.Buffer:
    _, offsets, characters = lines.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[lines.offset], ends[lines.offset + len(lines)]
    return characters.slice(first, last - first)


def _by_row(texts: pa.Array, schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    said = [_json(text) for text in texts.to_pylist()]
    rows = [_select_members(one, pa.struct(list(schema))) if isinstance(one, dict) else {} for one in said]
    table = pa.table(
        {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    )
    return table, pa.array([isinstance(one, dict) for one in said], pa.bool_())


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _select_members(said: Mapping[str, Any], kind: pa.StructType) -> dict[str, Any]:
    members = {}
    for member in kind:
        value = said.get(member.name)
        if pa.types.is_struct(member.type):
            members[member.name] = _select_members(value, member.type) if isinstance(value, dict) else None
        else:
            members[member.name] = _leaf(value, member.type)
    return members


def _leaf(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool):
        return None
    if pa.types.is_integer(kind):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return int(value) if whole and -(1 << 63) <= value < 1 << 63 else None
    if pa.types.is_floating(kind):
        return _float(value)
    return value if isinstance(value, str) and _is_text(value) else None


def _is_text(value: str) -> bool:
    """Whether it can be written: a writer that cuts texts may leave half a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _float(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


AS_IN_THE_LOG = (
    "tags",
    "base_row_id",
    "default_row_commit_version",
    "clustering_provider",
    "dv_storage",
    "dv_offset",
    "dv_size",
)


def snapshot_files(root: str, metadata: Mapping[str, Any], adds: pa.Table) -> pa.Table:
    """The files as `TableSnapshot` describes them.

    Raises:
        TableFilesMissing: a deletion vector is described by nothing the specification knows.
    """
    adds = adds.combine_chunks()
    names = column_of(adds, "path")
    schema_string = metadata["schemaString"]
    partition_columns = list(metadata.get("partitionColumns") or ())
    kinds = {field.name: field.type for field in parse_schema(schema_string)}
    types = [str(kinds[column]) for column in partition_columns]
    texts = empty_as_null(column_of(adds, "partition_values"), types)
    said = parse_stats(column_of(adds, "stats"), list_leaves(schema_string, partition_columns))
    storage = column_of(adds, "dv_storage")
    require_whole(root, adds)
    vector_path = vector_paths(root, adds)
    return pa.table(
        {
            "path": resolve_names(root, names),
            "name": names,
            "size": column_of(adds, "size"),
            "modification_time": column_of(adds, "modification_time"),
            "rows": said.rows,
            "dv_cardinality": pc.fill_null(column_of(adds, "dv_cardinality"), 0),
            "partition": parse_partition_values(texts, list(zip(partition_columns, types, strict=True))),
            "min": said.min,
            "max": said.max,
            "null_count": said.null_count,
            "partition_values": texts,
            "stats": said.text,
            "dv_id": pc.if_else(pc.is_valid(storage), vector_ids(adds), None),
            "dv_path": vector_path,
            "dv_inline": pc.if_else(pc.equal(storage, "i"), column_of(adds, "dv_path"), None),
            **{name: column_of(adds, name) for name in AS_IN_THE_LOG},
        }
    )
