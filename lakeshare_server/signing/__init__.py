"""Short-lived URLs for the bytes of files, and temporary credentials for folders; one module per store."""

from lakeshare_server.signing.keys import load_key
from lakeshare_server.signing.local import LocalSigner
from lakeshare_server.signing.signers import Signers, SigningSession
from lakeshare_server.signing.temporary import TemporaryCredentials

__all__ = ["LocalSigner", "Signers", "SigningSession", "TemporaryCredentials", "load_key"]
