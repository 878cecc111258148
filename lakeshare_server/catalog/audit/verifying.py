"""Proving the log: whether any event was removed, changed or moved since it was appended.

Whoever can write to the database can also make a whole chain anew: only a receipt kept elsewhere tells of that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import func, select

from lakeshare_server.catalog.audit.chain import ANCHOR, HEAD, PRUNED
from lakeshare_server.catalog.audit.events import GENESIS, canonical, chained
from lakeshare_server.catalog.audit.reading import values_of
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditChainRow, AuditRow
from lakeshare_server.errors import BadRequest

BATCH = 2000
MOST_FINDINGS = 100


@dataclass(frozen=True)
class Finding:
    """What is wrong at an event of the chain."""

    number: int
    kind: Literal["removed", "changed", "moved"]
    said: str


@dataclass(frozen=True)
class Place:
    """An event's number and hash: kept elsewhere, a receipt for all events up to it."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


@dataclass
class Verification:
    """What was looked at, and what was found; `unchained` events are from before there was a chain."""

    anchor: Place
    head: Place
    events: int = 0
    unchained: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def receipt_of(text: str) -> Place:
    """A receipt as `lakeshare audit verify` prints it.

    Raises:
        BadRequest: it is none.
    """
    number, colon, digest = text.strip().partition(":")
    if not (
        colon and number.isascii() and number.isdigit() and len(number) < 19 and len(digest) == len(GENESIS)
    ):
        raise BadRequest("receipt", text, "Give NUMBER:HASH, as `lakeshare audit verify` prints it.")
    return Place(int(number), digest)


def verify(
    catalog: Catalog,
    receipt: Place | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Verification:
    """Go through the whole chain; `progress` is told how many events of how many are done.

    Raises:
        BadRequest: the receipt is older than what was pruned.
        Unavailable: the database does not answer.
    """
    found = _ends(catalog)
    if receipt is not None and receipt.number < found.anchor.number:
        hint = f"Events up to {found.anchor.number} were pruned. Give a later receipt."
        raise BadRequest("receipt", str(receipt), hint)
    walk = _Walk(catalog, found, receipt)
    for row in _rows(catalog, found.anchor.number, found.head.number):
        walk.take(row)
        if found.events % BATCH == 0:
            progress(found.events, found.head.number - found.anchor.number)
    walk.finish()
    progress(found.events, found.events)
    # What was pruned meanwhile was not removed.
    pruned = _ends(catalog).anchor.number
    if pruned > found.anchor.number:
        found.findings = [one for one in found.findings if one.number > pruned + 1]
    return found


class _Walk:
    """The way along the chain: where it is, and what it expects next."""

    def __init__(self, catalog: Catalog, found: Verification, receipt: Place | None) -> None:
        self._catalog, self._found, self._receipt = catalog, found, receipt
        self._number, self._hash = found.anchor.number, found.anchor.hash
        self._is_vouched = found.anchor.hash == GENESIS
        self._is_met = receipt in (None, found.anchor)

    def take(self, row: AuditRow) -> None:
        """Look at the next event."""
        found, values = self._found, values_of(row)
        if row.key > self._number + 1:
            self._removed(self._number + 1, row.key - 1)
        elif row.previous_hash != self._hash:
            self._out_of_place(row)
        if row.hash is None or row.previous_hash is None or not _is_as_it_was(row, values):
            self._note(row.key, "changed", f"event {row.key} is not what it was when it was appended")
        if row.action == PRUNED and _told_place(values) == found.anchor:
            self._is_vouched = True
        self._number, self._hash = row.key, row.hash or ""
        self._is_met = self._is_met or Place(row.key, self._hash) == self._receipt
        found.events += 1

    def finish(self) -> None:
        """Compare the end with the head, and with the receipt."""
        head, anchor = self._found.head, self._found.anchor
        if self._number < head.number:
            self._removed(self._number + 1, head.number)
        elif self._hash != head.hash:
            said = f"the head of the chain names another hash than event {head.number} has"
            self._note(head.number, "changed", said)
        if not self._is_vouched:
            said = f"the log begins after event {anchor.number}, but no event tells of a pruning up to there"
            self._note(anchor.number + 1, "removed", said)
        if self._receipt is not None and not self._is_met:
            number = self._receipt.number
            said = f"event {number} is not the one that the receipt was given for: the chain was made anew"
            self._note(number, "changed", said)

    def _removed(self, first: int, last: int) -> None:
        events = f"event {first} was" if first == last else f"events {first} to {last} were"
        self._note(first, "removed", f"{events} removed")

    def _out_of_place(self, row: AuditRow) -> None:
        with self._catalog.reading() as session:
            before = session.scalar(select(AuditRow.key).where(AuditRow.hash == row.previous_hash).limit(1))
        said = f"event {row.key} does not follow event {row.key - 1}"
        if before is None:
            self._note(row.key, "removed", f"{said}: the one that it followed was removed or changed")
        else:
            self._note(row.key, "moved", f"{said}, but event {before}: events were moved")

    def _note(self, number: int, kind: Literal["removed", "changed", "moved"], said: str) -> None:
        if len(self._found.findings) < MOST_FINDINGS:
            self._found.findings.append(Finding(number, kind, said))


def _is_as_it_was(row: AuditRow, values: dict[str, Any]) -> bool:
    return chained(row.previous_hash or "", canonical(values)) == row.hash


def _told_place(values: dict[str, Any]) -> Place | None:
    details = values["details"] or {}
    number, digest = details.get("through"), details.get("hash")
    return Place(number, digest) if isinstance(number, int) and isinstance(digest, str) else None


def _ends(catalog: Catalog) -> Verification:
    with catalog.reading() as session:
        ends = {row.name: Place(row.number, row.hash) for row in session.scalars(select(AuditChainRow))}
        newest = session.scalar(select(func.max(AuditRow.key))) or 0
        missing = [name for name in (ANCHOR, HEAD) if name not in ends]
        anchor = ends.get(ANCHOR, Place(0, GENESIS))
        head = ends.get(HEAD, Place(newest, ""))
        before = select(func.count()).where(AuditRow.key <= anchor.number)
        found = Verification(
            anchor, Place(max(head.number, newest), head.hash), unchained=session.scalar(before) or 0
        )
    for name in missing:
        found.findings.append(Finding(found.head.number, "removed", f"the {name} of the chain was removed"))
    if newest > head.number:
        said = f"the head of the chain was set back to event {head.number}, the newest is {newest}"
        found.findings.append(Finding(newest, "changed", said))
    return found


def _rows(catalog: Catalog, after: int, last: int) -> Iterator[AuditRow]:
    """The events of the chain in their order, a batch at a time: nobody else waits for a long look."""
    while True:
        with catalog.reading() as session:
            look = select(AuditRow).where(AuditRow.key > after, AuditRow.key <= last)
            rows = session.scalars(look.order_by(AuditRow.key).limit(BATCH)).all()
            session.expunge_all()
        yield from rows
        if len(rows) < BATCH:
            return
        after = rows[-1].key
