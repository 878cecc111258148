"""The schema of an Iceberg table as a Delta schema, and how the columns of its live files differ from it."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.locations import local_path
from lakeshare_server.storage import LASTING, Stores
from lakeshare_server.tables.iceberg.manifests import DataFiles
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import Hindrance, TableHead, TableProtocol, primitive_types

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField


def older_type(in_file: pa.DataType, today: pa.DataType) -> str | None:
    """Returns Delta's name of the type in a file if readers widen it to today's, else None."""
    if pa.types.is_int32(in_file) and pa.types.is_int64(today):
        return "integer"
    if pa.types.is_float32(in_file) and pa.types.is_float64(today):
        return "float"
    if pa.types.is_decimal(in_file) and pa.types.is_decimal(today):
        is_wider = in_file.scale == today.scale and in_file.precision < today.precision
        return f"decimal({in_file.precision},{in_file.scale})" if is_wider else None
    return None


FIELD_ID = b"PARQUET:field_id"
# The members of a variant (Parquet's "Variant Binary Encoding"), and the one that shredding adds.
VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
SHREDDED = "typed_value"


@dataclass(frozen=True)
class FileColumn:
    """A column or group of a file; `name` is its path, `field_id` None if the file has no id for it.

    `place` has the index of the top-level column, then those of fields in structs; it is empty inside lists and maps.
    """

    name: str
    field_id: int | None
    type: pa.DataType
    is_shredded: bool = False
    place: tuple[int, ...] = ()

    @property
    def shape(self) -> str:
        """The type, with the same name for types that are the same to a reader."""
        if pa.types.is_struct(self.type):
            return "variant" if self.type == VARIANT else "struct"
        if pa.types.is_map(self.type):
            return "map"
        if pa.types.is_nested(self.type):
            return "list"
        if pa.types.is_timestamp(self.type):
            return "timestamp with zone" if self.type.tz else "timestamp"
        return str(self.type).removeprefix("large_")


def columns_of(schema: pa.Schema) -> list[FileColumn]:
    return [column for index, field in enumerate(schema) for column in _columns(field.name, field, (index,))]


def with_mapped_ids(columns: list[FileColumn], mapped: Mapping[str, int]) -> list[FileColumn]:
    """The columns of a file, which get ids by their names if it has none (Iceberg spec, "Column Projection")."""
    if any(column.field_id is not None for column in columns):
        return columns
    return [replace(column, field_id=mapped.get(column.name)) for column in columns]


def columns_of_table(schema: "Schema") -> dict[str, FileColumn]:
    """Returns all columns and groups of a table by their paths; the types of groups are empty."""
    names = {schema.find_column_name(field_id) or "": field_id for field_id in sorted(schema.field_ids)}
    return {
        name: FileColumn(name, field_id, _type_in_files(schema.find_type(field_id)))
        for name, field_id in names.items()
    }


def _type_in_files(kind: "IcebergType") -> pa.DataType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.types import ListType

    if kind.is_struct:
        return pa.struct([])
    if str(kind) == "variant":
        return VARIANT
    if kind.is_primitive:
        return schema_to_pyarrow(kind)
    return pa.list_(pa.null()) if isinstance(kind, ListType) else pa.map_(pa.string(), pa.null())


def _columns(path: str, field: pa.Field, place: tuple[int, ...] = ()) -> Iterator[FileColumn]:
    kind, field_id = field.type, (field.metadata or {}).get(FIELD_ID)
    if field_id is not None and _is_variant(kind):
        yield FileColumn(path, int(field_id), VARIANT, kind.get_field_index(SHREDDED) >= 0, place)
        return
    yield FileColumn(path, None if field_id is None else int(field_id), kind, place=place)
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            inner = kind.field(number)
            yield from _columns(f"{path}.{inner.name}", inner, (*place, number) if place else ())
    elif pa.types.is_map(kind):
        yield from _columns(f"{path}.key", kind.key_field)
        yield from _columns(f"{path}.value", kind.item_field)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _columns(f"{path}.element", kind.value_field)


def _is_variant(kind: pa.DataType) -> bool:
    """Whether a group is a variant: Arrow loses the annotation, but only variants have no ids inside."""
    if not pa.types.is_struct(kind):
        return False
    members = [kind.field(number) for number in range(kind.num_fields)]
    names = {member.name for member in members}
    has_ids = any(FIELD_ID in (member.metadata or {}) for member in members)
    return not has_ids and {"metadata"} < names <= {"metadata", "value", SHREDDED}


READERS = 16
# Footers that are fetched before they are compared: few are fetched in vain if a file is refused.
READ_AHEAD = 256
# Files have other names escaped as Avro requires: `a b` is `a_x20b`.
SAME_CASE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class InFiles:
    """How the columns of live files differ from the table's.

    `renamed` describes a column that has another name in a file, or whose name is another column's there; with
    `is_spelt_otherwise` today's name of a column is escaped in files. `widened` has the older types of columns by field
    id, as Delta's names, the narrowest first. `files_lacking` has the files that lack a column, by its id: of partition
    columns, and of the files that were read. `shredded` names a column of variants that a file has shredded.
    """

    renamed: str | None = None
    widened: Mapping[int, tuple[str, ...]] = dataclass_field(default_factory=dict)
    files_lacking: Mapping[int, pa.BooleanArray] = dataclass_field(default_factory=dict)
    shredded: str | None = None
    is_spelt_otherwise: bool = False


NAMES_OF_TODAY = InFiles()


def columns_in_files(
    stores: Stores,
    table: "TableMetadata",
    schema: "Schema",
    files: DataFiles,
    root: str,
    constants: Mapping[int, pa.BooleanArray],
    in_lines: Collection[int] = (),
) -> InFiles:
    """Compares the columns of live files with the table's.

    `constants` are the columns by id that files are partitioned by, and these files: a file can lack them. The footers
    of these files are read unless the values are `in_lines`.

    Raises:
        Unserveable: a file has columns that no client reads as Iceberg does; names the column and the file.
    """
    compared = _Compared(table, schema, root, constants)
    paths = files.column("path").to_pylist()
    first: Sequence[int] = range(len(paths))
    if not _needs_footers(table, schema):
        watched = [is_in for field_id, is_in in constants.items() if field_id not in in_lines]
        is_first = reduce(pc.or_, watched, pa.repeat(pa.scalar(False), len(paths))).to_pylist()
        first = [number for number, is_one in enumerate(is_first) if is_one]
    for number, footer in _footers(stores, paths, first):
        compared.add(number, local_path(paths[number]), footer)
    if compared.lacks_constants:
        # The values can be in the lines of all files only if no other file has the columns.
        others = sorted(set(range(len(paths))).difference(first))
        for number, footer in _footers(stores, paths, others):
            compared.add(number, local_path(paths[number]), footer)
    return compared.result()


def _footers(stores: Stores, paths: Sequence[str], numbers: Sequence[int]) -> Iterator[tuple[int, pa.Schema]]:
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(numbers), READ_AHEAD):
            some = numbers[start : start + READ_AHEAD]
            footers = pool.map(partial(_footer, stores), [paths[number] for number in some])
            yield from zip(some, footers, strict=True)


def _footer(stores: Stores, path: str) -> pa.Schema:
    import pyarrow.parquet as pq

    try:
        with stores.open(path) as stream:
            return pq.read_schema(stream)
    except (*LASTING, OSError, pa.ArrowInvalid) as error:
        raise Unserveable(
            f"The footer of {local_path(path)} cannot be read.",
            "Check that the table's data files are whole.",
        ) from error


def find_lacking_column(stores: Stores, paths: Sequence[str], names: Collection[str]) -> str | None:
    """Returns one of these columns that some file lacks by name, None if all have all."""
    for _, footer in _footers(stores, paths, range(len(paths))):
        present = {name.lower() for name in footer.names}
        lacking = next((name for name in names if name.lower() not in present), None)
        if lacking is not None:
            return lacking
    return None


class _Compared:
    """Compares the columns of live files with those of the table, file by file."""

    def __init__(
        self, table: "TableMetadata", schema: "Schema", root: str, constants: Mapping[int, pa.BooleanArray]
    ) -> None:
        self._root = root
        self._constants = {field_id: files.to_pylist() for field_id, files in constants.items()}
        self._files_lacking = {field_id: [False] * len(files) for field_id, files in constants.items()}
        self._mapped = mapped_ids(table)
        self._now = columns_of_table(schema)
        self._names = {column.field_id: column.name for column in self._now.values()}
        self._ids = {column.name.lower(): column.field_id for column in self._now.values()}
        self._defaults = {
            field_id: name
            for field_id, name in self._names.items()
            if field_id is not None and schema.find_field(field_id).initial_default is not None
        }
        self._is_spelt_otherwise = not _is_spelt_alike(schema)
        self._seen: dict[tuple[bytes, frozenset[int]], frozenset[int]] = {}
        self._renamed: str | None = None
        self._without_ids: str | None = None
        self._widened: dict[int, set[str]] = {}
        self._shredded: str | None = None

    @property
    def lacks_constants(self) -> bool:
        return any(lacking & constants for (_, constants), lacking in self._seen.items())

    def add(self, number: int, path: str, footer: pa.Schema) -> None:
        """Compares one more file; most have the columns of an earlier one."""
        shape = footer.remove_metadata().serialize().to_pybytes()
        constants = frozenset(field_id for field_id, files in self._constants.items() if files[number])
        if (shape, constants) not in self._seen:
            self._seen[shape, constants] = self._compare_all(path, columns_of(footer), constants)
        for field_id in self._files_lacking.keys() & self._seen[shape, constants]:
            self._files_lacking[field_id][number] = True

    def result(self) -> InFiles:
        if self._renamed and self._without_ids:
            what = f"{self._without_ids} has no field ids, and another file {self._renamed}"
            self._refuse(ReasonCode.FILES_WITHOUT_IDS, what)
        return InFiles(
            self._renamed,
            # Several older types of a column are all decimals: the longest name is the widest.
            {
                field_id: tuple(sorted(types, key=lambda name: (len(name), name)))
                for field_id, types in self._widened.items()
            },
            {field_id: pa.array(files, pa.bool_()) for field_id, files in self._files_lacking.items()},
            self._shredded,
            self._is_spelt_otherwise,
        )

    def _compare_all(self, path: str, columns: list[FileColumn], constants: frozenset[int]) -> frozenset[int]:
        """The columns that the file lacks."""
        has_ids = any(column.field_id is not None for column in columns)
        if not has_ids:
            columns = with_mapped_ids(columns, self._mapped)
            self._without_ids = self._without_ids or path
        for column in columns:
            self._compare(path, column, has_ids=has_ids)
        present = {column.field_id for column in columns}
        lacking = frozenset(one for one in self._names if one is not None and one not in present)
        for field_id, name in self._defaults.items():
            # The value that a file is partitioned by precedes a default.
            if field_id not in present and field_id not in constants:
                what = f"{path} lacks column {name}, which has a default for that"
                self._refuse(ReasonCode.COLUMN_DEFAULTS, what)
        return lacking

    def _compare(self, path: str, column: FileColumn, *, has_ids: bool) -> None:
        name, field_id = column.name, column.field_id
        if field_id is None:
            is_unmapped = not has_ids and self._mapped and name not in self._now
            if pa.types.is_nested(column.type) or is_unmapped:
                return
            self._refuse(ReasonCode.FILES_WITHOUT_IDS, f"{path} has column {name} without a field id")
        problem = self._other_name(name, field_id)
        if problem and not has_ids:
            self._refuse(ReasonCode.FILES_WITHOUT_IDS, f"{path} has no field ids, and {problem}")
        if problem:
            # Without the file's name: recipients see hindrances.
            self._renamed = self._renamed or problem
        if field_id in self._names:
            self._compare_types(path, column, self._now[self._names[field_id]])

    def _other_name(self, name: str, field_id: int | None) -> str | None:
        today = self._names.get(field_id, name)
        if today != name:
            return f"has column {today} under its other name {name}"
        if self._ids.get(name.lower(), field_id) != field_id:
            return f"has an older, dropped column under the name {name}"
        return None

    def _compare_types(self, path: str, column: FileColumn, today: FileColumn) -> None:
        if column.shape == today.shape:
            self._shredded = self._shredded or (today.name if column.is_shredded else None)
            return
        older = older_type(column.type, today.type)
        if older is None or today.field_id is None:
            what = f"{path} has column {today.name} as {column.shape}, the table has it as {today.shape}"
            self._refuse(ReasonCode.OTHER_TYPES_IN_FILES, what)
        else:
            self._widened.setdefault(today.field_id, set()).add(older)

    def _refuse(self, code: ReasonCode, what: str) -> None:
        raise code.error(f"{self._root}: {what}.")


def _needs_footers(table: "TableMetadata", schema: "Schema") -> bool:
    columns = [schema.find_field(field_id) for field_id in schema.field_ids]
    return (
        any(column.initial_default is not None or str(column.field_type) == "variant" for column in columns)
        or not _is_spelt_alike(schema)
        or _has_ambiguous_history(table)
        or bool(mapped_ids(table))
        or _lacks_schemas(table)
    )


def _is_spelt_alike(schema: "Schema") -> bool:
    return all(SAME_CASE.fullmatch(schema.find_field(field_id).name) for field_id in schema.field_ids)


def _has_ambiguous_history(table: "TableMetadata") -> bool:
    columns = set()
    for schema in table.schemas:
        for field_id in schema.field_ids:
            kind = schema.find_type(field_id)
            # Columns inside a struct, list or map are compared individually.
            type_name = str(kind) if kind.is_primitive else type(kind).__name__
            columns.add((field_id, schema.find_column_name(field_id), type_name))
    # Spark's readers by name ignore case.
    names = {name and name.lower() for _, name, _ in columns}
    is_one_to_one = len({field_id for field_id, _, _ in columns}) == len(names) == len(columns)
    return not is_one_to_one


def _lacks_schemas(table: "TableMetadata") -> bool:
    """Whether schemas were removed from the metadata, by expiring snapshots with `clean_expired_metadata`.

    Schemas and columns have consecutive numbers, so a missing number shows a removed one. Only a reverted change leaves
    no gap: a column renamed, renamed back, and all snapshots in between expired.
    """
    schemas = {schema.schema_id: schema for schema in table.schemas}
    columns = {field_id for schema in schemas.values() for field_id in schema.field_ids}
    used = {snapshot.schema_id for snapshot in table.snapshots} - {None}
    return len(schemas) <= max(schemas) or not used <= schemas.keys() or len(columns) < table.last_column_id


def mapped_ids(table: "TableMetadata") -> dict[str, int]:
    """Returns the ids for files without ids, by column name, from the table's name mapping."""
    from pyiceberg.table.name_mapping import _IndexByName, visit_name_mapping

    mapping = table.name_mapping()
    fields = {} if mapping is None else visit_name_mapping(mapping, _IndexByName())
    return {name: field.field_id for name, field in fields.items() if field.field_id is not None}


SAME_NAME = ("boolean", "long", "float", "double", "date", "string", "binary", "variant")
SAME_MEANING = {name: name for name in SAME_NAME}
SAME_MEANING |= {"int": "integer", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}
# Primitive types of Iceberg's specification without parameters, and those added in format version 3.
TYPES = frozenset({*SAME_MEANING, "decimal", "time", "uuid", "fixed"})
TYPES_OF_V3 = frozenset({"timestamp_ns", "timestamptz_ns", "unknown", "geometry", "geography"})
FIXES = {
    "uuid": "Store it as string.",
    "time": "Store it as string or as long.",
    "fixed": "Store it as binary.",
    "timestamp_ns": "Store it as timestamp, in microseconds.",
    "timestamptz_ns": "Store it as timestamptz, in microseconds.",
    "unknown": "Give it a type, or drop it.",
}


def delta_schema_string(schema: "Schema", table: str, in_files: InFiles = NAMES_OF_TODAY) -> str:
    """Returns the schema in Delta's JSON form, with column mapping and type changes if the live files need them."""
    fields = _DeltaSchema(table, in_files).fields(schema.fields, "")
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"), ensure_ascii=False)


def require_known_types(schema: "Schema", format_version: int, table: str) -> None:
    """Raises Unserveable for a column whose type Iceberg's specification does not define: no client can read it."""
    known = TYPES | TYPES_OF_V3 if format_version >= 3 else TYPES
    for field_id in schema.field_ids:
        kind = schema.find_type(field_id)
        if kind.is_primitive and re.split(r"[\[(]", str(kind))[0].strip() not in known:
            raise ReasonCode.UNKNOWN_TYPE.error(
                f"Column {schema.find_column_name(field_id)} of {table} has the type {kind}, which Iceberg's "
                f"specification does not define for format version {format_version}."
            )


def physical_name(field_id: int) -> str:
    """Returns the name of a mapped column in statistics and partition values.

    No file may have it: the kernel of the Python client uses a column of that name if it does not find the id.
    Iceberg's writers escape hyphens, as `_x2D`.
    """
    return f"col-{field_id}"


@dataclass(frozen=True)
class _DeltaSchema:
    """Converts one table's columns."""

    table: str
    in_files: InFiles

    def fields(self, fields: "tuple[NestedField, ...]", above: str) -> list[dict[str, Any]]:
        seen: dict[str, str] = {}
        for field in fields:
            other = seen.setdefault(field.name.lower(), field.name)
            if other != field.name:
                raise ReasonCode.NAMES_DIFFER_BY_CASE.error(
                    f"{self.table} has columns {above}{other} and {above}{field.name}, whose names differ only by "
                    "case."
                )
        return [self._field(field, above + field.name) for field in fields]

    def _field(self, field: "NestedField", path: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {"comment": field.doc} if field.doc else {}
        if self.in_files.renamed:
            metadata["delta.columnMapping.id"] = field.field_id
            metadata["delta.columnMapping.physicalName"] = physical_name(field.field_id)
        changes = list(_type_changes(field.field_type, field.field_id, "", self.in_files.widened))
        if changes:
            metadata["delta.typeChanges"] = changes
        return {
            "name": field.name,
            "type": self._type(field.field_type, path),
            "nullable": not field.required,
            "metadata": metadata,
        }

    def _type(self, kind: "IcebergType", path: str) -> str | dict[str, Any]:
        from pyiceberg.types import ListType, MapType, StructType

        if isinstance(kind, StructType):
            return {"type": "struct", "fields": self.fields(kind.fields, f"{path}.")}
        if isinstance(kind, ListType):
            element = self._type(kind.element_type, f"{path}.element")
            return {"type": "array", "elementType": element, "containsNull": not kind.element_required}
        if isinstance(kind, MapType):
            return {
                "type": "map",
                "keyType": self._type(kind.key_type, f"{path}.key"),
                "valueType": self._type(kind.value_type, f"{path}.value"),
                "valueContainsNull": not kind.value_required,
            }
        type_name = delta_type(kind)
        if type_name is None:
            name = str(kind)
            raise Unserveable(
                f"Column {path} of {self.table} has the type {name}, which the protocol does not have.",
                FIXES.get(name.partition("[")[0], ReasonCode.UNSUPPORTED_TYPE.fix),
                ReasonCode.UNSUPPORTED_TYPE,
            )
        return type_name


def delta_type(kind: "IcebergType") -> str | None:
    """Returns the protocol's name of a primitive type; None if the protocol does not have it."""
    from pyiceberg.types import DecimalType

    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return SAME_MEANING.get(str(kind))


def _type_changes(
    kind: "IcebergType", field_id: int, path: str, widened: Mapping[int, tuple[str, ...]]
) -> Iterator[dict[str, str]]:
    """The type changes in a field's metadata (PROTOCOL.md, "Type Change Metadata"), without those of inner structs."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, ListType):
        yield from _type_changes(kind.element_type, kind.element_id, f"{path}.element", widened)
    elif isinstance(kind, MapType):
        yield from _type_changes(kind.key_type, kind.key_id, f"{path}.key", widened)
        yield from _type_changes(kind.value_type, kind.value_id, f"{path}.value", widened)
    elif not isinstance(kind, StructType):
        steps = [*widened.get(field_id, ()), delta_type(kind) or ""]
        for older, newer in pairwise(steps):
            yield {"fromType": older, "toType": newer, **({"fieldPath": path[1:]} if path else {})}


PROPERTIES = {
    "columnMapping": ("delta.columnMapping.mode", "id"),
    "typeWidening": ("delta.enableTypeWidening", "true"),
}
# Types that need a reader feature.
WITHOUT_ZONE = "has timestamps without a time zone"
NEEDED_BY_TYPE = (
    ("timestamp_ntz", "timestampNtz", ReasonCode.TIMESTAMPS_WITHOUT_ZONE, WITHOUT_ZONE),
    ("variant", "variantType", ReasonCode.VARIANTS, "has variants"),
)


def iceberg_head(
    table: "TableMetadata", schema: "Schema", root: str, partition_columns: tuple[str, ...], in_files: InFiles
) -> TableHead:
    """Returns the head of one state of a table, without deletion vectors: see `deletes.add_vector_feature`."""
    schema_string = delta_schema_string(schema, root, in_files)
    hindrances = tuple(_hindrances(schema_string, in_files))
    features = tuple(one.feature for one in hindrances if one.feature is not None)
    configuration = dict(PROPERTIES[feature] for feature in features if feature in PROPERTIES)
    if in_files.renamed:
        configuration["delta.columnMapping.maxColumnId"] = str(table.last_column_id)
    return TableHead(
        table_id=str(table.table_uuid),
        schema_string=schema_string,
        partition_columns=partition_columns,
        protocol=TableProtocol(3, 7, features, features) if features else TableProtocol(),
        configuration=configuration,
        hindrances=hindrances,
    )


def _hindrances(schema_string: str, in_files: InFiles) -> Iterator[Hindrance]:
    if in_files.renamed:
        reason = f"is read by field ids: a file {in_files.renamed}"
        is_odd = in_files.is_spelt_otherwise
        code = ReasonCode.NAMES_SPELT_OTHERWISE if is_odd else ReasonCode.RENAMED_COLUMNS
        yield _hindrance("columnMapping", code, reason)
    if in_files.widened:
        reason = "has columns of an older type in live files"
        yield _hindrance("typeWidening", ReasonCode.WIDENED_TYPES, reason)
    first = {kind: column for column, kind in reversed(list(primitive_types(schema_string)))}
    for kind, feature, code, reason in NEEDED_BY_TYPE:
        if kind in first:
            yield _hindrance(feature, code, f"{reason} (column {first[kind]})")
    if in_files.shredded:
        reason = f"has files in which parts of variants are columns of their own (column {in_files.shredded})"
        yield _hindrance("variantShredding", ReasonCode.SHREDDED_VARIANTS, reason)


def _hindrance(feature: str, code: ReasonCode, reason: str) -> Hindrance:
    return Hindrance(feature, reason, code.fix, code)
