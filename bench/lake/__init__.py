"""Parts of the benchmarks of the pipelines: days to deliver, Spark's own counts, and stores that count requests."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.s3_server import S3Server


def make_lake_in(s3: "S3Server", endpoint: str | None = None) -> Mapping[str, str]:
    """Makes a bucket for a warehouse; returns the environment of runs there, through `endpoint` if it is given."""
    from tests.integration.s3_server import REGION

    s3.client().create_bucket(Bucket="lake")
    return {
        "AWS_ACCESS_KEY_ID": s3.admin.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.admin.secret_key,
        "LAKESHARE_WAREHOUSE": "s3://lake/tables",
        "LAKESHARE_S3_ENDPOINT": endpoint or s3.endpoint,
        "LAKESHARE_S3_REGION": REGION,
    }
