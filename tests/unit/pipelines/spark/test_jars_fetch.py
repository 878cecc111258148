"""Pinned jars are fetched once, verified, and never in the cache unless whole and right."""

import gc
import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.errors import DownloadError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark import jars
from lakeshare_pipelines.spark.jars import PinnedJar, ensure_jars
from tests.builders.certificates import certificates
from tests.builders.jar_repository import Repository, a_jar, serving

# jgo 3.2 leaves refused and cut answers open for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def closed_by_the_collector() -> Iterator[None]:
    yield
    gc.collect()


class Recorder:
    """A progress report that remembers."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}
        self.ended: list[str] = []
        self.said: list[str] = []
        self.spoke = threading.Event()

    def begins(self, name: str, size_bytes: int) -> None:
        self.received[name] = 0

    def advances(self, name: str, received_bytes: int) -> None:
        self.received[name] += received_bytes

    def ends(self, name: str) -> None:
        self.ended.append(name)

    def message(self, text: str) -> None:
        self.said.append(text)
        self.spoke.set()


@pytest.fixture
def repository() -> Iterator[Repository]:
    with serving() as running:
        yield running


@pytest.fixture
def pin(monkeypatch, repository):
    """Pins jars instead of those of the lock file, and puts them into the repository."""
    pins: dict[str, PinnedJar] = {}
    monkeypatch.setattr(jars, "load_pinned_jars", lambda: pins)

    def pin_jar(name: str = "small", content: bytes | None = None, served: bytes | None = None) -> PinnedJar:
        jar, right = a_jar(name) if content is None else a_jar(name, content)
        pins[name] = jar
        repository.put(jar, right if served is None else served)
        return jar

    return pin_jar


def settings_of(tmp_path: Path, repository: Repository | None, **more: object) -> LakeSettings:
    url = repository.url if repository else None
    return LakeSettings(
        **{"state_dir": tmp_path / "state", "cache_dir": tmp_path / "cache", "maven_repository": url, **more}
    )


def in_cache(settings: LakeSettings) -> list[str]:
    folder = settings.cache_dir / "jars"
    return sorted(path.name for path in folder.glob("*.jar")) if folder.exists() else []


def test_jars_arrive_whole_with_progress_and_are_asked_for_once(tmp_path, repository, pin):
    one, two = pin("one"), pin("two", b"PK other")
    report = Recorder()
    settings = settings_of(tmp_path, repository)
    found = ensure_jars(settings, ["one", "two"], report)
    assert {name: path.stat().st_size for name, path in found.items()} == {
        "one": one.size_bytes,
        "two": two.size_bytes,
    }
    assert report.received == {"one": one.size_bytes, "two": two.size_bytes}
    assert sorted(report.ended) == ["one", "two"]
    asked = len(repository.asked)
    assert ensure_jars(settings, ["one", "two"], Recorder()) == found
    assert len(repository.asked) == asked


def test_a_cache_carried_to_another_machine_works_there_offline(tmp_path, repository, pin):
    pin()
    ensure_jars(settings_of(tmp_path, repository), ["small"], Recorder())
    shutil.copytree(tmp_path / "cache", tmp_path / "elsewhere")
    away = settings_of(tmp_path, None, cache_dir=tmp_path / "elsewhere", offline=True)
    assert ensure_jars(away, ["small"], Recorder())["small"].is_relative_to(tmp_path / "elsewhere")


def test_offline_names_what_is_missing_and_asks_nobody(tmp_path, repository, pin):
    pin()
    settings = settings_of(tmp_path, repository, offline=True)
    with pytest.raises(DownloadError, match=r"small not in the cache folder.*LAKESHARE_OFFLINE"):
        ensure_jars(settings, ["small"], Recorder())
    assert repository.asked == []


def test_another_file_than_the_pinned_one_is_refused_and_not_asked_for_again(tmp_path, repository, pin):
    jar = pin(content=b"PK right", served=b"PK wrong")
    settings = settings_of(tmp_path, repository)
    with pytest.raises(DownloadError, match=r"SHA-256.*LAKESHARE_MAVEN_REPOSITORY"):
        ensure_jars(settings, ["small"], Recorder())
    assert in_cache(settings) == []
    assert sum(path.endswith(jar.filename) for path in repository.asked) == 1


def test_a_cut_transfer_is_tried_again_and_only_the_whole_file_stays(tmp_path, repository, pin, monkeypatch):
    monkeypatch.setattr(jars, "PAUSE_S", 0)
    jar = pin()
    repository.cut_after_bytes = [1000, 50_000]
    settings, report = settings_of(tmp_path, repository), Recorder()
    found = ensure_jars(settings, ["small"], report)["small"]
    assert hashlib.sha256(found.read_bytes()).hexdigest() == jar.sha256
    assert sum("trying again" in line for line in report.said) == 2


def test_a_transfer_that_is_always_cut_leaves_nothing_behind(tmp_path, repository, pin, monkeypatch):
    monkeypatch.setattr(jars, "PAUSE_S", 0)
    pin()
    repository.cut_after_bytes = [1000] * jars.ATTEMPTS
    settings = settings_of(tmp_path, repository)
    with pytest.raises(DownloadError, match=r"small_2\.13"):
        ensure_jars(settings, ["small"], Recorder())
    assert in_cache(settings) == []
    assert not list((settings.cache_dir / "jars").glob("*.part"))


@pytest.mark.parametrize("names", [("absent", "wrong"), ("wrong", "absent")])
def test_a_jar_that_can_never_be_had_ends_the_wait_for_another(tmp_path, repository, pin, monkeypatch, names):
    monkeypatch.setattr(jars, "PAUSE_S", 3600)
    pin("absent")
    repository.files.clear()
    pin("wrong", content=b"PK right", served=b"PK wrong")
    with pytest.raises(DownloadError, match=r"wrong_2\.13.*SHA-256"):
        ensure_jars(settings_of(tmp_path, repository), names, Recorder())


FETCH = """\
import sys
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark import jars
jar = jars.PinnedJar("small", sys.argv[1], int(sys.argv[2]), sys.argv[3])
jars.load_pinned_jars = lambda: {"small": jar}
jars.ensure_jars(LakeSettings(state_dir=sys.argv[4], cache_dir=sys.argv[5], maven_repository=sys.argv[6]), ["small"])
"""


def test_a_killed_download_leaves_no_jar_and_does_not_hinder_the_next(tmp_path, repository, pin):
    jar = pin()
    settings = settings_of(tmp_path, repository)
    repository.stall_after_bytes = 100_000
    pinned = [jar.coordinate, str(jar.size_bytes), jar.sha256]
    places = [str(settings.state_dir), str(settings.cache_dir), repository.url]
    with subprocess.Popen(
        [sys.executable, "-c", FETCH, *pinned, *places], stderr=subprocess.DEVNULL
    ) as child:
        assert repository.stalled.wait(60)
        child.kill()
    repository.stall_after_bytes = None
    repository.released.set()
    assert in_cache(settings) == []
    assert ensure_jars(settings, ["small"], Recorder())["small"].stat().st_size == jar.size_bytes


def test_two_at_once_fetch_a_jar_once(tmp_path, repository, pin):
    jar = pin()
    settings = settings_of(tmp_path, repository)
    repository.stall_after_bytes = jar.size_bytes // 2
    first, second = Recorder(), Recorder()
    threads = [threading.Thread(target=ensure_jars, args=(settings, ["small"], r)) for r in (first, second)]
    threads[0].start()
    assert repository.stalled.wait(60)
    threads[1].start()
    assert second.spoke.wait(60)
    repository.released.set()
    for thread in threads:
        thread.join()
    assert "another process is fetching" in second.said[0]
    assert sum(path.endswith(jar.filename) for path in repository.asked) == 1
    assert in_cache(settings) == [jar.filename]


def test_a_damaged_jar_in_the_cache_is_fetched_again(tmp_path, repository, pin):
    jar = pin()
    settings = settings_of(tmp_path, repository)
    path = ensure_jars(settings, ["small"], Recorder())["small"]
    path.write_bytes(b"XX" + path.read_bytes()[2:])
    assert ensure_jars(settings, ["small"], Recorder())["small"] == path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def test_a_repository_without_the_jar_is_named(tmp_path, repository, pin, monkeypatch):
    monkeypatch.setattr(jars, "PAUSE_S", 0)
    pin()
    repository.files.clear()
    with pytest.raises(DownloadError, match="LAKESHARE_MAVEN_REPOSITORY did not hand it out"):
        ensure_jars(settings_of(tmp_path, repository), ["small"], Recorder())


def test_a_repository_may_be_a_folder(tmp_path, repository, pin):
    jar = pin()
    for path, content in repository.files.items():
        place = tmp_path / "mirror" / path.lstrip("/")
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
    settings = settings_of(tmp_path, None, maven_repository=(tmp_path / "mirror").as_uri())
    assert ensure_jars(settings, ["small"], Recorder())["small"].stat().st_size == jar.size_bytes
    assert repository.asked == []


def test_the_machines_proxy_is_used(tmp_path, repository, pin, monkeypatch):
    jar = pin()
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, repository.url)
    settings = settings_of(tmp_path, None, maven_repository="http://maven.invalid/repo")
    repository.files = {f"/repo{path}": content for path, content in repository.files.items()}
    ensure_jars(settings, ["small"], Recorder())
    assert [path for path in repository.asked if path.startswith("http://maven.invalid/repo/")]
    assert in_cache(settings) == [jar.filename]


def test_certificates_of_the_machine_are_used_and_others_are_named(tmp_path, pin, monkeypatch):
    jar, made = pin(), certificates(tmp_path)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.own, made.key)
    with serving(context) as over_tls:
        over_tls.put(*a_jar())
        settings = settings_of(tmp_path, over_tls)
        with pytest.raises(DownloadError, match=r"certificate is not trusted here\. Set SSL_CERT_FILE or"):
            ensure_jars(settings, ["small"], Recorder())
        monkeypatch.setattr(jars, "PAUSE_S", 0)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(DownloadError, match=r"Could not find a suitable TLS CA .*none\.pem"):
            ensure_jars(settings, ["small"], Recorder())
        monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
        ensure_jars(settings, ["small"], Recorder())
    assert in_cache(settings) == [jar.filename]
    assert "REQUESTS_CA_BUNDLE" not in os.environ


def test_a_proxy_that_does_not_answer_is_named(tmp_path, pin, monkeypatch):
    pin()
    monkeypatch.setattr(jars, "PAUSE_S", 0)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    settings = settings_of(tmp_path, None, maven_repository="http://maven.invalid/repo")
    with pytest.raises(DownloadError, match=r"the proxy refused or does not answer\. Check HTTPS_PROXY"):
        ensure_jars(settings, ["small"], Recorder())


def test_a_cache_folder_that_cannot_be_one_is_named(tmp_path, repository, pin):
    pin()
    (tmp_path / "file").write_text("")
    settings = settings_of(tmp_path, repository, cache_dir=tmp_path / "file")
    with pytest.raises(DownloadError, match=r"the cache folder cannot be written \(.*/file/jars\)"):
        ensure_jars(settings, ["small"], Recorder())
    with pytest.raises(
        DownloadError, match="small not in the cache folder, or damaged, and LAKESHARE_OFFLINE is set"
    ):
        ensure_jars(settings.model_copy(update={"offline": True}), ["small"], Recorder())


def test_a_full_disk_is_said_before_the_download(tmp_path, repository, pin, monkeypatch):
    jar = pin()
    monkeypatch.setattr(
        jars.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, jar.size_bytes - 1)
    )
    with pytest.raises(DownloadError, match="LAKESHARE_CACHE_DIR"):
        ensure_jars(settings_of(tmp_path, repository), ["small"], Recorder())
    assert repository.asked == []


def test_the_lock_file_pins_every_jar_by_size_and_hash():
    pins = jars.load_pinned_jars()
    of_stores = {*jars.S3_JARS, *jars.GCS_JARS, *jars.AZURE_JARS}
    assert {*jars.SPARK_JARS, *of_stores, *jars.JDBC_JARS, jars.NESSIE_JAR} == set(pins)
    for jar in pins.values():
        assert jar.size_bytes > 0
        assert len(bytes.fromhex(jar.sha256)) == 32
        assert len(jar.coordinate.split(":")) in (3, 4)
