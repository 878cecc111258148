"""One Nessie per state folder: the first process that needs it starts it, others find it, a killed one is replaced."""

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
from pydantic import SecretStr

from lakeshare_pipelines.cli.doctor import check_nessie
from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.client import NessieEndpoint
from lakeshare_pipelines.nessie.server import ensure_nessie, nessie_for, nessie_status, stop_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import NESSIE_JAR, ensure_jars

ENSURE = """\
import sys
from lakeshare_pipelines.nessie.server import ensure_nessie
from lakeshare_pipelines.settings import LakeSettings
print(ensure_nessie(LakeSettings(state_dir=sys.argv[1])).uri, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSettings]:
    """One state folder for all tests: each begins with what the one before left, a server or none."""
    folder = tmp_path_factory.mktemp("nessie")
    settings = LakeSettings(_env_file=None, state_dir=folder / "state with a blank")
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


def archives(pid: int) -> list[str]:
    """Names of the archives of classes that a Java has mapped."""
    return [Path(mapped.path).name for mapped in psutil.Process(pid).memory_maps() if ".jsa" in mapped.path]


def record(settings: LakeSettings) -> Path:
    return settings.state_dir / "nessie" / "server.json"


def foreign_record() -> str:
    """A record with the process id of this process, which was not started then."""
    ours = psutil.Process(os.getpid())
    return json.dumps(
        {"pid": ours.pid, "started_at": ours.create_time() - 100, "address": "http://127.0.0.1:9"}
    )


def test_a_server_that_cannot_start_is_an_error_with_the_end_of_its_log_and_leaves_nothing(settings):
    stop_nessie(settings)
    broken = settings.model_copy(update={"nessie_memory": "plenty"})
    with pytest.raises(NessieError, match="Invalid maximum heap size") as raised:
        ensure_nessie(broken)
    assert raised.value.code == "NOT_STARTED"
    assert str(settings.logs_dir / "nessie.log") in str(raised.value)
    assert servers(settings) == []


def test_a_starter_killed_before_its_server_was_ready_is_replaced_by_one_of_two_processes_at_once(settings):
    stop_nessie(settings)
    starter = another_process(settings)
    with starter:
        while not record(settings).exists():
            assert starter.poll() is None
        starter.kill()
    half_started = json.loads(record(settings).read_text())
    assert half_started["address"] is None
    with another_process(settings) as one, another_process(settings) as two:
        uris = {one.stdout.readline().strip(), two.stdout.readline().strip()}
        assert len(servers(settings)) == 1
        for process in (one, two):
            process.stdin.close()
    # It outlives them.
    nessie = RunningNessie(settings, ensure_nessie(settings))
    assert uris == {nessie.endpoint.uri}
    assert servers(settings) == [nessie_status(settings).pid] != [half_started["pid"]]
    assert [commit.message for commit in nessie.writer.history("main")][-1:] == ["Begin"]


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


@pytest.fixture
def own_cache(settings: LakeSettings, tmp_path: Path) -> LakeSettings:
    """The settings with a cache folder in which no other server is about to write an archive of classes."""
    [jar] = ensure_jars(settings, [NESSIE_JAR]).values()
    (tmp_path / "jars").mkdir()
    for path in (jar, jar.with_name(f"{jar.name}.verified")):
        (tmp_path / "jars" / path.name).symlink_to(path)
    stop_nessie(settings)
    return settings.model_copy(update={"cache_dir": tmp_path})


def test_a_lost_key_is_made_anew_and_trusted_by_a_server_that_is_kept_if_asked(own_cache):
    settings = own_cache
    before = RunningNessie(settings, ensure_nessie(settings)).main()
    (settings.state_dir / "nessie" / "key.pem").unlink()
    with nessie_for(settings, keep=True) as endpoint:
        nessie = RunningNessie(settings, endpoint)
        # Stopped and started again with its state.
        assert nessie.main() == before
        assert nessie.commit("main", {a_table(): 1}, role="publisher") == nessie.main()
    [pid] = servers(settings)
    # The one before it has archived its classes for it.
    assert [where for where in archives(pid) if "nessie" in where]
    assert list((settings.cache_dir / "jars").glob("nessie-*.jsa"))


def test_a_server_without_a_record_of_its_own_is_replaced_and_left_to_another_process_that_uses_it(settings):
    ensure_nessie(settings)
    [stray] = servers(settings)
    record(settings).write_text(foreign_record())
    assert not nessie_status(settings).is_running
    with nessie_for(settings, keep=False) as endpoint:
        assert servers(settings) == [nessie_status(settings).pid] != [stray]
        other = another_process(settings)
        assert other.stdout.readline().strip() == endpoint.uri
    with other:
        assert ensure_nessie(settings).uri == endpoint.uri
        other.stdin.close()


def test_a_one_off_command_brings_a_killed_server_back_with_its_state_and_stops_it(settings):
    nessie = RunningNessie(settings, ensure_nessie(settings))
    table, branch = a_table(), nessie.a_branch()
    head = nessie.commit(branch, {table: 5})
    history = list(nessie.writer.history("main"))
    kill(nessie_status(settings).pid)
    assert not nessie_status(settings).is_running
    with pytest.raises(NessieError, match="lakeshare doctor"):
        nessie.main()
    with nessie_for(settings, keep=False) as endpoint:
        again = RunningNessie(settings, endpoint)
        assert again.writer.reference(branch).hash == head
        assert again.snapshot(table, branch) == 5
        # Starting it again adds nothing to main.
        assert list(again.writer.history("main")) == history
        [pid] = servers(settings)
        with nessie_for(settings, keep=False):
            assert servers(settings) == [pid]
        # That command did not start it.
        assert servers(settings) == [pid]
        status = nessie_status(settings)
        assert status.is_running
        assert status.memory_bytes > 50_000_000
        the_doctor_checks_it(settings, endpoint)
    assert not nessie_status(settings).is_running
    assert servers(settings) == []


def the_doctor_checks_it(settings: LakeSettings, endpoint: NessieEndpoint) -> None:
    [found] = check_nessie(settings)
    assert found.ok
    assert f"{endpoint.uri} (pid {nessie_status(settings).pid}, " in found.detail
    elsewhere = {"nessie_uri": endpoint.uri, "nessie_token": SecretStr("of another Nessie")}
    [found] = check_nessie(settings.model_copy(update=elsewhere))
    assert found.remedy == "Check LAKESHARE_NESSIE_TOKEN"
    assert "of another Nessie" not in found.detail


FOREIGN = "the record of another process"


@pytest.mark.parametrize("left_behind", ["", "{", "[]", '{"pid": 1}', FOREIGN])
def test_a_broken_or_foreign_record_is_no_record(tmp_path, left_behind):
    settings = LakeSettings(_env_file=None, state_dir=tmp_path)
    record(settings).parent.mkdir(parents=True)
    record(settings).write_text(foreign_record() if left_behind == FOREIGN else left_behind)
    assert not nessie_status(settings).is_running
    assert stop_nessie(settings) is False
