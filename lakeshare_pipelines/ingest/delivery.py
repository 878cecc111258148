"""What has arrived in landing: `<landing>/<set>/<partition>/<files>`, and whether it is whole and still the same."""

import datetime as dt
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.settings import LakeSettings

RACY_S = 2.0
CACHE_SIZE = 20_000

_Key = tuple[str, int, int, int, int]
_cache: dict[_Key, str] = {}


def compute_digest(root: Path, files: Iterable[Path]) -> str:
    """SHA-256 over the names below `root` and the bytes of `files`, in order of name."""
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        digest.update(f"{len(name.encode())}:{name}:{compute_file_digest(path)}\n".encode())
    return digest.hexdigest()


def compute_file_digest(path: Path) -> str:
    """SHA-256 of a file; remembered while size, times and inode stay as they are."""
    stat = path.stat()
    key = _key(path, stat)
    known = _cache.get(key)
    if known is not None:
        return known
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
    is_settled = time.time() - max(stat.st_mtime, stat.st_ctime) > RACY_S
    if is_settled and _key(path, after) == key:
        if len(_cache) >= CACHE_SIZE:
            _cache.clear()
        _cache[key] = found
    return found


def _key(path: Path, stat: os.stat_result) -> _Key:
    return str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


FileFormat = Literal["csv", "jsonl", "parquet"]

FORMAT_BY_SUFFIX: dict[str, FileFormat] = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson": "jsonl",
    ".ndjson.gz": "jsonl",
    ".json": "jsonl",
    ".json.gz": "jsonl",
    ".parquet": "parquet",
}

# Spark reads a path as a pattern and a URI: nothing in a name may mean something to either.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=,@-]*")

NO_LINKS = "Deliver the files themselves: nothing outside the landing folder is read."


@dataclass(frozen=True)
class LandingFile:
    """A file of a delivery with what is known from its name."""

    path: Path
    set_name: str
    partition: str
    table: Table
    format: FileFormat

    @property
    def label(self) -> str:
        """How the quarantine names it, and messages about its set: `2013-01-01/departures.csv.gz`."""
        return f"{self.partition}/{self.path.name}"

    @property
    def title(self) -> str:
        """How an error names it: `flights/2013-01-01/departures.csv.gz`."""
        return f"{self.set_name}/{self.label}"

    @property
    def is_compressed(self) -> bool:
        """Whether it is a gzip file."""
        return self.path.suffix == ".gz"


def is_data(name: str) -> bool:
    """Whether a name in a delivery is data: markers and files still being written begin with `_` or a dot."""
    return not name.startswith(("_", "."))


def is_inside(landing: Path, path: Path) -> bool:
    """Whether a path, with every link in it followed, is in the landing folder. The folder itself may be a link."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(landing))


def assign_files(contract: SetContract, partition: str, files: Iterable[Path]) -> list[LandingFile]:
    """The files with their tables.

    Raises:
        DeliveryError: a file belongs to no table, has an unknown format or is a link to a place outside landing, or a
            table has no file.
    """
    sources = [table for table in contract.tables if table.source is not None]
    assigned = [_assign(contract, partition, sources, path) for path in files]
    for table in sources:
        if not any(file.table is table for file in assigned):
            raise DeliveryError(
                f"{contract.name}/{partition}",
                f"holds no file for table {table.name}",
                f"Deliver it as {table.source}.csv, .csv.gz, .jsonl or .parquet; all tables of a set arrive together.",
            )
    return assigned


def _assign(contract: SetContract, partition: str, tables: Sequence[Table], path: Path) -> LandingFile:
    title, name = f"{contract.name}/{partition}", path.name
    ending = next(
        (end for end in sorted(FORMAT_BY_SUFFIX, key=len, reverse=True) if name.endswith(end)), None
    )
    # `<landing>/<set>/<partition>/<file>`
    if not is_inside(path.parents[2], path):
        raise DeliveryError(title, f"{name} is a link to a place outside the landing folder", NO_LINKS)
    if not path.is_file():
        raise DeliveryError(
            title, f"{name} is not a file", "Deliver plain files, without folders or dead links."
        )
    if not PLAIN_NAME.fullmatch(name):
        raise DeliveryError(
            title, f"the file name {name!r} has unusual characters", "Use letters, digits and . _ - only."
        )
    if ending is None:
        raise DeliveryError(
            title,
            f"{name} is of no known format",
            f"Known are {', '.join(FORMAT_BY_SUFFIX)}; a name that begins with _ is left alone.",
        )
    stem = name.removesuffix(ending)
    fitting = [t for t in tables if fnmatchcase(stem, t.source or "") or fnmatchcase(stem, f"{t.source}-*")]
    if not fitting:
        wanted = ", ".join(f"{table.source}{{,-*}}" for table in tables)
        raise DeliveryError(
            title, f"{name} belongs to no table of the set", f"Expected are files named {wanted}."
        )
    # `departures_late` may be a table beside `departures*`: the longest source is the most exact one.
    table = max(fitting, key=lambda t: len(t.source or ""))
    return LandingFile(path, contract.name, partition, table, FORMAT_BY_SUFFIX[ending])


log = logging.getLogger(__name__)

SUCCESS = "_SUCCESS"
MANIFEST = "_manifest.json"


@dataclass(frozen=True)
class Delivery:
    """The files of one arrival, for one partition. `digest` is empty until the delivery is complete."""

    set_name: str
    partition: str
    path: Path
    files: tuple[Path, ...]
    digest: str
    complete: bool
    arrived_at: dt.datetime

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"{self.set_name}/{self.partition}"

    @property
    def landing(self) -> Path:
        """The landing folder it is in."""
        return self.path.parents[1]


def find_deliveries(settings: LakeSettings, contract: SetContract) -> list[Delivery]:
    """All deliveries of a set in landing, by partition; incomplete ones too. What is broken shows when it is read.

    Raises:
        DeliveryError: the set's folder is a link to a place outside landing.
    """
    root = get_set_folder(settings, contract)
    if not root.is_dir():
        return []
    found = []
    for path in sorted(root.iterdir()):
        if not is_data(path.name) or not path.is_dir():
            continue
        if not contract.is_partition(path.name):
            log.warning("%s is no partition of set %s and is left alone", path, contract.name)
            continue
        if not is_inside(settings.landing, path):
            log.warning("%s is ignored: it is a link to a folder outside the landing folder", path)
            continue
        try:
            delivery = _inspect_delivery(settings, contract, path)
        except FileNotFoundError:
            continue  # replaced or taken away this very moment: the next look finds what is there then
        except OSError as error:
            log.warning("%s cannot be read and is ignored: %s", path, error.strerror)
            continue
        if delivery.files:
            found.append(delivery)
    return found


def find_delivery(settings: LakeSettings, contract: SetContract, partition: str) -> Delivery:
    """The complete delivery of one partition.

    Raises:
        DeliveryError: there is none, or it is not complete, empty, or not what its manifest says, or it has links to
            places outside landing.
    """
    title = f"{contract.name}/{partition}"
    if not contract.is_partition(partition):
        days = f"Give a day from {contract.first_partition} on, as 2013-01-01."
        fix = days if contract.partitioning == "daily" else "The set has one partition: all."
        raise DeliveryError(title, f"{partition!r} is no partition of set {contract.name}", fix)
    path = get_set_folder(settings, contract) / partition
    if not is_inside(settings.landing, path):
        raise DeliveryError(title, f"{partition} is a link to a folder outside the landing folder", NO_LINKS)
    try:
        delivery = _inspect_delivery(settings, contract, path)
    except FileNotFoundError:
        raise DeliveryError(
            title,
            "has not arrived",
            f"Put its files into {path}, or make some with `lakeshare deliver {contract.name}`.",
        ) from None
    except OSError as error:
        raise DeliveryError(
            title, f"cannot be read: {error.strerror}", f"Check {path} and the permissions of its files."
        ) from error
    for marker in _markers_outside(settings, path):
        raise DeliveryError(title, f"{marker} is a link to a place outside the landing folder", NO_LINKS)
    if not any(file.lstat().st_size for file in delivery.files):
        names = ", ".join(file.name for file in delivery.files)
        what = f"is empty: {names} without a byte" if names else "is empty: no files"
        raise DeliveryError(title, what, f"Put its files into {path} and deliver again.")
    if not delivery.complete:
        raise DeliveryError(title, "is not complete", _describe_completeness(settings, path))
    assign_files(contract, partition, delivery.files)
    _require_manifest(delivery)
    return delivery


def get_set_folder(settings: LakeSettings, contract: SetContract) -> Path:
    """The folder that a set's deliveries arrive in.

    Raises:
        DeliveryError: it is a link to a place outside landing.
    """
    root = settings.landing / contract.name
    if not is_inside(settings.landing, root):
        raise DeliveryError(
            contract.name,
            f"{root} is a link to a folder outside the landing folder",
            "Make it a folder, or mount the other one there; LAKESHARE_LANDING_DIR itself may be a link.",
        )
    return root


def require_unchanged(delivery: Delivery) -> None:
    """Make sure that the files are what they were when the delivery was found.

    Raises:
        DeliveryError: they changed.
    """
    try:
        files = _data_files(delivery.path)
        # A link could lead to the same bytes now and to others when Spark opens it.
        is_same = (
            files == delivery.files
            and all(is_inside(delivery.landing, file) for file in (delivery.path, *files))
            and compute_digest(delivery.path, files) == delivery.digest
        )
    except OSError:
        is_same = False
    if not is_same:
        raise DeliveryError(
            delivery.title,
            "changed while it was read",
            "Nothing of it was published. Let the sender finish, then run the partition again.",
        )


@contextmanager
def blame_changed_delivery(deliveries: Sequence[Delivery]) -> Iterator[None]:
    """Blame a failed reading on the delivery when that changed meanwhile.

    Raises:
        DeliveryError: the body failed and a delivery is not the same any more.
    """
    try:
        yield
    except DeliveryError:
        raise
    except Exception as error:
        for delivery in deliveries:
            try:
                require_unchanged(delivery)
            except DeliveryError as changed:
                raise changed from error
        raise


def _inspect_delivery(settings: LakeSettings, contract: SetContract, path: Path) -> Delivery:
    files = _data_files(path)
    changed_at = max(_get_changed_at(entry) for entry in (path, *files))
    complete = _is_complete(settings, path, files, changed_at)
    return Delivery(
        set_name=contract.name,
        partition=path.name,
        path=path,
        files=files,
        digest=_digest(settings, path, files) if complete else "",
        complete=complete,
        arrived_at=dt.datetime.fromtimestamp(changed_at, dt.UTC),
    )


def _digest(settings: LakeSettings, path: Path, files: Sequence[Path]) -> str:
    return compute_digest(
        path, [file for file in files if is_inside(settings.landing, file) and file.is_file()]
    )


def _markers_outside(settings: LakeSettings, path: Path) -> list[str]:
    return [name for name in (SUCCESS, MANIFEST) if not is_inside(settings.landing, path / name)]


def _data_files(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(entry for entry in path.iterdir() if is_data(entry.name)))


def _get_changed_at(path: Path) -> float:
    # Copies often keep the sender's mtime; ctime says when the file came to be here.
    stat = path.lstat()
    return max(stat.st_mtime, stat.st_ctime)


def _is_complete(settings: LakeSettings, path: Path, files: Sequence[Path], changed_at: float) -> bool:
    if _markers_outside(settings, path):
        return True  # the marker is never followed; `find_delivery` refuses it
    if (path / SUCCESS).exists():
        return True
    if (path / MANIFEST).exists():
        return _has_arrived(path)
    return bool(files) and time.time() - changed_at >= settings.quiet_s


def _has_arrived(path: Path) -> bool:
    try:
        entries = _read_manifest(path)
    except DeliveryError:
        return True  # it is all that will come; `find_delivery` says what is wrong with it
    sizes = {entry["name"]: entry.get("size") for entry in entries}
    return all(
        (path / name).is_file() and (size is None or (path / name).stat().st_size >= size)
        for name, size in sizes.items()
    )


def _require_manifest(delivery: Delivery) -> None:
    if not (delivery.path / MANIFEST).exists():
        return
    listed = {entry["name"]: entry for entry in _read_manifest(delivery.path)}
    there = {file.name: file for file in delivery.files}
    fix = f"Deliver again with a {MANIFEST} that fits."
    for name in sorted(listed.keys() ^ there.keys()):
        reason = (
            f"{MANIFEST} lists {name}, which is not there"
            if name in listed
            else f"{name} is not in {MANIFEST}"
        )
        raise DeliveryError(delivery.title, reason, fix)
    for name, entry in listed.items():
        size = there[name].stat().st_size
        if entry.get("size", size) != size:
            raise DeliveryError(
                delivery.title, f"{name} has {size} bytes, {MANIFEST} says {entry['size']}", fix
            )
        if entry.get("sha256") not in (None, compute_file_digest(there[name])):
            raise DeliveryError(delivery.title, f"{name} has another SHA-256 than {MANIFEST} says", fix)


def _read_manifest(path: Path) -> list[dict[str, Any]]:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _make_manifest_error(path, str(error)) from error
    entries = manifest.get("files") if isinstance(manifest, dict) else None
    if (
        not isinstance(entries, list)
        or not entries
        or not all(_is_manifest_entry(entry) for entry in entries)
    ):
        raise _make_manifest_error(path, "it does not list files by name, size and sha256")
    return entries


def _make_manifest_error(path: Path, reason: str) -> DeliveryError:
    wanted = '{"files": [{"name": "departures.csv", "size": 1234, "sha256": "…"}]}, size and sha256 optional'
    title = f"{path.parent.name}/{path.name}"
    return DeliveryError(title, f"{MANIFEST} cannot be read: {reason}", f"Write it as {wanted}.")


def _is_manifest_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and entry["name"] == Path(entry["name"]).name
        and isinstance(entry.get("size"), int | None)
        and isinstance(entry.get("sha256"), str | None)
    )


def _describe_completeness(settings: LakeSettings, path: Path) -> str:
    if (path / MANIFEST).exists():
        return f"Files that {MANIFEST} lists are still to come; run again when they are there."
    return f"Write {SUCCESS} into {path}, or wait until it has been quiet for {settings.quiet_s} s."
