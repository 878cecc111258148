"""Which row-level deletes apply to which data files of a snapshot (Iceberg spec, "Scan Planning")."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.iceberg.manifests import DeleteFile, PartitionRecord

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

EVERYWHERE = ""
"""The scope of equality deletes of an unpartitioned spec."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A live data file as deletes have to know it; `rows` are all its rows, deleted ones too."""

    path: str
    spec_id: int
    partition: PartitionRecord
    sequence_number: int
    rows: int


@dataclass(frozen=True)
class Targets:
    """The live data files of a snapshot, found by what deletes say; a data file's number is its place in `files`."""

    files: Sequence[Target]
    unpartitioned: frozenset[int] = field(default_factory=frozenset)
    """Ids of specs without partition fields."""

    @cached_property
    def by_path(self) -> Mapping[str, int]:
        """Numbers by the path as the metadata spells it."""
        return {file.path: number for number, file in enumerate(self.files)}

    @cached_property
    def _partitions(self) -> "Mapping[_Partition, _Group]":
        found: dict[_Partition, list[Target]] = defaultdict(list)
        for file in self.files:
            found[_partition(file)].append(file)
        return {partition: _group(files) for partition, files in found.items()}

    @cached_property
    def _numbers(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for number in range(len(self.files)):
            found[self.own_scope(number)].append(number)
        return found

    def near(self, delete: DeleteFile) -> Sequence[str]:
        """The paths, in order, of all data files that a file of position deletes can speak of: maybe of no more."""
        path = _only_path(delete)
        if path is not None:
            return [path] if self.number_of(path, delete) is not None else []
        group = self._partitions.get(_partition(delete))
        if group is None or group.oldest > delete.sequence_number:
            return []
        low, high = delete.lowest_path, delete.highest_path
        first = 0 if low is None else bisect_left(group.paths, low)
        return group.paths[first : None if high is None else bisect_right(group.paths, high)]

    def number_of(self, path: str, delete: DeleteFile) -> int | None:
        """The data file with this path, when a position delete of this file with this path applies to it."""
        number = self.by_path.get(path)
        if number is None or self.files[number].sequence_number > delete.sequence_number:
            return None
        only = _only_path(delete)
        # A file of deletes for one data file is found by the path alone, as Iceberg's own readers do.
        applies = _partition(self.files[number]) == _partition(delete) if only is None else only == path
        return number if applies else None

    def has_equal_rows(self, delete: DeleteFile) -> bool:
        """Whether a file of equality deletes applies to any data file: only to older ones, never to its own commit."""
        if delete.spec_id in self.unpartitioned:
            return any(file.sequence_number < delete.sequence_number for file in self.files)
        group = self._partitions.get(_partition(delete))
        return group is not None and group.oldest < delete.sequence_number

    def scope(self, delete: DeleteFile) -> str:
        """A name of the data files that a file of equality deletes applies to if they are older: empty for all."""
        return EVERYWHERE if delete.spec_id in self.unpartitioned else repr(_partition(delete))

    def own_scope(self, number: int) -> str:
        """The scope of equality deletes in the partition of a data file."""
        return repr(_partition(self.files[number]))

    def in_scope(self, delete: DeleteFile) -> Sequence[int]:
        """The numbers of the data files, of any age, in the scope of a file of equality deletes."""
        scope = self.scope(delete)
        return range(len(self.files)) if scope == EVERYWHERE else self._numbers.get(scope, ())

    def older_in_scope(self, delete: DeleteFile) -> list[int]:
        """The numbers of the data files that a file of equality deletes applies to."""
        numbers, newest = self.in_scope(delete), delete.sequence_number
        return [number for number in numbers if self.files[number].sequence_number < newest]


def targets_of(table: "TableMetadata", files: DataFiles) -> Targets:
    """The data files of a snapshot, in their order."""
    from pyiceberg.transforms import VoidTransform

    # Fields that were dropped from a spec of format version 1 stay in it as `void`, which partitions nothing.
    unpartitioned = frozenset(
        spec_id
        for spec_id, spec in table.specs().items()
        if all(isinstance(field.transform, VoidTransform) for field in spec.fields)
    )
    columns = [files.column(name).to_pylist() for name in ("path", "spec_id", "sequence_number", "rows")]
    records = _records(files)
    return Targets(
        [
            Target(
                path=path,
                spec_id=spec_id,
                partition=tuple((field, values[place]) for field, values in records.get(spec_id, ())),
                sequence_number=sequence_number or 0,
                rows=rows,
            )
            for place, (path, spec_id, sequence_number, rows) in enumerate(zip(*columns, strict=True))
        ],
        unpartitioned,
    )


def _records(files: DataFiles) -> Mapping[int, Sequence[tuple[int, Sequence[object]]]]:
    """For each spec its partition fields in the order of their ids, with the values of all files."""
    found: dict[int, list[tuple[int, Sequence[object]]]] = defaultdict(list)
    for (spec_id, field_id), values in sorted(files.partition.items(), key=lambda one: one[0]):
        found[spec_id].append((field_id, values.to_pylist()))
    return found


_Partition = tuple[int, PartitionRecord]


@dataclass(frozen=True)
class _Group:
    """The data files of one partition: their paths in order, and the lowest sequence number."""

    paths: Sequence[str]
    oldest: int


def _group(files: Sequence[Target]) -> _Group:
    return _Group(sorted(file.path for file in files), min(file.sequence_number for file in files))


def _partition(file: Target | DeleteFile) -> _Partition:
    values = file.partition
    # NaNs of a partition are equal to each other, and the two zeros are not, as Iceberg has it.
    if any(isinstance(value, float) for _, value in values):
        values = tuple(
            (field_id, repr(value) if isinstance(value, float) else value) for field_id, value in values
        )
    return file.spec_id, values


def _only_path(delete: DeleteFile) -> str | None:
    """The one data file that a file of position deletes speaks of, when its manifest says that there is only one."""
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file
    return delete.lowest_path if delete.lowest_path == delete.highest_path else None
