"""What was published and what is shared with whom: the state that pipelines and server share.

The wire, the signing of URLs and the reading of table formats live elsewhere.
"""

from lakeshare_server.catalog.async_queries import AsyncQueries, AsyncQuery, Claim
from lakeshare_server.catalog.audit import AuditEvent, AuditLog, append_events, newest_requests
from lakeshare_server.catalog.credentials import Access, Allowances, Credentials, Policy, Reader, TokenUses
from lakeshare_server.catalog.database import Catalog, GenerationCache, open_catalog
from lakeshare_server.catalog.ledger import (
    FollowedTable,
    FollowedTables,
    IcebergIdentity,
    Lease,
    Ledger,
    NewPublication,
    NumberedSnapshot,
    Publication,
    lock_set,
)
from lakeshare_server.catalog.listings import EffectiveGrant, GrantedTable, Listings, ShareEntry, TableEntry
from lakeshare_server.catalog.recipients import Recipient, Recipients
from lakeshare_server.catalog.shares import (
    DeclaredShare,
    ShareDiff,
    SharedTable,
    allow_directory_access,
    apply_shares,
    share_table,
    unshare_table,
)

__all__ = [
    "Access",
    "Allowances",
    "AsyncQueries",
    "AsyncQuery",
    "AuditEvent",
    "AuditLog",
    "Catalog",
    "Claim",
    "Credentials",
    "DeclaredShare",
    "EffectiveGrant",
    "FollowedTable",
    "FollowedTables",
    "GenerationCache",
    "GrantedTable",
    "IcebergIdentity",
    "Lease",
    "Ledger",
    "Listings",
    "NewPublication",
    "NumberedSnapshot",
    "Policy",
    "Publication",
    "Reader",
    "Recipient",
    "Recipients",
    "ShareDiff",
    "ShareEntry",
    "SharedTable",
    "TableEntry",
    "TokenUses",
    "allow_directory_access",
    "append_events",
    "apply_shares",
    "lock_set",
    "newest_requests",
    "open_catalog",
    "share_table",
    "unshare_table",
]
