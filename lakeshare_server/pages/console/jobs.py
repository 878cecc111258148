"""Jobs: commands of the pipelines that need Spark, as child processes of the server, one at a time for each set.

A job is a folder of the state folder: `job.json` (what runs), `output.txt`, and `result.json` when it has ended. The
child holds the locks of its set and of its folder, so that all workers of the host see whether it runs, whatever became
of the worker that started it.
"""

import fcntl
import json
import logging
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from lakeshare_server.catalog import Ledger
from lakeshare_server.catalog.ledger import ProcessIdentity
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound, Unavailable
from lakeshare_server.file_lock import try_lock
from lakeshare_server.pages.console.pipelines import Command, PipelineCalls
from lakeshare_server.pages.console.session import ChangeDep, ConsoleRequest, PageDep
from lakeshare_server.routes.context import AuditRecord
from lakeshare_server.settings import StateSettings, make_private

State = Literal["running", "succeeded", "failed", "overdue", "interrupted"]
ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}")
OUTPUT_BYTES = 131_072  # Of the end of a job's output that are kept, at least
KEPT = 100  # Jobs whose folders stay
POLL_MS = 500
END_S = 5.0  # Between the signals that ask a job to end and that end it
REFRESH_S = 3
RESULT, JOB, OUTPUT, LOCK = "result.json", "job.json", "output.txt", "lock"

_log = logging.getLogger(__name__)
router = APIRouter()


@dataclass(frozen=True)
class Job:
    """A job; `exit_code` and `ended_at` are None while it runs, and for one whose end was not recorded."""

    id: str
    action: str
    object_name: str
    set_name: str
    principal: str
    command: str
    started_at: datetime
    state: State
    exit_code: int | None = None
    ended_at: datetime | None = None

    @property
    def is_running(self) -> bool:
        return self.state == "running"


@dataclass
class _Running:
    folder: Path
    process: "subprocess.Popen[bytes]"
    thread: Thread
    ended_by: State | None = None


class Jobs:
    """The jobs of this host below a folder; thread-safe, and safe with other workers."""

    def __init__(self, folder: Path, life_s: float) -> None:
        self._folder, self._life_s = folder, life_s
        self._running: dict[str, _Running] = {}
        self._turn = Lock()
        self._is_closed = False

    def start(self, command: Command, *, action: str, object_name: str, set_name: str, principal: str) -> Job:
        """Starts a command. Raises CatalogConflict if a job of the set runs, and Unavailable if it cannot start."""
        now = datetime.now(UTC)
        job_id = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        folder = self._folder / job_id
        with self.hold_set(set_name) as set_lock, ExitStack() as stack:
            make_private(folder)
            fields = {
                "action": action,
                "object_name": object_name,
                "set_name": set_name,
                "principal": principal,
            }
            server = asdict(ProcessIdentity.current())
            begun = {"command": command.text, "started_at": now.isoformat(), "server": server}
            _write_json(folder / JOB, fields | begun)
            job_lock = stack.enter_context(_open_locked(folder / LOCK))
            with self._turn:
                if self._is_closed:
                    shutil.rmtree(folder)
                    raise Unavailable("the server is stopping", "Start the job again when it has started.")
                process = _start_process(command, (set_lock, job_lock), folder)
                running = _Running(
                    folder, process, Thread(target=self._supervise, args=(job_id,), daemon=True)
                )
                self._running[job_id] = running
            running.thread.start()
        self._remove_old()
        return self.get(job_id)

    def get(self, job_id: str) -> Job:
        """A job of this host. Raises NotFound."""
        job = self._find(job_id) if ID.fullmatch(job_id) else None
        if job is None:
            raise NotFound("Job of this host", job_id)
        return job

    def _find(self, job_id: str) -> Job | None:
        """The job, None if another worker has removed it."""
        folder = self._folder / job_id
        fields = _read_json(folder / JOB)
        if fields is None:
            return None
        # Whether it runs comes first: a job that ends in between has its result then.
        is_running = _is_locked(folder / LOCK) or job_id in self._running
        result = _read_json(folder / RESULT)
        supervisor = ProcessIdentity(**fields.pop("server"))
        if result is None and not is_running:
            # Another worker may be about to write the result.
            own = ProcessIdentity.current()
            is_other = supervisor.host == own.host and supervisor != own
            is_running = is_other and not supervisor.is_dead()
        state: State = "running" if is_running and result is None else "interrupted"
        fields |= {"id": job_id, "started_at": datetime.fromisoformat(fields["started_at"])}
        if result is None:
            return Job(**fields, state=state)
        ended_at = datetime.fromisoformat(result["ended_at"])
        return Job(**fields, state=result["state"], exit_code=result["exit_code"], ended_at=ended_at)

    def read_output(self, job_id: str) -> str:
        """The end of a job's output, as text without control characters."""
        try:
            content = (self._folder / job_id / OUTPUT).read_bytes()
        except FileNotFoundError:
            return ""
        text = content[-OUTPUT_BYTES:].decode("utf-8", "replace")
        return "".join(c for c in text if c.isprintable() or c in "\n\t")

    def list_newest(self, limit: int) -> Sequence[Job]:
        """The jobs of this host, the newest first."""
        return list(filter(None, map(self._find, self._list_ids()[:limit])))

    @contextmanager
    def hold_set(self, set_name: str) -> Iterator[int]:
        """Keeps jobs of a set from starting. Raises CatalogConflict if one runs."""
        folder = self._folder / "sets"
        make_private(folder)
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(_open_locked(folder / f"{quote(set_name, safe='')}.lock"))
            except BlockingIOError:
                fix = "Wait until it has ended; the page of jobs shows it."
                raise CatalogConflict(f"a job of set {set_name} is running", fix) from None
            yield lock

    def close(self) -> None:
        """Ends the jobs of this process; their pages report that the server has stopped them."""
        with self._turn:
            self._is_closed = True
            running = list(self._running.values())
        for each in running:
            each.ended_by = each.ended_by or "interrupted"
            _signal(each.process, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        for each in running:
            each.thread.join(max(0.0, deadline - time.monotonic()))
            if each.thread.is_alive():
                _signal(each.process, signal.SIGKILL)
                each.thread.join(END_S)

    def _supervise(self, job_id: str) -> None:
        running = self._running[job_id]
        try:
            _copy_output(running, time.monotonic() + self._life_s)
            code = running.process.wait()
            state = running.ended_by or ("succeeded" if code == 0 else "failed")
            result = {"state": state, "exit_code": code, "ended_at": datetime.now(UTC).isoformat()}
            _write_json(running.folder / RESULT, result)
        except OSError:
            _log.exception("the end of job %s is not recorded", job_id)
        finally:
            with self._turn:
                self._running.pop(job_id, None)

    def _list_ids(self) -> list[str]:
        if not self._folder.exists():
            return []
        names = (path.name for path in self._folder.iterdir() if (path / JOB).exists())
        return sorted((name for name in names if ID.fullmatch(name)), reverse=True)

    def _remove_old(self) -> None:
        for job_id in self._list_ids()[KEPT:]:
            job = self._find(job_id)
            if job is not None and not job.is_running:
                shutil.rmtree(self._folder / job_id, ignore_errors=True)


def _start_process(command: Command, locks: Sequence[int], folder: Path) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            command.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.environment, "PYTHONUNBUFFERED": "1"},
            # A group of its own: its end reaches Spark's Java, too, and signals to the server do not reach it.
            start_new_session=True,
            pass_fds=locks,
        )
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable(f"the job cannot start: {error.strerror}", "Try again later.") from error


def _copy_output(running: _Running, deadline: float) -> None:
    """Keeps the end of a process's output until it has ended; ends it at the deadline, in monotonic seconds."""
    process = running.process
    if process.stdout is None:
        raise AssertionError("unreachable: its output is a pipe")
    kill_at: float | None = None
    poll = select.poll()
    with process.stdout as pipe, _BoundedFile(running.folder / OUTPUT) as output:
        poll.register(pipe, select.POLLIN | select.POLLHUP)
        while True:
            if poll.poll(POLL_MS):
                chunk = os.read(pipe.fileno(), 65_536)
                if not chunk:
                    return
                output.write(chunk)
            elif process.poll() is not None:
                return  # A process that it left holds the pipe.
            now = time.monotonic()
            if kill_at is None and now >= deadline:
                running.ended_by = running.ended_by or "overdue"
                _signal(process, signal.SIGTERM)
                kill_at = now + END_S
            elif kill_at is not None and now >= kill_at:
                _signal(process, signal.SIGKILL)


class _BoundedFile:
    """A file that keeps the end of what is written, between OUTPUT_BYTES and three times that."""

    def __init__(self, path: Path) -> None:
        self._file, self._size = path.open("w+b", buffering=0), 0

    def __enter__(self) -> "_BoundedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._size += len(chunk)
        if self._size > 3 * OUTPUT_BYTES:
            self._file.seek(-OUTPUT_BYTES, os.SEEK_END)
            end = self._file.read()
            self._file.seek(0)
            self._file.write(end)
            self._file.truncate()
            self._size = len(end)


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


@contextmanager
def _open_locked(path: Path) -> Iterator[int]:
    """A locked file; a process that inherits it holds the lock, too. Raises BlockingIOError if it is locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    finally:
        os.close(file)


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(fields, indent=1))
    aside.replace(path)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return fields


@dataclass(frozen=True)
class ConsoleWork:
    """What the console does beside the catalog: calls of the pipelines, and jobs."""

    calls: PipelineCalls
    jobs: Jobs

    @classmethod
    def of(cls, http_request: Request) -> "ConsoleWork":
        work: ConsoleWork = http_request.app.state.work
        return work


def make_jobs(settings: StateSettings, life_s: float) -> Jobs:
    """The jobs of a state folder; each may take `life_s` seconds."""
    return Jobs(settings.state_dir / "console_jobs", life_s)


def start_job(request: ConsoleRequest, *words: str, action: str, object_name: str, set_name: str) -> Response:
    """Starts a command of the pipelines, and leads to its page. Raises as `Jobs.start`."""
    work = ConsoleWork.of(request.http_request)
    command = work.calls.require().make_command(*words)
    principal = request.administrator.name
    job = work.jobs.start(
        command, action=action, object_name=object_name, set_name=set_name, principal=principal
    )
    audit_record: AuditRecord = request.http_request.state.audit_record
    audit_record.details = {"job": job.id, "command": job.command, "set": set_name}
    return request.redirect("jobs", job.id)


@router.get("/jobs")
def list_jobs(request: PageDep) -> Response:
    """The jobs of this host."""
    return request.render("jobs.html", jobs=ConsoleWork.of(request.http_request).jobs.list_newest(KEPT))


@router.get("/jobs/{job}")
def show_job(request: PageDep, job: str) -> Response:
    """A job, its output, and its result; the page opens again by itself while it runs."""
    jobs = ConsoleWork.of(request.http_request).jobs
    found = jobs.get(job)
    return request.render("job.html", job=found, output=jobs.read_output(job), refresh_s=REFRESH_S)


@router.post("/publications/{table}/{version}/rollback")
def roll_back(request: ChangeDep, table: str, version: str) -> Response:
    """Starts the rollback of a table; `newest` is the number that was the newest one when its preview was made."""
    number = _parse_number("version", version)
    ledger = Ledger(request.app_state.catalog)
    target, latest = ledger.at(table, number), ledger.latest(table)
    if target is None or latest is None or number < ledger.oldest_readable(table):
        raise NotFound("Publication", f"{table} {version}")
    if not target.set_name:
        raise BadRequest("table", table, "It is followed: its writer decides which version is the newest.")
    seen = request.value("newest")
    if seen and _parse_number("newest", seen) != latest.version:
        fix = "Look at the preview again."
        raise CatalogConflict(
            f"{table} has number {latest.version} meanwhile, the preview was of {seen}", fix
        )
    audit_record: AuditRecord = request.http_request.state.audit_record
    audit_record.version = number
    return start_job(
        request,
        *("rollback", "--", table, str(number)),
        action="rollback",
        object_name=f"{table} {number}",
        set_name=target.set_name,
    )


def _parse_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadRequest(name, text, "Give the number of a publication.")
    return int(text)
