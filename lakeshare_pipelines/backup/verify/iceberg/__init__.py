"""Iceberg tables in a copy: which metadata is current and complete, and the mount at which it opens (Iceberg spec)."""
