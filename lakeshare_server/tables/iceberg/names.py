"""Iceberg reads columns by id, parquet-format recipients by name: this refuses tables where the two differ.

Only tables whose history renamed, re-used or promoted a column, or is not told whole any more, have their files'
footers looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.locations import local_path

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable
    from pyiceberg.table.name_mapping import MappedField

FIELD_ID = b"PARQUET:field_id"
FIX = "Run CALL system.rewrite_data_files with rewrite-all true, so that every file has today's columns."


def require_names_in_files(table: "StaticTable", schema: "Schema", paths: Sequence[str], root: str) -> None:
    """Refuse a table of which a file would be read differently by name than by id.

    Raises:
        Unserveable: names the column and a file.
    """
    if not _has_ambiguous_history(table):
        return
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    now = dict(_columns(schema_to_pyarrow(schema)))
    named = {field_id: name for name, (field_id, _) in now.items()}
    mapped = _mapped_ids(table)
    for path in paths:
        for name, (field_id, kind) in _columns(_footer(table, path)):
            problem = _problem(name, mapped.get(name, field_id), kind, now, named)
            if problem:
                raise Unserveable(
                    f"{root}: {local_path(path)} {problem}, which the parquet response format cannot carry.",
                    FIX,
                )


def _has_ambiguous_history(table: "StaticTable") -> bool:
    said = [
        (field_id, schema.find_column_name(field_id), str(schema.find_type(field_id)))
        for schema in table.schemas().values()
        for field_id in schema.field_ids
        if schema.find_field(field_id).field_type.is_primitive
    ]
    ids = {field_id for field_id, _, _ in said}
    names = {name for _, name, _ in said}
    is_one_to_one = len(ids) == len(names) == len(set(said))
    return not is_one_to_one or bool(_mapped_ids(table)) or _lacks_schemas(table)


def _lacks_schemas(table: "StaticTable") -> bool:
    """Whether schemas are gone from the metadata: expiring snapshots with `clean_expired_metadata` removes them.

    Schemas and columns are numbered one after the other, so a number that nobody has was one of theirs. Only a change
    that was taken back leaves none: a column renamed, named back, and all snapshots in between expired.
    """
    schemas = table.schemas()
    columns = {field_id for schema in schemas.values() for field_id in schema.field_ids}
    used = {snapshot.schema_id for snapshot in table.snapshots()} - {None}
    return (
        len(schemas) <= max(schemas)
        or not used <= schemas.keys()
        or len(columns) < table.metadata.last_column_id
    )


def _mapped_ids(table: "StaticTable") -> dict[str, int]:
    """Ids of files that carry none, by name, as the table's name mapping gives them."""
    mapping = table.name_mapping()
    return {} if mapping is None else dict(_mapped("", mapping.root))


def _mapped(parent: str, fields: "Sequence[MappedField]") -> Iterator[tuple[str, int]]:
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield parent + name, field.field_id
            yield from _mapped(f"{parent}{name}.", field.fields)


def _footer(table: "StaticTable", path: str) -> pa.Schema:
    import pyarrow.parquet as pq

    with table.io.new_input(path).open() as stream:
        return pq.read_schema(stream)


def _columns(schema: pa.Schema) -> Iterator[tuple[str, tuple[int | None, pa.DataType]]]:
    for field in schema:
        yield from _leaves(field.name, field)


def _leaves(path: str, field: pa.Field) -> Iterator[tuple[str, tuple[int | None, pa.DataType]]]:
    kind = field.type
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            inner = kind.field(place)
            yield from _leaves(f"{path}.{inner.name}", inner)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{path}.element", kind.value_field)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key", kind.key_field)
        yield from _leaves(f"{path}.value", kind.item_field)
    else:
        field_id = (field.metadata or {}).get(FIELD_ID)
        yield path, (None if field_id is None else int(field_id), kind)


def _problem(
    name: str,
    field_id: int | None,
    kind: pa.DataType,
    now: Mapping[str, tuple[int | None, pa.DataType]],
    named: Mapping[int | None, str],
) -> str | None:
    if field_id is None:
        return f"has column {name} without a field id"
    if named.get(field_id, name) != name:
        return f"has column {named[field_id]} under its older name {name}"
    if name in now and now[name][0] != field_id:
        return f"has an older, dropped column under the name {name}"
    if name in now and _shape(now[name][1]) != _shape(kind):
        return f"has column {name} as {kind}, the table has it as {now[name][1]}"
    return None


def _shape(kind: pa.DataType) -> str:
    """A type with the spellings that mean the same to a reader folded into one."""
    if pa.types.is_timestamp(kind):
        return "timestamp with zone" if kind.tz else "timestamp"
    return str(kind).removeprefix("large_")
