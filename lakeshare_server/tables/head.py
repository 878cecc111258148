"""What a table says of itself at one version: what the lines before the files are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class TableProtocol:
    """What readers and writers of the table must know, in Delta's terms; features None below versions 3 and 7."""

    min_reader_version: int = 1
    min_writer_version: int = 2
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Hindrance:
    """Why the parquet response format cannot carry a table: the reader feature that is needed, if one is it.

    `code` is one of `ReasonCode`; indexes of earlier versions have none.
    """

    feature: str | None
    reason: str
    fix: str
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class TableHead:
    """Protocol and metadata as recipients may see them, whatever the format of the table.

    `commit_times_since` is the first version whose time stands in its commit, None when files' times count.
    `is_catalog_managed`: commits of the Delta table can be valid before they are in its log.
    `left_to_files` are columns that were partition columns at one of several states, and are read from the files in an
    answer about all of them.
    """

    table_id: str
    name: str | None = None
    description: str | None = None
    schema_string: str
    partition_columns: tuple[str, ...]
    protocol: TableProtocol = field(default_factory=TableProtocol)
    configuration: Mapping[str, str] = field(default_factory=dict)
    created_time_ms: int | None = None
    hindrances: tuple[Hindrance, ...] = ()
    commit_times_since: int | None = None
    is_catalog_managed: bool = False
    left_to_files: tuple[str, ...] = ()

    def without_partitions(self, *others: Sequence[str]) -> "TableHead":
        """The same for files that are all read without partition values; `others` are those of other states."""
        left = dict.fromkeys(chain(self.left_to_files, self.partition_columns, *others))
        return replace(self, partition_columns=(), left_to_files=tuple(left))

    @property
    def has_change_data_feed(self) -> bool:
        """Whether writers record row-level changes at this version."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"

    @property
    def has_iceberg_metadata(self) -> bool:
        """Whether writers of a Delta table convert it to Iceberg's format too (Delta, UniForm)."""
        formats = self.configuration.get("delta.universalFormat.enabledFormats", "").lower()
        return "iceberg" in [one.strip() for one in formats.split(",")]

    def as_json(self) -> dict[str, Any]:
        """The head as JSON's types; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "TableHead":
        """A head that `as_json` wrote."""
        read = {key: _tuple(value) for key, value in fields.items()}
        read["protocol"] = TableProtocol(**{key: _tuple(value) for key, value in fields["protocol"].items()})
        read["hindrances"] = tuple(Hindrance(**one) for one in fields["hindrances"])
        return cls(**read)


def _tuple(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(value) if isinstance(value, list) else value
