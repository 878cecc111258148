"""What a recipient may read right now: its own grants and those of its groups, as far as their time has come.

Time alone begins and ends grants, without a write: what was looked up says until when it is true.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Subquery, exists, select, union_all

from lakeshare_server.catalog.models import GrantRow, GroupGrantRow, GroupMemberRow, RecipientRow, ShareRow


@dataclass(frozen=True)
class EffectiveGrant:
    """What the grants of one recipient on one share come to.

    `rules` are those of all grants in force: a row may be read where one of them is true. None says that one of the
    grants has no rule. The recipient is who `current_recipient` speaks of. `valid_until` is when the next grant begins
    or ends; None when none will.
    """

    recipient_id: str
    recipient_name: str
    properties: Mapping[str, Any] = field(hash=False)
    rules: tuple[str, ...] | None = None
    valid_until: datetime | None = None

    def is_over(self) -> bool:
        """Whether a grant has begun or ended since."""
        return self.valid_until is not None and self.valid_until <= datetime.now(UTC)


def grants_of(recipient_id: str) -> Subquery:
    """All grants of a recipient, its own and those of its groups, whatever their time.

    The recipient is looked for inside of it, so that databases put no other grants together.
    """
    told = "starts_at", "ends_at", "rule"
    reader = RecipientRow.name.label("recipient_name"), RecipientRow.properties
    own = (
        select(GrantRow.share_key, *(getattr(GrantRow, name) for name in told), *reader)
        .join(RecipientRow, RecipientRow.key == GrantRow.recipient_key)
        .where(RecipientRow.id == recipient_id)
    )
    of_groups = (
        select(GroupGrantRow.share_key, *(getattr(GroupGrantRow, name) for name in told), *reader)
        .join(GroupMemberRow, GroupMemberRow.group_key == GroupGrantRow.group_key)
        .join(RecipientRow, RecipientRow.key == GroupMemberRow.recipient_key)
        .where(RecipientRow.id == recipient_id)
    )
    return union_all(own, of_groups).subquery("own_grants")


def is_granted(recipient_id: str, now: datetime) -> ColumnElement[bool]:
    """Whether the recipient may read a share at that time; for statements about `ShareRow`."""
    grants = grants_of(recipient_id).c
    has_begun = grants.starts_at.is_(None) | (grants.starts_at <= now)
    in_force = has_begun & (grants.ends_at.is_(None) | (grants.ends_at > now))
    return exists(select(grants.share_key).where(grants.share_key == ShareRow.key, in_force))


def effective_grant(recipient_id: str, grants: Sequence[Any], now: datetime) -> EffectiveGrant | None:
    """What the recipient's grants on one share, rows of `grants_of`, come to; None when none is in force."""
    in_force = [one.rule for one in grants if _holds(one.starts_at, one.ends_at, now)]
    if not in_force:
        return None
    times = (time for one in grants for time in (one.starts_at, one.ends_at))
    return EffectiveGrant(
        recipient_id=recipient_id,
        recipient_name=grants[0].recipient_name,
        properties=grants[0].properties or {},
        # In an order of their own: databases give grants in any, and what was issued for these rules stays valid.
        rules=None if None in in_force else tuple(sorted(set(in_force))),
        valid_until=min((time for time in times if time is not None and time > now), default=None),
    )


def _holds(starts_at: datetime | None, ends_at: datetime | None, now: datetime) -> bool:
    return (starts_at is None or starts_at <= now) and (ends_at is None or ends_at > now)
