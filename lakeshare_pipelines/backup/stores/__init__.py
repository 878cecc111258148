"""Stores that are backed up or hold backups: a folder of this host, or a bucket of S3 or an S3-compatible store."""

from lakeshare_pipelines.backup.stores.store import (
    BackupStore,
    ListedObject,
    ObjectHead,
    StoreAddress,
    open_store,
)

__all__ = ["BackupStore", "ListedObject", "ObjectHead", "StoreAddress", "open_store"]
