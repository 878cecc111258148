"""Our own inventory of a bucket or a folder: listed in parallel by ranges of keys, reported as S3 Inventory reports."""

from lakeshare_pipelines.backup.listing.generator.generate import generate_report, list_source
from lakeshare_pipelines.backup.listing.generator.report import Generated, ReportPlace

__all__ = ["Generated", "ReportPlace", "generate_report", "list_source"]
