"""Files of `lakeshare apply`, read together as one: what they want, object by object."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from lakeshare_server.catalog.declared.documents import (
    Document,
    GrantPart,
    GroupPart,
    RecipientPart,
    SharePart,
    TablePart,
)
from lakeshare_server.catalog.declared.faults import faults_of, raise_all
from lakeshare_server.catalog.declared.objects import (
    Key,
    Wanted,
    grant_key,
    group_key,
    recipient_key,
    share_key,
    table_key,
)
from lakeshare_server.catalog.declared.origin import Origin, Place, SourceFile
from lakeshare_server.catalog.declared.uncollected import no_garbage_collection
from lakeshare_server.catalog.declared.yaml_lines import Parsed, YamlFault, parse
from lakeshare_server.errors import DocumentError

ENDINGS = (".yaml", ".yml")


def read_files(paths: Sequence[Path]) -> dict[Key, Wanted]:
    """What the files, and the YAML files in the folders, want. None of them is in force before all are sound.

    Raises:
        DocumentError: for the first thing wrong with them; its `also` holds all the others.
    """
    with no_garbage_collection():
        return _read_together(_yaml_files(paths))


def _read_together(paths: Sequence[Path]) -> dict[Key, Wanted]:
    wanted: dict[Key, Wanted] = {}
    faults: list[DocumentError] = []
    for path in paths:
        try:
            file, document = _read(path)
        except DocumentError as error:
            faults += [error, *error.also]
            continue
        for one in _objects(document, file):
            first = wanted.setdefault(one.key, one)
            if first is not one and one.origin is not None:
                faults.append(
                    one.origin.fault(f"{one.name} is in {first.origin} already", "Keep one of them.")
                )
    raise_all(faults)
    return wanted


def _yaml_files(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path]
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if _is_ours(one, path))
            if not inside:
                raise DocumentError(
                    path, 1, "the folder", "has no YAML file", "Give a folder with .yaml files."
                )
        for one in inside:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def _is_ours(file: Path, folder: Path) -> bool:
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
        hint = "It has shares, recipients, groups and grants; `lakeshare export` shows the form."
        raise DocumentError(path, 1, "the file", "is not a mapping", hint)
    file = SourceFile(path, parsed)
    try:
        return file, Document.model_validate(parsed.values)
    except ValidationError as error:
        raise_all(faults_of(error, file))
        raise


def _objects(document: Document, file: SourceFile) -> Iterator[Wanted]:
    for name, recipient in document.recipients.items():
        yield _recipient(name, recipient, Origin(file, ("recipients", name)))
    for name, group in document.groups.items():
        yield _group(name, group, Origin(file, ("groups", name)))
    for name, share in document.shares.items():
        at: Place = ("shares", name)
        yield _share(name, share, Origin(file, at))
        for path, table in share.tables.items():
            yield _table(name, path, table, Origin(file, (*at, "tables", path)))
    for index, grant in enumerate(document.grants):
        yield _grant(grant, Origin(file, ("grants", index)))


def _owned(fields: dict[str, object], owner: str | None) -> dict[str, object]:
    return fields if owner is None else fields | {"owner": owner}


def _share(name: str, part: SharePart, origin: Origin) -> Wanted:
    fields: dict[str, object] = {
        "name": name,
        "comment": part.comment,
        "display_name": part.display_name,
        "properties": part.properties,
    }
    return Wanted(share_key(name), name, _owned(fields, part.owner), origin, part.revision)


def _table(share: str, path: str, part: TablePart, origin: Origin) -> Wanted:
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
    return Wanted(key, f"{share}.{path}", fields, origin, of_contract=part.declared)


def _recipient(name: str, part: RecipientPart, origin: Origin) -> Wanted:
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
    return Wanted(recipient_key(name), name, _owned(fields, part.owner), origin, part.revision)


def _group(name: str, part: GroupPart, origin: Origin) -> Wanted:
    members = tuple(sorted({member.lower() for member in part.members}))
    fields: dict[str, object] = {"name": name, "comment": part.comment, "members": members}
    return Wanted(group_key(name), name, fields, origin, part.revision)


def _grant(part: GrantPart, origin: Origin) -> Wanted:
    key = grant_key(part.share, recipient=part.recipient, group=part.group)
    reader = f"recipient {part.recipient}" if part.recipient is not None else f"group {part.group}"
    fields: dict[str, object] = {"starts_at": part.starts_at, "ends_at": part.ends_at, "rule": part.rule}
    return Wanted(key, f"{part.share} to {reader}", fields, origin)
