"""The tables of the catalog as SQLAlchemy models. Migrations make them; nothing here is SQLite-only.

Integer keys grow with every insert and never change: listings page on them.
"""

from lakeshare_server.catalog.models.base import GROWING, MAX_LONG, Base
from lakeshare_server.catalog.models.ledger import FollowedTableRow, PublicationRow, SetLockRow
from lakeshare_server.catalog.models.recipients import (
    ActivationRow,
    AdminKeyRow,
    AllowanceRow,
    FederationPolicyRow,
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    GroupRow,
    RecipientRow,
    TokenRow,
    TokenUseRow,
)
from lakeshare_server.catalog.models.requests import (
    AsyncQueryRow,
    AuditChainRow,
    AuditJournalRow,
    AuditRow,
    StateRow,
    UsageRow,
)
from lakeshare_server.catalog.models.shares import SchemaRow, SharedTableRow, ShareRow

__all__ = [
    "GROWING",
    "MAX_LONG",
    "ActivationRow",
    "AdminKeyRow",
    "AllowanceRow",
    "AsyncQueryRow",
    "AuditChainRow",
    "AuditJournalRow",
    "AuditRow",
    "Base",
    "FederationPolicyRow",
    "FollowedTableRow",
    "GrantRow",
    "GroupGrantRow",
    "GroupMemberRow",
    "GroupRow",
    "PublicationRow",
    "RecipientRow",
    "SchemaRow",
    "SetLockRow",
    "ShareRow",
    "SharedTableRow",
    "StateRow",
    "TokenRow",
    "TokenUseRow",
    "UsageRow",
]
