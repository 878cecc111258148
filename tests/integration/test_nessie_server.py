"""One Nessie per state folder: started by whoever needs it first, found by all others, brought back when killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from nessie_fixtures import RunningNessie, a_table

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import ensure_nessie, nessie_for, nessie_status, stop_nessie
from lakeshare_pipelines.settings import LakeSettings

ENSURE = """\
import sys
from lakeshare_pipelines.nessie.server import ensure_nessie
from lakeshare_pipelines.settings import LakeSettings
print(ensure_nessie(LakeSettings(state_dir=sys.argv[1])).uri, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[LakeSettings]:
    settings = LakeSettings(state_dir=tmp_path / "state with a blank")
    yield settings
    stop_nessie(settings)


def another_process(settings: LakeSettings) -> subprocess.Popen[str]:
    """A process that needs Nessie, prints where it is, and lives until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE, str(settings.state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def servers(settings: LakeSettings) -> list[int]:
    """Pids of all live servers on this state folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"database-path={settings.state_dir}/nessie/store" in " ".join(process.cmdline()):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def kill(pid: int) -> None:
    process = psutil.Process(pid)
    process.send_signal(signal.SIGKILL)
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        psutil.wait_procs([process], timeout=0.1)


def record(settings: LakeSettings) -> Path:
    return settings.state_dir / "nessie" / "server.json"


def test_two_processes_at_once_start_one_server_that_outlives_them(settings):
    with another_process(settings) as one, another_process(settings) as two:
        uris = {one.stdout.readline().strip(), two.stdout.readline().strip()}
        assert len(servers(settings)) == 1
        for process in (one, two):
            process.stdin.close()
    assert uris == {ensure_nessie(settings).uri}
    assert len(servers(settings)) == 1


def test_a_killed_server_is_brought_back_with_its_state(settings):
    nessie = RunningNessie(settings, ensure_nessie(settings))
    table, branch = a_table(), nessie.a_branch()
    head = nessie.commit(branch, {table: 5})
    kill(nessie_status(settings).pid)
    assert not nessie_status(settings).is_running
    with pytest.raises(NessieError, match="lakeshare doctor"):
        nessie.main()
    again = RunningNessie(settings, ensure_nessie(settings))
    assert again.writer.reference(branch).hash == head
    assert again.snapshot(table, branch) == 5
    assert [commit.message for commit in again.writer.history("main")] == ["Begin"]


def test_it_is_stopped_once_and_its_state_is_kept(settings):
    assert stop_nessie(settings) is False
    before = RunningNessie(settings, ensure_nessie(settings)).main()
    status = nessie_status(settings)
    assert status.is_running
    assert status.memory_bytes > 50_000_000
    assert stop_nessie(settings) is True
    assert stop_nessie(settings) is False
    assert not nessie_status(settings).is_running
    assert servers(settings) == []
    assert RunningNessie(settings, ensure_nessie(settings)).main() == before


def test_only_its_owner_can_read_the_key_and_only_this_machine_reaches_the_server(settings):
    ensure_nessie(settings)
    folder = settings.state_dir / "nessie"
    assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(nessie_status(settings).pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 2
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_one_off_command_stops_what_it_started_and_nothing_else(settings):
    with nessie_for(settings, keep=False) as endpoint:
        Nessie.connect(endpoint, "writer").reference("main")
    assert servers(settings) == []
    with nessie_for(settings, keep=True):
        [pid] = servers(settings)
    with nessie_for(settings, keep=False):
        assert servers(settings) == [pid]
    assert servers(settings) == [pid]


def test_a_one_off_command_leaves_a_server_that_another_process_uses(settings):
    with nessie_for(settings, keep=False) as endpoint:
        other = another_process(settings)
        assert other.stdout.readline().strip() == endpoint.uri
    with other:
        assert ensure_nessie(settings).uri == endpoint.uri
        other.stdin.close()


def test_a_record_that_names_somebody_elses_process_is_not_believed(settings):
    record(settings).parent.mkdir(parents=True)
    ours = psutil.Process(os.getpid())
    record(settings).write_text(
        json.dumps({"pid": ours.pid, "started_at": ours.create_time() - 100, "address": "http://127.0.0.1:9"})
    )
    assert not nessie_status(settings).is_running
    assert stop_nessie(settings) is False
    ensure_nessie(settings)
    assert nessie_status(settings).pid != ours.pid


@pytest.mark.parametrize("left_behind", ["", "{", "[]", '{"pid": 1}'])
def test_a_broken_record_is_no_record(settings, left_behind):
    record(settings).parent.mkdir(parents=True)
    record(settings).write_text(left_behind)
    assert not nessie_status(settings).is_running


def test_a_server_whose_starter_was_killed_before_it_was_ready_is_replaced(settings):
    starter = another_process(settings)
    with starter:
        while not record(settings).exists():
            assert starter.poll() is None
        starter.kill()
    half_started = json.loads(record(settings).read_text())
    assert half_started["address"] is None
    nessie = RunningNessie(settings, ensure_nessie(settings))
    assert servers(settings) == [nessie_status(settings).pid] != [half_started["pid"]]
    assert [commit.message for commit in nessie.writer.history("main")] == ["Begin"]


def test_a_server_that_nobody_recorded_is_replaced(settings):
    ensure_nessie(settings)
    [stray] = servers(settings)
    record(settings).unlink()
    ensure_nessie(settings)
    assert servers(settings) == [nessie_status(settings).pid] != [stray]


def test_a_lost_key_is_made_anew_and_trusted(settings):
    ensure_nessie(settings)
    (settings.state_dir / "nessie" / "key.pem").unlink()
    nessie = RunningNessie(settings, ensure_nessie(settings))
    assert nessie.commit("main", {a_table(): 1}, role="publisher") == nessie.main()


def test_a_server_that_cannot_start_says_its_last_words_and_leaves_nothing(settings):
    broken = settings.model_copy(update={"nessie_memory": "plenty"})
    with pytest.raises(NessieError, match="Invalid maximum heap size") as raised:
        ensure_nessie(broken)
    assert raised.value.code == "NOT_STARTED"
    assert str(settings.logs_dir / "nessie.log") in str(raised.value)
    assert servers(settings) == []
    assert ensure_nessie(settings).uri
