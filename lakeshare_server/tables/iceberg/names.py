"""Iceberg reads columns by id, parquet-format recipients by name: this finds out where live files make a difference.

Only tables whose history renamed, re-used or promoted a column, or is not told whole any more, or that have names which
Iceberg's writers spell otherwise, have their files' footers looked at; and files that are partitioned by columns whose
values are not in their lines. What is in a footer is in `footers.py`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import LASTING, Stores
from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.iceberg.footers import FileColumn, columns_of, columns_of_table
from lakeshare_server.tables.iceberg.widening import older_type, widest_last
from lakeshare_server.tables.locations import local_path
from lakeshare_server.tables.reason_codes import ReasonCode

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField

# Footers come from object stores: waiting for one, others are fetched.
READERS = 16
# So many are fetched before the first is compared: few are in vain when a file is refused.
AHEAD = 256
# Other names are spelt in another way in files, as Avro would need it: `a b` is `a_x20b` there.
SPELT_ALIKE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    widened: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    files_lacking: Mapping[int, pa.BooleanArray] = field(default_factory=dict)
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
    if not _must_be_looked_at(table, schema):
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
        for start in range(0, len(numbers), AHEAD):
            some = numbers[start : start + AHEAD]
            footers = pool.map(lambda number: _footer(stores, paths[number]), some)
            for number, footer in zip(some, footers, strict=True):
                compared.add(number, local_path(paths[number]), footer)


def lacking_column(stores: Stores, paths: Sequence[str], names: Collection[str]) -> str | None:
    """One of these columns that some file does not have by its name; None when all files have all of them.

    Raises:
        Unserveable: a file cannot be read.
        Unavailable: its store does not answer.
    """
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(paths), AHEAD):
            for footer in pool.map(lambda path: _footer(stores, path), paths[start : start + AHEAD]):
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
        lacking = frozenset(one for one in self._names if one is not None and one not in there)
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


def _must_be_looked_at(table: "TableMetadata", schema: "Schema") -> bool:
    columns = [schema.find_field(field_id) for field_id in schema.field_ids]
    return (
        any(column.initial_default is not None or str(column.field_type) == "variant" for column in columns)
        or not _is_spelt_alike(schema)
        or _has_ambiguous_history(table)
        or bool(mapped_ids(table))
        or _lacks_schemas(table)
    )


def _is_spelt_alike(schema: "Schema") -> bool:
    return all(SPELT_ALIKE.fullmatch(schema.find_field(one).name) for one in schema.field_ids)


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
    for one in fields:
        for name in one.names:
            if one.field_id is not None:
                yield parent + name, one.field_id
            yield from _mapped(f"{parent}{name}.", one.fields)


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
