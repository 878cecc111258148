"""Lineage: what each publication was made from, down to deliveries, and which partitions of a set are out of date.

Every publication records the numbers of its inputs in its evidence; nothing else is needed to follow them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.model import Input
from lakeshare_pipelines.contracts.partitioning import EVERY_NAME, SEPARATOR, has_written, split_key
from lakeshare_pipelines.errors import NoSuchPublication
from lakeshare_pipelines.wap.inputs import digest_code, list_in_force
from lakeshare_pipelines.wap.staged import WHOLE, ReadTable
from lakeshare_server.catalog import Ledger, Publication


def find_in_force(ledger: Ledger, table: Table, partitions: Collection[str]) -> dict[str, Publication]:
    """The publication whose delivery each partition of a table has; read no further back than to the last of them."""
    missing, publications = set(partitions), dict[str, Publication]()
    for publication in list_in_force(ledger, table.name, partitions) if missing else ():
        found = missing.intersection(publication.verdicts["deliveries"])
        publications |= dict.fromkeys(found, publication)
        missing -= found
        if not missing:
            break
    return publications


def get_reads(publication: Publication) -> dict[str, ReadTable]:
    """The tables that a publication was made of; none for a table of delivered files."""
    recorded = publication.verdicts.get("inputs", {}).get(publication.table, {})
    return {name: ReadTable.from_record(read) for name, read in recorded.items()}


def has_same_inputs(
    ledger: Ledger,
    contract: SetContract,
    publication: Publication,
    partition: str,
    table: Table,
    versions: Mapping[str, int],
) -> bool:
    """Whether a partition would have the same inputs at these numbers as in its publication, row for row."""
    reads = get_reads(publication)
    for read in table.inputs:
        if read.table not in reads:
            return False
        first, last = sorted((reads[read.table].version or 0, versions[read.table]))
        between = ledger.between(read.table, first + 1, last)
        keys = _map_partition(contract, read, partition)
        if _differ(between, reads[read.table], versions[read.table], keys):
            return False
    return True


def _map_partition(contract: SetContract, read: Input, partition: str) -> Collection[str] | None:
    """The partitions of an input that a partition of the set is made of; None: all of its rows."""
    return None if read.column is None else contract.partitioning.map_key(partition, read.partitioning)


def _differ(
    publications: Iterable[Publication], before: ReadTable, version: int, keys: Collection[str] | None
) -> bool:
    """Whether the rows that were read at a number are not those at another one, by the publications of the table."""
    first, last = sorted((before.version or 0, version))
    read = None if before.is_whole else keys
    return any(first < row.version <= last and _changes_rows(row, read) for row in publications)


def _changes_rows(publication: Publication, partitions: Collection[str] | None) -> bool:
    """Whether a publication may have changed rows of these partitions, or of the table if it is None."""
    if publication.maintenance_of is not None:
        return False
    if partitions is None or publication.rollback_of is not None:
        return True
    written = publication.verdicts.get("deliveries", {})
    return WHOLE[0] in written or has_written(partitions, written)


def find_stale_partitions(ledger: Ledger, contract: SetContract) -> dict[str, dict[str, int]]:
    """The partitions of a set that a run would make of newer inputs, with the newest numbers of all inputs.

    Partitions of an input are compared with those of the set that have a time or a name in common. If other inputs have
    newer numbers, all names are stale, but only the last partition of time: the earlier ones stay as they were
    published, until they are run again. A set without deliveries also has the partitions that its inputs have and it
    lacks.
    """
    latest = {read.table: ledger.latest(read.table) for read in contract.inputs}
    versions = {name: found.version for name, found in latest.items() if found is not None}
    if not versions or len(versions) < len(latest):
        return {}
    history = cache(ledger.history)
    published = sorted(set.intersection(*(_list_written(history(table.name)) for table in contract.tables)))
    published = [partition for partition in published if contract.is_partition(partition)]
    # Of a set with two dimensions all partitions of the last day.
    last = {split_key(key)[0] for key in published[-1:]}
    is_named = contract.partitioning.kind in ("static", "dynamic")
    followed = [key for key in published if is_named or split_key(key)[0] in last]
    in_force = {table.name: find_in_force(ledger, table, published) for table in contract.tables}

    def is_stale(partition: str) -> bool:
        if any(partition not in found for found in in_force.values()):
            return False  # rolled back
        return any(
            _is_behind(
                contract,
                read,
                partition,
                in_force[table.name][partition],
                versions,
                history,
                is_followed=partition in followed,
            )
            for table in contract.tables
            for read in table.inputs
        )

    stale = list(filter(is_stale, published))
    if not contract.takes_deliveries:
        stale += _list_missing(contract, published, history)
    return dict.fromkeys(sorted(stale), versions)


def _is_behind(
    contract: SetContract,
    read: Input,
    partition: str,
    publication: Publication,
    versions: Mapping[str, int],
    history: Callable[[str], Sequence[Publication]],
    *,
    is_followed: bool,
) -> bool:
    """Whether an input has other rows for a partition than the publication was made of."""
    before = get_reads(publication).get(read.table)
    if before is None:
        return is_followed
    if not is_followed and (read.column is None or before.is_whole):
        return False
    keys = _map_partition(contract, read, partition)
    return _differ(history(read.table), before, versions[read.table], keys)


def _list_missing(
    contract: SetContract, published: Sequence[str], history: Callable[[str], Sequence[Publication]]
) -> list[str]:
    """The partitions that the inputs of a set have, and the set does not."""
    written = [
        {
            mapped
            for key in _list_written(history(read.table))
            if read.partitioning.is_key(key)
            for mapped in read.partitioning.map_key(key, contract.partitioning)
        }
        for read in contract.inputs
        if read.column is not None and read.partitioning.is_time == contract.partitioning.is_time
    ]
    written = _expand_names(contract, written, published)
    found = set(WHOLE) if contract.partitioning.is_whole else set.intersection(*written)
    return [partition for partition in found.difference(published) if contract.is_partition(partition)]


def _expand_names(contract: SetContract, written: list[set[str]], published: Iterable[str]) -> list[set[str]]:
    """Replaces keys of all names, `2024-01-01/*`, by those of the names that the set has or its inputs have."""
    second = contract.partitioning.second
    if second is None:
        return written
    known = second.values or {split_key(key)[1] for keys in (*written, published) for key in keys}
    return [
        {
            f"{split_key(key)[0]}{SEPARATOR}{name}"
            for key in keys
            for name in (known if split_key(key)[1] == EVERY_NAME else (split_key(key)[1],))
        }
        for keys in written
    ]


def _list_written(history: Iterable[Publication]) -> set[str]:
    """The partitions that publications have ever written."""
    return {name for row in history for name in row.verdicts.get("deliveries", ())}


def find_code(contract: SetContract) -> dict[str, str]:
    """The SHA-256 of the file with each transform of a set, by table."""
    found = {table.name: digest_code(table) for table in contract.tables}
    return {name: digest for name, digest in found.items() if digest is not None}


@dataclass(frozen=True)
class LineagePart:
    """Partitions of a table, as the publication `version` wrote them."""

    version: int
    run_id: str
    partitions: tuple[str, ...]
    deliveries: Mapping[str, str]
    """Digests of deliveries, by partition."""
    inputs: tuple["LineageNode", ...]


@dataclass(frozen=True)
class LineageNode:
    """A publication of a table, and the parts that it consists of; earlier publications wrote some of them."""

    table: str
    set_name: str
    version: int
    published_at: str
    repeats: int | None
    parts: tuple[LineagePart, ...] = field(default=())

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


def trace_lineage(ledger: Ledger, table: str, version: int | None = None) -> LineageNode:
    """What a publication of a table, by default the newest one, was made from, down to deliveries.

    Raises:
        NoSuchPublication: the ledger does not have it.
    """
    publication = ledger.latest(table) if version is None else ledger.at(table, version)
    if publication is None:
        raise NoSuchPublication(table, version)
    return _Tracer(ledger).trace(publication, None)


class _Tracer:
    """Follows publications to their inputs, each once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.traced: dict[tuple[str, int, tuple[str, ...] | None], LineageNode] = {}

    def trace(self, publication: Publication, partitions: tuple[str, ...] | None) -> LineageNode:
        key = publication.table, publication.version, partitions
        if key not in self.traced:
            self.traced[key] = LineageNode(
                publication.table,
                publication.set_name,
                publication.version,
                publication.published_at.isoformat(),
                publication.repeats,
                tuple(self._trace_part(*part) for part in self._find_parts(publication, partitions)),
            )
        return self.traced[key]

    def _find_parts(
        self, publication: Publication, partitions: tuple[str, ...] | None
    ) -> Iterator[tuple[Publication, tuple[str, ...]]]:
        """The publications that wrote the partitions of a table, newest first."""
        below, seen = publication.version, set[str]()
        for row in self.ledger.between(publication.table, 0, publication.version)[::-1]:
            if row.version > below:
                continue
            if row.repeats is not None:
                below = row.repeats
                continue
            written = row.verdicts.get("deliveries", {})
            new = [
                name for name in written if name not in seen and (partitions is None or name in partitions)
            ]
            if WHOLE[0] in written:
                # It replaced the whole table.
                yield row, WHOLE
                return
            seen.update(new)
            if new:
                yield row, tuple(sorted(new))
            if partitions is not None and seen.issuperset(partitions):
                return

    def _trace_part(self, publication: Publication, partitions: tuple[str, ...]) -> LineagePart:
        reads = get_reads(publication)
        run = {row.table: row for row in self.ledger.by_run(publication.run_id)}
        inputs = []
        for name, read in reads.items():
            made_of = run.get(name) if read.version is None else self.ledger.at(name, read.version)
            if made_of is not None and read.is_whole is not None:
                keys = None if read.is_whole else read.map_keys(partitions)
                inputs.append(self.trace(made_of, keys))
        delivered = publication.verdicts.get("deliveries", {})
        deliveries = {name: delivered[name] for name in partitions if delivered.get(name) and not reads}
        return LineagePart(publication.version, publication.run_id, partitions, deliveries, tuple(inputs))


def format_lineage(node: LineageNode) -> list[str]:
    """A tree of publications and deliveries; a publication that is in it several times is followed once."""
    return list(_format_node(node, "", set()))


def _format_node(node: LineageNode, indent: str, shown: set[int]) -> Iterator[str]:
    again = "" if node.repeats is None else f", which repeats publication {node.repeats}"
    title = f"{indent}{node.table} publication {node.version}{again}, {node.published_at[:16].replace('T', ' ')} UTC"
    if id(node) in shown:
        yield f"{title}: see above"
        return
    shown.add(id(node))
    yield title
    for part in node.parts:
        yield f"{indent}  {', '.join(part.partitions)}: written by publication {part.version}, run {part.run_id}"
        for partition, digest in part.deliveries.items():
            yield f"{indent}    delivery {node.set_name}/{partition} {digest}"
        for read in part.inputs:
            yield from _format_node(read, f"{indent}    ", shown)
