"""What a person can say in SQL, as data. Nothing here knows how it was spelt or how it is done."""

import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from lakeshare_server.errors import LakeshareError, NotFound

SharedKind = Literal["TABLE", "VIEW"]
Kind = Literal["TABLE", "VIEW", "MODEL"]
Verb = Literal["ADD", "ALTER"]
Fields = Mapping[str, Any]  # names and values as the operations of the catalog take them


class Now:
    """A start version: the latest publication at the moment the statement is done."""


@dataclass(frozen=True)
class Statement:
    """Any of them."""


@dataclass(frozen=True)
class ChangeStatement(Statement):
    """One that changes the catalog."""


@dataclass(frozen=True)
class ReadStatement(Statement):
    """One that only reads."""


# --- shares


@dataclass(frozen=True)
class CreateShare(ChangeStatement):
    """CREATE SHARE."""

    name: str
    if_not_exists: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class AlterShare(ChangeStatement):
    """ALTER SHARE … RENAME TO | OWNER TO | COMMENT | SET DISPLAY NAME."""

    name: str
    fields: Fields


@dataclass(frozen=True)
class DropShare(ChangeStatement):
    """DROP SHARE."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class PutObject(ChangeStatement):
    """ALTER SHARE … ADD | ALTER TABLE | VIEW: all about the object, so that ALTER states it again."""

    share: str
    verb: Verb
    kind: Kind
    path: tuple[str, ...]
    alias: tuple[str, str]
    comment: str | None = None
    rule: str | None = None
    history: bool = True
    start_version: int | Now | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class PutSchema(ChangeStatement):
    """ALTER SHARE … ADD | ALTER SCHEMA: every published table of a schema of the lake."""

    share: str
    verb: Verb
    path: tuple[str, ...]
    comment: str | None = None


@dataclass(frozen=True)
class RemoveObject(ChangeStatement):
    """ALTER SHARE … REMOVE TABLE | VIEW: by the name recipients see, or by the table's own."""

    share: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class RemoveSchema(ChangeStatement):
    """ALTER SHARE … REMOVE SCHEMA."""

    share: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class PinPublication(ChangeStatement):
    """ALTER SHARE … SET | UNSET PUBLICATION: of one object, or of all in the share; None serves the latest."""

    share: str
    publication: int | None
    path: tuple[str, ...] | None = None


# --- recipients and groups


@dataclass(frozen=True)
class Policy:
    """Whose tokens of which issuer are the recipient's."""

    issuer: str
    subject: str
    subject_claim: str = "sub"
    audiences: tuple[str, ...] = ()
    name: str = "default"


@dataclass(frozen=True)
class CreateRecipient(ChangeStatement):
    """CREATE RECIPIENT."""

    name: str
    if_not_exists: bool = False
    comment: str | None = None
    authentication: Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"] = "TOKEN"
    policy: Policy | None = None
    metastore_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    ip_allow: tuple[str, ...] | None = None
    agreement: str | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class AlterRecipient(ChangeStatement):
    """ALTER RECIPIENT … RENAME | OWNER | COMMENT | SET/UNSET IP ALLOW | AGREEMENT | UNTIL."""

    name: str
    fields: Fields


@dataclass(frozen=True)
class SetProperties(ChangeStatement):
    """ALTER RECIPIENT … SET PROPERTIES: those not named stay."""

    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class UnsetProperties(ChangeStatement):
    """ALTER RECIPIENT … UNSET PROPERTIES."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class RotateToken(ChangeStatement):
    """ALTER RECIPIENT … ROTATE TOKEN."""

    name: str
    keep_old_for: timedelta = timedelta()
    until: datetime | None = None


@dataclass(frozen=True)
class RevokeToken(ChangeStatement):
    """REVOKE TOKEN: one by its id, or all of the recipient."""

    name: str
    token_id: str | None = None


@dataclass(frozen=True)
class Invite(ChangeStatement):
    """ALTER RECIPIENT … INVITE: a new activation link."""

    name: str
    link_life: timedelta | None = None


@dataclass(frozen=True)
class PutPolicy(ChangeStatement):
    """ALTER RECIPIENT … ADD OIDC."""

    name: str
    policy: Policy


@dataclass(frozen=True)
class DropPolicy(ChangeStatement):
    """ALTER RECIPIENT … DROP OIDC."""

    name: str
    policy: str


@dataclass(frozen=True)
class RevokeRecipient(ChangeStatement):
    """REVOKE RECIPIENT: all access ends, name and history stay."""

    name: str


@dataclass(frozen=True)
class DropRecipient(ChangeStatement):
    """DROP RECIPIENT."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class CreateGroup(ChangeStatement):
    """CREATE GROUP."""

    name: str
    if_not_exists: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class AlterGroup(ChangeStatement):
    """ALTER GROUP … RENAME TO | COMMENT."""

    name: str
    fields: Fields


@dataclass(frozen=True)
class ChangeMembers(ChangeStatement):
    """ALTER GROUP … ADD | REMOVE RECIPIENT."""

    name: str
    verb: Literal["ADD", "REMOVE"]
    recipients: tuple[str, ...]


@dataclass(frozen=True)
class DropGroup(ChangeStatement):
    """DROP GROUP."""

    name: str
    if_exists: bool = False


# --- grants


@dataclass(frozen=True)
class Grantee:
    """To whom something is granted."""

    kind: Literal["RECIPIENT", "GROUP"]
    name: str


@dataclass(frozen=True)
class Grant(ChangeStatement):
    """GRANT SELECT ON SHARE: again states the whole grant again."""

    share: str
    to: Grantee
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    rule: str | None = None


@dataclass(frozen=True)
class Revoke(ChangeStatement):
    """REVOKE SELECT ON SHARE."""

    share: str
    grantee: Grantee


@dataclass(frozen=True)
class Publish(ChangeStatement):
    """PUBLISH TABLE … FROM BRANCH: understood, and left to the pipelines."""

    path: tuple[str, ...]
    branch: str


# --- looking


@dataclass(frozen=True)
class ShowShares(ReadStatement):
    """SHOW SHARES."""

    pattern: str | None = None


@dataclass(frozen=True)
class ShowSharesInProvider(ReadStatement):
    """SHOW SHARES IN PROVIDER."""

    provider: str


@dataclass(frozen=True)
class ShowAllInShare(ReadStatement):
    """SHOW ALL IN SHARE."""

    share: str


@dataclass(frozen=True)
class ShowRecipients(ReadStatement):
    """SHOW RECIPIENTS."""

    pattern: str | None = None


@dataclass(frozen=True)
class ShowGroups(ReadStatement):
    """SHOW GROUPS."""

    pattern: str | None = None


@dataclass(frozen=True)
class ShowGrantsOnShare(ReadStatement):
    """SHOW GRANTS ON SHARE."""

    share: str


@dataclass(frozen=True)
class ShowGrantsTo(ReadStatement):
    """SHOW GRANTS TO RECIPIENT | GROUP."""

    grantee: Grantee


@dataclass(frozen=True)
class ShowUsage(ReadStatement):
    """SHOW USAGE FOR RECIPIENT."""

    recipient: str
    since: datetime | None = None


@dataclass(frozen=True)
class DescribeShare(ReadStatement):
    """DESCRIBE SHARE."""

    name: str


@dataclass(frozen=True)
class DescribeRecipient(ReadStatement):
    """DESCRIBE RECIPIENT."""

    name: str


@dataclass(frozen=True)
class DescribeGroup(ReadStatement):
    """DESCRIBE GROUP."""

    name: str


@dataclass(frozen=True)
class SelectAll(ReadStatement):
    """SELECT * FROM information_schema.…."""

    path: tuple[str, ...]
    limit: int | None = None


# --- the session itself


@dataclass(frozen=True)
class SetRecipient(Statement):
    """SET RECIPIENT: from here on the session shows what that recipient sees; None ends it."""

    name: str | None


MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?\s*(Z|[+-]\d\d:?\d\d)?", re.I
)
SPAN = re.compile(r"(\d{1,9})\s*(second|minute|hour|day|week)s?", re.I)
PLAIN = re.compile(r"[^\W\d]\w*")
# Keywords where a name could stand, here or in a predicate.
QUOTED = frozenset((
    "IF", "TABLE", "VIEW", "MATERIALIZED", "MODEL", "SCHEMA", "CURRENT_RECIPIENT", "DATE", "TIMESTAMP", "SELECT",
    "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE", "CASE", "CAST", "EXISTS",
))  # fmt: skip
BETWEEN_SPANS = re.compile(r"[\s,]*")


def format_name(written: str) -> str:
    """A name without its back-quotes."""
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def unquote_text(written: str) -> str:
    """A text without its quotes; a quote inside is doubled, a backslash is a backslash."""
    quote = written[0]
    return written[1:-1].replace(quote * 2, quote)


def quoted_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """A name as SQL writes it, in back-quotes where it needs them."""
    is_plain = PLAIN.fullmatch(name) and name.upper() not in QUOTED
    return name if is_plain else "`" + name.replace("`", "``") + "`"


def moment(text: str) -> datetime:
    """The moment a text names.

    Raises:
        ValueError: it names none.
    """
    found = MOMENT.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    day, time, zone = found.groups()
    at = datetime.fromisoformat(f"{day}T{time or '00:00'}{(zone or 'Z').upper()}")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def span(text: str) -> timedelta:
    """The span of time a text names, like `24 hours` or `1 day 12 hours`.

    Raises:
        ValueError: it names none.
    """
    parts = SPAN.findall(text)
    if not parts or not BETWEEN_SPANS.fullmatch(SPAN.sub("", text)):
        raise ValueError(text)
    try:
        return sum((timedelta(**{f"{unit.lower()}s": int(count)}) for count, unit in parts), timedelta())
    except OverflowError as error:
        raise ValueError(text) from error


KEYWORDS = frozenset(["AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE"])
GLUED_BEFORE = frozenset(",).")
GLUED_AFTER = frozenset("(.")
SIGNS = frozenset("+-")
WORD = re.compile(r"[^\W\d]\w*")


def alternation(groups: Iterable[Sequence[str]]) -> str:
    """PARTITION groups as one predicate: a group holds where all of its tests do, the clause where any group does."""
    texts = [" AND ".join(tests) for tests in groups]
    return texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts)


def join_tokens(tokens: Iterable[str]) -> str:
    """The tokens of a predicate with one space where one is needed, keywords in capitals."""
    written: list[str] = []
    for token in tokens:
        word = token.upper() if token.upper() in KEYWORDS else token
        if written and not _is_glued(written[-1], word):
            written.append(" ")
        written.append(word)
    return "".join(written)


def _is_glued(before: str, after: str) -> bool:
    if after in GLUED_BEFORE or before in GLUED_AFTER:
        return True
    # Rules do not reckon: a sign belongs to the number behind it.
    if before in SIGNS:
        return after[0].isdigit()
    return after == "(" and WORD.fullmatch(before) is not None and before not in KEYWORDS


Cell = str | int | bool | datetime | None
Columns = Mapping[str, type]  # str, int, bool or datetime


@dataclass(frozen=True)
class Result:
    """Rows, or none; `told` is for a person to read and never needed to understand the rows."""

    columns: Columns = field(default_factory=dict)
    rows: tuple[tuple[Cell, ...], ...] = ()
    told: str = ""


def make_rows(columns: Columns, rows: Iterable[tuple[Cell, ...]], message: str = "") -> Result:
    """A result with rows."""
    return Result(columns, tuple(rows), message)


def make_message(message: str) -> Result:
    """A result without rows."""
    return Result(told=message)


def matches_pattern(pattern: str | None, name: str) -> bool:
    """Whether a name is like a pattern: `*` stands for anything, `|` between alternatives; case makes no difference."""
    if pattern is None:
        return True
    alternatives = pattern.strip().split("|")
    parts = (".*".join(map(re.escape, alternative.strip().split("*"))) for alternative in alternatives)
    return any(re.fullmatch(part, name, re.IGNORECASE | re.DOTALL) for part in parts)


MAX_LINE_CHARS = 110


@dataclass(frozen=True)
class SourcePosition:
    """Where something stands in a text, counted from 1, and how many characters it takes."""

    line: int
    column: int
    length: int = 1


class SqlError(LakeshareError):
    """The text cannot be read as SQL; tells the place by line, column and a caret."""

    def __init__(self, what: str, place: SourcePosition, text: str, source: str | None = None) -> None:
        at = f"{place.line}:{place.column}"
        where = f"{source}:{at}" if source else f"line {place.line}, column {place.column}"
        super().__init__(f"{where}: {escape_unprintable(what)}\n{mark_position(text, place)}")
        self.what, self.place, self.source = what, place, source


class StatementRefused(SqlError):
    """A statement that was understood and cannot be done: why, and which of its script took effect."""

    def __init__(
        self,
        cause: LakeshareError,
        place: SourcePosition,
        text: str,
        source: str | None,
        took: int,
        total: int,
    ) -> None:
        # The catalog speaks to recipients of what is not there, who are to ask somebody else.
        what = f"{cause.kind} {cause.name} does not exist." if isinstance(cause, NotFound) else str(cause)
        super().__init__(what, place, text, source)
        self.cause, self.took, self.total = cause, took, total

    @property
    def effect(self) -> str:
        """Which statements of the script took effect."""
        if self.took == 0:
            return "Nothing of it took effect."
        first = "The first statement" if self.took == 1 else f"The first {self.took} statements"
        return f"{first} of {self.total} took effect; this one and what follows did not."


def escape_unprintable(text: str) -> str:
    """A text on one line that does nothing to a terminal, whatever a name or a comment has in it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def mark_position(text: str, place: SourcePosition) -> str:
    """The line of the text with a caret below what is meant; of long lines the part around it."""
    lines = text.split("\n")
    line = lines[place.line - 1].rstrip("\r") if place.line <= len(lines) else ""
    before = place.column - 1
    start = max(0, before - MAX_LINE_CHARS // 2) if len(line) > MAX_LINE_CHARS else 0
    # Each character stays one: an escape would move the caret away.
    shown = "".join(one if one.isprintable() else " " for one in line[start : start + MAX_LINE_CHARS])
    room = max(1, len(shown) - (before - start))
    return f"  {shown}\n  {' ' * (before - start)}{'^' * min(max(1, place.length), room)}"


def operating_system_user() -> str:
    """Who runs this process, as the operating system knows, whatever the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, say, whose user has no name
        return f"uid {os.getuid()}"
