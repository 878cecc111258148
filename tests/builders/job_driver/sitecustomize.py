"""Python imports this as it starts: jobs of the console use the tests' Spark driver; theirs would take 40 CPU seconds.

`LAKESHARE_TEST_DRIVER` has the driver. This folder is on `PYTHONPATH` of the server that starts the jobs.
"""

import json
import os
import sys

if "lakeshare_pipelines" in sys.orig_argv:
    from tests.builders.shared_spark import SharedSpark, use_driver

    use_driver(SharedSpark(**json.loads(os.environ["LAKESHARE_TEST_DRIVER"])))
