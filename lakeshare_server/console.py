"""What every command needs: the catalog of this machine's settings, and who sits in front of it."""

import getpass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakeshare_server.catalog import Catalog


def open_state_catalog() -> "Catalog":
    """The catalog that LAKESHARE_DATABASE_URL or LAKESHARE_STATE_DIR names."""
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.settings import StateSettings

    return open_catalog(StateSettings().catalog_url)


def operator() -> str:
    """Who runs the command, as the audit log names them."""
    try:
        return f"command:{getpass.getuser()}"
    except (OSError, KeyError):
        # A container's user may have a number and no name.
        return "command"
