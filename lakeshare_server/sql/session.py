"""A session: takes scripts, does their statements in order, and knows as whom it looks."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from lakeshare_server.access.rules import require_decidable_rules
from lakeshare_server.catalog.sharing import Edit, editing, states
from lakeshare_server.errors import BadRequest, Denied, LakeshareError, NotFound
from lakeshare_server.provider.following import find_versions_ahead
from lakeshare_server.sql import changes, show
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.changes import Provider
from lakeshare_server.sql.grammar import Placed, parse
from lakeshare_server.sql.show import RowsReadBy, SeenAs
from lakeshare_server.sql.statements import Place, Result, StatementRefused, done


@dataclass(frozen=True)
class Done:
    """A statement that was done, as it was written, and what it answered."""

    text: str
    result: Result


class SqlSession:
    """Statements in the name of a principal; `rows_read_by` reads tables for whoever sees as a recipient."""

    def __init__(self, provider: Provider, principal: str, rows_read_by: RowsReadBy | None = None) -> None:
        self.provider, self.principal, self._rows_read_by = provider, principal, rows_read_by
        self.seen_as: SeenAs | None = None

    def run(
        self, text: str, source: str | None = None, *, single_transaction: bool = False
    ) -> Iterator[Done]:
        """Do the statements of a script, in order: each in its own transaction, or all in one.

        Nothing is done before the whole script is read. `source` is the name of its file.

        Raises:
            SqlError: the script is not SQL; nothing was done.
            StatementRefused: a statement cannot be done; says which took effect. In one transaction: none.
        """
        script = parse(text, source)
        if single_transaction:
            yield from self._together(script, text, source)
            return
        for number, placed in enumerate(script):
            try:
                result = self._alone(placed.statement)
            except LakeshareError as error:
                raise _refused(error, text, source, script, number, number) from error
            yield Done(text[placed.start : placed.end], result)

    def _together(self, script: tuple[Placed, ...], text: str, source: str | None) -> list[Done]:
        if not script:
            return []
        answers: list[Done] = []
        changed: list[int] = []  # how many changes there were in front of each statement
        number = 0
        try:
            self._look_ahead([placed.statement for placed in script])
            with editing(self.provider.catalog, self.principal) as edit:
                for number, placed in enumerate(script):  # noqa: B007  # which one was refused
                    changed.append(len(edit.changes))
                    result = self._within(edit, placed.statement)
                    answers.append(Done(text[placed.start : placed.end], result))
                try:
                    require_decidable_rules(edit, self.provider.versions)
                except BadRequest:
                    number = self._undecided(edit, changed)
                    raise
        except LakeshareError as error:
            raise _refused(error, text, source, script, number, 0) from error
        return answers

    def _undecided(self, edit: Edit, changed: list[int]) -> int:
        """The last statement from which on there is a rule that no partition decides."""

        def is_decided_from(number: int) -> bool:
            return self._is_decided(replace(edit, changes=edit.changes[changed[number] :]))

        return bisect_left(range(len(changed)), True, key=is_decided_from) - 1

    def _is_decided(self, edit: Edit) -> bool:
        try:
            require_decidable_rules(edit, self.provider.versions)
        except BadRequest:
            return False
        return True

    def _alone(self, asked: said.Statement) -> Result:
        catalog = self.provider.catalog
        if isinstance(asked, said.SetRecipient):
            return self._turn_to(asked.name)
        if isinstance(asked, said.Look):
            if self.seen_as is not None:
                return self.seen_as.look(asked)
            with catalog.reading() as session:
                return self._shown(session, asked)
        self._require_provider()
        if isinstance(asked, changes.Follow):
            return changes.do_follow(asked, self.provider, self.principal)
        if isinstance(asked, changes.Unfollow):
            return changes.do_unfollow(asked, self.provider, self.principal)
        self._look_ahead([asked])
        with editing(catalog, self.principal) as edit:
            result = _CHANGES[type(asked)](edit, asked, self.provider)
            require_decidable_rules(edit, self.provider.versions)
            return result

    def _within(self, edit: Edit, asked: said.Statement) -> Result:
        if isinstance(asked, said.SetRecipient):
            hint = "Recipients see what is committed: look as one outside of the transaction."
            raise BadRequest("SET RECIPIENT", asked.name or "", hint)
        self._require_provider()
        if isinstance(asked, changes.Follow | changes.Unfollow):
            name = "FOLLOW" if isinstance(asked, changes.Follow) else "UNFOLLOW"
            raise BadRequest(name, name, "It reads stores: run it outside of the transaction.")
        if isinstance(asked, said.Look):
            return self._shown(edit.session, asked)
        return _CHANGES[type(asked)](edit, asked, self.provider)

    def _shown(self, session: Session, asked: said.Look) -> Result:
        if isinstance(asked, said.ShowUsage):
            return show.show_usage(session, asked, self.provider.catalog)
        return _LOOKS[type(asked)](session, asked)

    def _turn_to(self, name: str | None) -> Result:
        if name is None:
            self.seen_as = None
            return done("this is what the provider sees again")
        with self.provider.catalog.reading() as session:
            found = states.recipient(session, name)
        self.seen_as = SeenAs(self.provider, found.name, found.id, self._rows_read_by)
        return done(f"this is what {found.name} sees; its state is {found.state}")

    def _look_ahead(self, script: Sequence[said.Statement]) -> None:
        """Know the followed tables that rules of these statements are held against before a transaction is open."""
        provider, concerned = self.provider, defaultdict[str, list[str]](list)
        writes_rule = False
        for asked in script:
            if isinstance(asked, said.PutObject):
                concerned[asked.share].append(".".join(asked.path))
                writes_rule |= asked.rule is not None
            elif isinstance(asked, said.PutSchema):
                with suppress(BadRequest):  # told by the statement itself
                    concerned[asked.share] += provider.tables_of(".".join(asked.path))
            elif isinstance(asked, said.Grant):
                concerned[asked.share] += ()
                writes_rule |= asked.rule is not None
            elif isinstance(asked, said.AlterShare) and len(script) > 1:
                # What follows may speak of it by another name: all is looked at.
                concerned[asked.name] += ()
                writes_rule = True
        for share, tables in concerned.items():
            find_versions_ahead(provider.catalog, provider.versions, share, tables, writes_rule=writes_rule)

    def _require_provider(self) -> None:
        if self.seen_as is not None:
            raise Denied(f"{self.seen_as.recipient} changes nothing. RESET RECIPIENT first.")


def _refused(
    error: LakeshareError, text: str, source: str | None, script: tuple[Placed, ...], number: int, took: int
) -> StatementRefused:
    placed = script[number]
    return StatementRefused(error, _meant(error, placed, text), text, source, took, len(script))


def _meant(error: LakeshareError, placed: Placed, text: str) -> Place:
    """Where the statement says what was refused; its first word, if that cannot be told."""
    written = text[placed.start : placed.end]
    value = (
        error.name if isinstance(error, NotFound) else error.value if isinstance(error, BadRequest) else None
    )
    sought = rf"(?<!\w){re.escape(str(value))}(?!\w)" if value not in (None, "") else r"\A\w+"
    found = re.search(sought, written, re.IGNORECASE) or re.match(r"\w+", written)
    at, length = placed.start + (found.start() if found else 0), len(found.group()) if found else 1
    line_start = text.rfind("\n", 0, at) + 1
    return Place(text.count("\n", 0, at) + 1, at - line_start + 1, length)


# By the type of the statement, which each function takes.
_LOOKS: Mapping[type, Callable[[Session, Any], Result]] = {
    said.ShowShares: show.show_shares,
    said.ShowSharesInProvider: show.show_shares_in_provider,
    said.ShowAllInShare: show.show_all_in_share,
    said.ShowRecipients: show.show_recipients,
    said.ShowGroups: show.show_groups,
    changes.ShowFollowedTables: changes.show_followed_tables,
    said.ShowGrantsOnShare: show.show_grants_on_share,
    said.ShowGrantsTo: show.show_grants_to,
    said.DescribeShare: show.describe_share,
    said.DescribeRecipient: show.describe_recipient,
    said.DescribeGroup: show.describe_group,
    said.SelectAll: show.select_all,
}
_CHANGES: Mapping[type, Callable[[Edit, Any, Provider], Result]] = {
    said.CreateShare: changes.do_create_share,
    said.AlterShare: changes.do_alter_share,
    said.DropShare: changes.do_drop_share,
    said.PutObject: changes.do_put_object,
    said.PutSchema: changes.do_put_schema,
    said.RemoveObject: changes.do_remove_object,
    said.RemoveSchema: changes.do_remove_schema,
    said.PinPublication: changes.do_pin_publication,
    said.Publish: changes.do_publish,
    said.CreateRecipient: changes.do_create_recipient,
    said.AlterRecipient: changes.do_alter_recipient,
    said.SetProperties: changes.do_set_properties,
    said.UnsetProperties: changes.do_unset_properties,
    said.RotateToken: changes.do_rotate_token,
    said.RevokeToken: changes.do_revoke_token,
    said.Invite: changes.do_invite,
    said.PutPolicy: changes.do_put_policy,
    said.DropPolicy: changes.do_drop_policy,
    said.RevokeRecipient: changes.do_revoke_recipient,
    said.DropRecipient: changes.do_drop_recipient,
    said.CreateGroup: changes.do_create_group,
    said.AlterGroup: changes.do_alter_group,
    said.ChangeMembers: changes.do_change_members,
    said.DropGroup: changes.do_drop_group,
    said.Grant: changes.do_grant,
    said.Revoke: changes.do_revoke,
}
