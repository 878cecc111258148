"""What monitoring reads of the database: ages of publications beside their goals, deliveries of webhooks, queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, aliased

from lakeshare_server.catalog.models import (
    ContractRow,
    DeliveryRow,
    EvidenceRow,
    PublicationRow,
    SharedTableRow,
)
from lakeshare_server.catalog.overviews import last_run, read_operations, set_names
from lakeshare_server.service_levels import find_goal_of_text

DELIVERY_STATES = ("pending", "dead")
SIGNED_WITHIN = timedelta(days=7)


@dataclass(frozen=True)
class TableFreshness:
    """When a shared table got data last, and the greatest age that its contract allows in seconds."""

    table: str
    published_at: datetime
    goal_s: float | None


@dataclass(frozen=True)
class LakeState:
    """`left_out` is the number of shared tables that are not in `tables`; `queries` counts by state.

    `publications` is the key of the last one: counting all of them would read them all.
    """

    tables: Sequence[TableFreshness]
    left_out: int
    publications: int
    unsigned: int
    deliveries: Mapping[str, int]
    oldest_pending: datetime | None
    queries: Mapping[str, int]
    publishing: int


class FreshnessGoals:
    """The goals of contracts by their digests, each parsed once."""

    def __init__(self) -> None:
        self._known: dict[str, float | None] = {}

    def load(self, session: Session, digests: set[str]) -> Mapping[str, float | None]:
        unknown = digests - self._known.keys()
        if unknown:
            rows = select(ContractRow.digest, ContractRow.text).where(ContractRow.digest.in_(sorted(unknown)))
            self._known |= dict.fromkeys(unknown) | {
                digest: find_goal_of_text(text) for digest, text in session.execute(rows)
            }
        return self._known


def read_lake_state(session: Session, goals: FreshnessGoals, max_tables: int) -> LakeState:
    """The state now, with at most `max_tables` tables, in the order of their names."""
    shared = select(SharedTableRow.lake_table.label("name")).distinct()
    total = session.scalar(select(func.count()).select_from(shared.subquery())) or 0
    pending = select(func.min(DeliveryRow.created_at)).where(DeliveryRow.state == "pending")
    counted = select(DeliveryRow.state, func.count()).where(DeliveryRow.state.in_(DELIVERY_STATES))
    deliveries = {row[0]: row[1] for row in session.execute(counted.group_by(DeliveryRow.state))}
    operations = read_operations(session)
    return LakeState(
        tables=_read_tables(session, goals, shared.order_by("name").limit(max_tables)),
        left_out=max(total - max_tables, 0),
        publications=session.scalar(select(func.max(PublicationRow.key))) or 0,
        unsigned=_count_unsigned(session),
        deliveries={state: deliveries.get(state, 0) for state in DELIVERY_STATES},
        oldest_pending=session.scalar(pending),
        queries=operations.queries,
        publishing=len(operations.locks),
    )


def _read_tables(session: Session, goals: FreshnessGoals, tables: Select[str]) -> list[TableFreshness]:
    named, row, earlier = tables.subquery(), PublicationRow, aliased(PublicationRow)
    # Rollbacks and maintenance bring no data.
    with_data = select(earlier.version).where(
        earlier.table == named.c.name, earlier.rollback_of.is_(None), earlier.maintenance_of.is_(None)
    )
    newest = with_data.order_by(earlier.version.desc()).limit(1).scalar_subquery()
    is_newest = (row.table == named.c.name) & (row.version == newest)
    rows = select(row.table, row.published_at, row.contract_digest).select_from(named).join(row, is_newest)
    found = session.execute(rows.order_by(row.table)).all()
    by_digest = goals.load(session, {digest for _, _, digest in found})
    return [TableFreshness(table, at, by_digest.get(digest)) for table, at, digest in found]


def _count_unsigned(session: Session) -> int:
    row, signed = PublicationRow, EvidenceRow
    is_signed = (signed.table_name == row.table) & (signed.version == row.version)
    unsigned = select(func.count()).where(
        row.audited,
        row.published_at > datetime.now(UTC) - SIGNED_WITHIN,
        ~select(signed.key).where(is_signed).exists(),
    )
    return session.scalar(unsigned) or 0


MAX_SETS = 1000


@dataclass(frozen=True)
class SetRunState:
    """The last publication of a set by a run: `rows` are those of all its tables.

    `started_at` is when the run began to stage; None for publications of earlier versions.
    """

    set_name: str
    started_at: datetime | None
    published_at: datetime
    rows: int


def read_last_runs(session: Session) -> list[SetRunState]:
    """The last publication of each set, rollbacks and maintenance left out."""
    row, names = PublicationRow, set_names()
    is_of_run = row.rollback_of.is_(None) & row.maintenance_of.is_(None)
    runs = select(last_run(names)).select_from(names).limit(MAX_SETS)
    found = session.execute(
        select(row.set_name, func.max(row.started_at), func.max(row.published_at), func.sum(row.rows))
        .where(row.run_id.in_(runs), row.set_name != "", is_of_run)
        .group_by(row.set_name, row.run_id)
        .order_by(row.set_name)
    )
    return [SetRunState(name, began, at, int(rows)) for name, began, at, rows in found]
