"""The transaction of an administrator's edit, with its audit events, and the checks of the values that it writes."""

import ipaddress
import re
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit import AuditEvent, append_events
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import GroupRow, RecipientRow, ShareRow
from lakeshare_server.catalog.sharing.states import JsonState
from lakeshare_server.errors import BadRequest, EditedMeanwhile, NameTaken

LOCAL_OPERATOR = "command line"
Keeper = Literal["contracts", "files", "hand"]
NamedRow = ShareRow | RecipientRow | GroupRow
State = TypeVar("State", bound=JsonState | None)
Removed = TypeVar("Removed", bound=JsonState)


class Unchanged(Enum):
    """The one value that leaves a field as it is: None empties it."""

    KEEP = "keep"


UNCHANGED: Final = Unchanged.KEEP


@dataclass(frozen=True)
class Change:
    """A change of one object; `before` is None if it was created, `after` if it was removed."""

    action: str
    object_name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass
class Edit:
    """An open transaction: the principal, its time, the owner of what it creates, and the changes up to now."""

    session: Session
    by: str
    at: datetime
    request_id: str
    keeper: Keeper = "hand"
    changes: list[Change] = field(default_factory=list)

    def changed(self, action: str, object_name: str, before: JsonState | None, after: State) -> State:
        """Records a change for the audit log and returns `after`."""
        as_json = [None if state is None else state.as_json() for state in (before, after)]
        self.changes.append(Change(action, object_name, *as_json))
        return after

    def keep(
        self, row: Any
    ) -> None:  # of any model with `applied`, and with `declared` where contracts write
        """Marks a row as owned by the files or contracts that write it; an edit by hand takes nothing over."""
        if self.keeper == "files":
            row.applied = True
        elif self.keeper == "contracts":
            row.declared = True

    def add(self, row: Any) -> None:  # of any model, like the next two
        """Adds a row, and flushes."""
        self.session.add(row)
        self.session.flush()

    def update(self, row: Any, fields: Mapping[str, Any]) -> None:
        """Sets columns of a row, and flushes."""
        for name, value in fields.items():
            setattr(row, name, value)
        self.session.flush()

    def delete(self, action: str, object_name: str, row: Any, state: Removed) -> Removed:
        """Deletes a row, flushes, and records the change; returns `state`, the last one."""
        self.session.delete(row)
        self.session.flush()
        self.changed(action, object_name, state, None)
        return state


@contextmanager
def editing(
    catalog: Catalog, by: str, keeper: Keeper = "hand", *, request_id: str | None = None
) -> Iterator[Edit]:
    """Opens a transaction in the name of `by`: all of its operations take effect, or none.

    `keeper` owns the objects that the operations create. `request_id` connects its events with that request's event.

    Raises:
        BadRequest: `by` is empty or too long.
        CatalogConflict: another writer has just created an object of the same name.
        Unavailable: the database does not answer.
    """
    if not by or len(by) > 255:
        raise BadRequest("by", by, "Name who edits, in 1 to 255 characters.")
    try:
        with catalog.writing() as session:
            edit = Edit(session, by, datetime.now(UTC), request_id or uuid.uuid4().hex, keeper)
            yield edit
            session.flush()
            events = [
                AuditEvent(
                    kind="change",
                    at=edit.at,
                    principal=edit.by,
                    action=change.action,
                    object_name=change.object_name,
                    request_id=edit.request_id,
                    details={"before": change.before, "after": change.after},
                )
                for change in edit.changes
            ]
            # Last: the next writer of events waits for the end of this transaction.
            append_events(session, events)
    except IntegrityError as error:
        raise NameTaken(
            "another writer has just created or removed an object of this name", "Look again, then repeat it."
        ) from error


def touch_row(edit: Edit, row: NamedRow, expected: int | None = None) -> None:
    """Counts an edit of the row; raises EditedMeanwhile if `expected` is given and is not the row's revision."""
    if expected is not None and expected != row.revision:
        when = f" on {row.updated_at:%Y-%m-%d at %H:%M:%SZ}" if row.updated_at else ""
        raise EditedMeanwhile(
            f"{_kind(type(row)).title()} {row.name} is at revision {row.revision}, not {expected}: "
            f"{row.updated_by or 'another principal'} has edited it{when}",
            "Look at it again, then repeat the change.",
        )
    row.revision += 1
    row.updated_at, row.updated_by = edit.at, edit.by


def new_row_fields(edit: Edit, name: str) -> dict[str, Any]:
    """The columns that every new share, recipient and group has."""
    created = {"created_at": edit.at, "created_by": edit.by, "applied": False, "revision": 1}
    updated = {"updated_at": edit.at, "updated_by": edit.by}
    return {"id": str(uuid.uuid4()), "name": name, "name_key": name.lower(), **created, **updated}


def changed_fields(**fields: Any) -> dict[str, Any]:
    """The fields that are given."""
    return {name: value for name, value in fields.items() if value is not UNCHANGED}


def changed_name(edit: Edit, row: NamedRow, new_name: str | Unchanged) -> dict[str, str]:
    """The columns of a row that a new name changes; raises BadRequest or NameTaken for a name that cannot be used."""
    if new_name is UNCHANGED:
        return {}
    if new_name != row.name:
        require_name(_kind(type(row)), new_name)
    require_free(edit, type(row), new_name, row.key)
    return {"name": new_name, "name_key": new_name.lower()}


def require_free(edit: Edit, model: Any, name: str, key: int | None = None) -> None:  # of any `NamedRow`
    """Refuses with NameTaken a name that another row than the one with `key` has."""
    row = edit.session.scalars(select(model).where(model.name_key == name.lower())).one_or_none()
    if row is not None and row.key != key:
        hint = {
            ShareRow: "Choose another name; case makes no difference.",
            RecipientRow: "Choose another name. `lakeshare recipient rotate` gives the recipient a new token.",
            GroupRow: "Choose another name.",
        }[model]
        raise NameTaken(f"there is a {_kind(model)} {row.name} already", hint)


def _kind(model: type[Any]) -> str:
    return model.__name__.removesuffix("Row").lower()


NAME_PATTERN = re.compile(r"[^\x00-\x20\x7f/.]{1,255}")
# Clients put names into URLs as they are (delta-sharing 1.4 for Python): there `#` and `?` end the path, and `%` begins
# an escape.
OF_URLS = frozenset("#?%")
# Control characters, white space and halves of surrogate pairs.
INVISIBLE = frozenset({"Cc", "Cs", "Zl", "Zp", "Zs"})
NAME_HINT = "Names have 1 to 255 characters and no space, slash, dot, #, ?, % or control character."
RESERVED = ("databricks.", "lakeshare.")
MAX_PROPERTY_CHARS = 4000
MAX_PROPERTIES = 100
MAX_ADDRESSES = 1000
MAX_RULE_CHARS = 8000


def is_name(name: str) -> bool:
    """Whether clients can read a share, schema, table, recipient, group or policy of this name."""
    return NAME_PATTERN.fullmatch(name) is not None and not any(
        character in OF_URLS or unicodedata.category(character) in INVISIBLE for character in name
    )


def require_name(field: str, name: str) -> None:
    """Refuses with BadRequest a new name that clients cannot read; names in the catalog are not checked again."""
    if not is_name(name):
        raise BadRequest(field, name, NAME_HINT)


def require_owner(owner: str | None) -> None:
    """Refuses with BadRequest a text that cannot be the name of a principal."""
    if owner is not None and not 0 < len(owner.strip()) <= len(owner) <= 255:
        raise BadRequest("owner", owner, "Name a principal in 1 to 255 characters.")


def require_aware(field_name: str, moment: datetime | None) -> None:
    """Refuses with BadRequest a time without its zone."""
    if moment is not None and moment.tzinfo is None:
        raise BadRequest(field_name, moment.isoformat(), "Give a time with its zone.")


def require_properties(field: str, properties: Mapping[str, str] | None) -> dict[str, str] | None:
    """The column of the properties of a share or a recipient; raises BadRequest for keys or values out of limits."""
    if len(properties or {}) > MAX_PROPERTIES:
        raise BadRequest(field, f"{len(properties or {})} properties", f"Give {MAX_PROPERTIES} at most.")
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not 0 < len(key) <= 255 or not key.isprintable():
            raise BadRequest(field, key, "Keys are texts of 1 to 255 printable characters.")
        if key.lower().startswith(RESERVED):
            hint = f"Keys that begin with {' or '.join(RESERVED)} are reserved; take another."
            raise BadRequest(field, key, hint)
        if not isinstance(value, str) or len(value) > MAX_PROPERTY_CHARS or "\x00" in value:
            hint = f"Values are texts of up to {MAX_PROPERTY_CHARS} characters."
            raise BadRequest(f"{field}.{key}", value, hint)
    return dict(properties or {}) or None


def parse_networks(field: str, addresses: Sequence[str] | None) -> list[str] | None:
    """The networks in their canonical form, None for every address; raises BadRequest, also for host bits."""
    if not addresses:
        return None
    if len(addresses) > MAX_ADDRESSES:
        raise BadRequest(field, f"{len(addresses)} addresses", f"Give {MAX_ADDRESSES} at most.")
    networks = []
    for address in addresses:
        try:
            networks.append(str(ipaddress.ip_network(address.strip())))
        except (ValueError, AttributeError) as error:
            hint = "Give an address like 192.0.2.7 or a network like 192.0.2.0/24 or 2001:db8::/32."
            raise BadRequest(field, address, hint) from error
    return list(dict.fromkeys(networks))


def require_rule_text(field: str, rule: str | None) -> None:
    """Refuses with BadRequest a rule that is empty, too long or has control characters; its meaning is not checked."""
    if rule is None:
        return
    printable = rule.replace("\n", " ").replace("\t", " ")
    if not rule.strip() or len(rule) > MAX_RULE_CHARS or not printable.isprintable():
        limit = f"in up to {MAX_RULE_CHARS} characters, like region = 'EU'."
        raise BadRequest(field, rule, f"Give a predicate on partition columns {limit}")
