"""Stores of table files: locations, reading, signed URLs and temporary credentials."""

from lakeshare_server.storage.locations import ParsedLocation, normalise_location, parse_location
from lakeshare_server.storage.remote import LASTING, LocalSigner, StoredObject, TemporaryCredentials, load_key
from lakeshare_server.storage.stores import Signers, SigningSession, Stores

__all__ = [
    "LASTING",
    "LocalSigner",
    "ParsedLocation",
    "Signers",
    "SigningSession",
    "StoredObject",
    "Stores",
    "TemporaryCredentials",
    "load_key",
    "normalise_location",
    "parse_location",
]
