"""Signed statements of publications, beside the ledger, and the public keys of this provider."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import EvidenceKeyRow, EvidenceRow, PublicationRow

if TYPE_CHECKING:
    from lakeshare_server.catalog.ledger import Publication


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The signed statement of a publication, in its envelope.

    `entries_digest` is the digest of the file with its entries; `salt` opens the commitments and is for the provider.
    """

    table: str
    version: int
    key_id: str
    entries_digest: str
    salt: bytes
    envelope: str


Sign = Callable[["Publication"], Evidence]


@dataclass(frozen=True)
class EvidenceKey:
    """A public key in PEM form, and the times between which publications were signed with it."""

    key_id: str
    public_key: str
    created_at: datetime
    retired_at: datetime | None


class EvidenceStore:
    """The statements and public keys of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def find(self, table: str, version: int) -> Evidence | None:
        """The statement of a publication."""
        row = EvidenceRow
        return self._one(table, row.version == version)

    def latest(self, table: str) -> Evidence | None:
        """The statement of the newest publication that has one."""
        return self._one(table)

    def put(self, evidence: Evidence) -> None:
        """Records a statement in the place of an earlier one."""
        with self.catalog.writing() as session:
            row = EvidenceRow
            same = (row.table_name == evidence.table) & (row.version == evidence.version)
            session.execute(delete(row).where(same))
            session.add(_make_row(evidence))

    def unsigned(self, tables: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The audited publications without a statement, by table and number."""
        row, signed = PublicationRow, EvidenceRow
        is_signed = (signed.table_name == row.table) & (signed.version == row.version)
        found = select(row.table, row.version).where(
            row.audited, ~select(signed.key).where(is_signed).exists()
        )
        if tables is not None:
            found = found.where(row.table.in_(list(tables)))
        with self.catalog.reading() as session:
            return [
                (table, version) for table, version in session.execute(found.order_by(row.table, row.version))
            ]

    def entries_digests(self, table: str | None = None, from_version: int = 0) -> set[str]:
        """The digests of the files of entries, of all tables or of a table from a number on."""
        found = select(EvidenceRow.entries_digest).where(EvidenceRow.version >= from_version)
        if table is not None:
            found = found.where(EvidenceRow.table_name == table)
        with self.catalog.reading() as session:
            return set(session.scalars(found))

    def list_keys(self) -> list[EvidenceKey]:
        """The public keys, oldest first."""
        with self.catalog.reading() as session:
            rows = session.scalars(select(EvidenceKeyRow).order_by(EvidenceKeyRow.key))
            return [EvidenceKey(row.key_id, row.public_key, row.created_at, row.retired_at) for row in rows]

    def register(self, key_id: str, public_key: str) -> bool:
        """Adds a public key; returns False, without a change, if it is known."""
        with suppress(IntegrityError), self.catalog.writing() as session:  # another process added it
            if session.scalars(select(EvidenceKeyRow).where(EvidenceKeyRow.key_id == key_id)).one_or_none():
                return False
            row = EvidenceKeyRow(key_id=key_id, public_key=public_key, created_at=datetime.now(UTC))
            session.add(row)
            session.flush()
            return True
        return False

    def retire(self, key_id: str) -> None:
        """Notes that a key signs no more publications; what it has signed stays valid."""
        row = EvidenceKeyRow
        with self.catalog.writing() as session:
            is_it = (row.key_id == key_id) & row.retired_at.is_(None)
            session.execute(update(row).where(is_it).values(retired_at=datetime.now(UTC)))

    def _one(self, table: str, *conditions: object) -> Evidence | None:
        rows = select(EvidenceRow).where(EvidenceRow.table_name == table, *conditions)  # type: ignore[arg-type]
        with self.catalog.reading() as session:
            found = session.scalars(rows.order_by(EvidenceRow.version.desc()).limit(1)).one_or_none()
            if found is None:
                return None
            return Evidence(
                table=found.table_name,
                version=found.version,
                key_id=found.key_id,
                entries_digest=found.entries_digest,
                salt=bytes.fromhex(found.salt),
                envelope=found.envelope,
            )


def add_evidence(session: Session, publications: Iterable["Publication"], sign: Sign) -> None:
    """Signs the publications that have no statement, in the transaction that numbers them."""
    for publication in publications:
        row = EvidenceRow
        is_it = (row.table_name == publication.table) & (row.version == publication.version)
        if session.scalars(select(row.key).where(is_it)).one_or_none() is None:
            session.add(_make_row(sign(publication)))


def _make_row(evidence: Evidence) -> EvidenceRow:
    return EvidenceRow(
        table_name=evidence.table,
        version=evidence.version,
        key_id=evidence.key_id,
        entries_digest=evidence.entries_digest,
        salt=evidence.salt.hex(),
        envelope=evidence.envelope,
        signed_at=datetime.now(UTC),
    )
