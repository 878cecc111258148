"""Iceberg metadata and manifests, read into what the file index is made from."""

from lakeshare_server.tables.iceberg.snapshot import read_iceberg

__all__ = ["read_iceberg"]
