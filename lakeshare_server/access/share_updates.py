"""Updates of what is in a share, as the admin API sends them, done by the operations of the catalog."""

from dataclasses import dataclass
from typing import Any, Literal

from lakeshare_server.catalog.sharing.editing import KEEP, Edit
from lakeshare_server.catalog.sharing.look import is_followed, newest_publication, objects, share
from lakeshare_server.catalog.sharing.shares import alter_share
from lakeshare_server.catalog.sharing.states import Share, SharedObject
from lakeshare_server.catalog.sharing.tables import add_table, alter_table, remove_table
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.protocol.admin.partitions import rule_of
from lakeshare_server.protocol.admin.requests import DataObject, UpdateShare

OF_SHARE = ("new_name", "comment", "owner", "display_name", "properties")


def update_share(edit: Edit, name: str, wanted: UpdateShare, revision: int | None) -> Share:
    """Do all that an update of a share asks for.

    Raises:
        NotFound: there is no such share, or no such table in it.
        BadRequest: a value cannot be used, or does not say which table is meant.
        CatalogConflict: an alias or the new name is taken, the revision is another, or a contract declares it.
    """
    fields = {field: getattr(wanted, field) for field in OF_SHARE if wanted.has(field)}
    if fields.get("new_name", "") is None:
        raise BadRequest("new_name", None, "Give a name, or leave it out.")
    # The first operation compares the revision; those behind it see the edits of those before.
    if fields:
        name, revision = alter_share(edit, name, **fields, revision=revision).name, None
    for number, update in enumerate(wanted.updates):
        _Update(edit, name, update.data_object, f"updates.{number}.data_object").do(update.action, revision)
        revision = None
    return share(edit.session, name)


@dataclass(frozen=True)
class _Update:
    edit: Edit
    share: str
    wanted: DataObject
    field: str

    def do(self, action: Literal["ADD", "REMOVE", "UPDATE"], revision: int | None) -> None:
        """Add, remove or alter the table that is meant."""
        if action == "ADD":
            add_table(self.edit, self.share, self._new(), revision=revision)
            return
        found = self._found(may_rename=action == "UPDATE")
        place = self.edit, self.share, found.schema, found.name
        if action == "REMOVE":
            remove_table(*place, revision=revision)
        else:
            alter_table(*place, **self._changes(found), revision=revision)

    def _new(self) -> SharedObject:
        schema, name = self._alias() or self._own_alias()
        return SharedObject(
            schema=schema,
            name=name,
            table=self.wanted.name,
            kind=self.wanted.data_object_type or "TABLE",
            comment=self.wanted.comment or None,
            history=self._history() or False,
            start_version=self._start_version(self.wanted.name, begins=self._history() or False),
            rule=self._rule(),
            publication=self.wanted.publication,
        )

    def _changes(self, found: SharedObject) -> dict[str, Any]:
        wanted = self.wanted
        schema, name = self._alias() or (KEEP, KEEP)
        history = self._history()
        begins = history is True and not found.history
        start = self._start_version(found.table, begins=begins)
        return {
            "new_schema": schema,
            "new_name": name,
            "kind": wanted.data_object_type or KEEP,
            "comment": (wanted.comment or None) if wanted.has("comment") else KEEP,
            "history": KEEP if history is None else history,
            "start_version": start if begins or wanted.has("start_version") else KEEP,
            "rule": self._rule() if wanted.has("rule") or wanted.has("partitions") else KEEP,
            "publication": wanted.publication if wanted.has("publication") else KEEP,
        }

    def _found(self, *, may_rename: bool) -> SharedObject:
        """The one shared table that is meant: by its table of the lake, and by its alias where there are several."""
        of_share = objects(self.edit.session, self.share)
        same = [one for one in of_share if one.table.lower() == self.wanted.name.lower()]
        alias = self.wanted.shared_as
        named = [one for one in same if alias and f"{one.schema}.{one.name}".lower() == alias.lower()]
        found = named or (same if may_rename or alias is None else [])
        if not found:
            raise NotFound("Shared table", f"{self.wanted.name} of {self.share}")
        if len(found) > 1:
            names = ", ".join(f"{one.schema}.{one.name}" for one in found)
            raise BadRequest(f"{self.field}.shared_as", alias, f"The table is shared as {names}: say which.")
        return found[0]

    def _alias(self) -> tuple[str, str] | None:
        if self.wanted.shared_as is None:
            return None
        schema, dot, name = self.wanted.shared_as.partition(".")
        if not dot:
            hint = "Give two parts, the schema and the table as recipients see them."
            raise BadRequest(f"{self.field}.shared_as", self.wanted.shared_as, hint)
        return schema, name

    def _own_alias(self) -> tuple[str, str]:
        parts = self.wanted.name.split(".")
        if len(parts) < 2:
            hint = "Name the table as `schema.table`, or give it an alias by shared_as."
            raise BadRequest(f"{self.field}.name", self.wanted.name, hint)
        return parts[-2], parts[-1]

    def _history(self) -> bool | None:
        if self.wanted.history_data_sharing_status is not None:
            return self.wanted.history_data_sharing_status == "ENABLED"
        return self.wanted.cdf_enabled

    def _start_version(self, table: str, *, begins: bool) -> int | None:
        """The oldest version that recipients may read: where history begins, the one of today, if no other is named."""
        if self.wanted.start_version is not None or not begins:
            return self.wanted.start_version
        if is_followed(self.edit.session, table):
            hint = "Say from which version of the followed table on recipients may read; 0 is all of them."
            raise BadRequest(f"{self.field}.start_version", None, hint)
        return newest_publication(self.edit.session, table)

    def _rule(self) -> str | None:
        by_partitions = rule_of(self.wanted.partitions or [])
        if self.wanted.rule and by_partitions:
            raise BadRequest(f"{self.field}.rule", self.wanted.rule, "Give it or partitions, not both.")
        return self.wanted.rule or by_partitions
