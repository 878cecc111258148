"""Where tables' files are: one small interface for reading local disks and object stores."""

from lakeshare_server.stores.locations import Place, normalised, place_of
from lakeshare_server.stores.store import LASTING, StoredObject
from lakeshare_server.stores.stores import Stores

__all__ = ["LASTING", "Place", "StoredObject", "Stores", "normalised", "place_of"]
