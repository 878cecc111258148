"""Files of `lakeshare apply`, read together as one: what they want, object by object."""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from lakeshare_server.catalog.declared.documents import (
    Document,
    FollowedPart,
    GrantPart,
    GroupPart,
    Origin,
    Parsed,
    PathInDocument,
    RecipientPart,
    SharePart,
    SourceFile,
    TablePart,
    YamlFault,
    describe_problem,
    describe_remedy,
    list_faults,
    parse,
    raise_all,
)
from lakeshare_server.catalog.ledger import IcebergIdentity, is_location_pattern
from lakeshare_server.catalog.sharing.editing import Keeper
from lakeshare_server.errors import DocumentError, LakeshareError

Key = tuple[str, ...]

# The order in which objects are made; they go in the opposite order.
KINDS = ("recipient", "group", "followed", "share", "table", "grant")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table in storage or in a catalog: its location as it is kept, and the table's own name there."""

    location: str
    name: str


# Finds the tables of locations, several at the same time: one of each, or with a star for the table any number. What
# is refused is returned in its place.
FindTables = Callable[[Sequence[str]], Sequence[Sequence[TableLocation] | LakeshareError]]


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What was read at the location of a table that is not followed yet; `iceberg` is None of a Delta table."""

    iceberg: IcebergIdentity | None
    remark: str


@dataclass(frozen=True, slots=True)
class DesiredObject:
    """An object as its source says it; `revision` is the one that the source was written for.

    `of_contract`: a contract declares the object, the source says only what contracts do not. `found`: a table that is
    to be followed was read; only then can it be made.
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
    """An object as the catalog holds it, and whose it is.

    `updated_at` is None where only whoever made it is known, as of tables and grants.
    """

    key: Key
    name: str
    fields: Mapping[str, object]
    declared: bool = False
    applied: bool = False
    revision: int | None = None
    updated_by: str | None = None
    updated_at: datetime | None = None
    is_revoked: bool = False

    @property
    def keeper(self) -> Keeper:
        """Who made it and may remove it."""
        return "files" if self.applied else "contracts" if self.declared else "hand"


def share_key(share: str) -> Key:
    """The key of a share."""
    return "share", share.lower()


def table_key(share: str, schema: str, name: str) -> Key:
    """The key of a shared table."""
    return "table", share.lower(), schema.lower(), name.lower()


def followed_key(table: str) -> Key:
    """The key of a followed table. Names of the lake's tables keep their case."""
    return "followed", table


def recipient_key(recipient: str) -> Key:
    """The key of a recipient."""
    return "recipient", recipient.lower()


def group_key(group: str) -> Key:
    """The key of a group."""
    return "group", group.lower()


def grant_key(share: str, *, recipient: str | None, group: str | None) -> Key:
    """The key of a grant on a share to one recipient or one group."""
    reader = recipient_key(recipient) if recipient is not None else group_key(group or "")
    return "grant", share.lower(), *reader


def parents(key: Key) -> tuple[Key, ...]:
    """The objects that this one goes away with."""
    kind, *names = key
    if kind == "table":
        return (share_key(names[0]),)
    if kind == "grant":
        return share_key(names[0]), (names[1], names[2])
    return ()


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Read many objects that are all kept: looking at them again and again took three quarters of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


ENDINGS = (".yaml", ".yml")
# For the name of a table: all tables of a location, or of a schema.
STAR = ".*"


@dataclass(frozen=True)
class _FollowedEntry:
    """An entry of `followed`; with a star it stands for many tables."""

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
    """What the files, and the YAML files in the folders, want. None of them is in force before all are sound.

    `find` finds the tables of the locations that files follow; without it files follow none.

    Raises:
        DocumentError: for the first thing wrong with them; its `also` holds all the others.
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
        for one in _objects(document, file):
            faults += _add(desired, one)
    faults += _misplaced_stars(desired, followed, stars)
    # Stores and catalogs are looked into for files that are sound in themselves only.
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


def _add(desired: dict[Key, DesiredObject], one: DesiredObject) -> Iterator[DocumentError]:
    """Add an object that stands in no other place."""
    first = desired.setdefault(one.key, one)
    if first is not one and one.origin is not None:
        yield one.origin.fault(f"{one.name} is in {first.origin} already", "Keep one of them.")


def _stars(document: Document, file: SourceFile) -> Iterator[_SharedStar]:
    for share, part in document.shares.items():
        for path, table in part.tables.items():
            if path.endswith(STAR):
                origin = Origin(file, ("shares", share, "tables", path))
                yield _SharedStar(share, path.removesuffix(STAR), table, origin)


def _misplaced_stars(
    desired: dict[Key, DesiredObject], followed: Sequence[_FollowedEntry], stars: Sequence[_SharedStar]
) -> Iterator[DocumentError]:
    """Refusals of one name for many tables, and of names for many that stand for one."""
    for entry in followed:
        if entry.name.endswith(STAR) != is_location_pattern(entry.part.location):
            problem = f"{entry.part.location} cannot be followed as {entry.name}"
            yield entry.origin.fault(problem, "Give * for the table in both, or in neither.")
    for star in stars:
        if star.part.declared or not (star.part.table or STAR).endswith(STAR):
            hint = f"Of {star.schema}.* the field `table` is `schema.*`, too, and contracts declare tables by name."
            yield star.origin.fault("one table stands for many", hint)
    for one in desired.values():
        if one.key[0] == "table" and one.origin and str(one.fields.get("table", "")).endswith(STAR):
            hint = "Give the name of one table, or share them as `schema.*`."
            yield one.origin.fault(f"{one.fields['table']} is no table", hint)


def _add_followed(
    desired: dict[Key, DesiredObject], followed: Sequence[_FollowedEntry], find: FindTables
) -> Iterator[DocumentError]:
    """Add the tables of the locations; one that is named itself is not added by a star as well."""
    found = list(zip(followed, find([entry.part.location for entry in followed]), strict=True))
    named = {entry.name for entry in followed}
    places = {
        table.location
        for entry, tables in found
        if not entry.name.endswith(STAR) and not isinstance(tables, LakeshareError)
        for table in tables
    }
    for entry, tables in found:
        if isinstance(tables, LakeshareError):
            problem = f"{entry.part.location} cannot be followed: {describe_problem(tables)}"
            yield entry.origin.fault(problem, describe_remedy(tables))
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
                    and table.location not in places
                    and table.name not in entry.part.exclude
                ):
                    yield from _add(desired, _followed(name, table, entry))


def _add_shared(
    desired: dict[Key, DesiredObject], star: _SharedStar, named: Collection[Key]
) -> Iterator[DocumentError]:
    """Add the tables of a schema that the files follow; one that the share names itself is as it is there."""
    schema = (star.part.table or star.schema).removesuffix(STAR)
    followed = [one.name for one in desired.values() if one.key[0] == "followed"]
    tables = [name for name in followed if name.partition(".")[0] == schema]
    if not tables:
        hint = "Follow some in `followed`, or name the tables."
        yield star.origin.fault(f"the files follow no table in schema {schema}", hint)
    for lake_table in tables:
        path = f"{star.schema}.{lake_table.partition('.')[2]}"
        part = star.part.model_copy(update={"table": lake_table})
        one = _table(star.share, path, part, star.origin)
        if one.key not in named:
            yield from _add(desired, one)


def _yaml_files(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path]
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if _is_readable_file(one, path))
            if not inside:
                raise DocumentError(
                    path, 1, "the folder", "has no YAML file", "Give a folder with .yaml files."
                )
        for one in inside:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def _is_readable_file(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is read: what is hidden, like .github/, belongs to other tools."""
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix in ENDINGS and file.is_file() and not is_hidden


def _read(path: Path) -> tuple[SourceFile, Document]:
    try:
        parsed = parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        hint = "Give a readable YAML file, or a folder of them."
        raise DocumentError(path, 1, "the file", f"cannot be read: {why}", hint) from error
    except YamlFault as fault:
        raise DocumentError(path, fault.line, "the file", fault.problem, fault.hint) from fault
    if parsed.values is None:
        parsed = Parsed({}, parsed.root)
    if not isinstance(parsed.values, dict):
        hint = "It has followed, shares, recipients, groups and grants; `lakeshare export` shows the form."
        raise DocumentError(path, 1, "the file", "is not a mapping", hint)
    file = SourceFile(path, parsed)
    try:
        return file, Document.model_validate(parsed.values)
    except ValidationError as error:
        raise_all(list_faults(error, file))
        raise


def _objects(document: Document, file: SourceFile) -> Iterator[DesiredObject]:
    for name, recipient in document.recipients.items():
        yield _recipient(name, recipient, Origin(file, ("recipients", name)))
    for name, group in document.groups.items():
        yield _group(name, group, Origin(file, ("groups", name)))
    for name, share in document.shares.items():
        at: PathInDocument = ("shares", name)
        yield _share(name, share, Origin(file, at))
        for path, table in share.tables.items():
            if not path.endswith(STAR):
                yield _table(name, path, table, Origin(file, (*at, "tables", path)))
    for index, grant in enumerate(document.grants):
        yield _grant(grant, Origin(file, ("grants", index)))


def _followed(name: str, table: TableLocation, entry: _FollowedEntry) -> DesiredObject:
    fields: dict[str, object] = {
        "location": table.location,
        "check_every_s": entry.part.check_every_s,
        "start_version": entry.part.start_version or None,
    }
    return DesiredObject(followed_key(name), name, fields, entry.origin)


def _owned(fields: dict[str, object], owner: str | None) -> dict[str, object]:
    return fields if owner is None else fields | {"owner": owner}


def _share(name: str, part: SharePart, origin: Origin) -> DesiredObject:
    fields: dict[str, object] = {
        "name": name,
        "comment": part.comment,
        "display_name": part.display_name,
        "properties": part.properties,
    }
    return DesiredObject(share_key(name), name, _owned(fields, part.owner), origin, part.revision)


def _table(share: str, path: str, part: TablePart, origin: Origin) -> DesiredObject:
    schema, _, name = path.partition(".")
    fields: dict[str, object] = {
        "start_version": part.start_version,
        "rule": part.rule,
        "publication": part.publication,
        "directory_access": part.directory_access,
    }
    if not part.declared:
        fields = {
            "schema": schema,
            "name": name,
            "table": part.table or path,
            "kind": part.kind,
            "comment": part.comment,
            "history": part.history,
            **fields,
        }
    key = table_key(share, schema, name)
    return DesiredObject(key, f"{share}.{path}", fields, origin, of_contract=part.declared)


def _recipient(name: str, part: RecipientPart, origin: Origin) -> DesiredObject:
    fields: dict[str, object] = {
        "name": name,
        "comment": part.comment,
        "authentication": part.authentication,
        "properties": part.properties,
        "ip_allow": tuple(dict.fromkeys(part.ip_allow or ())),
        "expires_at": part.expires_at,
        "agreement": part.agreement,
        "policies": {policy: said.model_dump() for policy, said in sorted(part.policies.items())},
    }
    return DesiredObject(recipient_key(name), name, _owned(fields, part.owner), origin, part.revision)


def _group(name: str, part: GroupPart, origin: Origin) -> DesiredObject:
    members = tuple(sorted({member.lower() for member in part.members}))
    fields: dict[str, object] = {"name": name, "comment": part.comment, "members": members}
    return DesiredObject(group_key(name), name, fields, origin, part.revision)


def _grant(part: GrantPart, origin: Origin) -> DesiredObject:
    key = grant_key(part.share, recipient=part.recipient, group=part.group)
    reader = f"recipient {part.recipient}" if part.recipient is not None else f"group {part.group}"
    fields: dict[str, object] = {"starts_at": part.starts_at, "ends_at": part.ends_at, "rule": part.rule}
    return DesiredObject(key, f"{part.share} to {reader}", fields, origin)
