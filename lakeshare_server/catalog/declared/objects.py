"""What is compared: an object as files or contracts want it, and as the catalog holds it.

Objects are known by kind and lower-case names, since case makes no difference to recipients. Fields that are not said
are left as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lakeshare_server.catalog.declared.origin import Origin
from lakeshare_server.catalog.followed import IcebergIdentity
from lakeshare_server.catalog.sharing.editing import Keeper
from lakeshare_server.errors import LakeshareError

Key = tuple[str, ...]

# The order in which objects are made; they go in the opposite order.
KINDS = ("recipient", "group", "followed", "share", "table", "grant")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table in storage or in a catalog: its location as it is kept, and the table's own name there."""

    location: str
    name: str


# Finds the tables of locations, several at the same time: one of each, or with a star for the table any number. What
# is refused is returned in its place.
FindTables = Callable[[Sequence[str]], Sequence[Sequence[TableLocation] | LakeshareError]]


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What was read at the location of a table that is not followed yet; `iceberg` is None of a Delta table."""

    iceberg: IcebergIdentity | None
    remark: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object as its source says it; `revision` is the one that the source was written for.

    `of_contract`: a contract declares the object, the source says only what contracts do not. `found`: a table that is
    to be followed was read; only then can it be made.
    """

    key: Key
    name: str
    fields: Mapping[str, object]
    origin: Origin | None = None
    revision: int | None = None
    of_contract: bool = False
    found: FoundTable | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """An object as the catalog holds it, and whose it is.

    `updated_at` is None where only whoever made it is known, as of tables and grants.
    """

    key: Key
    name: str
    fields: Mapping[str, object]
    declared: bool = False
    applied: bool = False
    revision: int | None = None
    updated_by: str | None = None
    updated_at: datetime | None = None
    is_revoked: bool = False

    @property
    def keeper(self) -> Keeper:
        """Who made it and may remove it."""
        return "files" if self.applied else "contracts" if self.declared else "hand"


def share_key(share: str) -> Key:
    """The key of a share."""
    return "share", share.lower()


def table_key(share: str, schema: str, name: str) -> Key:
    """The key of a shared table."""
    return "table", share.lower(), schema.lower(), name.lower()


def followed_key(table: str) -> Key:
    """The key of a followed table. Names of the lake's tables keep their case."""
    return "followed", table


def recipient_key(recipient: str) -> Key:
    """The key of a recipient."""
    return "recipient", recipient.lower()


def group_key(group: str) -> Key:
    """The key of a group."""
    return "group", group.lower()


def grant_key(share: str, *, recipient: str | None, group: str | None) -> Key:
    """The key of a grant on a share to one recipient or one group."""
    reader = recipient_key(recipient) if recipient is not None else group_key(group or "")
    return "grant", share.lower(), *reader


def parents(key: Key) -> tuple[Key, ...]:
    """The objects that this one goes away with."""
    kind, *names = key
    if kind == "table":
        return (share_key(names[0]),)
    if kind == "grant":
        return share_key(names[0]), (names[1], names[2])
    return ()
