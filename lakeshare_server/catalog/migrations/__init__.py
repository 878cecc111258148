"""Alembic migrations of the catalog, shipped with the package."""
