"""What administrators do to shares, recipients, groups and grants; every surface goes through here.

`with editing(catalog, by) as edit:` opens a transaction, the operations take it first, `look` reads.
"""

from lakeshare_server.catalog.sharing.activation import LINK_LIFE, invite, look_at_link, redeem
from lakeshare_server.catalog.sharing.editing import KEEP, Change, Edit, Keep, Keeper, editing
from lakeshare_server.catalog.sharing.federation import drop_policy, put_policy
from lakeshare_server.catalog.sharing.grants import grant, revoke
from lakeshare_server.catalog.sharing.groups import alter_group, create_group, drop_group
from lakeshare_server.catalog.sharing.limits import set_limits
from lakeshare_server.catalog.sharing.recipients import (
    alter_recipient,
    create_recipient,
    drop_recipient,
    revoke_recipient,
)
from lakeshare_server.catalog.sharing.shares import alter_share, create_share, drop_share
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    Given,
    Grant,
    Group,
    LinkState,
    RecipientState,
    Share,
    SharedObject,
    TokenState,
)
from lakeshare_server.catalog.sharing.tables import add_table, add_tables, alter_table, remove_table
from lakeshare_server.catalog.sharing.tokens import issue_token, revoke_token, rotate_token, shorten_tokens

__all__ = [
    "KEEP",
    "LINK_LIFE",
    "Change",
    "Edit",
    "FederationPolicy",
    "Given",
    "Grant",
    "Group",
    "Keep",
    "Keeper",
    "LinkState",
    "RecipientState",
    "Share",
    "SharedObject",
    "TokenState",
    "add_table",
    "add_tables",
    "alter_group",
    "alter_recipient",
    "alter_share",
    "alter_table",
    "create_group",
    "create_recipient",
    "create_share",
    "drop_group",
    "drop_policy",
    "drop_recipient",
    "drop_share",
    "editing",
    "grant",
    "invite",
    "issue_token",
    "look_at_link",
    "put_policy",
    "redeem",
    "remove_table",
    "revoke",
    "revoke_recipient",
    "revoke_token",
    "rotate_token",
    "set_limits",
    "shorten_tokens",
]
