"""The server as a process of its own, as a person starts it; `a_host` is one of several with one database."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from tests.builders.sharing import Provider

SHARED_BY_HOSTS = ("state_dir", "database_url", "warehouse", "s3_endpoint", "s3_region")


@contextmanager
def a_process(
    provider: Provider, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server process on a free port, and its URL; killed at the end if it still runs."""
    settings = provider.settings.model_dump(include=set(SHARED_BY_HOSTS), exclude_none=True)
    state = {f"LAKESHARE_{name.upper()}": str(value) for name, value in settings.items()}
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


SIGNING_KEY = "a key that all hosts were given, of 32 bytes or more"


@contextmanager
def a_host(
    provider: Provider, name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Another host of the provider's server: a process with a state folder of its own."""
    folder = provider.settings.state_dir.with_name(name)
    there = replace(provider, settings=provider.settings.model_copy(update={"state_dir": folder}))
    same = {"LAKESHARE_SIGNING_KEY": SIGNING_KEY}
    with a_process(there, *arguments, environment={**same, **(environment or {})}) as host:
        yield host
