"""Stores that are backed up and stores that hold backups: a folder of this host, or a bucket of S3 or its relatives."""

from lakeshare_pipelines.backup.stores.address import StoreAddress
from lakeshare_pipelines.backup.stores.open_store import open_store
from lakeshare_pipelines.backup.stores.store import BackupStore, Head, Listed

__all__ = ["BackupStore", "Head", "Listed", "StoreAddress", "open_store"]
