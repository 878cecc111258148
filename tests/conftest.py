"""For all tests: short Spark runs on few cores, so the driver compiles quickly rather than well."""

import os

from lakeshare_pipelines.settings import SHORT_RUNS

os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", SHORT_RUNS)
