"""Partition values and statistics of a mapped table under the names that the lines have them by.

Delta's PROTOCOL.md, "Column Mapping": both go by physical names, while predicates speak of the table's own.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.delta.leaves import Leaf, leaves_of
from lakeshare_server.tables.delta.mapping import mapping_mode
from lakeshare_server.tables.head import TableHead

STRUCTS = ("partition", "min", "max", "told_max", "null_count")


class PhysicalNames:
    """The names in one table's lines; without column mapping, the table's own."""

    def __init__(self, head: TableHead) -> None:
        is_mapped = mapping_mode(head.configuration) != "none"
        self._leaves = leaves_of(head.schema_string) if is_mapped else ()
        physical = {leaf.name: leaf.physical for leaf in self._leaves}
        self.partition_columns = tuple(physical.get(column, column) for column in head.partition_columns)

    def of(self, files: pa.Table) -> pa.Table:
        """The files with their structs renamed; texts of a log, which lines are made of then, have these names."""
        if not self._leaves or "stats" in files.column_names:
            return files
        for name in STRUCTS:
            place = files.schema.get_field_index(name)
            if place >= 0:
                values = files.column(place).combine_chunks()
                files = files.set_column(place, name, _renamed(values, self._leaves))
        return files


def _renamed(values: pa.StructArray, leaves: Sequence[Leaf]) -> pa.StructArray:
    if not values.type.num_fields:
        return values
    by_name: Mapping[str, Leaf] = {leaf.name: leaf for leaf in leaves}
    arrays, names = [], []
    for place, member in enumerate(values.type):
        leaf, inner = by_name[member.name], pc.struct_field(values, [place])
        arrays.append(_renamed(inner, leaf.members) if leaf.members else inner)
        names.append(leaf.physical)
    return pa.StructArray.from_arrays(arrays, names)
