"""Short-lived URLs for the bytes of files, one module per store."""

from lakeshare_server.signing.keys import load_key
from lakeshare_server.signing.local import LocalSigner

__all__ = ["LocalSigner", "load_key"]
