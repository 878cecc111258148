"""The store at an address."""

from lakeshare_pipelines.backup.stores.address import FOLDER, StoreAddress
from lakeshare_pipelines.backup.stores.folder import FolderStore
from lakeshare_pipelines.backup.stores.s3 import S3Store
from lakeshare_pipelines.backup.stores.store import BackupStore


def open_store(address: StoreAddress) -> BackupStore:
    """A store, ready for use; nothing is asked of it yet."""
    return FolderStore(address) if address.kind == FOLDER else S3Store(address)
