"""Partition values of files as a REST catalog tells them: a list in the order of the spec's fields.

Each value is in the form that Iceberg's specification gives single values in JSON (Appendix D).
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.literals import WIDE

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

EPOCH = date(1970, 1, 1)
START = datetime(1970, 1, 1, tzinfo=UTC)
AS_THEY_ARE = {"boolean", "int", "long", "string"}
AS_TEXTS = {"date", "timestamp", "timestamptz", "binary"}


def always_has_text(kind: str) -> bool:
    """Whether each value of a type, as Iceberg spells it, has a form: NaN and the infinities have none."""
    return kind in AS_THEY_ARE | AS_TEXTS or kind.startswith(("decimal", "fixed"))


class PartitionTexts:
    """The values of one table's files; `told` is the schema that clients bind its specs to."""

    def __init__(self, table: "TableMetadata", told: "Schema", root: str) -> None:
        self._root = root
        self._fields = {
            spec_id: [
                (field.field_id, _result(told, field.source_id, field.transform)) for field in spec.fields
            ]
            for spec_id, spec in table.specs().items()
        }

    def values(self, spec_id: int, partition: Mapping[int, object]) -> list[Any]:
        """The list of one file.

        Raises:
            Unserveable: a value has no such form.
        """
        return [self._value(kind, partition.get(field_id)) for field_id, kind in self._fields[spec_id]]

    def of(self, files: DataFiles) -> Iterator[str]:
        """The lists of all data files as JSON; each different one is made once."""
        columns = {key: values.to_pylist() for key, values in files.partition.items()}
        in_spec = {
            spec_id: [(field_id, columns[spec_id, field_id]) for spec, field_id in columns if spec == spec_id]
            for spec_id in self._fields
        }
        made: dict[tuple[object, ...], str] = {}
        for place, spec_id in enumerate(files.column("spec_id").to_pylist()):
            record = {field_id: values[place] for field_id, values in in_spec[spec_id]}
            key = spec_id, *record.values()
            if key not in made:
                made[key] = orjson.dumps(self.values(spec_id, record)).decode()
            yield made[key]

    def _value(self, kind: str | None, value: Any) -> Any:
        if value is None or kind is None:
            return None
        try:
            return json_value(kind, value)
        except (ValueError, OverflowError, TypeError) as error:
            raise Unserveable(
                f"A partition value of {self._root} of the type {kind} has no form in JSON.",
                "Plan scans in the client: set scan-planning-mode to client.",
            ) from error


def json_value(kind: str, value: Any) -> Any:
    """A value as manifests have it (dates and times as numbers, decimals big-endian), in JSON's types.

    Raises:
        ValueError, OverflowError, TypeError: it has no such form.
    """
    if kind in AS_THEY_ARE:
        return value
    if kind in ("float", "double"):
        if not math.isfinite(value):
            raise ValueError(value)
        return float(value)
    if kind == "date":
        return (EPOCH + timedelta(days=value)).isoformat()
    if kind in ("timestamp", "timestamptz"):
        return timestamp_text(value, has_zone=kind == "timestamptz")
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").rpartition(",")[2])
        unscaled = Decimal(int.from_bytes(value, "big", signed=True))
        return f"{unscaled.scaleb(-scale, context=WIDE):f}"
    if kind == "binary" or kind.startswith("fixed"):
        return bytes(value).hex().upper()
    raise ValueError(kind)


def timestamp_text(micros: int, *, has_zone: bool) -> str:
    """A time, given in microseconds since 1970.

    Raises:
        OverflowError: it is outside of the years 1 to 9999.
    """
    text = (START + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    return text if has_zone else text.removesuffix("+00:00")


def _result(told: "Schema", source_id: int, transform: Any) -> str | None:
    """The type of a partition field; None where clients cannot tell, since its column was dropped."""
    if source_id not in told.field_ids or str(transform) == "void":
        return None
    return str(transform.result_type(told.find_type(source_id)))
