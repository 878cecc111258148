"""The files of a Delta table: the log's `add` actions as columns, with parsed paths, values and statistics."""

import json
import math
import posixpath
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.locations import local_path
from lakeshare_server.storage.location_columns import is_printable, resolve_names
from lakeshare_server.tables.lines import PLAIN as PLAIN_JSON
from lakeshare_server.tables.lines import column_of, decode_z85, join_parts, pieces_of, struct_json, struct_of
from lakeshare_server.tables.snapshot import Field, arrow_type, parse_schema

Action = dict[str, Any]
# Column, type, and the name in the log.
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
    """Converts `add` actions of commits; `partition_columns` have the names in the log."""
    columns: dict[str, pa.Array] = {}
    vectors = [action.get("deletionVector") or {} for action in actions]
    for members, objects in ((PLAIN, actions), (VECTOR, vectors)):
        for name, kind, key in members:
            columns[name] = pa.array([one.get(key) for one in objects], kind)
    columns["tags"] = pa.array([_tags(action.get("tags")) for action in actions], pa.string())
    values = [action.get("partitionValues") or {} for action in actions]
    texts = {name: pa.array([value.get(name) for value in values], pa.string()) for name in partition_columns}
    columns["partition_values"] = struct_of(texts, len(actions))
    return pa.table(columns)


def from_checkpoint(adds: pa.StructArray, partition_columns: Sequence[str]) -> pa.Table:
    """Converts the `add` column of a checkpoint, without null rows; the caller handles `stats_parsed`."""
    count = len(adds)
    columns = {name: _member(adds, key, kind) for name, kind, key in PLAIN}
    vector = _member(adds, "deletionVector", None)
    for name, kind, key in VECTOR:
        columns[name] = pa.nulls(count, kind) if vector is None else _member(vector, key, kind)
    tags = _member(adds, "tags", None)
    if tags is None or tags.null_count == count:
        columns["tags"] = pa.nulls(count, pa.string())
    else:
        texts = [_tags(None if tag is None else dict(tag)) for tag in tags.to_pylist()]
        columns["tags"] = pa.array(texts, pa.string())
    values = _member(adds, "partitionValues", None)
    texts_by_name = {
        name: pa.nulls(count, pa.string()) if values is None else _find_in_maps(values, name)
        for name in partition_columns
    }
    columns["partition_values"] = struct_of(texts_by_name, count)
    return pa.table(columns)


def _member(values: pa.StructArray, name: str, kind: pa.DataType | None) -> Any:
    if values.type.get_field_index(name) < 0:
        return None if kind is None else pa.nulls(len(values), kind)
    member = pc.struct_field(values, [name])
    return member if kind is None else pc.cast(member, kind)


def _find_in_maps(values: pa.MapArray, column: str) -> pa.Array:
    name = pa.scalar(column, values.type.key_type)
    first, end = values.offsets[0].as_py(), values.offsets[len(values)].as_py()
    keys = values.keys.slice(first, end - first)
    # With one partition column no map has to be searched: keys of a map differ, so each has only this one.
    is_alone = end - first == len(values) and not values.null_count
    if is_alone and pc.all(pc.equal(keys, name), min_count=0).as_py():
        return pc.cast(values.items.slice(first, end - first), pa.string())
    return pc.cast(pc.map_lookup(values, name, "first"), pa.string())


def _tags(tags: object) -> str | None:
    return json.dumps(tags, separators=(",", ":"), ensure_ascii=False) if isinstance(tags, dict) else None


def keys_of(adds: pa.Table) -> list[tuple[str, str | None]]:
    paths = map(_normalize, adds.column("path").to_pylist())
    return list(zip(paths, vector_ids(adds).to_pylist(), strict=True))


def key_of(action: Action) -> tuple[str, str | None]:
    return _normalize(action["path"]), vector_id(action.get("deletionVector"))


def _normalize(path: str) -> str:
    """A path of the log in one spelling: absolute paths have several."""
    return local_path(unquote(path)) if path.startswith(("/", "file:")) else path


def vector_ids(adds: pa.Table) -> pa.Array:
    """The unique id of each file's deletion vector, null without one ("Deletion Vector Descriptor Schema")."""
    storage = column_of(adds, "dv_storage")
    offset = pc.cast(column_of(adds, "dv_offset"), pa.string())
    at = pc.fill_null(pc.binary_join_element_wise("@", offset, ""), "")
    return pc.binary_join_element_wise(storage, column_of(adds, "dv_path"), at, "")


def vector_id(vector: Action | None) -> str | None:
    if not vector:
        return None
    offset = vector.get("offset")
    return f"{vector['storageType']}{vector['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


WITH_EMPTY_VALUES = ("string", "binary")


def empty_as_null(texts: pa.StructArray, types: Sequence[str]) -> pa.StructArray:
    """Replaces empty texts by null except in columns whose type has an empty value; `types` are in column order."""
    columns = {}
    for member, type_name in zip(texts.type, types, strict=True):
        values = pc.struct_field(texts, [member.name])
        is_value = type_name in WITH_EMPTY_VALUES
        columns[member.name] = values if is_value else pc.if_else(pc.equal(values, ""), None, values)
    return struct_of(columns, len(texts))


def parse_partition_values(texts: pa.StructArray, columns: list[tuple[str, str]]) -> pa.StructArray:
    """Parses texts in the order of `columns`, logical names and types; leaves out a column with an invalid text."""
    members = [pc.struct_field(texts, [position]) for position in range(len(columns))]
    parsed = {name: _parse(member, kind) for (name, kind), member in zip(columns, members, strict=True)}
    return struct_of({name: values for name, values in parsed.items() if values is not None}, len(texts))


def _parse(texts: pa.Array, type_name: str) -> pa.Array | None:
    kind = arrow_type(type_name)
    if kind is None or pa.types.is_binary(kind):
        return None
    if pa.types.is_timestamp(kind):
        # Writers differ in writing a zone; only the client knows which zone a time without one is in.
        texts, kind = pc.replace_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$", ""), pa.timestamp("us")
    try:
        values = pc.cast(texts, kind)
    except pa.ArrowInvalid:
        return None
    return pc.cast(values, pa.timestamp("us", "UTC")) if type_name == "timestamp" else values


UUID_CHARS = 20


def vector_paths(root: str, adds: pa.Table) -> pa.Array:
    """The absolute locations of deletion vectors in files; null for inline ones and for files without one."""
    storage = column_of(adds, "dv_storage")
    described = column_of(adds, "dv_path")
    if storage.null_count == len(storage):
        return pa.nulls(len(storage), pa.string())
    pairs = zip(storage.to_pylist(), described.to_pylist(), strict=True)
    names = pa.array([vector_name(root, kind, path) for kind, path in pairs], pa.string())
    absolute = pc.equal(storage, "p")
    return pc.if_else(absolute, resolve_names(root, pc.if_else(absolute, names, None)), names)


def require_whole(root: str, adds: pa.Table) -> None:
    """Raises TableFilesMissing if a descriptor of a deletion vector lacks a required field."""
    described = pc.is_valid(adds.column("dv_storage"))
    for name in ("dv_path", "dv_size", "dv_cardinality"):
        if pc.any(pc.and_(described, pc.is_null(adds.column(name))), min_count=0).as_py():
            raise TableFilesMissing(root, "the description of a deletion vector in its log is not whole")


def vector_name(root: str, storage: str | None, described: str | None) -> str | None:
    """The location of a deletion vector, normalised only if it is relative; None for an inline one, or without one."""
    if storage is None or storage == "i":
        return None
    if described is None or storage not in ("u", "p"):
        raise TableFilesMissing(root, f"a deletion vector of storage type {storage!r} has no known place")
    if storage == "p":
        return described
    prefix, encoded = described[:-UUID_CHARS], described[-UUID_CHARS:]
    try:
        name = f"deletion_vector_{uuid.UUID(bytes=decode_z85(encoded))}.bin"
    except ValueError as error:
        raise TableFilesMissing(root, f"a deletion vector has the unreadable name {described!r}") from error
    location = "/".join(part for part in (root.rstrip("/"), prefix, name) if part)
    # Normalized like the paths of data files, to find files outside of the table's folder.
    return posixpath.normpath(location) if location.startswith("/") else location


def mapping_mode(configuration: Mapping[str, str | None]) -> str:
    return (configuration.get("delta.columnMapping.mode") or "none").lower()


def partition_types(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The types of the partition columns by their names in `partitionValues`, in the table's order."""
    is_mapped = mapping_mode(metadata.get("configuration") or {}) != "none"
    fields = {field.name: field for field in parse_schema(metadata["schemaString"])}
    columns = [fields[column] for column in metadata.get("partitionColumns") or ()]
    return {field.physical if is_mapped else field.name: str(field.type) for field in columns}


DOUBLE_ERROR = 1e-15


def _read_as(field: Field) -> pa.DataType | None:
    """The Arrow type for reading bounds from JSON; None for a type without bounds."""
    kind = arrow_type(field.type) if isinstance(field.type, str) else None
    if kind is None or pa.types.is_boolean(kind) or pa.types.is_binary(kind):
        return None
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    # Times are read as text, so that a single invalid one, such as one without its zone, becomes null.
    return pa.string() if pa.types.is_temporal(kind) else kind


def _bound(field: Field, values: pa.Array, error: float) -> pa.Array:
    """Bounds as read, in the type of comparisons; `error` widens those of decimals, which were read as doubles."""
    kind = arrow_type(field.type) if isinstance(field.type, str) else None
    if kind is not None and pa.types.is_decimal(kind):
        return pc.add(values, pc.multiply(pc.abs(values), error))
    if kind is not None and pa.types.is_temporal(kind):
        return _moments(values, kind)
    if kind is not None and pa.types.is_integer(kind) and kind != values.type:
        limit = 1 << (kind.bit_width - 1)
        fits = pc.and_(pc.greater_equal(values, -limit), pc.less(values, limit))
        return pc.cast(pc.if_else(fits, values, None), kind)
    return values


def _arrow_struct(fields: Sequence[Field], kind: Callable[[Field], pa.DataType | None]) -> pa.StructType:
    """A struct of the fields' physical names; fields without a type are left out."""
    members = []
    for field in fields:
        own = _arrow_struct(field.members, kind) if field.members else kind(field)
        if own is not None and not (field.members and not own.num_fields):
            members.append(pa.field(field.physical, own))
    return pa.struct(members)


def _shape_values(
    values: pa.StructArray, fields: Sequence[Field], convert: Callable[[Field, pa.Array], pa.Array]
) -> pa.StructArray:
    """The values under logical names; columns that are null in every file are left out."""
    columns = {}
    for field in fields:
        if values.type.get_field_index(field.physical) < 0:
            continue
        inner = pc.struct_field(values, [field.physical])
        inner = _shape_values(inner, field.members, convert) if field.members else convert(field, inner)
        if inner.type.num_fields if field.members else inner.null_count < len(inner):
            columns[field.name] = inner
    return struct_of(columns, len(values))


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Dates or times; null for an invalid text. Bisects, because few texts are invalid."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_moments(texts.slice(0, half), kind), _moments(texts.slice(half), kind)])


BLOCK_BYTES = 1 << 22
# A block that does not parse is bisected down to this size, then read row by row.
ROW_BY_ROW = 256
# A JSON object as most writers make it: the row count first, and statistics without nested columns and escapes.
_TEXT = r'"[^"\\\x00-\x1f]*"'
_VALUE = rf"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|{_TEXT}|true|false|null)"
_VALUES = rf"\{{(?:{_TEXT}:{_VALUE}(?:,{_TEXT}:{_VALUE})*)?\}}"
_ROW_COUNT = r'^\{"numRecords":(?P<rows>0|[1-9][0-9]{0,17})'
USUAL_STATS = (
    rf'{_ROW_COUNT}(?:,"(?:minValues|maxValues|nullCount)":{_VALUES})*(?:,"tightBounds":(?:true|false))?\}}$'
)
# An object followed by something other than the end of the text or of a surrounding object.
BEHIND_OBJECT = r"\}\s*[^\s,}\]\"]"


@dataclass(frozen=True)
class Statistics:
    """Typed statistics, one row per file; `text` is null if the log has no usable text."""

    rows: pa.Array
    min: pa.StructArray
    max: pa.StructArray
    null_count: pa.StructArray
    text: pa.Array


def parse_stats(texts: pa.Array, fields: Sequence[Field]) -> Statistics:
    """The statistics of the fields; without fields, those that writers usually write are matched and not parsed."""
    if not fields and pc.all(pc.match_substring_regex(texts, USUAL_STATS), min_count=0).as_py():
        rows = pc.cast(pc.struct_field(pc.extract_regex(texts, _ROW_COUNT), [0]), pa.int64())
        nothing = struct_of({}, len(texts))
        return Statistics(rows, nothing, nothing, nothing, texts)
    bounds = _arrow_struct(fields, _read_as)
    counts = _arrow_struct(fields, lambda _: pa.int64())
    members = {"minValues": bounds, "maxValues": bounds, "nullCount": counts}
    with_fields = {name: kind for name, kind in members.items() if kind.num_fields}
    schema = pa.schema({"numRecords": pa.int64(), **with_fields})
    table, is_json = _parsed(texts, schema)
    rows = column_of(table, "numRecords")
    rows = pc.if_else(pc.greater_equal(rows, 0), rows, None)
    usable = pc.and_(is_json, pc.is_valid(rows))

    def shape(name: str, convert: Callable[[Field, pa.Array], pa.Array]) -> pa.StructArray:
        if name not in with_fields:
            return struct_of({}, len(texts))
        return _shape_values(column_of(table, name), fields, convert)

    return Statistics(
        rows=rows,
        min=shape("minValues", lambda field, values: _bound(field, values, -DOUBLE_ERROR)),
        max=shape("maxValues", lambda field, values: _bound(field, values, DOUBLE_ERROR)),
        null_count=shape("nullCount", lambda _, values: values),
        text=texts if pc.all(usable, min_count=0).as_py() else pc.if_else(usable, texts, None),
    )


def stats_texts(texts: pa.Array, adds: pa.StructArray) -> pa.Array:
    """The JSON texts of a checkpoint's statistics; those that it has only as a struct are converted to JSON."""
    if not texts.null_count or adds.type.get_field_index("stats_parsed") < 0:
        return texts
    parsed = pc.struct_field(adds, ["stats_parsed"])
    text = join_parts(struct_json(parsed, PLAIN_JSON, with_booleans=True), null="")
    return pc.coalesce(texts, pc.if_else(pc.is_valid(parsed), text, None))


def _parsed(texts: pa.Array, schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    """The texts as columns, and which texts are JSON; a missing text has only nulls."""
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
    # Arrow would read other texts into the next row, or crash on them: a bare null counts as an empty column.
    bounded = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    is_one_object = pc.and_(bounded, pc.invert(pc.match_substring_regex(texts, BEHIND_OBJECT)))
    if not pc.all(is_one_object, min_count=0).as_py():
        raise pa.ArrowInvalid("a statistics text is not one JSON object")
    one_line = texts if is_printable(texts) else pc.replace_substring(texts, "\n", " ")
    lines = pc.binary_join_element_wise(one_line, "", "\n")
    _, offsets, characters = lines.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[lines.offset], ends[lines.offset + len(lines)]
    table = pj.read_json(
        pa.BufferReader(characters.slice(first, last - first)),
        read_options=pj.ReadOptions(block_size=BLOCK_BYTES),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("a statistics text is more or less than one JSON object")
    return table


def _by_row(texts: pa.Array, schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    objects = [_json_object(text) for text in texts.to_pylist()]
    kind = pa.struct(list(schema))
    rows = [{} if fields is None else _select_members(fields, kind) for fields in objects]
    columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    return pa.table(columns), pa.array([fields is not None for fields in objects], pa.bool_())


def _json_object(text: str | None) -> dict[str, Any] | None:
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _select_members(fields: Mapping[str, Any], kind: pa.StructType) -> dict[str, Any]:
    members = {}
    for member in kind:
        value = fields.get(member.name)
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
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return None if math.isnan(number) else number
    try:
        # Writers that truncate texts may leave half a surrogate pair, which cannot be encoded.
        return value if isinstance(value, str) and value.encode() is not None else None
    except UnicodeEncodeError:
        return None


# Pieces of a table that are parsed at once: Arrow reads JSON in threads, but what is before and after it in one.
PARSERS = 2
AS_IN_THE_LOG = (
    *("size", "modification_time", "tags", "base_row_id", "default_row_commit_version"),
    *("clustering_provider", "dv_storage", "dv_offset", "dv_size"),
)


def snapshot_files(
    root: str, metadata: Mapping[str, Any], adds: pa.Table, *, with_bounds: bool = True
) -> pa.Table:
    """The files in the form of `TableSnapshot`; without bounds, statistics have only the row counts."""
    require_whole(root, adds)
    partition_columns = list(metadata.get("partitionColumns") or ())
    fields = parse_schema(metadata["schemaString"])
    kinds = {field.name: field.type for field in fields}
    types = [str(kinds[column]) for column in partition_columns]
    with_stats = [field for field in fields if with_bounds and field.name not in partition_columns]

    def parse(piece: pa.Table) -> pa.Table:
        return _piece_files(root, piece, partition_columns, types, with_stats)

    with ThreadPoolExecutor(PARSERS) as pool:
        pieces = list(pool.map(parse, pieces_of(adds)))
    if len(pieces) == 1:
        return pieces[0]
    read = [piece.schema.field("partition").type for piece in pieces]
    # A column with an invalid text in any piece has no values; one with statistics in any piece has statistics.
    structs = {"partition": pa.struct([field for field in read[0] if all(field in kind for kind in read)])}
    for name in ("min", "max", "null_count"):
        structs[name] = _merge_types([piece.schema.field(name).type for piece in pieces], with_stats)
    for name, kind in structs.items():
        for number, piece in enumerate(pieces):
            values = _align(column_of(piece, name), kind)
            pieces[number] = piece.set_column(piece.schema.get_field_index(name), name, values)
    return pa.concat_tables(pieces)


def _merge_types(kinds: Sequence[pa.StructType], fields: Sequence[Field]) -> pa.StructType:
    """The type with the columns of all, in the order of the fields."""
    members = []
    for field in fields:
        found = [kind.field(field.name).type for kind in kinds if kind.get_field_index(field.name) >= 0]
        if found:
            merged = _merge_types(found, field.members) if field.members else found[0]
            members.append(pa.field(field.name, merged))
    return pa.struct(members)


def _align(values: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """The values in another type: columns that it lacks are left out, and those that it adds are null."""
    columns = {}
    for field in kind:
        is_struct, is_new = pa.types.is_struct(field.type), values.type.get_field_index(field.name) < 0
        if is_new:
            inner = pa.nulls(len(values), pa.struct([]) if is_struct else field.type)
        else:
            inner = pc.struct_field(values, [field.name])
        columns[field.name] = _align(inner, field.type) if is_struct else inner
    return struct_of(columns, len(values))


def _piece_files(
    root: str, adds: pa.Table, partition_columns: Sequence[str], types: Sequence[str], fields: Sequence[Field]
) -> pa.Table:
    texts = empty_as_null(column_of(adds, "partition_values"), types)
    stats = parse_stats(column_of(adds, "stats"), fields)
    return pa.table(
        {
            **logged_files(root, adds, texts, stats.text),
            "rows": stats.rows,
            "partition": parse_partition_values(texts, list(zip(partition_columns, types, strict=True))),
            "min": stats.min,
            "max": stats.max,
            "null_count": stats.null_count,
        }
    )


def logged_files(
    root: str, adds: pa.Table, partition_values: pa.StructArray, stats: pa.Array
) -> dict[str, pa.Array]:
    """The columns of files that their lines are rendered from, with these partition values and statistics."""
    names, storage = column_of(adds, "path"), column_of(adds, "dv_storage")
    return {
        "path": resolve_names(root, names),
        "name": names,
        "partition_values": partition_values,
        "stats": stats,
        "dv_cardinality": pc.fill_null(column_of(adds, "dv_cardinality"), 0),
        "dv_id": pc.if_else(pc.is_valid(storage), vector_ids(adds), None),
        "dv_path": vector_paths(root, adds),
        "dv_inline": pc.if_else(pc.equal(storage, "i"), column_of(adds, "dv_path"), None),
        **{name: column_of(adds, name) for name in AS_IN_THE_LOG},
    }
