"""`lakeshare apply`: the plan of files, and the catalog made to hold what they say, all of it or nothing."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.declared.carrying_out import carry_out, require
from lakeshare_server.catalog.declared.file_plan import Plan, file_plan
from lakeshare_server.catalog.declared.held import held
from lakeshare_server.catalog.declared.objects import Key, Wanted
from lakeshare_server.catalog.declared.uncollected import no_garbage_collection
from lakeshare_server.catalog.sharing import Edit, editing
from lakeshare_server.errors import CatalogConflict


class _OnlyTried(Exception):
    """Ends a transaction that was only to show that it can be done."""


def planned(catalog: Catalog, wanted: Mapping[Key, Wanted], *, prune: bool = False) -> Plan:
    """What applying the files would do now.

    Raises:
        DocumentError: the files cannot be applied.
    """
    with no_garbage_collection(), catalog.reading() as session:
        return file_plan(wanted, held(session), prune=prune)


def _unchecked(_edit: Edit) -> None:
    """Nothing beside what the operations themselves refuse."""


def tried(
    catalog: Catalog,
    wanted: Mapping[Key, Wanted],
    by: str,
    *,
    prune: bool = False,
    check: Callable[[Edit], None] = _unchecked,
) -> Plan:
    """The same, after it was done and undone: no operation refuses any of it, nor `check` what they did together.

    Raises:
        DocumentError: the files cannot be applied.
    """
    plan = planned(catalog, wanted, prune=prune)
    if plan.steps:
        # Its own exception is what takes the transaction back; any other one is a refusal, and goes on.
        with suppress(_OnlyTried), editing(catalog, by, keeper="files") as edit:
            plan = file_plan(wanted, held(edit.session), prune=prune)
            carry_out(edit, plan.steps)
            require(edit, plan.steps, check)
            _undo()
    return plan


def _undo() -> NoReturn:
    raise _OnlyTried


def apply_files(
    catalog: Catalog,
    wanted: Mapping[Key, Wanted],
    by: str,
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
        plan = planned(catalog, wanted, prune=prune)
        if not plan.steps:
            return plan
    with editing(catalog, by, keeper="files") as edit:
        plan = file_plan(wanted, held(edit.session), prune=prune)
        if digest not in (None, plan.digest):
            raise CatalogConflict(
                f"what is to be done is not plan {digest} any more, but {plan.digest}: files or catalog have changed",
                "Look at the plan again, then apply it.",
            )
        carry_out(edit, plan.steps)
        require(edit, plan.steps, check)
    return plan
