"""The embedded Nessie: one server per state folder, started by the first process that needs it.

With `LAKESHARE_NESSIE_URI` set, that server is used and none is started.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie import client
from lakeshare_pipelines.nessie.client import NessieEndpoint, nessie_api
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import NESSIE_JAR, ensure_jars, find_java, make_archive_options
from lakeshare_server.file_lock import hold_lock, try_lock
from lakeshare_server.nessie import bypass_proxy, ref_path
from lakeshare_server.settings import make_private
from lakeshare_server.storage.stores import write_file

_log = logging.getLogger(__name__)

LISTENING = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)\.")
START_S = 180
STOP_S = 20
PROBE_S = 10
POLL_S = 0.05
LOG_TAIL_LINES = 12
# Space that its store and its log need.
MIN_FREE_BYTES = 32 << 20
LOG_LIMIT_BYTES = 10_000_000
CLOCK_GRAIN_S = 2.0  # psutil derives a start time from the boot time, which moves when the clock is set
ADVICE = "See {log}; `lakeshare doctor` checks Java, the jars and the state folder"


@dataclass(frozen=True)
class ServerProcess:
    """The process of the state file; `address` is None until it listens."""

    pid: int
    started_at: float
    address: str | None

    @property
    def uri(self) -> str:
        return f"{self.address}/api/v2"


def nessie_dir(settings: LakeSettings) -> Path:
    """Returns the folder of the embedded Nessie's store, key, lock and state file."""
    return settings.state_dir / "nessie"


def key_path(settings: LakeSettings) -> Path:
    return nessie_dir(settings) / "key.pem"


def read_state(settings: LakeSettings) -> ServerProcess | None:
    """Returns the process of the state file, if it still runs."""
    try:
        server = ServerProcess(**json.loads(_state_path(settings).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return server if _process(server) is not None else None


def is_responding(server: ServerProcess) -> bool:
    try:
        return httpx.get(f"{server.uri}/config", timeout=PROBE_S, trust_env=False).status_code in (200, 401)
    except httpx.HTTPError:
        return False


def require_disk_space(settings: LakeSettings) -> None:
    """Refuses to start on a full disk, for which the process reports other errors."""
    folder = nessie_dir(settings)
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        message = (
            f"the disk of {folder} has {free} bytes left and Nessie needs {MIN_FREE_BYTES} to start. Make "
            "room there, or set LAKESHARE_STATE_DIR to another disk"
        )
        raise NessieError(0, "DISK_FULL", message)


def start_process(settings: LakeSettings) -> ServerProcess:
    """Starts the process, detached from this one, and waits until it responds; the state file has no address yet."""
    java = find_java("nessie", settings)
    jar = ensure_jars(settings, [NESSIE_JAR])[NESSIE_JAR]
    stop_strays(settings)
    scratch = nessie_dir(settings) / "tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    log = settings.logs_dir / "nessie.log"
    make_private(log.parent)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_name(log.name + ".1"))
    log_size = log.stat().st_size if log.exists() else 0
    # Measured: 2.6 processor seconds until it responds, instead of 4.4. Java refuses an archive of a changed jar.
    archived = make_archive_options(java, settings, jar.stem, jar, jar.stat().st_mtime_ns)
    options = [*archived, *_options(settings)]
    server = _spawn(settings, [str(java.binary), *options, "-jar", str(jar)], log)
    write_state(settings, server)
    return _await_listening(settings, server, log, log_size)


def stop_strays(settings: LakeSettings) -> None:
    """Stops processes whose starter died before it wrote the state file."""
    mark = f"-Dnessie.version.store.persist.rocks.database-path={nessie_dir(settings) / 'store'}"
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                _stop_os_process(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    _state_path(settings).unlink(missing_ok=True)


def _options(settings: LakeSettings) -> Iterator[str]:
    folder = nessie_dir(settings)
    yield from ("-Xms64m", f"-Xmx{settings.nessie_memory}", f"-Djava.io.tmpdir={folder / 'tmp'}")
    # Measured: starts in two thirds of the time, with 215 MB instead of 300.
    yield from ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    properties = {
        "nessie.version.store.type": "ROCKSDB",
        "nessie.version.store.persist.rocks.database-path": folder / "store",
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": "0",
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": "0",
        "quarkus.otel.sdk.disabled": "true",
        "quarkus.log.file.enable": "false",
        "quarkus.http.access-log.enabled": "false",
        "nessie.server.send-stacktrace-to-client": "false",
        "nessie.server.authentication.enabled": "true",
        "quarkus.oidc.tenant-enabled": "true",
        "quarkus.oidc.application-type": "service",
        "quarkus.oidc.public-key": client.format_public_key(client.load_signing_key(key_path(settings))),
        "nessie.server.authorization.enabled": "true",
    }
    properties |= {f"nessie.server.authorization.rules.{name}": rule for name, rule in client.RULES.items()}
    yield from (f"-D{name}={value}" for name, value in properties.items())


def _spawn(settings: LakeSettings, command: list[str], log: Path) -> ServerProcess:
    """Starts the process through a shell that ends at once: no parent's end or signals reach it."""
    script = '"$@" >>"$LAKESHARE_NESSIE_LOG" 2>&1 </dev/null & echo $!'
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("NESSIE_", "QUARKUS_"))
    }
    shell = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *command],
        cwd=nessie_dir(settings),  # Quarkus reads config/ beside its working folder
        env={**inherited, "LAKESHARE_NESSIE_LOG": str(log)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    pid = int(shell.stdout)
    try:
        return ServerProcess(pid, psutil.Process(pid).create_time(), None)
    except psutil.NoSuchProcess as error:
        raise _not_started(log, 0) from error


def _await_listening(settings: LakeSettings, server: ServerProcess, log: Path, offset: int) -> ServerProcess:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = LISTENING.search(_text_after(log, offset))
        if found is not None:
            listening = replace(server, address=found[1])
            if is_responding(listening):
                return listening
        if _process(server) is None:
            require_disk_space(settings)
            raise _not_started(log, offset)
        time.sleep(POLL_S)
    _stop_os_process(_process(server))
    raise NessieError(0, "NOT_STARTED", f"it did not answer within {START_S} s. {ADVICE.format(log=log)}")


def _not_started(log: Path, offset: int) -> NessieError:
    last = "\n".join(_text_after(log, offset).splitlines()[-LOG_TAIL_LINES:])
    message = f"its process ended before it answered. {ADVICE.format(log=log)}. The end of its log:\n{last}"
    return NessieError(0, "NOT_STARTED", message)


def _process(server: ServerProcess) -> psutil.Process | None:
    """Returns the live process if its pid still is that of the started one: pids are reused."""
    try:
        process = psutil.Process(server.pid)
        is_same = abs(process.create_time() - server.started_at) < CLOCK_GRAIN_S
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _stop_os_process(process: psutil.Process | None) -> None:
    with suppress(psutil.NoSuchProcess):
        if process is not None:
            process.terminate()
            if not _wait_for_end(process, STOP_S):
                process.kill()
                _wait_for_end(process, STOP_S)


def _wait_for_end(process: psutil.Process, wait_s: float) -> bool:
    # Not process.wait(): in a container without init a zombie never goes away.
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(POLL_S)
    return False


def _state_path(settings: LakeSettings) -> Path:
    return nessie_dir(settings) / "server.json"


def write_state(settings: LakeSettings, server: ServerProcess) -> None:
    """Writes the state file, by which other processes find the server."""
    write_file(_state_path(settings), json.dumps(asdict(server)).encode(), if_absent=False)


def _text_after(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def create_first_commit(uri: str, publisher_token: str | None) -> None:
    """Creates main's first commit, if it has none."""
    calls = nessie_api(uri, publisher_token)
    log = calls.get(f"{ref_path('main')}/history", {"max-records": 1})
    if log["logEntries"]:
        return
    root = calls.get(ref_path("main"))["reference"]["hash"]
    # A commit needs an operation; this one has no effect.
    unchanged = {"type": "UNCHANGED", "key": {"elements": [client.AUTHOR]}}
    body = {"commitMeta": {"message": "Begin", "authors": [client.AUTHOR]}, "operations": [unchanged]}
    calls.post(f"{ref_path('main@' + root)}/history/commit", body)


LOCK_WAIT_S = START_S + 60
_shares: dict[Path, int] = {}


@dataclass(frozen=True)
class NessieStatus:
    uri: str | None
    is_embedded: bool
    is_running: bool
    pid: int | None = None
    started_at: float | None = None
    memory_bytes: int | None = None


def ensure_nessie(settings: LakeSettings) -> NessieEndpoint:
    """Returns the endpoint of Nessie, which is started if it does not run; tokens live for a day.

    Raises:
        NessieError: it did not start, or `LAKESHARE_NESSIE_URI` is no v2 address.
        JavaError: no Java 21 to start it with.
        DownloadError: its jar is not available.
    """
    return _ensure(settings)[0]


def find_nessie(settings: LakeSettings) -> NessieEndpoint:
    """Returns the endpoint of Nessie, which is not started if it does not run.

    Raises:
        NessieError: it does not run, or `LAKESHARE_NESSIE_URI` is no v2 address.
    """
    if settings.nessie_uri is not None:
        return _get_configured_endpoint(settings)
    server = _find_usable_server(settings)
    if server is None:
        message = "the embedded server does not run; the next run or `lakeshare wap list` starts it"
        raise NessieError(0, "NOT_RUNNING", message)
    return _make_endpoint(settings, server)


def stop_nessie(settings: LakeSettings) -> bool:
    """Stops the embedded server and returns whether it ran. Its state stays."""
    if settings.nessie_uri is not None or not nessie_dir(settings).exists():
        return False
    with _lock(settings):
        _unregister_user(settings)
        server = read_state(settings)
        if server is not None:
            _stop_os_process(_process(server))
        stop_strays(settings)
        return server is not None


def nessie_status(settings: LakeSettings) -> NessieStatus:
    """Returns the server's status, without starting it."""
    uri = settings.nessie_uri
    if uri is not None:
        try:
            nessie_api(uri, None).get("/config")
            is_running = True
        except NessieError as error:
            is_running = error.status in (401, 403)
        return NessieStatus(uri, is_embedded=False, is_running=is_running)
    server = read_state(settings)
    if server is None or server.address is None or not is_responding(server):
        return NessieStatus(None, is_embedded=True, is_running=False)
    try:
        memory = psutil.Process(server.pid).memory_info().rss
    except psutil.NoSuchProcess:
        return NessieStatus(None, is_embedded=True, is_running=False)
    return NessieStatus(server.uri, True, True, server.pid, server.started_at, memory)


@contextmanager
def nessie_for(settings: LakeSettings, keep: bool) -> Iterator[NessieEndpoint]:
    """Yields Nessie's endpoint; stops the server at the end if this call started it and `keep` is false.

    A server that another process uses meanwhile is left running.
    """
    endpoint, was_started = _ensure(settings)
    try:
        yield endpoint
    finally:
        if was_started and not keep:
            _unregister_user(settings)
            with _users_path(settings).open("a") as users:
                if try_lock(users):  # a new user waits for the lock, and starts the server again
                    stop_nessie(settings)


def _ensure(settings: LakeSettings) -> tuple[NessieEndpoint, bool]:
    if settings.nessie_uri is not None:
        return _get_configured_endpoint(settings), False
    try:
        nessie_dir(settings).mkdir(mode=0o700, parents=True, exist_ok=True)
        # A share of the lock that the kernel releases when this process ends.
        path = _users_path(settings)
        if path not in _shares:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            _shares[path] = descriptor
    except OSError as error:
        message = f"{settings.state_dir}: {error.strerror}. Correct it, or set LAKESHARE_STATE_DIR elsewhere"
        raise NessieError(0, "STATE_FOLDER", message) from error
    server, was_started = _find_usable_server(settings), False
    if server is None:
        with _lock(settings):
            # Another process may have started it meanwhile.
            server = _find_usable_server(settings)
            if server is None:
                server, was_started = _start(settings), True
    return _make_endpoint(settings, server), was_started


def _make_endpoint(settings: LakeSettings, server: ServerProcess) -> NessieEndpoint:
    bypass_proxy(server.uri)
    key = client.load_signing_key(key_path(settings))
    return NessieEndpoint(server.uri, client.sign_token(key, "writer"), client.sign_token(key, "publisher"))


def _start(settings: LakeSettings) -> ServerProcess:
    require_disk_space(settings)
    key = client.load_signing_key(key_path(settings))
    server = start_process(settings)
    create_first_commit(server.uri, client.sign_token(key, "publisher"))
    write_state(settings, server)  # with its address, now that it is complete
    return server


def _find_usable_server(settings: LakeSettings) -> ServerProcess | None:
    """Returns the recorded server if it responds and its key exists: it accepts no other key."""
    server = read_state(settings)
    if server is None or server.address is None or not key_path(settings).exists():
        return None
    return server if is_responding(server) else None


@contextmanager
def _lock(settings: LakeSettings) -> Iterator[None]:
    path = nessie_dir(settings) / "lock"
    try:
        with hold_lock(path, wait_s=LOCK_WAIT_S):
            yield
    except TimeoutError as error:
        raise NessieError(0, "LOCKED", f"{error}. End that process, then run again") from error


def _get_configured_endpoint(settings: LakeSettings) -> NessieEndpoint:
    uri = (settings.nessie_uri or "").rstrip("/")
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.path.endswith("/api/v2"):
        message = f"LAKESHARE_NESSIE_URI is {uri}. Set it to http(s)://HOST:PORT/api/v2, or unset it"
        raise NessieError(0, "BAD_ADDRESS", message)
    writer = settings.nessie_token.get_secret_value() if settings.nessie_token else None
    publisher = settings.nessie_publisher_token
    return NessieEndpoint(uri, writer, publisher.get_secret_value() if publisher else writer)


def _users_path(settings: LakeSettings) -> Path:
    return nessie_dir(settings) / "users"


def _unregister_user(settings: LakeSettings) -> None:
    descriptor = _shares.pop(_users_path(settings), None)
    if descriptor is not None:
        os.close(descriptor)
