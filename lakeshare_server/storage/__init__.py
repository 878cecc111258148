"""Stores of table files: locations, reading, signed URLs and temporary credentials."""

from lakeshare_server.locations import ParsedLocation as ParsedLocation
from lakeshare_server.locations import normalise_location as normalise_location
from lakeshare_server.locations import parse_location as parse_location
from lakeshare_server.storage.remote import LASTING as LASTING
from lakeshare_server.storage.remote import LocalSigner as LocalSigner
from lakeshare_server.storage.remote import StoredObject as StoredObject
from lakeshare_server.storage.remote import TemporaryCredentials as TemporaryCredentials
from lakeshare_server.storage.stores import Signers as Signers
from lakeshare_server.storage.stores import SigningSession as SigningSession
from lakeshare_server.storage.stores import Stores as Stores
from lakeshare_server.storage.stores import load_key as load_key
