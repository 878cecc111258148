"""Origins of tables, as contracts have them: what is refused before anything is read, and transforms given in code."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lakeshare_pipelines.contracts.document import Faults, Function, Name, NonEmpty, Sql, declared
from lakeshare_server.errors import suggest
from lakeshare_server.yaml_documents import written_as

if TYPE_CHECKING:
    from lakeshare_pipelines.contracts.model import SetContract, Table

Stem = Annotated[str, Field(min_length=1), written_as(r"^[^/\\]+$", "a name without / and \\")]
SECRETS = ("user", "password")
NO_TRANSFORMS: Mapping[str, str] = MappingProxyType({})
ORIGINS = ("source", "derive", "view", "transform")


@declared()
class JdbcSource:
    """A table or query of a PostgreSQL database; `user` and `password` are names of environment variables.

    With `incremental` a run reads the rows with larger values of that column than the runs before it, and none that
    are younger than `lag_s` seconds. With `partition_by` it reads by `partitions` connections, each a range of values.
    """

    url: Annotated[str, written_as(r"^jdbc:postgresql://[^\s?]+(\?\S*)?$", "jdbc:postgresql://HOST/DATABASE")]
    table: NonEmpty | None = None
    query: Sql | None = None
    incremental: NonEmpty | None = None
    lag_s: Annotated[int, Field(ge=0)] = 0
    partition_by: NonEmpty | None = None
    partitions: Annotated[int, Field(ge=1, le=256)] = 1
    fetch_rows: Annotated[int, Field(ge=1)] = 10_000
    user: Name | None = None
    password: Name | None = None

    def check(self, faults: Faults) -> None:
        """Checks the fields against each other; `faults` is at the customProperties of the table."""

        def add(problem: str, hint: str) -> None:
            faults.add(problem, hint, near=("source",))

        if (self.table is None) == (self.query is None):
            given = "neither" if self.table is None else "both"
            add(f"jdbc reads a table or a query, {given} is given", "Give one of table and query.")
        if (self.partitions > 1) != (self.partition_by is not None):
            hint = "Give both, partitionBy with a column of numbers or times, or neither."
            add("jdbc is read in partitions by partitionBy and partitions above 1", hint)
        if self.lag_s and self.incremental is None:
            add("jdbc has lagS and reads all rows", "Remove lagS, or name the incremental column.")
        names = [part.partition("=")[0].lower() for part in self.url.partition("?")[2].split("&")]
        if found := [name for name in SECRETS if name in names]:
            hint = "Remove it; give the names of environment variables as user and password beside url."
            add(f"jdbc.url has the {found[0]}", hint)
        if "@" in self.url:
            hint = "Remove them; give the names of environment variables as user and password beside url."
            add("jdbc.url has user or password before @", hint)


@declared()
class FilesSource:
    """Files that match `path`, a location with `*` and `?`; `options` are those of Spark's reader of the format."""

    path: NonEmpty
    format: Literal["parquet", "orc", "avro", "csv", "json", "xml"]
    options: dict[str, str] = field(default_factory=dict)


@declared()
class ShareSource:
    """A table of a foreign share, as `share.schema.table`; `profile` names an environment variable with the path."""

    profile: Name
    table: Annotated[str, written_as(r"^[^.#]+\.[^.#]+\.[^.#]+$", "share.schema.table")]


@declared()
class PythonSource:
    """A class of the user's, as `package.module:Class`, with its options."""

    source: Annotated[Function, Field(alias="class")]
    options: dict[str, Any] = field(default_factory=dict)


@declared()
class SourceEntry:
    """Where the rows of a table come from: files in landing, by the stem of their names, or one of the others.

    `table` is the location of a Delta or Iceberg table, or an Iceberg table in a catalog as
    `iceberg:CATALOG/NAMESPACE.TABLE`. `asset` is the key of the Dagster asset that writes the source, as `raw/orders`.
    """

    landing: Stem | None = None
    table: NonEmpty | None = None
    jdbc: JdbcSource | None = None
    files: FilesSource | None = None
    share: ShareSource | None = None
    python: PythonSource | None = None
    asset: Annotated[str, written_as(r"^\w+(/\w+)*$", "a key of Dagster, as raw/orders")] | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds of source that are given; a valid entry has one."""
        return [name for name, value in vars(self).items() if value is not None and name != "asset"]

    @property
    def location(self) -> str | None:
        """The location that is read, if the source is in a store or a folder."""
        if self.files is not None:
            return self.files.path
        is_in_catalog = self.table is None or self.table.startswith(("iceberg:", "nessie:"))
        return None if is_in_catalog else self.table

    @property
    def has_positions(self) -> bool:
        """Whether a run can read only what is new since the run before it."""
        return self.python is not None or (self.jdbc is not None and self.jdbc.incremental is not None)

    def complete(self, faults: Faults) -> "SourceEntry | None":
        """Returns the source if it is not landing; `faults` is at the customProperties of the table."""
        if len(self.kinds) != 1:
            given = " and ".join(self.kinds) or "nothing"
            hint = "Give one of landing (or the name of the files alone), table, jdbc, files, share, python."
            faults.add(f"a source has one kind, this one has {given}", hint, near=("source",))
        elif self.landing is not None and self.asset is not None:
            hint = "Remove it: deliveries have an asset of their own."
            faults.add("files in landing are written by no other asset", hint, near=("source",))
        elif self.jdbc is not None:
            self.jdbc.check(faults)
        return None if self.landing is not None else self

    def __str__(self) -> str:
        if self.jdbc is not None:
            place = self.jdbc.url.removeprefix("jdbc:").partition("?")[0]
            return f"{self.jdbc.table or 'a query'} of {place}"
        if self.files is not None:
            return f"{self.files.format} files {self.files.path}"
        if self.share is not None:
            return f"shared table {self.share.table}"
        return str(self.table) if self.python is None else self.python.source


def connect_transforms(
    contract: "SetContract", transforms: Mapping[str, str], faults: Faults
) -> "SetContract":
    """Returns the contract with functions given in code, as `package.module:function` by name of their table.

    They are part of its digest, as if the contract named them. `faults` is at the document.
    """
    if not transforms:
        return contract
    names = {name: table.name for table in contract.tables for name in (table.short_name, table.name)}
    given: dict[str, str] = {}
    for name, function in transforms.items():
        full = names.get(name)
        if full is None:
            hint = suggest(name, [table.short_name for table in contract.tables])
            faults.at("schema").add(f"the transform {function} is for an unknown table {name!r}", hint)
            continue
        index = [table.name for table in contract.tables].index(full)
        properties = faults.at("schema", index, "customProperties")
        origins = _list_origins(contract.tables[index])
        if origins:
            hint = f"Remove {' and '.join(origins)} from the contract, or the function from the transforms in code."
            problem = f"table {name} has {' and '.join(origins)}, and the transform {function} in code"
            properties.add(problem, hint, near=(origins[0],))
        elif full in given:
            problem = f"table {name} has two transforms in code, {given[full]} and {function}"
            properties.add(problem, "Keep one of them.")
        else:
            given[full] = function
    tables = [
        replace(table, transform=given[table.name]) if table.name in given else table
        for table in contract.tables
    ]
    digest = sha256(f"{contract.digest} {sorted(given.items())}".encode()).hexdigest()
    return replace(contract, tables=tuple(tables), digest=digest)


def _list_origins(table: "Table") -> list[str]:
    is_given = {name: getattr(table, name) is not None for name in ORIGINS} | {"source": table.has_source}
    return [name for name in ORIGINS if is_given[name]]


def check_origin(contract: "SetContract", table: "Table", faults: Faults, *, is_run: bool) -> None:
    """Checks that a table has one origin; it may have none in a contract of which nothing is run."""
    given = _list_origins(table)
    properties = faults.at("customProperties")
    # A property with a fault may be the one that is missing.
    if len(given) > 1 or (is_run and not given and properties.has_none()):
        none_given = f"neither {' nor '.join(ORIGINS)}"
        problem = f"table {table.short_name} has {' and '.join(given) or none_given}"
        hint = "Give the file stem of its deliveries as source, or Spark SQL as derive, or a view of another table, "
        hint += "or a Python function as transform, in the contract or in transforms of published_set."
        properties.add(problem, hint, near=tuple(given[1:2]))
    if table.inputs and given and table.derive is None and table.transform is None:
        problem = f"table {table.short_name} has inputs, which its {' and '.join(given)} cannot read"
        properties.add(problem, "Remove inputs, or give derive or transform.", near=("inputs",))
    if table.view is not None:
        return
    known = {other.short_name for other in contract.tables if other.view is None}
    for name in table.depends_on:
        if name not in known:
            hint = suggest(name, known)
            problem = f"derive names an unknown table {{{name}}}"
            if table.transform is not None:
                problem = f"inputs name the table {name!r}, which the transform cannot read"
            near = "derive" if table.transform is None else "inputs"
            properties.add(problem, hint, near=(near,))
    if table.derive is not None:
        _check_placeholders(contract, table, known, properties)


def _check_placeholders(
    contract: "SetContract", table: "Table", known: Iterable[str], faults: Faults
) -> None:
    """Checks that each name in the SQL of a derived table is that of one table."""
    names = [other.short_name for other in contract.tables]
    counts = Counter([*names, *(read.short_name for read in table.inputs)])
    for read in table.inputs:
        if counts[read.short_name] > 1:
            problem = f"{{{read.short_name}}} in derive is {read.table} and another table"
            faults.add(problem, "Read them in a transform, by their full names.", near=("derive",))
    if not table.depends_on and not table.inputs:
        hint = f"Write a table of the set as {{name}}; there are: {', '.join(sorted(known))}. Those of other sets are "
        hint += "named in inputs, as set.table."
        faults.add("derive names no table of the set", hint, near=("derive",))


def check_sources(contract: "SetContract", faults: Faults) -> None:
    """Checks what a set with sources can be; `faults` is at the document."""
    properties = faults.at("customProperties")
    if contract.schedule is not None and not contract.has_sources and properties.has_none():
        hint = "Remove it: deliveries and inputs start the set."
        properties.add("schedule is for sets with sources other than landing", hint, near=("schedule",))
    if not contract.has_sources:
        return
    if contract.takes_deliveries:
        landed = ", ".join(table.short_name for table in contract.tables if table.source is not None)
        hint = f"Put {landed} into a set of their own, or copy the other tables to landing."
        faults.at("schema").add(f"set {contract.name} has files in landing and other sources", hint)
    if contract.partitioning.kind != "none" and properties.has_none():
        hint = "Give partitioning: none; a table with write: merge or append keeps its earlier rows."
        properties.add("a set with sources other than landing is not daily", hint, near=("partitioning",))
    for index, table in enumerate(contract.tables):
        if table.reads is not None:
            _check_write(table, faults.at("schema", index, "customProperties"))


def _check_write(table: "Table", faults: Faults) -> None:
    entry = table.reads
    if entry is None:
        return
    if entry.jdbc is not None and entry.jdbc.incremental is not None and not table.write.is_incremental:
        problem = f"{table.short_name} is read incrementally and replaced by each run"
        faults.add(problem, "Give write: merge or append, or remove incremental.", near=("source",))
    if table.write.mode == "append" and not entry.has_positions:
        hint = "Give write: replace or merge; a database can also name its incremental column."
        problem = f"each run would append all rows of the source of {table.short_name} again"
        faults.add(problem, hint, near=("write",))
