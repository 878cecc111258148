"""The embedded Nessie: one server per state folder, started by whoever needs it first, found by all others.

`ensure_nessie` is the way to it. How the process is started stands in `process.py`, who may do what on it in
`identity.py`; with `LAKESHARE_NESSIE_URI` set, the server there is used and none is started.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.file_lock import locked, try_lock
from lakeshare_pipelines.nessie import process
from lakeshare_pipelines.nessie.calls import Calls, keep_off_proxies
from lakeshare_pipelines.nessie.identity import signed_token, signing_key
from lakeshare_pipelines.nessie.origin import begin_history
from lakeshare_pipelines.settings import LakeSettings

LOCK_WAIT_S = process.START_S + 60
_shares: dict[Path, int] = {}


@dataclass(frozen=True)
class NessieEndpoint:
    """Where Nessie is, and the tokens this process may show it; None where it asks for none."""

    uri: str
    writer_token: str | None
    publisher_token: str | None


@dataclass(frozen=True)
class NessieStatus:
    """How the server that belongs to these settings is doing."""

    uri: str | None
    is_embedded: bool
    is_running: bool
    pid: int | None = None
    started_at: float | None = None
    memory_bytes: int | None = None


def ensure_nessie(settings: LakeSettings) -> NessieEndpoint:
    """The endpoint of Nessie, started first when nobody has; tokens are fresh and live for a day.

    Raises:
        NessieError: it did not start, or `LAKESHARE_NESSIE_URI` is no v2 address.
        JavaError: no Java 21 to start it with.
        DownloadError: its jar could not be had.
    """
    return _ensure(settings)[0]


def stop_nessie(settings: LakeSettings) -> bool:
    """Stop the embedded server; whether there was one. Its state stays."""
    if settings.nessie_uri is not None or not process.nessie_dir(settings).exists():
        return False
    with _lock(settings):
        _leave(settings)
        server = process.recorded(settings)
        if server is None:
            process.end_strays(settings)
            return False
        process.end(settings, server)
        return True


def nessie_status(settings: LakeSettings) -> NessieStatus:
    """Whether it runs, without starting anything."""
    if settings.nessie_uri is not None:
        return NessieStatus(settings.nessie_uri, is_embedded=False, is_running=_is_there(settings.nessie_uri))
    server = process.recorded(settings)
    if server is None or server.address is None or not process.answers(server):
        return NessieStatus(None, is_embedded=True, is_running=False)
    try:
        memory = psutil.Process(server.pid).memory_info().rss
    except psutil.NoSuchProcess:
        return NessieStatus(None, is_embedded=True, is_running=False)
    return NessieStatus(server.uri, True, True, server.pid, server.started_at, memory)


@contextmanager
def nessie_for(settings: LakeSettings, keep: bool) -> Iterator[NessieEndpoint]:
    """Nessie for the length of a `with` block; stopped at its end if it was started here and `keep` is false.

    A server that another process has come to use in the meantime is left running.
    """
    endpoint, was_started = _ensure(settings)
    try:
        yield endpoint
    finally:
        if was_started and not keep:
            _stop_unless_used(settings)


def _stop_unless_used(settings: LakeSettings) -> None:
    _leave(settings)
    with _users_path(settings).open("a") as users:
        if try_lock(users):  # whoever comes to use it now waits here, finds it stopped and starts it again
            stop_nessie(settings)


def _ensure(settings: LakeSettings) -> tuple[NessieEndpoint, bool]:
    if settings.nessie_uri is not None:
        return _given(settings), False
    try:
        process.nessie_dir(settings).mkdir(mode=0o700, parents=True, exist_ok=True)
        _join(settings)
    except OSError as error:
        raise NessieError(
            0,
            "STATE_FOLDER",
            f"{settings.state_dir}: {error.strerror}. Correct it, or set LAKESHARE_STATE_DIR elsewhere",
        ) from error
    server, was_started = _usable(settings), False
    if server is None:
        server, was_started = _start_once(settings)
    keep_off_proxies(server.uri)
    key = signing_key(process.key_path(settings))
    endpoint = NessieEndpoint(server.uri, signed_token(key, "writer"), signed_token(key, "publisher"))
    return endpoint, was_started


def _start_once(settings: LakeSettings) -> tuple[process.Server, bool]:
    """Whoever gets the lock starts it; the others find it running when their turn comes."""
    with _lock(settings):
        server = _usable(settings)
        if server is not None:
            return server, False
        process.require_room(settings)
        key = signing_key(process.key_path(settings))
        server = process.start(settings)
        begin_history(server.uri, signed_token(key, "publisher"))
        process.record(settings, server)  # only now: what is on record with its address is whole
        return server, True


def _usable(settings: LakeSettings) -> process.Server | None:
    """The server on record, if it answers and knows the key: one whose key was removed trusts nobody here."""
    server = process.recorded(settings)
    if server is None or server.address is None or not process.key_path(settings).exists():
        return None
    return server if process.answers(server) else None


@contextmanager
def _lock(settings: LakeSettings) -> Iterator[None]:
    path = process.nessie_dir(settings) / "lock"
    try:
        with locked(path, wait_s=LOCK_WAIT_S):
            yield
    except TimeoutError as error:
        raise NessieError(0, "LOCKED", f"{error}. End that process, then run again") from error


def _given(settings: LakeSettings) -> NessieEndpoint:
    uri = (settings.nessie_uri or "").rstrip("/")
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.path.endswith("/api/v2"):
        raise NessieError(
            0,
            "BAD_ADDRESS",
            f"LAKESHARE_NESSIE_URI is {uri}. Set it to http(s)://HOST:PORT/api/v2, or unset it",
        )
    writer = settings.nessie_token.get_secret_value() if settings.nessie_token else None
    publisher = settings.nessie_publisher_token
    return NessieEndpoint(uri, writer, publisher.get_secret_value() if publisher else writer)


def _is_there(uri: str) -> bool:
    try:
        Calls(uri, None).get("/config")
    except NessieError as error:
        return error.status in (401, 403)
    return True


def _users_path(settings: LakeSettings) -> Path:
    return process.nessie_dir(settings) / "users"


def _join(settings: LakeSettings) -> None:
    """Be counted among the users until this process ends: the kernel drops the share, however it ends."""
    path = _users_path(settings)
    if path not in _shares:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _shares[path] = descriptor


def _leave(settings: LakeSettings) -> None:
    descriptor = _shares.pop(_users_path(settings), None)
    if descriptor is not None:
        os.close(descriptor)
