"""`python -m tests.builders.batch_server ENDPOINT REGION FOLDER`: the test double as a process of its own."""

import argparse
from pathlib import Path

from lakeshare_pipelines.backup.stores import StoreAddress
from tests.builders.batch_server.app import own_keys, serve
from tests.builders.batch_server.run import Behaviour, Policies

parser = argparse.ArgumentParser()
parser.add_argument("endpoint", help="URL of the S3 store whose objects jobs work on")
parser.add_argument("region")
parser.add_argument("folder", type=Path, help="where jobs are kept")
parser.add_argument("--copy-limit-bytes", type=int, default=5 * 1024**3)
parser.add_argument("--threshold-tasks", type=int, default=1000)
parser.add_argument("--in-flight", type=int, default=64, help="tasks of one job at a time")
parser.add_argument("--jobs-at-once", type=int, default=4)
parser.add_argument(
    "--policies", type=Path, help="folder of `lakeshare backup policies` that judges every task"
)
options = parser.parse_args()

# Jobs name their buckets.
address = StoreAddress(url="s3://jobs", endpoint=options.endpoint, region=options.region)
behaviour = Behaviour(
    copy_limit_bytes=options.copy_limit_bytes,
    threshold_tasks=options.threshold_tasks,
    in_flight=options.in_flight,
    jobs_at_once=options.jobs_at_once,
    policies=None if options.policies is None else Policies.load(options.policies),
)
serve(options.folder, address, behaviour, lambda url: print(url, flush=True), own_keys(address))
