"""The embedded Nessie as a process: its command line, its record in the state folder, starting and ending it.

Who may start it, and when, is decided in `server.py`, under the lock that stands there.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
import psutil

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.identity import RULES, public_key_text, signing_key
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import NESSIE_JAR, ensure_jars
from lakeshare_pipelines.spark.java import find_java
from lakeshare_server.settings import make_private

LISTENING = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)\.")
START_S = 180
STOP_S = 20
PROBE_S = 10
POLL_S = 0.05
LOG_TAIL_LINES = 12
# What its store and its log need to start with.
ROOM_BYTES = 32 << 20
LOG_LIMIT_BYTES = 10_000_000
CLOCK_GRAIN_S = 2.0  # psutil derives a start time from the boot time, which moves when the clock is set
ADVICE = "See {log}; `lakeshare doctor` checks Java, the jars and the state folder"


@dataclass(frozen=True)
class Server:
    """What the state file says about the process; `address` is None until it listens."""

    pid: int
    started_at: float
    address: str | None

    @property
    def uri(self) -> str:
        """The v2 API."""
        return f"{self.address}/api/v2"


def nessie_dir(settings: LakeSettings) -> Path:
    """Folder of the embedded Nessie's store, key, lock and state file."""
    return settings.state_dir / "nessie"


def key_path(settings: LakeSettings) -> Path:
    """The key that signs tokens."""
    return nessie_dir(settings) / "key.pem"


def log_path(settings: LakeSettings) -> Path:
    """Nessie's own log."""
    return settings.logs_dir / "nessie.log"


def recorded(settings: LakeSettings) -> Server | None:
    """The process of the state file, when it is the one that was started and still runs."""
    try:
        server = Server(**json.loads(_record_path(settings).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return server if _process(server) is not None else None


def answers(server: Server) -> bool:
    """Whether it takes requests."""
    try:
        return httpx.get(f"{server.uri}/config", timeout=PROBE_S, trust_env=False).status_code in (200, 401)
    except httpx.HTTPError:
        return False


def require_room(settings: LakeSettings) -> None:
    """Refuse to start on a disk that is full: the process would end with words of its own about something else.

    Raises:
        NessieError: names the folder.
    """
    folder = nessie_dir(settings)
    free = shutil.disk_usage(folder).free
    if free < ROOM_BYTES:
        raise NessieError(
            0,
            "DISK_FULL",
            f"the disk of {folder} has {free} bytes left and Nessie needs {ROOM_BYTES} to start. Make room there, or "
            "set LAKESHARE_STATE_DIR to another disk",
        )


def start(settings: LakeSettings) -> Server:
    """Start the process, detached from this one, and wait until it answers. Its address is not on record yet.

    Raises:
        JavaError: no Java 21.
        DownloadError: the server's jar could not be had.
        NessieError: it ended before it answered; its last words are in the message.
    """
    java = find_java("nessie", settings)
    jar = ensure_jars(settings, [NESSIE_JAR])[NESSIE_JAR]
    end_strays(settings)
    scratch = nessie_dir(settings) / "tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    log = log_path(settings)
    _roll(log)
    seen = log.stat().st_size if log.exists() else 0
    server = _spawn(settings, [str(java.binary), *_options(settings), "-jar", str(jar)], log)
    record(settings, server)
    return _await_listening(settings, server, log, seen)


def end(settings: LakeSettings, server: Server) -> None:
    """Stop the process, politely first, and forget it."""
    process = _process(server)
    if process is not None:
        _end_process(process)
    _record_path(settings).unlink(missing_ok=True)


def end_strays(settings: LakeSettings) -> None:
    """End what a starter left behind that died before it could write the state file, or waits for nobody."""
    for process in _strays(settings):
        _end_process(process)
    _record_path(settings).unlink(missing_ok=True)


def _options(settings: LakeSettings) -> Iterator[str]:
    folder = nessie_dir(settings)
    yield from ("-Xms64m", f"-Xmx{settings.nessie_memory}", f"-Djava.io.tmpdir={folder / 'tmp'}")
    # Measured: ready in two thirds of the time or less, and in 215 MB instead of 300.
    yield from ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    properties = {
        "nessie.version.store.type": "ROCKSDB",
        "nessie.version.store.persist.rocks.database-path": _store(settings),
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
        "quarkus.oidc.public-key": public_key_text(signing_key(key_path(settings))),
        "nessie.server.authorization.enabled": "true",
    }
    properties |= {f"nessie.server.authorization.rules.{name}": rule for name, rule in RULES.items()}
    yield from (f"-D{name}={value}" for name, value in properties.items())


def _spawn(settings: LakeSettings, command: list[str], log: Path) -> Server:
    """Through a shell that ends at once: the server has no parent whose end, or signals, could reach it."""
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
        return Server(pid, psutil.Process(pid).create_time(), None)
    except psutil.NoSuchProcess as error:
        raise _not_started(log, 0) from error


def _await_listening(settings: LakeSettings, server: Server, log: Path, seen: int) -> Server:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = LISTENING.search(_text_after(log, seen))
        if found is not None:
            listening = replace(server, address=found[1])
            if answers(listening):
                return listening
        if _process(server) is None:
            require_room(settings)
            raise _not_started(log, seen)
        time.sleep(POLL_S)
    process = _process(server)
    if process is not None:
        _end_process(process)
    raise NessieError(0, "NOT_STARTED", f"it did not answer within {START_S} s. {ADVICE.format(log=log)}")


def _not_started(log: Path, seen: int) -> NessieError:
    last = "\n".join(_text_after(log, seen).splitlines()[-LOG_TAIL_LINES:])
    return NessieError(
        0,
        "NOT_STARTED",
        f"its process ended before it answered. {ADVICE.format(log=log)}. Its last words:\n{last}",
    )


def _process(server: Server) -> psutil.Process | None:
    """The live process, if this pid still is the one that was started: pids are used again."""
    try:
        process = psutil.Process(server.pid)
        is_same = abs(process.create_time() - server.started_at) < CLOCK_GRAIN_S
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _strays(settings: LakeSettings) -> Iterator[psutil.Process]:
    mark = f"-Dnessie.version.store.persist.rocks.database-path={_store(settings)}"
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _end_process(process: psutil.Process) -> None:
    try:
        process.terminate()
        if not _ended(process, STOP_S):
            process.kill()
            _ended(process, STOP_S)
    except psutil.NoSuchProcess:
        return


def _ended(process: psutil.Process, wait_s: float) -> bool:
    # Not process.wait(): where nobody reaps orphans (a container without init) a zombie never goes away.
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(POLL_S)
    return False


def _store(settings: LakeSettings) -> Path:
    return nessie_dir(settings) / "store"


def _record_path(settings: LakeSettings) -> Path:
    return nessie_dir(settings) / "server.json"


def record(settings: LakeSettings, server: Server) -> None:
    """Write the state file, by which all others find the process."""
    path = _record_path(settings)
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(asdict(server)))
    aside.replace(path)


def _text_after(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def _roll(log: Path) -> None:
    make_private(log.parent)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_name(log.name + ".1"))
