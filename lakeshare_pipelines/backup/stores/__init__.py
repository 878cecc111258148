"""Stores that are backed up or hold backups: a folder of this host, or a bucket of S3 or an S3-compatible store."""

from lakeshare_pipelines.backup.stores.store import BackupStore as BackupStore
from lakeshare_pipelines.backup.stores.store import ListedObject as ListedObject
from lakeshare_pipelines.backup.stores.store import ObjectHead as ObjectHead
from lakeshare_pipelines.backup.stores.store import StoreAddress as StoreAddress
from lakeshare_pipelines.backup.stores.store import open_store as open_store
