"""The vendors' libraries are extras: what is said when one is needed and not installed."""

from lakeshare_server.errors import Unavailable


def not_installed(library: str, extra: str) -> Unavailable:
    """The error that names the extra to install."""
    return Unavailable(f"{library} is not installed", f"Install lakeshare[{extra}] where the server runs.")
