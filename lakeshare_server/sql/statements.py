"""The statements of the sharing DDL as data, their results and errors, and the notation of names, texts and times."""

import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, dataclass_transform

from lakeshare_server.errors import LakeshareError, NotFound

Kind = Literal["TABLE", "VIEW"]
Verb = Literal["ADD", "ALTER"]
ObjectKind = Literal["SHARE", "RECIPIENT", "GROUP"]


class Now:
    """A start version: the latest publication when the statement is executed."""


@dataclass_transform(frozen_default=True)
class Statement:
    """A statement, with its class name as its keywords; its classes are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class ChangeStatement(Statement):
    """A statement that changes the catalog."""


class ReadStatement(Statement):
    """A statement that only reads."""


class Alter(ChangeStatement):
    """ALTER SHARE | RECIPIENT | GROUP and COMMENT ON: sets fields of the object."""

    kind: ObjectKind
    name: str
    fields: Mapping[str, Any]  # as the operations of the catalog take them


class Drop(ChangeStatement):
    kind: ObjectKind
    name: str
    if_exists: bool = False


class CreateShare(ChangeStatement):
    name: str
    if_not_exists: bool = False
    comment: str | None = None


class PutObject(ChangeStatement):
    """ALTER SHARE … ADD | ALTER TABLE | VIEW; ALTER states all fields again."""

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


class PutSchema(ChangeStatement):
    """ALTER SHARE … ADD | ALTER SCHEMA: every published table of a schema of the lake."""

    share: str
    verb: Verb
    path: tuple[str, ...]
    comment: str | None = None


class RemoveObject(ChangeStatement):
    """ALTER SHARE … REMOVE TABLE | VIEW: by the name for recipients, or by the lake's table."""

    share: str
    path: tuple[str, ...]


class RemoveSchema(ChangeStatement):
    share: str
    path: tuple[str, ...]


class PinPublication(ChangeStatement):
    """ALTER SHARE … SET | UNSET PUBLICATION of one object, or of all in the share; None serves the latest."""

    share: str
    publication: int | None
    path: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Policy:
    """The claims of an issuer's tokens that identify the recipient."""

    issuer: str
    subject: str
    subject_claim: str = "sub"
    audiences: tuple[str, ...] = ()
    name: str = "default"


class CreateRecipient(ChangeStatement):
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


class SetProperties(ChangeStatement):
    """ALTER RECIPIENT … SET PROPERTIES; other properties stay."""

    name: str
    properties: Mapping[str, str]


class UnsetProperties(ChangeStatement):
    name: str
    keys: tuple[str, ...]


class RotateToken(ChangeStatement):
    name: str
    keep_old_for: timedelta = timedelta()
    until: datetime | None = None


class RevokeToken(ChangeStatement):
    """One token by its id, or all of the recipient."""

    name: str
    token_id: str | None = None


class Invite(ChangeStatement):
    """Creates a new activation link."""

    name: str
    link_life: timedelta | None = None


class PutPolicy(ChangeStatement):
    name: str
    policy: Policy


class DropPolicy(ChangeStatement):
    name: str
    policy: str


class RevokeRecipient(ChangeStatement):
    """Ends all access; the name and the history stay."""

    name: str


class CreateGroup(ChangeStatement):
    name: str
    if_not_exists: bool = False
    comment: str | None = None


class ChangeMembers(ChangeStatement):
    name: str
    verb: Literal["ADD", "REMOVE"]
    recipients: tuple[str, ...]


@dataclass(frozen=True)
class Grantee:
    kind: Literal["RECIPIENT", "GROUP"]
    name: str


class Grant(ChangeStatement):
    """GRANT SELECT ON SHARE; replaces the terms of an existing grant."""

    share: str
    to: Grantee
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    rule: str | None = None


class Revoke(ChangeStatement):
    share: str
    grantee: Grantee


class Publish(ChangeStatement):
    """PUBLISH TABLE … FROM BRANCH; refused with the command of the pipelines."""

    path: tuple[str, ...]
    branch: str


class Show(ReadStatement):
    """SHOW SHARES | RECIPIENTS | GROUPS."""

    kind: ObjectKind
    pattern: str | None = None


class Describe(ReadStatement):
    kind: ObjectKind
    name: str


class ShowSharesInProvider(ReadStatement):
    provider: str


class ShowAllInShare(ReadStatement):
    share: str


class ShowGrantsOnShare(ReadStatement):
    share: str


class ShowGrantsTo(ReadStatement):
    grantee: Grantee


class ShowUsage(ReadStatement):
    recipient: str
    since: datetime | None = None


class SelectAll(ReadStatement):
    path: tuple[str, ...]
    limit: int | None = None


class Follow(ChangeStatement):
    """FOLLOW; with a star for the table: all tables of a folder or a namespace."""

    location: str
    alias: tuple[str, ...] = ()
    share: str = "lake"
    history: bool = True
    start_version: int = 0


class Unfollow(ChangeStatement):
    path: tuple[str, ...]


class ShowFollowedTables(ReadStatement):
    pattern: str | None = None


class SetRecipient(Statement):
    """Makes the session read as a recipient; RESET RECIPIENT has None."""

    name: str | None


MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?\s*(Z|[+-]\d\d:?\d\d)?", re.I
)
SPAN = re.compile(r"(\d{1,9})\s*(second|minute|hour|day|week)s?", re.I)
PLAIN = re.compile(r"[^\W\d]\w*")
# Names that are keywords where a name can stand, also in a predicate.
QUOTED = frozenset((
    "IF", "TABLE", "VIEW", "MATERIALIZED", "SCHEMA", "CURRENT_RECIPIENT", "DATE", "TIMESTAMP", "SELECT",
    "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE", "CASE", "CAST", "EXISTS",
))  # fmt: skip
BETWEEN_SPANS = re.compile(r"[\s,]*")


def format_name(written: str) -> str:
    """A name without its back-quotes."""
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def unquote_text(written: str) -> str:
    """A text without its quotes, doubled quotes made single; backslashes have no meaning."""
    quote = written[0]
    return written[1:-1].replace(quote * 2, quote)


def quoted_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """A name as SQL writes it, in back-quotes where it needs them."""
    is_plain = PLAIN.fullmatch(name) and name.upper() not in QUOTED
    return name if is_plain else "`" + name.replace("`", "``") + "`"


def moment(text: str) -> datetime:
    """Parses a time; raises ValueError."""
    match = MOMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    day, time, zone = match.groups()
    at = datetime.fromisoformat(f"{day}T{time or '00:00'}{(zone or 'Z').upper()}")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def span(text: str) -> timedelta:
    """Parses a duration like `24 hours` or `1 day 12 hours`; raises ValueError."""
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


def alternation(groups: Iterable[Sequence[str]]) -> str:
    """PARTITION groups as one predicate: tests of a group are joined by AND, groups by OR."""
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
    # Rules have no arithmetic: a sign belongs to the number after it.
    if before in SIGNS:
        return after[0].isdigit()
    return after == "(" and PLAIN.fullmatch(before) is not None and before not in KEYWORDS


Cell = str | int | bool | datetime | None
Columns = Mapping[str, type]  # str, int, bool or datetime


@dataclass(frozen=True)
class Result:
    """Rows, or none; `message` is for people, and not needed to understand the rows."""

    columns: Columns = field(default_factory=dict)
    rows: tuple[tuple[Cell, ...], ...] = ()
    message: str = ""


def matches_pattern(pattern: str | None, name: str) -> bool:
    """Whether a name matches a pattern: `*` for any text, `|` between alternatives, without regard to case."""
    if pattern is None:
        return True
    alternatives = pattern.strip().split("|")
    parts = (".*".join(map(re.escape, alternative.strip().split("*"))) for alternative in alternatives)
    return any(re.fullmatch(part, name, re.IGNORECASE | re.DOTALL) for part in parts)


MAX_LINE_CHARS = 110


@dataclass(frozen=True)
class SourcePosition:
    """A position in a text, counted from 1, and a number of characters."""

    line: int
    column: int
    length: int = 1


class SqlError(LakeshareError):
    """The text cannot be parsed; the message has the line, the column and a caret."""

    def __init__(self, what: str, place: SourcePosition, text: str, source: str | None = None) -> None:
        at = f"{place.line}:{place.column}"
        where = f"{source}:{at}" if source else f"line {place.line}, column {place.column}"
        super().__init__(f"{where}: {escape_unprintable(what)}\n{mark_position(text, place)}")
        self.what, self.place, self.source = what, place, source


class StatementRefused(SqlError):
    """A statement was refused: the cause, and how many statements of its script took effect."""

    def __init__(
        self,
        cause: LakeshareError,
        place: SourcePosition,
        text: str,
        source: str | None,
        took: int,
        total: int,
    ) -> None:
        # The catalog's own text is for recipients, and refers them to their provider.
        what = f"{cause.kind} {cause.name} does not exist." if isinstance(cause, NotFound) else str(cause)
        super().__init__(what, place, text, source)
        self.cause, self.took, self.total = cause, took, total

    @property
    def effect(self) -> str:
        """A sentence about the statements of the script that took effect."""
        if self.took == 0:
            return "Nothing of it took effect."
        first = "The first statement" if self.took == 1 else f"The first {self.took} statements"
        return f"{first} of {self.total} took effect; this one and what follows did not."


def escape_unprintable(text: str) -> str:
    """A text on one line, without control characters for a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def mark_position(text: str, place: SourcePosition) -> str:
    """The line of the text with carets below the position; of long lines the part around it."""
    lines = text.split("\n")
    line = lines[place.line - 1].rstrip("\r") if place.line <= len(lines) else ""
    before = place.column - 1
    start = max(0, before - MAX_LINE_CHARS // 2) if len(line) > MAX_LINE_CHARS else 0
    # Each character stays one character: an escape would move the caret.
    shown = "".join(char if char.isprintable() else " " for char in line[start : start + MAX_LINE_CHARS])
    room = max(1, len(shown) - (before - start))
    return f"  {shown}\n  {' ' * (before - start)}{'^' * min(max(1, place.length), room)}"


def operating_system_user() -> str:
    """The user of this process by the operating system, not by the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container whose user has no name
        return f"uid {os.getuid()}"
