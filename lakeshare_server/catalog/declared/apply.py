"""`lakeshare apply`: the plan of files, and the catalog made to hold what they say, all of it or nothing."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, NoReturn, cast

import yaml
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.declared.documents import describe_problem, describe_remedy
from lakeshare_server.catalog.declared.files import DesiredObject, Key, gc_disabled
from lakeshare_server.catalog.declared.plan import (
    Plan,
    Step,
    jsonable,
    plan_files,
    policy_fields,
    read_current,
)
from lakeshare_server.catalog.ledger import (
    CHECK_EVERY_S,
    FollowedTable,
    alter_followed,
    follow_table,
    followed_tables,
    unfollow_table,
)
from lakeshare_server.catalog.sharing import (
    Edit,
    FederationPolicy,
    SharedObject,
    add_tables,
    alter_group,
    alter_recipient,
    alter_share,
    alter_table,
    create_group,
    create_recipient,
    create_share,
    drop_group,
    drop_policy,
    drop_recipient,
    drop_share,
    editing,
    grant,
    put_policy,
    remove_table,
    revoke,
    states,
)
from lakeshare_server.catalog.sharing.states import Grant, Group, RecipientState, Share
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound

RENAMED = {"name": "new_name"}
Policies = Mapping[str, Mapping[str, Any]]
UNSTATED_FIELDS = frozenset({"kept_by", "schema", "policies", "members", "authentication"})


def apply_steps(edit: Edit, steps: Iterable[Step]) -> None:
    """Take the steps in their order.

    Raises:
        DocumentError: an operation refuses what a file wants; it names the place there.
        BadRequest, NotFound, CatalogConflict: it refuses what was not said in a file.
    """
    for (kind, verb, _), together in groupby(steps, _batch):
        batch = list(together)
        if (kind, verb) == ("table", "create"):
            with _refused_in_file(batch):
                _add_tables(edit, batch)
            continue
        for step in batch:
            with _refused_in_file([step]):
                OPERATIONS[kind, verb](edit, step)


def _batch(step: Step) -> tuple[str, str, str]:
    """Tables of one share are added together: one by one, 20,000 of them take minutes."""
    return step.kind, step.verb, step.key[1]


def require_valid(edit: Edit, steps: Iterable[Step], check: Callable[[Edit], None]) -> None:
    """See that what the steps did together is all right, too.

    Raises:
        DocumentError: `check` refuses what a file wants; it names the place there.
        BadRequest, NotFound, CatalogConflict: it refuses what was not said in a file.
    """
    with _refused_in_file(list(steps)):
        check(edit)


@contextmanager
def _refused_in_file(batch: list[Step]) -> Iterator[None]:
    try:
        yield
    except (BadRequest, NotFound, CatalogConflict) as error:
        meant = _find_cause(error, [step.desired for step in batch if step.desired is not None])
        if meant is None or meant.origin is None:
            raise
        raise meant.origin.fault(describe_problem(error), describe_remedy(error)) from error


def _find_cause(
    error: BadRequest | NotFound | CatalogConflict, desired: Sequence[DesiredObject]
) -> DesiredObject | None:
    """The object that an error is about: one with the value it refuses, or the one it names closest, or the first."""
    where = (error.field if isinstance(error, BadRequest) else str(error)).lower()

    def is_about(one: DesiredObject) -> tuple[bool, int]:
        has_value = isinstance(error, BadRequest) and error.value in one.fields.values()
        return has_value, len(one.name) if one.name.lower() in where else 0

    return max(desired, key=is_about, default=None)


def _fields_of(step: Step) -> dict[str, Any]:
    """What the source says of the object: the fields of the operation that makes it."""
    return {} if step.desired is None else dict(step.desired.fields)


def _changed_fields(step: Step) -> dict[str, Any]:
    """The fields that are to be others, as the operation that alters calls them."""
    return {
        RENAMED.get(difference.field, difference.field): difference.after
        for difference in step.differences
        if difference.field not in UNSTATED_FIELDS
    }


def _follow(edit: Edit, step: Step) -> None:
    if step.desired is None or step.desired.found is None:
        # It was followed when the plan was made that said which locations are to be read.
        raise CatalogConflict(f"{step.name} has just been unfollowed", "Apply the files again.")
    fields = _fields_of(step)
    start_version = fields.pop("start_version") or 0
    follow_table(edit, step.name, **fields, start_version=start_version, iceberg=step.desired.found.iceberg)


def _alter_followed(edit: Edit, step: Step) -> None:
    fields = _fields_of(step)
    alter_followed(edit, step.name, fields["check_every_s"], fields["start_version"] or 0)


def _unfollow(edit: Edit, step: Step) -> None:
    unfollow_table(edit, step.name)


def _create_share(edit: Edit, step: Step) -> None:
    create_share(edit, **_fields_of(step))


def _alter_share(edit: Edit, step: Step) -> None:
    alter_share(edit, step.key[1], **_changed_fields(step))


def _drop_share(edit: Edit, step: Step) -> None:
    drop_share(edit, step.key[1])


def _add_tables(edit: Edit, batch: list[Step]) -> None:
    add_tables(edit, batch[0].key[1], [SharedObject(**_fields_of(step)) for step in batch])


def _alter_table(edit: Edit, step: Step) -> None:
    changed, said = _changed_fields(step), _fields_of(step)
    if "table" in changed and "directory_access" in said:
        # It ends with another table unless it is said again.
        changed["directory_access"] = said["directory_access"]
    alter_table(edit, *step.key[1:], **changed)


def _remove_table(edit: Edit, step: Step) -> None:
    remove_table(edit, *step.key[1:])


def _create_recipient(edit: Edit, step: Step) -> None:
    fields = _fields_of(step)
    policies = fields.pop("policies", {})
    create_recipient(edit, **fields)
    _put_policies(edit, step.name, {}, policies)


def _alter_recipient(edit: Edit, step: Step) -> None:
    changed = _changed_fields(step)
    name = changed.get("new_name", step.name)
    alter_recipient(edit, step.key[1], **changed)
    for difference in step.differences:
        if difference.field == "policies":
            _put_policies(edit, name, cast(Policies, difference.before), cast(Policies, difference.after))


def _put_policies(edit: Edit, recipient: str, before: Policies, after: Policies) -> None:
    for name in before.keys() - after.keys():
        drop_policy(edit, recipient, name)
    for name, said in after.items():
        if before.get(name) != said:
            put_policy(
                edit,
                recipient,
                FederationPolicy(name=name, **{**said, "audiences": tuple(said["audiences"])}),
            )


def _create_group(edit: Edit, step: Step) -> None:
    create_group(edit, **_fields_of(step))


def _alter_group(edit: Edit, step: Step) -> None:
    added: set[str] = set()
    removed: set[str] = set()
    for difference in step.differences:
        if difference.field == "members":
            before, after = (
                set(cast(tuple[str, ...], difference.before)),
                set(cast(tuple[str, ...], difference.after)),
            )
            added, removed = after - before, before - after
    alter_group(edit, step.key[1], add=sorted(added), remove=sorted(removed), **_changed_fields(step))


def _put_grant(edit: Edit, step: Step) -> None:
    grant(edit, step.key[1], **_reader(step), **_fields_of(step))


def _revoke(edit: Edit, step: Step) -> None:
    revoke(edit, step.key[1], **_reader(step))


def _reader(step: Step) -> dict[str, Any]:
    _, _, kind, name = step.key
    return {kind: name}


def _drop_recipient(edit: Edit, step: Step) -> None:
    drop_recipient(edit, step.key[1])


def _drop_group(edit: Edit, step: Step) -> None:
    drop_group(edit, step.key[1])


OPERATIONS: dict[tuple[str, str], Callable[[Edit, Step], None]] = {
    ("followed", "create"): _follow,
    ("followed", "update"): _alter_followed,
    ("followed", "delete"): _unfollow,
    ("share", "create"): _create_share,
    ("share", "update"): _alter_share,
    ("share", "delete"): _drop_share,
    ("table", "update"): _alter_table,
    ("table", "delete"): _remove_table,
    ("recipient", "create"): _create_recipient,
    ("recipient", "update"): _alter_recipient,
    ("recipient", "delete"): _drop_recipient,
    ("group", "create"): _create_group,
    ("group", "update"): _alter_group,
    ("group", "delete"): _drop_group,
    ("grant", "create"): _put_grant,
    ("grant", "update"): _put_grant,
    ("grant", "delete"): _revoke,
}


class _DryRunOnly(Exception):
    """Ends a transaction that was only to show that it can be done."""


def plan_changes(catalog: Catalog, desired: Mapping[Key, DesiredObject], *, prune: bool = False) -> Plan:
    """What applying the files would do now.

    Raises:
        DocumentError: the files cannot be applied.
    """
    with gc_disabled(), catalog.reading() as session:
        return plan_files(desired, read_current(session), prune=prune)


def _unchecked(_edit: Edit) -> None:
    """Nothing beside what the operations themselves refuse."""


def dry_run(
    catalog: Catalog,
    desired: Mapping[Key, DesiredObject],
    principal: str,
    *,
    prune: bool = False,
    check: Callable[[Edit], None] = _unchecked,
) -> Plan:
    """The same, after it was done and undone: no operation refuses any of it, nor `check` what they did together.

    Raises:
        DocumentError: the files cannot be applied.
    """
    plan = plan_changes(catalog, desired, prune=prune)
    if plan.steps:
        # Its own exception is what takes the transaction back; any other one is a refusal, and goes on.
        with suppress(_DryRunOnly), editing(catalog, principal, keeper="files") as edit:
            plan = plan_files(desired, read_current(edit.session), prune=prune)
            apply_steps(edit, plan.steps)
            require_valid(edit, plan.steps, check)
            _undo()
    return plan


def _undo() -> NoReturn:
    raise _DryRunOnly


def apply_files(
    catalog: Catalog,
    desired: Mapping[Key, DesiredObject],
    principal: str,
    *,
    prune: bool = False,
    digest: str | None = None,
    check: Callable[[Edit], None] = _unchecked,
) -> Plan:
    """Make the catalog hold what the files say, in one transaction; returns what was done. Twice changes nothing.

    With the digest of a plan that somebody has looked at, nothing else than that is done, and nothing that `check`
    refuses.

    Raises:
        DocumentError: the files cannot be applied.
        CatalogConflict: the catalog has changed since the plan of that digest was made.
    """
    if digest is None:
        # Whoever changes nothing makes no writer wait.
        plan = plan_changes(catalog, desired, prune=prune)
        if not plan.steps:
            return plan
    with editing(catalog, principal, keeper="files") as edit:
        plan = plan_files(desired, read_current(edit.session), prune=prune)
        if digest not in (None, plan.digest):
            raise CatalogConflict(
                f"what is to be done is not plan {digest} any more, but {plan.digest}: files or catalog have changed",
                "Look at the plan again, then apply it.",
            )
        apply_steps(edit, plan.steps)
        require_valid(edit, plan.steps, check)
    return plan


HEAD = """\
# What this catalog shares with whom; `lakeshare apply -f FILE` makes a catalog hold it. It has no secrets: recipients
# get their profiles by `lakeshare recipient rotate`.
"""


class _Dumper(yaml.CSafeDumper):
    """Writes a text of several lines as one."""


def _text(dumper: "_Dumper", text: str) -> yaml.ScalarNode:
    # Blank ends of lines cannot stand in a block.
    is_block = "\n" in text and not any(line != line.rstrip() for line in text.split("\n"))
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if is_block else None)


_Dumper.add_representer(str, _text)


def export(session: Session, *, revisions: bool = False) -> str:
    """The YAML of everything that files can say; with revisions, an edit of it cannot overwrite another."""
    everybody = states.list_recipients(session)
    recipients = {one.name: one for one in everybody if one.revoked_at is None}
    grants = [
        grant
        for grant in states.list_grants(session)
        if grant.recipient is None or grant.recipient in recipients
    ]
    groups = {group.name: _group(group, recipients) for group in states.list_groups(session)}
    shares = _shares(session, {grant.share for grant in grants})
    document = {
        "version": 1,
        "followed": {table.table: _followed(table) for table in followed_tables(session)},
        "shares": shares,
        "recipients": {name: _recipient(one) for name, one in recipients.items()},
        "groups": groups,
        "grants": [_grant(grant) for grant in grants],
    }
    if revisions:
        _add_revisions(session, document)
    left_out = [one.name for one in everybody if one.revoked_at is not None]
    remark = f"# Revoked, and left out: {', '.join(left_out)}\n" if left_out else ""
    sections = {name: value for name, value in document.items() if value}
    return HEAD + remark + yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _followed(table: FollowedTable) -> str | dict[str, Any]:
    fields = {
        "location": table.location,
        "check_every_s": None if table.check_every_s == CHECK_EVERY_S else table.check_every_s,
        "start_version": table.start_version or None,
    }
    return (
        table.location
        if fields["check_every_s"] is fields["start_version"] is None
        else _without_defaults(fields)
    )


def _shares(session: Session, granted: set[str]) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for table in states.list_objects(session):
        said = _contracts_table(table) if table.declared else _table(table)
        if said is not None:
            tables.setdefault(table.share, {})[f"{table.schema}.{table.name}"] = said
    shares = {}
    for share in states.list_shares(session):
        said = _share(share, tables.get(share.name, {}))
        if not share.declared or share.name in granted or said:
            shares[share.name] = said
    return shares


def _share(share: Share, tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    is_default_owner = share.declared and share.owner == share.created_by
    return _without_defaults(
        {
            "comment": share.comment,
            "display_name": share.display_name,
            "owner": None if is_default_owner else share.owner,
            "properties": dict(share.properties),
            "tables": tables,
        }
    )


def _table(table: SharedObject) -> dict[str, Any]:
    return _without_defaults(
        {
            "table": None if table.table == f"{table.schema}.{table.name}" else table.table,
            "kind": None if table.kind == "TABLE" else table.kind,
            "comment": table.comment,
            "history": None if table.history else False,
            **_set_by_hand(table),
        }
    )


def _contracts_table(table: SharedObject) -> dict[str, Any] | None:
    fields = _without_defaults(_set_by_hand(table))
    return {"declared": True, **fields} if fields else None


def _set_by_hand(table: SharedObject) -> dict[str, Any]:
    return {
        "start_version": table.start_version,
        "rule": table.rule,
        "publication": table.publication,
        "directory_access": table.directory_access or None,
    }


def _recipient(recipient: RecipientState) -> dict[str, Any]:
    return _without_defaults(
        {
            "comment": recipient.comment,
            "owner": recipient.owner,
            "authentication": None if recipient.authentication == "TOKEN" else recipient.authentication,
            "properties": dict(recipient.properties),
            "ip_allow": list(recipient.ip_allow),
            "expires_at": jsonable(recipient.expires_at),
            "agreement": recipient.agreement,
            "policies": {
                policy.name: _without_defaults(policy_fields(policy)) for policy in recipient.policies
            },
        }
    )


def _group(group: Group, recipients: Collection[str]) -> dict[str, Any]:
    members = [member for member in group.members if member in recipients]
    return _without_defaults({"comment": group.comment, "members": members})


def _grant(grant: Grant) -> dict[str, Any]:
    return _without_defaults(
        {
            "share": grant.share,
            "recipient": grant.recipient,
            "group": grant.group,
            "starts_at": jsonable(grant.starts_at),
            "ends_at": jsonable(grant.ends_at),
            "rule": grant.rule,
        }
    )


def _without_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is not the default anyway."""
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [])}


def _add_revisions(session: Session, document: dict[str, Any]) -> None:
    for kind, read in (
        ("shares", states.list_shares),
        ("recipients", states.list_recipients),
        ("groups", states.list_groups),
    ):
        for one in read(session):
            if one.name in document[kind]:
                document[kind][one.name]["revision"] = one.revision
