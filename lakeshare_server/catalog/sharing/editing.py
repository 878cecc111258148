"""An administrator's transaction: operations take effect together, and the audit log tells them with the same commit.

Whoever gives the revision that was looked at is told when somebody else has edited the object since.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, Protocol

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit import AuditEvent, append_events
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.errors import BadRequest, EditedMeanwhile, NameTaken

Keeper = Literal["contracts", "files", "hand"]


class Unchanged(Enum):
    """The one value that leaves a field as it is: None empties it."""

    KEEP = "keep"


UNCHANGED: Final = Unchanged.KEEP


@dataclass(frozen=True)
class Change:
    """What an operation did to one object; `before` is None for what was made, `after` for what was removed."""

    action: str
    object_name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass
class Edit:
    """An open transaction: who edits, since when, for whom, and what was changed so far."""

    session: Session
    by: str
    at: datetime
    request_id: str
    keeper: Keeper = "hand"
    changes: list[Change] = field(default_factory=list)

    def changed(
        self,
        action: str,
        object_name: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        """Note for the audit log what was changed."""
        self.changes.append(Change(action, object_name, before, after))

    def keep(
        self, row: Any
    ) -> None:  # of any model with `applied`, and with `declared` where contracts write
        """Note whose a made or changed row is from now on; a hand takes nothing over."""
        if self.keeper == "files":
            row.applied = True
        elif self.keeper == "contracts":
            row.declared = True


class EditedRow(Protocol):
    """A row whose edits are counted."""

    revision: Any
    updated_at: Any
    updated_by: Any


@contextmanager
def editing(
    catalog: Catalog, by: str, keeper: Keeper = "hand", *, request_id: str | None = None
) -> Iterator[Edit]:
    """One transaction in the name of `by`: all of its operations take effect, or none.

    What they make is kept by hand, unless contracts or files are applied. `request_id` joins its events to that of the
    request they came with.

    Raises:
        BadRequest: nobody is named.
        CatalogConflict: somebody else has just made an object of the same name.
        Unavailable: the database does not answer.
    """
    if not by or len(by) > 255:
        raise BadRequest("by", by, "Name who edits, in 1 to 255 characters.")
    try:
        with catalog.writing() as session:
            edit = Edit(session, by, datetime.now(UTC), request_id or uuid.uuid4().hex, keeper)
            yield edit
            session.flush()
            # Last: whoever appends next waits for this transaction's end.
            append_events(session, _change_events(edit))
    except IntegrityError as error:
        raise NameTaken(
            "somebody else has just made, or removed, an object of this name", "Look again, then repeat it."
        ) from error


def touch_row(
    edit: Edit, row: EditedRow, kind: str, name: str, expected: int | None = None, *, is_new: bool = False
) -> None:
    """Count an edit of the row, if it is still the revision that was looked at.

    Raises:
        CatalogConflict: it is not.
    """
    if expected is not None and expected != row.revision:
        when = f" on {row.updated_at:%Y-%m-%d at %H:%M:%SZ}" if row.updated_at else ""
        raise EditedMeanwhile(
            f"{kind} {name} is at revision {row.revision}, not {expected}: {row.updated_by or 'somebody'} has "
            f"edited it{when}",
            "Look at it again, then repeat the change.",
        )
    if not is_new:
        row.revision += 1
    row.updated_at, row.updated_by = edit.at, edit.by


def changed_fields(**fields: Any) -> dict[str, Any]:
    """The fields that are to be changed."""
    return {name: value for name, value in fields.items() if value is not UNCHANGED}


def require_aware(field_name: str, moment: datetime | None) -> None:
    """Refuse a time without its zone.

    Raises:
        BadRequest: it has none.
    """
    if moment is not None and moment.tzinfo is None:
        raise BadRequest(field_name, moment.isoformat(), "Give a time with its zone.")


def _change_events(edit: Edit) -> list[AuditEvent]:
    return [
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
