"""For all tests: many queries on few rows, so neither the driver nor Spark compiles much for any of them."""

import os

from lakeshare_pipelines.settings import SHORT_RUNS

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"

os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", f"{SHORT_RUNS} {INTERPRETED}")
