"""Reads files of `lakeshare apply` together, as desired objects."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lakeshare_server.catalog.declared.documents import (
    OF_CONTRACTS,
    Document,
    FollowedPart,
    GrantPart,
    GroupPart,
    Origin,
    Part,
    RecipientPart,
    SharePart,
    SourceFile,
    TablePart,
    explain_error,
    list_faults,
    raise_all,
)
from lakeshare_server.catalog.ledger import IcebergIdentity, is_location_pattern
from lakeshare_server.catalog.sharing import Keeper
from lakeshare_server.catalog.states import Grant
from lakeshare_server.errors import DocumentError, LakeshareError
from lakeshare_server.lazy import gc_disabled
from lakeshare_server.yaml_documents import Parsed, PathInDocument, YamlFault, read

Key = tuple[str, ...]

# The order of creation; objects are removed in the opposite order.
KINDS = ("recipient", "group", "followed", "share", "table", "grant")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table in storage or in a catalog: its location in the lake's catalog, and the table's own name there."""

    location: str
    name: str


# Finds the tables of locations, several at the same time: one per location, or any number if it has a star. A refusal
# is returned at the location's place.
FindTables = Callable[[Sequence[str]], Sequence[Sequence[TableLocation] | LakeshareError]]


@dataclass(frozen=True, slots=True)
class FoundTable:
    """The result of reading a table that is not followed yet; `iceberg` is None for a Delta table."""

    iceberg: IcebergIdentity | None
    remark: str


@dataclass(frozen=True, slots=True)
class DesiredObject:
    """An object as its source states it; `revision` is the revision that the source was written for.

    `of_contract`: a contract declares the object, and the source has the other fields only. `found`: the result of
    reading a table to follow, which its creation needs.
    """

    key: Key
    name: str
    fields: Mapping[str, object]
    origin: Origin | None = None
    revision: int | None = None
    of_contract: bool = False
    found: FoundTable | None = None


@dataclass(frozen=True, slots=True)
class CurrentObject:
    """An object of the catalog with its keeper; `updated_at` is None for tables and grants."""

    key: Key
    name: str
    fields: Mapping[str, object]
    declared: bool = False
    applied: bool = False
    configuration: str | None = None
    revision: int | None = None
    updated_by: str | None = None
    updated_at: datetime | None = None
    is_revoked: bool = False

    @property
    def keeper(self) -> Keeper:
        """The source that created the object, and can remove it."""
        return "files" if self.applied else "contracts" if self.declared else "hand"


def object_key(kind: str, *names: str) -> Key:
    """The key of an object: its names in lower case, but those of the lake's tables keep their case."""
    return kind, *(names if kind == "followed" else map(str.lower, names))


def grant_key(grant: GrantPart | Grant) -> Key:
    """The key of a grant of a file, or of the catalog."""
    reader = ("group", grant.group or "") if grant.recipient is None else ("recipient", grant.recipient)
    return object_key("grant", grant.share, *reader)


def grant_name(grant: GrantPart | Grant) -> str:
    """`share to recipient name` or `share to group name`, for people."""
    reader = f"group {grant.group}" if grant.recipient is None else f"recipient {grant.recipient}"
    return f"{grant.share} to {reader}"


# The fields of parts that are names, or no fields of the object itself.
UNCOMPARED = frozenset({"declared", "exclude", "tables", "revision", "share", "recipient", "group"})
# Fields that stay as they are when a file leaves them out.
UNCHANGED = ("owner", "limits")
# The one form of values that files and the catalog write differently.
COMPARABLE: Mapping[str, Callable[[Any], object]] = {
    "properties": dict,
    "limits": lambda limits: (
        limits.model_dump(exclude_none=True) if isinstance(limits, Part) else dict(limits or {})
    ),
    "ip_allow": lambda networks: tuple(dict.fromkeys(networks or ())),
    "members": lambda members: tuple(sorted({member.lower() for member in members})),
    "policies": lambda policies: {name: claims.model_dump() for name, claims in sorted(policies.items())},
}


def compared_fields(
    part: type[Part], source: object, names: Mapping[str, str] | None = None, **changed: object
) -> dict[str, object]:
    """The fields that a part of a file states of an object, of a part or of the catalog's object, in comparable form.

    `names` come first; `changed` are values in place of the source's.
    """
    stated = [name for name in part.model_fields if name not in UNCOMPARED]
    values = {name: changed[name] if name in changed else getattr(source, name) for name in stated}
    forms = {name: form for name, form in COMPARABLE.items() if name in values}
    return {**(names or {}), **values, **{name: form(values[name]) for name, form in forms.items()}}


def parents(key: Key) -> tuple[Key, ...]:
    """The objects with which an object is removed."""
    kind, *names = key
    if kind == "table":
        return (object_key("share", names[0]),)
    if kind == "grant":
        return object_key("share", names[0]), (names[1], names[2])
    return ()


ENDINGS = (".yaml", ".yml")
# In place of a table's name: all tables of a location, or of a schema.
STAR = ".*"


@dataclass(frozen=True)
class _FollowedEntry:
    """An entry of `followed`; with a star it is for many tables."""

    name: str
    part: FollowedPart
    origin: Origin


@dataclass(frozen=True)
class _SharedStar:
    """`schema.*` among the tables of a share."""

    share: str
    schema: str
    part: TablePart
    origin: Origin


def read_files(paths: Sequence[Path], find: FindTables | None = None) -> dict[Key, DesiredObject]:
    """Reads the desired objects of the files, and of the YAML files in the folders.

    `find` finds the tables of the locations that files follow; required if any does.

    Raises:
        DocumentError: the first fault; its `also` holds all the others.
    """
    with gc_disabled():
        return _read_together(_yaml_files(paths), find)


def _read_together(paths: Sequence[Path], find: FindTables | None) -> dict[Key, DesiredObject]:
    desired: dict[Key, DesiredObject] = {}
    faults: list[DocumentError] = []
    followed: list[_FollowedEntry] = []
    stars: list[_SharedStar] = []
    for path in paths:
        try:
            file, document = _read(path)
        except DocumentError as error:
            faults += [error, *error.also]
            continue
        followed += [
            _FollowedEntry(name, part, Origin(file, ("followed", name)))
            for name, part in document.followed.items()
        ]
        stars += _stars(document, file)
        for item in _objects(document, file):
            faults += _add(desired, item)
    faults += _misplaced_stars(desired, followed, stars)
    # Stores and catalogs are read for files without faults only.
    raise_all(faults)
    named = frozenset(desired)
    if followed:
        if find is None:
            raise AssertionError("read_files needs `find` for files that follow tables")
        faults += _add_followed(desired, followed, find)
    for star in stars:
        faults += _add_shared(desired, star, named)
    raise_all(faults)
    return desired


def _add(desired: dict[Key, DesiredObject], item: DesiredObject) -> Iterator[DocumentError]:
    """Adds an object, or refuses its second occurrence."""
    first = desired.setdefault(item.key, item)
    if first is not item and item.origin is not None:
        yield item.origin.fault(f"{item.name} is in {first.origin} already", "Keep one of them.")


def _stars(document: Document, file: SourceFile) -> Iterator[_SharedStar]:
    for share, part in document.shares.items():
        for path, table in part.tables.items():
            if path.endswith(STAR):
                origin = Origin(file, ("shares", share, "tables", path))
                yield _SharedStar(share, path.removesuffix(STAR), table, origin)


def _misplaced_stars(
    desired: dict[Key, DesiredObject], followed: Sequence[_FollowedEntry], stars: Sequence[_SharedStar]
) -> Iterator[DocumentError]:
    """Refusals of a star in only one of a table's name and its location or lake table."""
    for entry in followed:
        if entry.name.endswith(STAR) != is_location_pattern(entry.part.location):
            problem = f"{entry.part.location} cannot be followed as {entry.name}"
            yield entry.origin.fault(problem, "Give * for the table in both, or in neither.")
    for star in stars:
        if star.part.declared or not (star.part.table or STAR).endswith(STAR):
            hint = f"Of {star.schema}.* the field `table` is `schema.*`, too, and contracts declare tables by name."
            yield star.origin.fault("one table stands for many", hint)
    for item in desired.values():
        if item.key[0] == "table" and item.origin and str(item.fields.get("table", "")).endswith(STAR):
            hint = "Give the name of one table, or share them as `schema.*`."
            yield item.origin.fault(f"{item.fields['table']} is no table", hint)


def _add_followed(
    desired: dict[Key, DesiredObject], followed: Sequence[_FollowedEntry], find: FindTables
) -> Iterator[DocumentError]:
    """Adds the tables of the locations; a star does not add a table that is named itself."""
    located = list(zip(followed, find([entry.part.location for entry in followed]), strict=True))
    named = {entry.name for entry in followed}
    named_locations = {
        table.location
        for entry, tables in located
        if not entry.name.endswith(STAR) and not isinstance(tables, LakeshareError)
        for table in tables
    }
    for entry, tables in located:
        if isinstance(tables, LakeshareError):
            problem, remedy = explain_error(tables)
            yield entry.origin.fault(f"{entry.part.location} cannot be followed: {problem}", remedy)
        elif not tables:
            problem = f"there is no table in {entry.part.location}"
            yield entry.origin.fault(problem, "Correct the location, or take it out of the file.")
        elif not entry.name.endswith(STAR):
            yield from _add(desired, _followed(entry.name, tables[0], entry))
        else:
            for table in tables:
                name = f"{entry.name.removesuffix(STAR)}.{table.name}"
                if (
                    name not in named
                    and table.location not in named_locations
                    and table.name not in entry.part.exclude
                ):
                    yield from _add(desired, _followed(name, table, entry))


def _add_shared(
    desired: dict[Key, DesiredObject], star: _SharedStar, named: Collection[Key]
) -> Iterator[DocumentError]:
    """Adds the followed tables of a schema, except those that the share names itself."""
    schema = (star.part.table or star.schema).removesuffix(STAR)
    followed = [item.name for item in desired.values() if item.key[0] == "followed"]
    tables = [name for name in followed if name.partition(".")[0] == schema]
    if not tables:
        hint = "Follow some in `followed`, or name the tables."
        yield star.origin.fault(f"the files follow no table in schema {schema}", hint)
    for lake_table in tables:
        path = f"{star.schema}.{lake_table.partition('.')[2]}"
        part = star.part.model_copy(update={"table": lake_table})
        item = _table(star.share, path, part, star.origin)
        if item.key not in named:
            yield from _add(desired, item)


def _yaml_files(paths: Sequence[Path]) -> list[Path]:
    files: dict[Path, Path] = {}
    for path in paths:
        try:
            for file in _list_inside(path):
                files.setdefault(file.resolve(), file)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise DocumentError(
                path, "the file", problem, "Give a readable YAML file in UTF-8.", line=1
            ) from error
    return list(files.values())


def _list_inside(path: Path) -> list[Path]:
    """The YAML files in a folder; of a file itself."""
    if not path.is_dir():
        return [path]
    # Hidden folders, like .github/, belong to other tools.
    inside = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in ENDINGS
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not inside:
        raise DocumentError(path, "the folder", "has no YAML file", "Give a folder with .yaml files.", line=1)
    return inside


def _read(path: Path) -> tuple[SourceFile, Document]:
    try:
        parsed = read(path)
    except YamlFault as fault:
        raise DocumentError(path, "the file", fault.problem, fault.hint, line=fault.line) from fault
    if parsed.values is None:
        parsed = Parsed({}, parsed.root)
    if not isinstance(parsed.values, dict):
        hint = "It has followed, shares, recipients, groups and grants; `lakeshare export` shows the form."
        raise DocumentError(path, "the file", "is not a mapping", hint, line=1)
    file = SourceFile(path, parsed)
    try:
        return file, Document.model_validate(parsed.values)
    except ValidationError as error:
        raise_all(list_faults(error, file))
        raise


def _objects(document: Document, file: SourceFile) -> Iterator[DesiredObject]:
    for name, recipient in document.recipients.items():
        yield _named("recipient", name, recipient, Origin(file, ("recipients", name)))
    for name, group in document.groups.items():
        yield _named("group", name, group, Origin(file, ("groups", name)))
    for name, share in document.shares.items():
        at: PathInDocument = ("shares", name)
        yield _named("share", name, share, Origin(file, at))
        for path, table in share.tables.items():
            if not path.endswith(STAR):
                yield _table(name, path, table, Origin(file, (*at, "tables", path)))
    for index, grant in enumerate(document.grants):
        fields, origin = compared_fields(GrantPart, grant), Origin(file, ("grants", index))
        yield DesiredObject(grant_key(grant), grant_name(grant), fields, origin)


def _followed(name: str, table: TableLocation, entry: _FollowedEntry) -> DesiredObject:
    start = entry.part.start_version or None
    fields = compared_fields(FollowedPart, entry.part, location=table.location, start_version=start)
    return DesiredObject(object_key("followed", name), name, fields, entry.origin)


def _named(
    kind: str, name: str, part: SharePart | RecipientPart | GroupPart, origin: Origin
) -> DesiredObject:
    fields = compared_fields(type(part), part, {"name": name})
    for field in UNCHANGED:
        if getattr(part, field, None) is None:
            fields.pop(field, None)
    return DesiredObject(object_key(kind, name), name, fields, origin, part.revision)


def _table(share: str, path: str, part: TablePart, origin: Origin) -> DesiredObject:
    schema, _, name = path.partition(".")
    fields = compared_fields(TablePart, part, {"schema": schema, "name": name}, table=part.table or path)
    if part.declared:
        fields = {key: value for key, value in fields.items() if key not in ("schema", "name", *OF_CONTRACTS)}
    key = object_key("table", share, schema, name)
    return DesiredObject(key, f"{share}.{path}", fields, origin, of_contract=part.declared)
