"""Iceberg's types in Delta's words, for recipients that know only those."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.storage import LASTING, Stores
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables.iceberg.manifests import DataFiles
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import Hindrance, TableHead, TableProtocol, primitive_types

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType, NestedField


def older_type(in_file: pa.DataType, today: pa.DataType) -> str | None:
    """The type in a file, in Delta's words; None unless readers widen it to today's."""
    if pa.types.is_int32(in_file) and pa.types.is_int64(today):
        return "integer"
    if pa.types.is_float32(in_file) and pa.types.is_float64(today):
        return "float"
    if pa.types.is_decimal(in_file) and pa.types.is_decimal(today):
        is_wider = in_file.scale == today.scale and in_file.precision < today.precision
        return f"decimal({in_file.precision},{in_file.scale})" if is_wider else None
    return None


def widest_last(types: Collection[str]) -> tuple[str, ...]:
    """The older types of one column in the order in which it had them: of several, all are decimals."""
    return tuple(sorted(types, key=lambda name: (len(name), name)))


FIELD_ID = b"PARQUET:field_id"
# What a variant is made of (Parquet's "Variant Binary Encoding"), and what shredding adds to it.
VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
SHREDDED = "typed_value"


@dataclass(frozen=True)
class FileColumn:
    """A column or a group of them; `name` is the path to it, `field_id` None where the file has none."""

    name: str
    field_id: int | None
    type: pa.DataType
    is_shredded: bool = False

    @property
    def is_variant(self) -> bool:
        """Whether it is a variant; what that is made of are no columns."""
        return bool(self.type == VARIANT)

    @property
    def is_leaf(self) -> bool:
        """Whether it holds values itself."""
        return not pa.types.is_nested(self.type)

    @property
    def shape(self) -> str:
        """The type with the spellings that mean the same to a reader folded into one."""
        if pa.types.is_struct(self.type):
            return "variant" if self.is_variant else "struct"
        if pa.types.is_map(self.type):
            return "map"
        if pa.types.is_nested(self.type):
            return "list"
        if pa.types.is_timestamp(self.type):
            return "timestamp with zone" if self.type.tz else "timestamp"
        return str(self.type).removeprefix("large_")

    def mapped(self, ids: Mapping[str, int]) -> "FileColumn":
        """The column with the id that a name mapping has for its name."""
        return replace(self, field_id=ids.get(self.name))


def columns_of(schema: pa.Schema) -> list[FileColumn]:
    """All columns and groups of a footer."""
    return [column for field in schema for column in _columns(field.name, field)]


def columns_of_table(schema: "Schema") -> dict[str, FileColumn]:
    """The same of a table, by their paths; what is in a nested type is not told with it."""
    found = (
        column
        for field in schema.fields
        for column in _list_columns_of(field.name, field.field_id, field.field_type)
    )
    return {column.name: column for column in found}


def _list_columns_of(path: str, field_id: int, kind: "IcebergType") -> Iterator[FileColumn]:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        yield FileColumn(path, field_id, pa.struct([]))
        for field in kind.fields:
            yield from _list_columns_of(f"{path}.{field.name}", field.field_id, field.field_type)
    elif isinstance(kind, MapType):
        yield FileColumn(path, field_id, pa.map_(pa.string(), pa.null()))
        yield from _list_columns_of(f"{path}.key", kind.key_id, kind.key_type)
        yield from _list_columns_of(f"{path}.value", kind.value_id, kind.value_type)
    elif isinstance(kind, ListType):
        yield FileColumn(path, field_id, pa.list_(pa.null()))
        yield from _list_columns_of(f"{path}.element", kind.element_id, kind.element_type)
    elif str(kind) == "variant":
        yield FileColumn(path, field_id, VARIANT)
    else:
        yield FileColumn(path, field_id, schema_to_pyarrow(kind))


def _columns(path: str, field: pa.Field) -> Iterator[FileColumn]:
    kind, field_id = field.type, (field.metadata or {}).get(FIELD_ID)
    if field_id is not None and _is_variant(kind):
        yield FileColumn(path, int(field_id), VARIANT, kind.get_field_index(SHREDDED) >= 0)
        return
    yield FileColumn(path, None if field_id is None else int(field_id), kind)
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            inner = kind.field(place)
            yield from _columns(f"{path}.{inner.name}", inner)
    elif pa.types.is_map(kind):
        yield from _columns(f"{path}.key", kind.key_field)
        yield from _columns(f"{path}.value", kind.item_field)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _columns(f"{path}.element", kind.value_field)


def _is_variant(kind: pa.DataType) -> bool:
    """Whether a group is a variant: Arrow keeps nothing of that annotation, but only variants have no ids inside."""
    if not pa.types.is_struct(kind):
        return False
    members = [kind.field(place) for place in range(kind.num_fields)]
    names = {member.name for member in members}
    has_ids = any(FIELD_ID in (member.metadata or {}) for member in members)
    return not has_ids and {"metadata"} < names <= {"metadata", "value", SHREDDED}


READERS = 16
# So many are fetched before the first is compared: few are in vain when a file is refused.
READ_AHEAD = 256
# Other names are spelt in another way in files, as Avro would need it: `a b` is `a_x20b` there.
SAME_CASE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class InFiles:
    """Where the columns of live files are not the table's.

    `renamed` says which column goes by another name in a file, or means another column there; with `is_spelt_otherwise`
    a column's name of today is one that files cannot have. `widened` has the older types of columns, in Delta's words
    and the narrowest first, by field id. `files_lacking` has the files that lack a column, by its id: of the columns
    that files are partitioned by, and of the files that were looked at. `shredded` names a column of variants of which
    a file has parts in columns of their own.
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
    """What the live files' columns are, compared with the table's.

    `constants` are columns by id that files are partitioned by, and which files those are: a file need not have them.
    Files are looked at for those whose values are not `in_lines` of the files.

    Raises:
        Unserveable: a file has columns that no client would read as Iceberg does; names the column and the file.
    """
    compared = _Compared(table, schema, root, constants)
    paths = files.column("path").to_pylist()
    is_first = [True] * len(paths)
    if not _needs_footers(table, schema):
        watched = [is_in for field_id, is_in in constants.items() if field_id not in in_lines]
        is_first = reduce(pc.or_, watched, pa.repeat(pa.scalar(False), len(paths))).to_pylist()
    first = [number for number, is_one in enumerate(is_first) if is_one]
    _compare_files(stores, compared, paths, first)
    if compared.lacks_constants:
        # Whether the others have the columns says whether their values can be in the lines of all files.
        _compare_files(stores, compared, paths, sorted(set(range(len(paths))).difference(first)))
    return compared.found()


def _compare_files(
    stores: Stores, compared: "_Compared", paths: Sequence[str], numbers: Sequence[int]
) -> None:
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(numbers), READ_AHEAD):
            some = numbers[start : start + READ_AHEAD]
            footers = pool.map(lambda number: _footer(stores, paths[number]), some)
            for number, footer in zip(some, footers, strict=True):
                compared.add(number, local_path(paths[number]), footer)


def find_lacking_column(stores: Stores, paths: Sequence[str], names: Collection[str]) -> str | None:
    """One of these columns that some file does not have by its name; None when all files have all of them.

    Raises:
        Unserveable: a file cannot be read.
        Unavailable: its store does not answer.
    """
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(paths), READ_AHEAD):
            for footer in pool.map(lambda path: _footer(stores, path), paths[start : start + READ_AHEAD]):
                there = {name.lower() for name in footer.names}
                found = next((name for name in names if name.lower() not in there), None)
                if found is not None:
                    return found
    return None


class _Compared:
    """The columns of one live file after the other, beside those of the table."""

    def __init__(
        self,
        table: "TableMetadata",
        schema: "Schema",
        root: str,
        constants: Mapping[int, pa.BooleanArray],
    ) -> None:
        self._root = root
        self._constants = {field_id: files.to_pylist() for field_id, files in constants.items()}
        self._files_lacking = {field_id: [False] * len(files) for field_id, files in constants.items()}
        self._mapped = mapped_ids(table)
        self._now = columns_of_table(schema)
        self._names = {column.field_id: column.name for column in self._now.values()}
        self._ids = {column.name.lower(): column.field_id for column in self._now.values()}
        self._defaults = {one: name for one, name in self._names.items() if _has_default(schema, one)}
        self._is_spelt_otherwise = not _is_spelt_alike(schema)
        self._seen: dict[tuple[bytes, frozenset[int]], frozenset[int]] = {}
        self._renamed: str | None = None
        self._without_ids: str | None = None
        self._widened: dict[int, set[str]] = {}
        self._shredded: str | None = None

    @property
    def lacks_constants(self) -> bool:
        """Whether a file lacks a column that it is partitioned by."""
        return any(lacking & constants for (_, constants), lacking in self._seen.items())

    def add(self, number: int, path: str, footer: pa.Schema) -> None:
        """Take one more file into account; most are like one that was seen before."""
        shape = footer.remove_metadata().serialize().to_pybytes()
        constants = frozenset(one for one, files in self._constants.items() if files[number])
        if (shape, constants) not in self._seen:
            self._seen[shape, constants] = self._compare_all(path, columns_of(footer), constants)
        for field_id in self._files_lacking.keys() & self._seen[shape, constants]:
            self._files_lacking[field_id][number] = True

    def found(self) -> InFiles:
        """What all of them come to."""
        if self._renamed and self._without_ids:
            self._refuse(
                ReasonCode.FILES_WITHOUT_IDS,
                f"{self._without_ids} has no field ids, and another file {self._renamed}",
            )
        widened = {field_id: widest_last(types) for field_id, types in self._widened.items()}
        return InFiles(
            self._renamed,
            widened,
            {field_id: pa.array(files, pa.bool_()) for field_id, files in self._files_lacking.items()},
            self._shredded,
            self._is_spelt_otherwise,
        )

    def _compare_all(
        self, path: str, columns: Sequence[FileColumn], constants: frozenset[int]
    ) -> frozenset[int]:
        """The columns that the file lacks."""
        has_ids = any(column.field_id is not None for column in columns)
        # A name mapping is for files without any ids (Iceberg's specification, "Column Projection").
        known = columns if has_ids else [column.mapped(self._mapped) for column in columns]
        if not has_ids:
            self._without_ids = self._without_ids or path
        for column in known:
            self._compare(path, column, has_ids=has_ids)
        there = {column.field_id for column in known}
        lacking = frozenset(name for name in self._names if name is not None and name not in there)
        for field_id, name in self._defaults.items():
            # Before a default comes the value that a file is partitioned by.
            if field_id not in there and field_id not in constants:
                self._refuse(
                    ReasonCode.COLUMN_DEFAULTS, f"{path} lacks column {name}, which has a default for that"
                )
        return lacking

    def _compare(self, path: str, column: FileColumn, *, has_ids: bool) -> None:
        name, field_id = column.name, column.field_id
        if field_id is None:
            if not column.is_leaf or (not has_ids and self._mapped and name not in self._now):
                return
            self._refuse(ReasonCode.FILES_WITHOUT_IDS, f"{path} has column {name} without a field id")
        problem = self._other_name(name, field_id)
        if problem and not has_ids:
            self._refuse(ReasonCode.FILES_WITHOUT_IDS, f"{path} has no field ids, and {problem}")
        if problem:
            # Without the file's name: hindrances are told to recipients.
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
            self._refuse(
                ReasonCode.OTHER_TYPES_IN_FILES,
                f"{path} has column {today.name} as {column.shape}, the table has it as {today.shape}",
            )
        else:
            self._widened.setdefault(today.field_id, set()).add(older)

    def _refuse(self, code: ReasonCode, what: str) -> None:
        raise Unserveable(f"{self._root}: {what}.", code.fix, code)


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
    return all(SAME_CASE.fullmatch(schema.find_field(one).name) for one in schema.field_ids)


def _has_ambiguous_history(table: "TableMetadata") -> bool:
    said = [
        (field_id, schema.find_column_name(field_id), _kind(schema, field_id))
        for schema in table.schemas
        for field_id in schema.field_ids
    ]
    ids = {field_id for field_id, _, _ in said}
    # Spark's readers by name take names in any case.
    names = {name and name.lower() for _, name, _ in said}
    is_one_to_one = len(ids) == len(names) == len(set(said))
    return not is_one_to_one


def _kind(schema: "Schema", field_id: int) -> str:
    """A column's type, without what is in a struct, a list or a map: columns inside are looked at by themselves."""
    kind = schema.find_type(field_id)
    return str(kind) if kind.is_primitive else type(kind).__name__


def _lacks_schemas(table: "TableMetadata") -> bool:
    """Whether schemas are gone from the metadata: expiring snapshots with `clean_expired_metadata` removes them.

    Schemas and columns are numbered one after the other, so a number that nobody has was one of theirs. Only a change
    that was taken back leaves none: a column renamed, named back, and all snapshots in between expired.
    """
    schemas = {schema.schema_id: schema for schema in table.schemas}
    columns = {field_id for schema in schemas.values() for field_id in schema.field_ids}
    used = {snapshot.schema_id for snapshot in table.snapshots} - {None}
    return len(schemas) <= max(schemas) or not used <= schemas.keys() or len(columns) < table.last_column_id


def _has_default(schema: "Schema", field_id: int | None) -> bool:
    return field_id is not None and schema.find_field(field_id).initial_default is not None


def mapped_ids(table: "TableMetadata") -> dict[str, int]:
    """Ids of files that carry none, by name, as the table's name mapping gives them."""
    mapping = table.name_mapping()
    return {} if mapping is None else dict(_mapped("", mapping.root))


def _mapped(parent: str, fields: "Sequence[MappedField]") -> Iterator[tuple[str, int]]:
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield parent + name, field.field_id
            yield from _mapped(f"{parent}{name}.", field.fields)


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


SAME_MEANING = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
    "variant": "variant",
}
# Primitive types of Iceberg's specification, without their parameters, and those that format version 3 adds.
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
    """The schema in Delta's JSON form; with column mapping and type changes where the live files need them.

    Raises:
        Unserveable: a column has a type or a name that Delta's schema cannot say.
    """
    fields = _Words(table, in_files).fields(schema.fields, "")
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"), ensure_ascii=False)


def require_known_types(schema: "Schema", format_version: int, table: str) -> None:
    """Refuse a column whose type Iceberg's specification does not define: no client knows how to read it.

    Raises:
        Unserveable: names the column and its type.
    """
    known = TYPES | TYPES_OF_V3 if format_version >= 3 else TYPES
    for field_id in schema.field_ids:
        kind = schema.find_type(field_id)
        if kind.is_primitive and re.split(r"[\[(]", str(kind))[0].strip() not in known:
            raise Unserveable(
                f"Column {schema.find_column_name(field_id)} of {table} has the type {kind}, which Iceberg's "
                f"specification does not define for format version {format_version}.",
                ReasonCode.UNKNOWN_TYPE.fix,
                ReasonCode.UNKNOWN_TYPE,
            )


def physical_name(field_id: int) -> str:
    """The name of a mapped column in statistics and partition values.

    It must be in no file: the kernel of the Python client takes a column of that name for one whose id it does not
    find. Iceberg's writers make no such name, a hyphen becomes `_x2D` in their files.
    """
    return f"col-{field_id}"


@dataclass(frozen=True)
class _Words:
    """One table's columns being put into words."""

    table: str
    in_files: InFiles

    def fields(self, fields: "tuple[NestedField, ...]", above: str) -> list[dict[str, Any]]:
        self._require_different(fields, above)
        return [self._field(field, above + field.name) for field in fields]

    def _require_different(self, fields: "tuple[NestedField, ...]", above: str) -> None:
        seen: dict[str, str] = {}
        for field in fields:
            other = seen.setdefault(field.name.lower(), field.name)
            if other != field.name:
                raise Unserveable(
                    f"{self.table} has columns {above}{other} and {above}{field.name}, whose names differ only by "
                    "case.",
                    ReasonCode.NAMES_DIFFER_BY_CASE.fix,
                    ReasonCode.NAMES_DIFFER_BY_CASE,
                )

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
        said = delta_type(kind)
        if said is None:
            name = str(kind)
            raise Unserveable(
                f"Column {path} of {self.table} has the type {name}, which recipients cannot be told of.",
                FIXES.get(name.partition("[")[0], ReasonCode.UNSUPPORTED_TYPE.fix),
                ReasonCode.UNSUPPORTED_TYPE,
            )
        return said


def delta_type(kind: "IcebergType") -> str | None:
    """The protocol's name of a primitive type; None for a type it does not have."""
    from pyiceberg.types import DecimalType

    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return SAME_MEANING.get(str(kind))


def _type_changes(
    kind: "IcebergType", field_id: int, path: str, widened: Mapping[int, tuple[str, ...]]
) -> Iterator[dict[str, str]]:
    """What the field around a type says of it (PROTOCOL.md, "Type Change Metadata"); structs' fields say theirs."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, ListType):
        yield from _type_changes(kind.element_type, kind.element_id, _below(path, "element"), widened)
    elif isinstance(kind, MapType):
        yield from _type_changes(kind.key_type, kind.key_id, _below(path, "key"), widened)
        yield from _type_changes(kind.value_type, kind.value_id, _below(path, "value"), widened)
    elif not isinstance(kind, StructType):
        steps = [*widened.get(field_id, ()), delta_type(kind) or ""]
        for older, newer in pairwise(steps):
            yield {"fromType": older, "toType": newer, **({"fieldPath": path} if path else {})}


def _below(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


PROPERTIES = {
    "columnMapping": ("delta.columnMapping.mode", "id"),
    "typeWidening": ("delta.enableTypeWidening", "true"),
}
# Types that only readers with a feature know.
NEEDED_BY_TYPE = (
    (
        *("timestamp_ntz", "timestampNtz"),
        ReasonCode.TIMESTAMPS_WITHOUT_ZONE,
        "has timestamps without a time zone",
    ),
    ("variant", "variantType", ReasonCode.VARIANTS, "has variants"),
)


def iceberg_head(
    table: "TableMetadata",
    schema: "Schema",
    root: str,
    partition_columns: tuple[str, ...],
    in_files: InFiles,
) -> TableHead:
    """The head of one state of a table, but for what its deleted rows add to it: see `vectors.with_vectors`.

    Raises:
        Unserveable: a column has a type or a name that recipients cannot be told of.
    """
    schema_string = delta_schema_string(schema, root, in_files)
    found = tuple(_hindrances(schema_string, in_files))
    features = tuple(one.feature for one in found if one.feature is not None)
    configuration = dict(PROPERTIES[feature] for feature in features if feature in PROPERTIES)
    if in_files.renamed:
        configuration["delta.columnMapping.maxColumnId"] = str(table.last_column_id)
    return TableHead(
        table_id=str(table.table_uuid),
        schema_string=schema_string,
        partition_columns=partition_columns,
        protocol=TableProtocol(3, 7, features, features) if features else TableProtocol(),
        configuration=configuration,
        hindrances=found,
    )


def _hindrances(schema_string: str, in_files: InFiles) -> Iterator[Hindrance]:
    if in_files.renamed:
        reason = f"is read by field ids: a file {in_files.renamed}"
        is_odd = in_files.is_spelt_otherwise
        code = ReasonCode.NAMES_SPELT_OTHERWISE if is_odd else ReasonCode.RENAMED_COLUMNS
        yield _hindrance("columnMapping", code, reason)
    if in_files.widened:
        yield _hindrance(
            "typeWidening", ReasonCode.WIDENED_TYPES, "has columns of an older type in live files"
        )
    first = {kind: column for column, kind in reversed(list(primitive_types(schema_string)))}
    for kind, feature, code, reason in NEEDED_BY_TYPE:
        if kind in first:
            yield _hindrance(feature, code, f"{reason} (column {first[kind]})")
    if in_files.shredded:
        yield _hindrance(
            "variantShredding",
            ReasonCode.SHREDDED_VARIANTS,
            f"has files in which parts of variants are columns of their own (column {in_files.shredded})",
        )


def _hindrance(feature: str, code: ReasonCode, reason: str) -> Hindrance:
    return Hindrance(feature, reason, code.fix, code)
