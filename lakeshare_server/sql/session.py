"""A session: takes scripts, does their statements in order, and knows as whom it looks."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from lakeshare_server.catalog.sharing import Edit, editing, look
from lakeshare_server.errors import BadRequest, Denied, LakeshareError, NotFound
from lakeshare_server.sql import information_schema, looks, recipient_changes, share_changes
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.errors import Place, StatementRefused
from lakeshare_server.sql.grammar import parse
from lakeshare_server.sql.provider import Provider
from lakeshare_server.sql.results import Result, done
from lakeshare_server.sql.seen_as import SeenAs
from lakeshare_server.sql.statement_building import Placed


@dataclass(frozen=True)
class Done:
    """A statement that was done, as it was written, and what it answered."""

    text: str
    result: Result


class SqlSession:
    """Statements in the name of a principal."""

    def __init__(self, provider: Provider, principal: str) -> None:
        self.provider, self.principal = provider, principal
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
        try:
            with editing(self.provider.catalog, self.principal) as edit:
                for placed in script:
                    result = self._within(edit, placed.statement)
                    answers.append(Done(text[placed.start : placed.end], result))
        except LakeshareError as error:
            # Of a refusal at the end, when all were done, the last is told.
            number = min(len(answers), len(script) - 1)
            raise _refused(error, text, source, script, number, 0) from error
        return answers

    def _alone(self, asked: said.Statement) -> Result:
        catalog = self.provider.catalog
        if isinstance(asked, said.SetRecipient):
            return self._turn_to(asked.name)
        if isinstance(asked, said.Look):
            if self.seen_as is not None:
                return self.seen_as.look(asked)
            with catalog.reading() as session:
                return _LOOKS[type(asked)](session, asked)
        self._require_provider()
        with editing(catalog, self.principal) as edit:
            return _CHANGES[type(asked)](edit, asked, self.provider)

    def _within(self, edit: Edit, asked: said.Statement) -> Result:
        if isinstance(asked, said.SetRecipient):
            hint = "Recipients see what is committed: look as one outside of the transaction."
            raise BadRequest("SET RECIPIENT", asked.name or "", hint)
        self._require_provider()
        if isinstance(asked, said.Look):
            return _LOOKS[type(asked)](edit.session, asked)
        return _CHANGES[type(asked)](edit, asked, self.provider)

    def _turn_to(self, name: str | None) -> Result:
        if name is None:
            self.seen_as = None
            return done("this is what the provider sees again")
        with self.provider.catalog.reading() as session:
            found = look.recipient(session, name)
        self.seen_as = SeenAs(self.provider, found.name, found.id)
        return done(f"this is what {found.name} sees; its state is {found.state}")

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
    said.ShowShares: looks.show_shares,
    said.ShowSharesInProvider: looks.show_shares_in_provider,
    said.ShowAllInShare: looks.show_all_in_share,
    said.ShowRecipients: looks.show_recipients,
    said.ShowGroups: looks.show_groups,
    said.ShowGrantsOnShare: looks.show_grants_on_share,
    said.ShowGrantsTo: looks.show_grants_to,
    said.ShowUsage: looks.show_usage,
    said.DescribeShare: looks.describe_share,
    said.DescribeRecipient: looks.describe_recipient,
    said.DescribeGroup: looks.describe_group,
    said.SelectAll: information_schema.select_all,
}
_CHANGES: Mapping[type, Callable[[Edit, Any, Provider], Result]] = {
    said.CreateShare: share_changes.do_create_share,
    said.AlterShare: share_changes.do_alter_share,
    said.DropShare: share_changes.do_drop_share,
    said.PutObject: share_changes.do_put_object,
    said.PutSchema: share_changes.do_put_schema,
    said.RemoveObject: share_changes.do_remove_object,
    said.RemoveSchema: share_changes.do_remove_schema,
    said.PinPublication: share_changes.do_pin_publication,
    said.Publish: share_changes.do_publish,
    said.CreateRecipient: recipient_changes.do_create_recipient,
    said.AlterRecipient: recipient_changes.do_alter_recipient,
    said.SetProperties: recipient_changes.do_set_properties,
    said.UnsetProperties: recipient_changes.do_unset_properties,
    said.RotateToken: recipient_changes.do_rotate_token,
    said.RevokeToken: recipient_changes.do_revoke_token,
    said.Invite: recipient_changes.do_invite,
    said.PutPolicy: recipient_changes.do_put_policy,
    said.DropPolicy: recipient_changes.do_drop_policy,
    said.RevokeRecipient: recipient_changes.do_revoke_recipient,
    said.DropRecipient: recipient_changes.do_drop_recipient,
    said.CreateGroup: recipient_changes.do_create_group,
    said.AlterGroup: recipient_changes.do_alter_group,
    said.ChangeMembers: recipient_changes.do_change_members,
    said.DropGroup: recipient_changes.do_drop_group,
    said.Grant: recipient_changes.do_grant,
    said.Revoke: recipient_changes.do_revoke,
}
