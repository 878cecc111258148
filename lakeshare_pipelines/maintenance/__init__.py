"""Maintenance of published tables: compaction, expiry, and the removal of files that nothing uses."""
