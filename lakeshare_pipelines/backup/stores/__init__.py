"""Stores that are backed up and stores that hold backups: a folder of this host, or a bucket of S3 or its relatives."""

from lakeshare_pipelines.backup.stores.store import (
    BackupStore,
    ListedObject,
    ObjectHead,
    StoreAddress,
    open_store,
)

__all__ = ["BackupStore", "ListedObject", "ObjectHead", "StoreAddress", "open_store"]
