"""What was published and what is shared with whom: the state that pipelines and server share.

The wire, the signing of URLs and the reading of table formats live elsewhere.
"""

from lakeshare_server.catalog.allowances import Allowances
from lakeshare_server.catalog.async_queries import AsyncQueries, AsyncQuery, Claim
from lakeshare_server.catalog.audit import AuditEvent, AuditLog, append_events, newest_requests
from lakeshare_server.catalog.cache import GenerationCache
from lakeshare_server.catalog.credentials import Access, Credentials, Policy, Reader
from lakeshare_server.catalog.database import Catalog, open_catalog
from lakeshare_server.catalog.effective import EffectiveGrant
from lakeshare_server.catalog.followed import FollowedTable, FollowedTables, IcebergIdentity
from lakeshare_server.catalog.hand_shares import (
    allow_directory_access,
    share_table,
    unshare_table,
)
from lakeshare_server.catalog.ledger import Ledger
from lakeshare_server.catalog.listings import GrantedTable, Listings, ShareEntry, TableEntry
from lakeshare_server.catalog.publications import NewPublication, NumberedSnapshot, Publication
from lakeshare_server.catalog.recipients import Recipient, Recipients
from lakeshare_server.catalog.set_lock import Lease, set_lock
from lakeshare_server.catalog.shares import DeclaredShare, ShareDiff, SharedTable, apply_shares
from lakeshare_server.catalog.token_uses import TokenUses

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
    "newest_requests",
    "open_catalog",
    "set_lock",
    "share_table",
    "unshare_table",
]
