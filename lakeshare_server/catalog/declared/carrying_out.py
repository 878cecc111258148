"""The steps of a plan, taken by the operations on shares, recipients, groups and grants, in one transaction."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast

from lakeshare_server.catalog.declared.faults import problem_of, remedy_of
from lakeshare_server.catalog.declared.objects import Wanted
from lakeshare_server.catalog.declared.planning import Step
from lakeshare_server.catalog.followed import alter_followed, follow_table, unfollow_table
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
    grant,
    put_policy,
    remove_table,
    revoke,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound

# What is not said to the operation that alters, or by another name.
RENAMED = {"name": "new_name"}
Policies = Mapping[str, Mapping[str, Any]]
UNSAID = frozenset({"kept_by", "schema", "policies", "members", "authentication"})


def carry_out(edit: Edit, steps: Iterable[Step]) -> None:
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


def require(edit: Edit, steps: Iterable[Step], check: Callable[[Edit], None]) -> None:
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
        meant = _meant(error, [step.wanted for step in batch if step.wanted is not None])
        if meant is None or meant.origin is None:
            raise
        raise meant.origin.fault(problem_of(error), remedy_of(error)) from error


def _meant(error: BadRequest | NotFound | CatalogConflict, said: Sequence[Wanted]) -> Wanted | None:
    """The object that an error is about: one with the value it refuses, or the one it names closest, or the first."""
    where = (error.field if isinstance(error, BadRequest) else str(error)).lower()

    def is_about(one: Wanted) -> tuple[bool, int]:
        has_value = isinstance(error, BadRequest) and error.value in one.fields.values()
        return has_value, len(one.name) if one.name.lower() in where else 0

    return max(said, key=is_about, default=None)


def _said(step: Step) -> dict[str, Any]:
    """What the source says of the object: the fields of the operation that makes it."""
    return {} if step.wanted is None else dict(step.wanted.fields)


def _changed(step: Step) -> dict[str, Any]:
    """The fields that are to be others, as the operation that alters calls them."""
    return {
        RENAMED.get(one.field, one.field): one.after for one in step.differences if one.field not in UNSAID
    }


def _follow(edit: Edit, step: Step) -> None:
    if step.wanted is None or step.wanted.found is None:
        # It was followed when the plan was made that said which locations are to be read.
        raise CatalogConflict(f"{step.name} has just been unfollowed", "Apply the files again.")
    said = _said(step)
    start_version = said.pop("start_version") or 0
    follow_table(edit, step.name, **said, start_version=start_version, iceberg=step.wanted.found.iceberg)


def _alter_followed(edit: Edit, step: Step) -> None:
    said = _said(step)
    alter_followed(edit, step.name, said["check_every_s"], said["start_version"] or 0)


def _unfollow(edit: Edit, step: Step) -> None:
    unfollow_table(edit, step.name)


def _create_share(edit: Edit, step: Step) -> None:
    create_share(edit, **_said(step))


def _alter_share(edit: Edit, step: Step) -> None:
    alter_share(edit, step.key[1], **_changed(step))


def _drop_share(edit: Edit, step: Step) -> None:
    drop_share(edit, step.key[1])


def _add_tables(edit: Edit, batch: list[Step]) -> None:
    add_tables(edit, batch[0].key[1], [SharedObject(**_said(step)) for step in batch])


def _alter_table(edit: Edit, step: Step) -> None:
    changed, said = _changed(step), _said(step)
    if "table" in changed and "directory_access" in said:
        # It ends with another table unless it is said again.
        changed["directory_access"] = said["directory_access"]
    alter_table(edit, *step.key[1:], **changed)


def _remove_table(edit: Edit, step: Step) -> None:
    remove_table(edit, *step.key[1:])


def _create_recipient(edit: Edit, step: Step) -> None:
    said = _said(step)
    policies = said.pop("policies", {})
    create_recipient(edit, **said)
    _put_policies(edit, step.name, {}, policies)


def _alter_recipient(edit: Edit, step: Step) -> None:
    changed = _changed(step)
    name = changed.get("new_name", step.name)
    alter_recipient(edit, step.key[1], **changed)
    for one in step.differences:
        if one.field == "policies":
            _put_policies(edit, name, cast(Policies, one.before), cast(Policies, one.after))


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
    create_group(edit, **_said(step))


def _alter_group(edit: Edit, step: Step) -> None:
    added: set[str] = set()
    removed: set[str] = set()
    for one in step.differences:
        if one.field == "members":
            before, after = set(cast(tuple[str, ...], one.before)), set(cast(tuple[str, ...], one.after))
            added, removed = after - before, before - after
    alter_group(edit, step.key[1], add=sorted(added), remove=sorted(removed), **_changed(step))


def _put_grant(edit: Edit, step: Step) -> None:
    grant(edit, step.key[1], **_reader(step), **_said(step))


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
