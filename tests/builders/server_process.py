"""The server as a process of its own, as a person starts it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.builders.sharing import Provider


@contextmanager
def a_process(
    provider: Provider, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server process on a free port, and its URL; killed at the end if it still runs."""
    state = {"LAKESHARE_STATE_DIR": str(provider.settings.state_dir)}
    command = [sys.executable, "-m", "lakeshare_server", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command,
        env={**os.environ, **state, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            yield process, next((word for word in said.split() if word.startswith("http")), said)
        finally:
            process.kill()
