"""A command that a shell started in the background, where SIGINT is ignored, can be ended by SIGTERM."""

import signal
import subprocess
import sys

CODE = """
import signal, sys
from lakeshare_pipelines.cli import main
sys.argv = ["lakeshare", "--help"]
try:
    main.main()
except SystemExit:
    pass
import dagster as dg

@dg.asset
def table() -> None: ...

assert dg.materialize([table]).success
print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)
"""


def test_a_command_started_in_the_background_is_ended_by_sigterm_after_a_run() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert ended.stdout.splitlines()[-1] == "False"
