"""The statements that read, and their execution for the provider and as one recipient.

Our own columns follow those of Databricks' manual.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, Listings, Share, states
from lakeshare_server.catalog.audit import read_usage
from lakeshare_server.catalog.ledger import followed_tables
from lakeshare_server.catalog.models import MAX_LONG
from lakeshare_server.catalog.states import RecipientState, SharedTable
from lakeshare_server.errors import BadRequest, Denied, NotFound
from lakeshare_server.sql.statements import Cell, Grantee, ObjectKind, Result, Statement
from lakeshare_server.text_fields import TEXT_FIELDS

# The texts of recipients that fit into a column.
SHORT_TEXTS = tuple(text for text in TEXT_FIELDS["recipient"] if not text.from_file)

# The columns of a result: their type, and the attribute of an object, or a function of it, with their value.
Table = Mapping[str, tuple[type, str | Callable[[Any], Cell]]]


def _texts(*names: str) -> Table:
    return {name: (str, name) for name in names}


def _times(*names: str) -> Table:
    return {name: (datetime, name) for name in names}


def _integers(*names: str) -> Table:
    return {name: (int, name) for name in names}


SHARES: Table = {**_texts("name"), **_times("created_at"), **_texts("created_by", "comment")}
SHARE_DETAILS: Table = {
    **SHARES,
    **_texts(*(text.name for text in TEXT_FIELDS["share"]), "owner"),
    **_times("updated_at"),
    **_texts("updated_by"),
}
RECIPIENTS: Table = {**SHARES, "authentication_type": (str, "authentication"), **_texts("state")}
GROUPS: Table = {**SHARES, "members": (str, lambda group: ", ".join(group.members))}
OBJECTS: Table = {
    "name": (str, "alias"),
    "type": (str, "kind"),
    "shared_object": (str, "table"),
    **_times("added_at"),
    **_texts("added_by", "comment"),
    "partitions": (str, "rule"),
    "history": (bool, "history"),
    **_integers("start_version", "publication"),
    **_texts("notice"),
}
GRANTS_ON: Table = {
    "recipient": (str, "reader"),
    "actionType": (str, lambda _: "SELECT"),
    "objectType": (str, lambda _: "SHARE"),
    "objectKey": (str, "share"),
    "granteeType": (str, lambda grant: "GROUP" if grant.recipient is None else "RECIPIENT"),
    "startsAt": (datetime, "starts_at"),
    "endsAt": (datetime, "ends_at"),
    **_texts("rule"),
}
GRANTS_TO: Table = {
    "share": (str, "share"),
    "privilege": (str, lambda _: "SELECT"),
    "via_group": (str, "group"),
    **_times("starts_at", "ends_at"),
    **_texts("rule"),
}
FOLLOWED: Table = {
    **_texts("table", "location", "format"),
    **_integers("start_version"),
    **_times("created_at"),
}
USAGE: Table = {
    "day": (str, lambda usage: usage.day.isoformat()),
    **_texts("table"),
    **_integers("version", "requests", "queries", "files", "size_bytes", "refused"),
}


def select_rows(table: Table, objects: Iterable[Any], visible: Collection[str] | None = None) -> Result:
    """The rows of a table for objects; if `visible` is given, recipients see these columns only."""
    shown = table.keys() if visible is None else visible
    readers = {
        name: attrgetter(value) if isinstance(value, str) else value for name, (_, value) in table.items()
    }
    rows = (
        tuple(read(item) if name in shown else None for name, read in readers.items()) for item in objects
    )
    return Result({name: kind for name, (kind, _) in table.items()}, tuple(rows))


def matches_pattern(pattern: str | None, name: str) -> bool:
    """Whether a name matches a pattern: `*` for any text, `|` between alternatives, without regard to case."""
    if pattern is None:
        return True
    alternatives = pattern.strip().split("|")
    parts = (".*".join(map(re.escape, alternative.strip().split("*"))) for alternative in alternatives)
    return any(re.fullmatch(part, name, re.IGNORECASE | re.DOTALL) for part in parts)


# By the kind of object: the columns of SHOW, and the reader of all.
LISTS: Mapping[ObjectKind, tuple[Table, Callable[[Session], Iterable[Any]]]] = {
    "SHARE": (SHARES, states.list_shares),
    "RECIPIENT": (RECIPIENTS, states.list_recipients),
    "GROUP": (GROUPS, states.list_groups),
}


def _matching(pattern: str | None, objects: Iterable[Any]) -> list[Any]:
    named = [item for item in objects if matches_pattern(pattern, item.name)]
    return sorted(named, key=lambda item: item.name.lower())


SCHEMA = "information_schema"
TOUCHED: Table = {
    "created": (datetime, "created_at"),
    "created_by": (str, "created_by"),
    "last_altered": (datetime, "updated_at"),
    "last_altered_by": (str, "updated_by"),
}
SHARES_VIEW: Table = {
    "share_name": (str, "name"),
    "share_owner": (str, "owner"),
    **_texts("comment"),
    **TOUCHED,
}
RECIPIENTS_VIEW: Table = {
    "recipient_name": (str, "name"),
    "recipient_id": (str, "id"),
    "recipient_owner": (str, "owner"),
    "authentication_type": (str, "authentication"),
    **_texts("comment"),
    **TOUCHED,
    **_texts("state", *(text.name for text in SHORT_TEXTS)),
}
TOKENS_VIEW = {
    "recipient_name": str,
    "recipient_token_id": str,
    "activation_url": str,
    "expiration_time": datetime,
    **{name: kind for name, (kind, _) in TOUCHED.items()},
    "revoked": datetime,
    "last_used": datetime,
}
PRIVILEGES_VIEW = {
    **dict.fromkeys(("grantor", "recipient_name", "share_name", "privilege_type", "inherited_from"), str),
    **dict.fromkeys(("starts", "ends"), datetime),
    "rule": str,
}
TABLES_VIEW: Table = {
    "catalog_name": (str, lambda item: item.table.rpartition(".")[0].rpartition(".")[0] or None),
    "schema_name": (str, lambda item: item.table.rpartition(".")[0].rpartition(".")[2] or None),
    "table_name": (str, lambda item: item.table.rpartition(".")[2]),
    "share_name": (str, "share"),
    "partition_spec": (str, "rule"),
    "cdf_enabled": (str, lambda item: "YES" if item.history else "NO"),
    **_integers("start_version"),
    "shared_as_schema": (str, "schema"),
    "shared_as_table": (str, "name"),
    **_texts("comment"),
}
ADDRESSES_VIEW = {"recipient_name": str, "allowed_ip_range": str}
TABLES_VIEW_OF_RECIPIENTS = (
    *("share_name", "shared_as_schema", "shared_as_table"),
    *("cdf_enabled", "start_version", "comment"),
)


def recipient_tokens(session: Session) -> Result:
    """Every token; the link of each recipient without a token."""
    rows: list[tuple[Cell, ...]] = []
    for recipient in states.list_recipients(session):
        link = link_state(recipient, datetime.now(UTC))
        if not recipient.tokens and recipient.links:
            last = recipient.links[-1]
            rows.append((recipient.name, None, link, None, last.created_at, last.created_by, *(None,) * 4))
        rows += [
            (
                *(recipient.name, token.id, link, token.expires_at, token.created_at, token.created_by),
                *(token.superseded_at, None, token.revoked_at, token.last_used_at),
            )
            for token in recipient.tokens
        ]
    return Result(TOKENS_VIEW, tuple(rows))


def share_recipient_privileges(session: Session) -> Result:
    """The grants of every recipient, with the group that they come through."""
    members = {group.name: group.members for group in states.list_groups(session)}
    rows: list[tuple[Cell, ...]] = []
    for grant in states.list_grants(session):
        readers = (grant.recipient,) if grant.recipient is not None else members[grant.group or ""]
        inherited = None if grant.group is None else f"GROUP {grant.group}"
        terms = (grant.starts_at, grant.ends_at, grant.rule)
        rows += [(grant.created_by, reader, grant.share, "SELECT", inherited, *terms) for reader in readers]
    return Result(PRIVILEGES_VIEW, tuple(rows))


def recipient_allowed_ip_ranges(session: Session) -> Result:
    """The networks of the recipients with an allow-list, one in a row."""
    recipients = states.list_recipients(session)
    rows = tuple((recipient.name, network) for recipient in recipients for network in recipient.ip_allow)
    return Result(ADDRESSES_VIEW, rows)


VIEWS: Mapping[str, Callable[[Session], Result]] = {
    "shares": lambda session: select_rows(SHARES_VIEW, states.list_shares(session)),
    "recipients": lambda session: select_rows(RECIPIENTS_VIEW, states.list_recipients(session)),
    "recipient_tokens": recipient_tokens,
    "share_recipient_privileges": share_recipient_privileges,
    "table_share_usage": lambda session: select_rows(TABLES_VIEW, states.list_objects(session)),
    "recipient_allowed_ip_ranges": recipient_allowed_ip_ranges,
}


RowsReadBy = Callable[[str, tuple[str, ...], int], tuple[list[str], list[list[str]]]]
DEFAULT_ROWS, MAX_ROWS = 100, 1000


@dataclass(frozen=True)
class RecipientSession:
    """Executes statements as one recipient: with what it can read now, and nothing else."""

    catalog: Catalog
    recipient: str
    recipient_id: str
    rows: RowsReadBy | None = None

    def shares(self) -> list[Share]:
        shares = Listings(self.catalog, self.recipient_id).shares(0, MAX_LONG)
        return sorted(shares, key=lambda share: share.name.lower())

    def tables(self, share: str) -> list[SharedTable]:
        """The tables of a share as objects of the kind TABLE, the only one of the protocol."""
        entries = Listings(self.catalog, self.recipient_id).tables(share, None, 0, MAX_LONG)
        return [replace(entry, kind="TABLE") for entry in entries]


class ReadStatement(Statement):
    """A statement that only reads: for the provider, and for some statements as one recipient."""

    def read(self, session: Session, catalog: Catalog) -> Result:
        """What the provider sees; raises NotFound."""
        raise NotImplementedError

    def read_as(self, reader: RecipientSession) -> Result:
        """What a recipient sees; raises NotFound, and Denied for statements of providers."""
        hint = "RESET RECIPIENT shows what the provider sees again."
        raise Denied(f"{reader.recipient} is not shown this. {hint}")


class Show(ReadStatement):
    """SHOW SHARES | RECIPIENTS | GROUPS."""

    kind: ObjectKind
    pattern: str | None = None

    def read(self, session: Session, _: Catalog) -> Result:
        table, read = LISTS[self.kind]
        return select_rows(table, _matching(self.pattern, read(session)))

    def read_as(self, reader: RecipientSession) -> Result:
        if self.kind != "SHARE":
            return super().read_as(reader)
        return select_rows(SHARES, _matching(self.pattern, reader.shares()), ("name", "comment"))


class Describe(ReadStatement):
    kind: ObjectKind
    name: str

    def read(self, session: Session, _: Catalog) -> Result:
        if self.kind == "SHARE":
            return select_rows(SHARE_DETAILS, [states.get_share(session, self.name)])
        if self.kind == "GROUP":
            return select_rows(GROUPS, [states.get_group(session, self.name)])
        return _describe_recipient(states.get_recipient(session, self.name))

    def read_as(self, reader: RecipientSession) -> Result:
        if self.kind != "SHARE":
            return super().read_as(reader)
        named = [share for share in reader.shares() if share.name.lower() == self.name.lower()]
        if not named:
            raise NotFound("Share", self.name)
        return select_rows(SHARE_DETAILS, named, ("name", "comment", "display_name"))


class ShowSharesInProvider(ReadStatement):
    provider: str

    def read(self, _session: Session, _: Catalog) -> Result:
        hint = "This is the provider itself: SHOW SHARES shows its own. Recipients list theirs with their profile."
        raise BadRequest("PROVIDER", self.provider, hint)


class ShowAllInShare(ReadStatement):
    share: str

    def read(self, session: Session, _: Catalog) -> Result:
        return select_rows(OBJECTS, states.list_objects(session, self.share))

    def read_as(self, reader: RecipientSession) -> Result:
        visible = "name", "type", "comment", "history", "start_version", "notice"
        return select_rows(OBJECTS, reader.tables(self.share), visible)


class ShowGrantsOnShare(ReadStatement):
    share: str

    def read(self, session: Session, _: Catalog) -> Result:
        return select_rows(GRANTS_ON, states.list_grants(session, share=self.share))


class ShowGrantsTo(ReadStatement):
    """SHOW GRANTS TO RECIPIENT | GROUP; a recipient has the grants of its groups, too."""

    grantee: Grantee

    def read(self, session: Session, _: Catalog) -> Result:
        name = self.grantee.name
        if self.grantee.kind == "RECIPIENT":
            return select_rows(GRANTS_TO, states.list_grants(session, recipient=name))
        group = states.get_group(session, name)
        return select_rows(
            GRANTS_TO, [grant for grant in states.list_grants(session) if grant.group == group.name]
        )

    def read_as(self, reader: RecipientSession) -> Result:
        grantee = self.grantee
        if grantee.kind != "RECIPIENT" or reader.recipient.lower() != grantee.name.lower():
            raise NotFound(grantee.kind.title(), grantee.name)
        grants = (SimpleNamespace(share=share.name) for share in reader.shares())
        return select_rows(GRANTS_TO, grants, ("share", "privilege"))


class ShowUsage(ReadStatement):
    """SHOW USAGE FOR RECIPIENT: by day (UTC), table and version, since its creation by default."""

    recipient: str
    since: datetime | None = None

    def read(self, session: Session, catalog: Catalog) -> Result:
        recipient = states.get_recipient(session, self.recipient)
        since = self.since or recipient.created_at
        usage = read_usage(catalog, since.date(), datetime.now(UTC).date(), recipient.name)
        return select_rows(USAGE, usage)


class ShowFollowedTables(ReadStatement):
    pattern: str | None = None

    def read(self, session: Session, _: Catalog) -> Result:
        tables = (table for table in followed_tables(session) if matches_pattern(self.pattern, table.table))
        return select_rows(FOLLOWED, tables)


class SelectAll(ReadStatement):
    """SELECT * FROM information_schema.VIEW, and as a recipient also from a table; raises NotFound."""

    path: tuple[str, ...]
    limit: int | None = None

    def read(self, session: Session, _: Catalog) -> Result:
        *parents, name = (part.lower() for part in self.path)
        if parents[-1:] != [SCHEMA] or name not in VIEWS:
            known = ", ".join(sorted(VIEWS))
            path = ".".join(self.path)
            raise NotFound("View", f"{path} ({SCHEMA} has {known}; rows of tables: `lakeshare as`)")
        result = VIEWS[name](session)
        return replace(result, rows=result.rows[: self.limit])

    def read_as(self, reader: RecipientSession) -> Result:
        *parents, name = (part.lower() for part in self.path)
        if parents[-1:] != [SCHEMA]:
            return self._read_table(reader)
        if name == "shares":
            rows = select_rows(SHARES_VIEW, reader.shares(), ("share_name", "comment"))
        elif name == "table_share_usage":
            tables = (table for share in reader.shares() for table in reader.tables(share.name))
            rows = select_rows(TABLES_VIEW, tables, TABLES_VIEW_OF_RECIPIENTS)
        else:
            raise NotFound("View", ".".join(self.path))
        return replace(rows, rows=rows.rows[: self.limit])

    def _read_table(self, reader: RecipientSession) -> Result:
        path = ".".join(self.path)
        if reader.rows is None:
            hint = (
                f"`lakeshare as {reader.recipient} preview {path}` shows rows as this recipient reads them."
            )
            raise BadRequest("FROM", path, hint)
        count = DEFAULT_ROWS if self.limit is None else self.limit
        if not 0 < count <= MAX_ROWS:
            raise BadRequest("LIMIT", count, f"From 1 to {MAX_ROWS} rows are shown here; clients read all.")
        columns, rows = reader.rows(reader.recipient, self.path, count)
        message = f"the first {count}" if len(rows) == count else ""
        return Result(dict.fromkeys(columns, str), tuple(map(tuple, rows)), message)


def _describe_recipient(recipient: RecipientState) -> Result:
    """A name and a value in each row."""
    now = datetime.now(UTC)
    valid = [token for token in recipient.tokens if token.is_valid(now)]
    active = next((token for token in reversed(valid) if token.superseded_at is None), None)
    facts: list[tuple[str, object]] = [
        ("recipient_name", recipient.name),
        ("recipient_id", recipient.id),
        ("authentication_type", recipient.authentication),
        ("owner", recipient.owner),
        ("created_by", recipient.created_by),
        ("create_at", recipient.created_at),
        ("updated_by", recipient.updated_by),
        ("updated_at", recipient.updated_at),
        ("comment", recipient.comment),
        ("active_token_id", active and active.id),
        ("active_token_expiration", active and active.expires_at),
        ("activation_link", link_state(recipient, now)),
    ]
    for token in valid:
        if token.superseded_at is not None:
            facts += [("rotated_token_id", token.id), ("rotated_token_expiration", token.expires_at)]
    facts += [
        ("state", recipient.state),
        ("expiration", recipient.expires_at),
        *((f"property {key}", value) for key, value in recipient.properties.items()),
        ("ip_allow", ", ".join(recipient.ip_allow) or None),
        *((f"limit {name}", most) for name, most in recipient.limits.items()),
        *((text.name, getattr(recipient, text.name)) for text in SHORT_TEXTS),
        ("agreement_accepted_at", recipient.agreement_accepted_at),
        ("groups", ", ".join(recipient.groups) or None),
        *((f"oidc {policy.name}", f"{policy.issuer} {policy.subject}") for policy in recipient.policies),
    ]
    rows = tuple((name, format_value(value)) for name, value in facts)
    return Result({"info_name": str, "info_value": str}, rows)


def link_state(recipient: RecipientState, now: datetime) -> str | None:
    """The state of a recipient's newest link; the link itself is not kept."""
    if not recipient.links:
        return None
    link = recipient.links[-1]
    if link.used_at is not None:
        return f"used {format_value(link.used_at)} from {link.used_from or 'an unknown address'}"
    if link.is_open(now):
        return f"open until {format_value(link.expires_at)}"
    return f"ended {format_value(link.revoked_at or link.expires_at)}"


def format_value(value: object) -> str | None:
    """A value as text, times in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return None if value is None else str(value)
