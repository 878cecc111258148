"""What a column's name means to a client that scans a table at a snapshot, as that table's metadata is told."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class NamedColumn:
    """A primitive column: its field id, and its type in Iceberg's words."""

    field_id: int
    type: str


class ColumnNames:
    """Names by two schemas, the table's and the snapshot's: clients differ in which of them they go by."""

    def __init__(self, table: Fields, snapshot: Fields, *, is_case_sensitive: bool) -> None:
        self._is_case_sensitive = is_case_sensitive
        self._table, self._snapshot = (self._by_name(schema) for schema in (table, snapshot))

    def column(self, name: str) -> NamedColumn | None:
        """The column of this name; None when there is none, or when the schemas do not agree which it is."""
        key = self._key(name)
        today, then = self._table.get(key), self._snapshot.get(key)
        if today is None or then is None or today.field_id != then.field_id:
            return None
        return today

    def is_of_table(self, name: str) -> bool:
        """Whether the table's own schema has the name, and no other column under it than the snapshot's has."""
        key = self._key(name)
        today = self._table.get(key)
        return today is not None and self._snapshot.get(key, today).field_id == today.field_id

    def _key(self, name: str) -> str:
        return name if self._is_case_sensitive else name.lower()

    def _by_name(self, schema: Fields) -> Mapping[str, NamedColumn]:
        found: dict[str, NamedColumn] = {}
        twice = set()
        for name, column in _primitives(schema["fields"], ""):
            key = self._key(name)
            if key in found:
                twice.add(key)
            found[key] = column
        return {name: column for name, column in found.items() if name not in twice}


def _primitives(fields: Sequence[Fields], above: str) -> Iterator[tuple[str, NamedColumn]]:
    for field in fields:
        kind = field["type"]
        if isinstance(kind, str):
            # Both clients write decimals with a space, the specification does not.
            yield above + field["name"], NamedColumn(field["id"], kind.replace(" ", ""))
        elif kind.get("type") == "struct":
            yield from _primitives(kind["fields"], f"{above}{field['name']}.")
