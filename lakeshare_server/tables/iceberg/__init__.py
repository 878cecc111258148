"""Iceberg metadata, manifests and deletes, as input of the file index."""
