"""The operations of administrators on shares, recipients, groups and grants; every surface uses them.

`with editing(catalog, by) as edit:` opens a transaction; operations take it first; `states` reads. An operation raises
NotFound for an object that does not exist, BadRequest for a value that cannot be used, and CatalogConflict for a name
that is taken, for another `revision` than the given one, and for what a contract declares.
"""

from lakeshare_server.catalog.sharing.credentials import DEFAULT_LINK_LIFE as DEFAULT_LINK_LIFE
from lakeshare_server.catalog.sharing.credentials import create_link as create_link
from lakeshare_server.catalog.sharing.credentials import drop_policy as drop_policy
from lakeshare_server.catalog.sharing.credentials import find_link as find_link
from lakeshare_server.catalog.sharing.credentials import issue_token as issue_token
from lakeshare_server.catalog.sharing.credentials import put_policy as put_policy
from lakeshare_server.catalog.sharing.credentials import redeem_link as redeem_link
from lakeshare_server.catalog.sharing.credentials import revoke_token as revoke_token
from lakeshare_server.catalog.sharing.credentials import rotate_token as rotate_token
from lakeshare_server.catalog.sharing.credentials import shorten_tokens as shorten_tokens
from lakeshare_server.catalog.sharing.editing import UNCHANGED as UNCHANGED
from lakeshare_server.catalog.sharing.editing import Change as Change
from lakeshare_server.catalog.sharing.editing import Edit as Edit
from lakeshare_server.catalog.sharing.editing import editing as editing
from lakeshare_server.catalog.sharing.recipients import alter_group as alter_group
from lakeshare_server.catalog.sharing.recipients import alter_recipient as alter_recipient
from lakeshare_server.catalog.sharing.recipients import create_group as create_group
from lakeshare_server.catalog.sharing.recipients import create_recipient as create_recipient
from lakeshare_server.catalog.sharing.recipients import drop_group as drop_group
from lakeshare_server.catalog.sharing.recipients import drop_recipient as drop_recipient
from lakeshare_server.catalog.sharing.recipients import grant as grant
from lakeshare_server.catalog.sharing.recipients import revoke as revoke
from lakeshare_server.catalog.sharing.recipients import revoke_recipient as revoke_recipient
from lakeshare_server.catalog.sharing.recipients import set_limits as set_limits
from lakeshare_server.catalog.sharing.shares import add_table as add_table
from lakeshare_server.catalog.sharing.shares import add_tables as add_tables
from lakeshare_server.catalog.sharing.shares import alter_share as alter_share
from lakeshare_server.catalog.sharing.shares import alter_table as alter_table
from lakeshare_server.catalog.sharing.shares import create_share as create_share
from lakeshare_server.catalog.sharing.shares import drop_share as drop_share
from lakeshare_server.catalog.sharing.shares import remove_table as remove_table
from lakeshare_server.catalog.sharing.states import FederationPolicy as FederationPolicy
from lakeshare_server.catalog.sharing.states import IssuedSecret as IssuedSecret
from lakeshare_server.catalog.sharing.states import LinkState as LinkState
from lakeshare_server.catalog.sharing.states import RecipientState as RecipientState
from lakeshare_server.catalog.sharing.states import SharedObject as SharedObject
