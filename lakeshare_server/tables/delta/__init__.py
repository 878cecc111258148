"""Reading a Delta table: its log, at one version, into what recipients are answered from."""

from lakeshare_server.tables.delta.snapshot import read_delta

__all__ = ["read_delta"]
