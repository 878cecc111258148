"""Short-lived URLs for the bytes of files, one module per store."""

from lakeshare_server.signing.keys import load_key
from lakeshare_server.signing.local import LocalSigner
from lakeshare_server.signing.signers import Signers, SigningSession

__all__ = ["LocalSigner", "Signers", "SigningSession", "load_key"]
