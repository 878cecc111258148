"""All stores behind one door: a location says which one it belongs to, and each is opened once."""

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.stores.azure import AzureAccess
from lakeshare_server.stores.gcs import GcsAccess
from lakeshare_server.stores.local import LocalStore
from lakeshare_server.stores.locations import GCS, LOCAL, S3, Place, place_of
from lakeshare_server.stores.s3 import S3Access
from lakeshare_server.stores.store import Store, StoredObject


class Stores:
    """Reads objects of every store by location; may be used from many threads.

    Everything raises StoreMissing or StoreDenied, Unserveable for a key that the store cannot be asked for,
    Unavailable for what passes, and BadRequest for a location of an unknown spelling.
    """

    def __init__(self, settings: StoreSettings, services: Services | None = None) -> None:
        self.settings = settings
        self.services = services or Services(settings.outside_answer_s)
        self.s3 = S3Access(settings, self.services)
        self.gcs = GcsAccess(settings, self.services)
        self.azure = AzureAccess(settings, self.services)
        self._azure_account = settings.azure_account
        self._opened: dict[str, Store] = {"": LocalStore()}
        # One for each root: a vendor whose credentials take long keeps nobody from the others.
        self._opening: dict[str, Lock] = {}

    def read(self, location: str) -> bytes:
        """The whole object."""
        place = self.place(location)
        return self._store(place).read(place)

    def open(self, location: str) -> Any:
        """The object as a pyarrow file that seeks and reads by range."""
        place = self.place(location)
        return self._store(place).open(place)

    def list(self, prefix_location: str, after: str | None = None) -> Iterator[StoredObject]:
        """Every object below `prefix_location/`, in key order, starting after the location `after`.

        A store that keeps folders starts where its own order says: give an `after` only among files of one folder.
        """
        prefix = self.place(prefix_location)
        return self._store(prefix).list(prefix, self.place(after) if after else None)

    def folders(self, prefix_location: str) -> Sequence[str]:
        """The names of the folders right below `prefix_location/`, in order."""
        prefix = self.place(prefix_location)
        return self._store(prefix).folders(prefix)

    def head(self, location: str) -> StoredObject | None:
        """The object's description, None when there is none."""
        place = self.place(location)
        return self._store(place).head(place)

    def place(self, location: str) -> Place:
        """The location taken apart; its `location` is our spelling of it."""
        return place_of(location, self._azure_account)

    def services_of(self, location: str) -> tuple[str, ...]:
        """The store of a location by its name as a service; none of a location on the local disk."""
        place = self.place(location)
        return () if place.kind == LOCAL else (place.root,)

    def _store(self, place: Place) -> Store:
        opened = self._opened.get(place.root)
        if opened is None:
            with self._opening.setdefault(place.root, Lock()):
                opened = self._opened.get(place.root) or self._open(place)
                self._opened[place.root] = opened
        return opened

    def _open(self, place: Place) -> Store:
        if place.kind == LOCAL:
            return self._opened[""]
        if place.kind == S3:
            return self.s3.open(place)
        return self.gcs.open(place) if place.kind == GCS else self.azure.open(place)
