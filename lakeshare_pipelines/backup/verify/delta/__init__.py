"""Delta tables in a copy: which versions are complete, at which one it opens (Delta's PROTOCOL.md)."""
