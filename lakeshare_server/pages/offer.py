"""What a link offers: the shares of its recipient, until when, and the agreement that comes before them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakeshare_server.catalog import Catalog, Listings, Reader, TableEntry
from lakeshare_server.catalog.sharing import Grant, LinkState, RecipientState, look

# So many are named; the rest is in the portal.
MOST_SHARES, MOST_TABLES = 20, 50


@dataclass(frozen=True)
class OfferedShare:
    """A share with its first tables; it ends when the last grant of it does."""

    name: str
    title: str
    comment: str | None
    tables: Sequence[TableEntry]
    has_more: bool
    ends_at: datetime | None


@dataclass(frozen=True)
class Offer:
    """A link, its recipient, and what that may read."""

    link: LinkState
    recipient: RecipientState
    shares: Sequence[OfferedShare]

    @property
    def reader(self) -> Reader:
        """The recipient as whoever it will be with its profile."""
        return Reader(self.recipient.id, self.recipient.name)

    @property
    def asks_agreement(self) -> bool:
        """Whether there is an agreement that nobody has accepted yet."""
        return self.recipient.agreement is not None and self.recipient.agreement_accepted_at is None

    @property
    def profile_ends_at(self) -> datetime | None:
        """When the profile of this link ends; with the recipient at the latest."""
        ends = [one for one in (self.link.token_expires_at, self.recipient.expires_at) if one is not None]
        return min(ends, default=None)

    def as_json(self) -> Mapping[str, Any]:
        """The offer for programs."""
        ends = self.profile_ends_at
        return {
            "recipient": self.recipient.name,
            "linkExpiresAt": self.link.expires_at.isoformat(),
            "profileExpiresAt": None if ends is None else ends.isoformat(),
            "agreement": self.recipient.agreement if self.asks_agreement else None,
            "shares": [
                {"name": one.name, "comment": one.comment, "tables": [table.path for table in one.tables]}
                for one in self.shares
            ],
        }


def offer_of(catalog: Catalog, link: LinkState, recipient: RecipientState) -> Offer:
    """What a link offers now: as the recipient's own listings tell it."""
    with catalog.reading() as session:
        ends = _ends(look.grants_to(session, recipient.name))
    listings = Listings(catalog, recipient.id)
    offered = []
    for share in listings.shares(0, MOST_SHARES):
        tables = listings.tables(share.name, None, 0, MOST_TABLES + 1)
        title = share.display_name or share.name
        shown, has_more = tables[:MOST_TABLES], len(tables) > MOST_TABLES
        offered.append(OfferedShare(share.name, title, share.comment, shown, has_more, ends.get(share.name)))
    return Offer(link, recipient, offered)


def _ends(grants: Sequence[Grant]) -> dict[str, datetime | None]:
    """The end of each share: that of its last grant, none if one of them has none."""
    ends: dict[str, datetime | None] = {}
    for one in grants:
        before = ends.get(one.share, one.ends_at)
        ends[one.share] = None if before is None or one.ends_at is None else max(before, one.ends_at)
    return ends
