"""Copies in processes of their own, each killed (SIGKILL) right after a given number of its requests to the store.

Run as `python -m tests.builders.killed_copy TASK`: its imports are done once, and it forks for each number it is told.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lakeshare_pipelines.backup.copy.engine import CopyTask
from tests.builders.backup_processes import kill_after
from tests.builders.small_batches import SmallBatches

NEVER = 0


@dataclass
class Copies:
    """The process that copies by others."""

    asked: IO[str]
    told: IO[str]

    def copy(self, nth: int) -> bool:
        """Copy the task until the `nth` request is answered, or to its end; whether it was killed."""
        self.asked.write(f"{nth}\n")
        self.asked.flush()
        status = int(self.told.readline())
        assert status in {0, -signal.SIGKILL}, f"a copy ended with {status}"
        return status != 0


@contextmanager
def killed_copies(folder: Path, task: CopyTask) -> Iterator[Copies]:
    """Copies of a task until the end of the block."""
    path = folder / "task.pickle"
    path.write_bytes(pickle.dumps(task))
    command = [sys.executable, "-m", "tests.builders.killed_copy", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Copies(process.stdin, process.stdout)
        process.stdin.close()


def main(task: CopyTask) -> None:
    """A fork for each number on the standard input; its exit code goes to the standard output."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            if int(line) != NEVER:
                kill_after(int(line))
            SmallBatches().copy(task, lambda _: None)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(pickle.loads(Path(sys.argv[1]).read_bytes()))
