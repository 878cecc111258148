"""For all tests: short Spark runs on few cores, so the driver compiles quickly rather than well."""

import os

os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
