"""Tables that name their files by whole locations, written anew for another place, from the copies alone."""

from lakeshare_pipelines.backup.rewriting.iceberg import MOUNTED, Rewritten, rewrite_table, with_current
from lakeshare_pipelines.backup.rewriting.snapshots import require_whole, whole_snapshots

__all__ = ["MOUNTED", "Rewritten", "require_whole", "rewrite_table", "whole_snapshots", "with_current"]
