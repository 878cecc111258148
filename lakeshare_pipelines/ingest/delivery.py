"""Deliveries in landing, `<landing>/<set>/<partition>/<files>`: completeness, identity, tables of their files."""

import datetime as dt
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.column_types import is_nested
from lakeshare_pipelines.contracts.partitioning import split_key
from lakeshare_pipelines.errors import DeliveryError, StoreError
from lakeshare_pipelines.ingest.compression import CODECS, REFUSED, Codec, find_codec, remove_codec_suffix
from lakeshare_pipelines.ingest.landing import (
    CACHE_SIZE,
    MANIFEST,
    NO_LINKS,
    OUTSIDE,
    PLAIN_FILES,
    SUCCESS,
    DeliveredFile,
    Landing,
    PartitionListing,
    is_data,
    make_changed_error,
    open_landing,
)
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.storage import Stores

log = logging.getLogger(__name__)

MAX_MANIFEST_BYTES = 64 << 20

FileFormat = Literal["csv", "jsonl", "xml", "parquet", "orc", "avro"]

TEXT_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".xml": "xml"
}  # fmt: skip
"""Those that may be followed by the suffix of a codec."""
BINARY_SUFFIXES: dict[str, FileFormat] = {".parquet": "parquet", ".orc": "orc", ".avro": "avro"}
FORMAT_BY_SUFFIX: dict[str, FileFormat] = {
    **TEXT_SUFFIXES,
    **{f"{suffix}{codec}": kind for suffix, kind in TEXT_SUFFIXES.items() for codec in CODECS},
    **BINARY_SUFFIXES,
}

# Spark reads a path as a pattern and a URI: no character of a name may be special in either.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=,@-]*")


@dataclass(frozen=True)
class LandingFile:
    """A file of a delivery, with the properties that follow from its name."""

    file: DeliveredFile
    landing: Landing = field(compare=False, repr=False)
    set_name: str
    partition: str
    table: Table
    format: FileFormat

    @property
    def label(self) -> str:
        """Name in the quarantine and in messages about the set: `2013-01-01/departures.csv.gz`."""
        return f"{self.partition}/{self.file.name}"

    @property
    def title(self) -> str:
        """Name in errors: `flights/2013-01-01/departures.csv.gz`."""
        return f"{self.set_name}/{self.label}"

    @property
    def is_json_document(self) -> bool:
        """Whether the file is one object or array of JSON, not one object a line."""
        return self.format == "jsonl" and self.table.reading.multiline

    @property
    def codec(self) -> Codec | None:
        """What the file is compressed with; None also for formats that compress within the file."""
        return find_codec(self.file.name)


def assign_files(contract: SetContract, delivery: "Delivery") -> list[LandingFile]:
    """Assigns the files to tables."""
    sources = [table for table in contract.tables if table.source is not None]
    assigned = [_assign(contract, delivery, sources, file) for file in delivery.files]
    for table in sources:
        if not any(file.table is table for file in assigned):
            endings = ", ".join(FORMATS)
            fix = f"Deliver it with one of {endings} after {table.source}; all tables arrive together."
            raise DeliveryError(delivery.title, f"holds no file for table {table.name}", fix)
    return assigned


def _assign(
    contract: SetContract, delivery: "Delivery", tables: Sequence[Table], file: DeliveredFile
) -> LandingFile:
    title, name = delivery.title, file.name
    if file.problem:
        raise DeliveryError(
            title, f"{name} {file.problem}", NO_LINKS if file.problem == OUTSIDE else PLAIN_FILES
        )
    if not PLAIN_NAME.fullmatch(name):
        fix = "Use letters, digits and . _ - only."
        raise DeliveryError(title, f"the file name {name!r} has unusual characters", fix)
    suffix = find_suffix(name)
    if suffix is None:
        raise DeliveryError(title, f"{name} {explain_suffix(name)}", f"{KNOWN_SUFFIXES}; {LEFT_ALONE}")
    stem = name.removesuffix(suffix)
    fitting = [table for table in tables if _fits(stem, table)]
    if not fitting:
        expected = ", ".join(f"{table.source}{{,-*}}" for table in tables)
        fix = f"Expected are files named {expected}."
        raise DeliveryError(title, f"{name} belongs to no table of the set", fix)
    # `departures_late` may be a table beside `departures*`: the longest source is the most specific.
    table = max(fitting, key=lambda t: len(t.source or ""))
    kind = FORMAT_BY_SUFFIX[suffix]
    if kind == "xml" and table.reading.row_tag is None:
        fix = f"Give rowTag in reading of {table.short_name} in {contract.path.name}: the name of the element of a row."
        raise DeliveryError(title, f"{name} is XML, and table {table.name} has no rowTag", fix)
    nested = [column.name for column in table.columns if is_nested(column.type) and column.delivered_as]
    if kind == "xml" and nested:
        fix = "Deliver it as JSON, Avro or Parquet, or make the column a string, which has the XML within the element."
        reason = (
            f"{name} is XML, and column {nested[0]} of table {table.name} is {table.column(nested[0]).type}"
        )
        raise DeliveryError(title, reason, fix)
    return LandingFile(file, delivery.landing, contract.name, delivery.partition, table, kind)


def name_files(contract: SetContract, files: Sequence[Path]) -> dict[str, Path]:
    """Returns the files by their names in a delivery.

    In a set with one delivered table, files with other names than it expects get names that it expects.

    Raises:
        DeliveryError: a file does not exist, or two have one name.
    """
    sources = [table for table in contract.tables if table.source is not None]
    named: dict[str, Path] = {}
    for number, path in enumerate(files, 1):
        if not path.is_file():
            raise DeliveryError(contract.name, f"{path} is no file", "Give the files to deliver.")
        suffix = find_suffix(path.name)
        name = path.name
        if len(sources) == 1 and suffix and not _fits(path.name.removesuffix(suffix), sources[0]):
            name = str(sources[0].source).replace("*", str(number))
            name = f"{name if number == 1 else f'{name}-{number}'}{suffix}"
        if name in named:
            fix = "Rename one of them."
            raise DeliveryError(contract.name, f"{named[name]} and {path} are both named {name}", fix)
        named[name] = path
    return named


def find_suffix(name: str) -> str | None:
    suffixes = sorted(FORMAT_BY_SUFFIX, key=len, reverse=True)
    return next((suffix for suffix in suffixes if name.endswith(suffix)), None)


FORMATS = (*TEXT_SUFFIXES, *BINARY_SUFFIXES)
KNOWN_SUFFIXES = (
    f"Known are {', '.join(FORMATS)}; {', '.join(TEXT_SUFFIXES)} may be followed by {', '.join(CODECS)}"
)
LEFT_ALONE = "a name that begins with _ is left alone."


def explain_suffix(name: str) -> str:
    """Returns why a file without a known suffix is not read."""
    refused = next((codec for suffix, codec in REFUSED.items() if name.endswith(suffix)), None)
    if refused is not None:
        return f"is compressed with {refused}, which is not read"
    inner = remove_codec_suffix(name)
    if inner != name and inner.endswith(tuple(BINARY_SUFFIXES)):
        return "is compressed as a whole, and its format compresses within the file"
    return "is of no known format"


def _fits(stem: str, table: Table) -> bool:
    return fnmatchcase(stem, table.source or "") or fnmatchcase(stem, f"{table.source}-*")


@dataclass(frozen=True)
class Delivery:
    """The files of an arrival, for one partition. `digest` is empty until the delivery is complete."""

    set_name: str
    partition: str
    location: str
    files: tuple[DeliveredFile, ...]
    manifest: DeliveredFile | None
    digest: str
    complete: bool
    arrived_at: dt.datetime
    landing: Landing = field(compare=False, repr=False)

    @property
    def title(self) -> str:
        return f"{self.set_name}/{self.partition}"


def find_deliveries(
    settings: LakeSettings, contract: SetContract, stores: Stores | None = None
) -> list[Delivery]:
    """Returns all deliveries of a set in landing, by partition, with incomplete and invalid ones.

    Raises:
        StoreError: the store of landing refuses a request, or does not respond.
    """
    landing = open_landing(settings, stores)
    found = []
    depth = 1 if contract.partitioning.second is None else 2
    for partition, listing in sorted(landing.find_partitions(contract.name, depth).items()):
        location = f"{landing.root}/{contract.name}/{partition}"
        if not contract.is_partition(partition):
            if depth == 1:
                log.warning("%s is no partition of set %s and is ignored", location, contract.name)
            else:
                log.warning("%s is ignored: %s", location, make_partition_error(contract, partition))
            continue
        try:
            listing = listing or landing.list_partition(contract.name, partition)
            delivery = _inspect_delivery(settings, contract, landing, partition, listing)
        except FileNotFoundError:
            continue  # replaced or removed at this moment: the next search finds it
        except StoreError:
            raise  # the others would be refused as well, each after its attempts
        except DeliveryError as error:
            log.warning("%s is ignored: %s", location, error)
            continue
        except OSError as error:
            log.warning("%s cannot be read and is ignored: %s", location, error.strerror)
            continue
        if delivery.files:
            found.append(delivery)
    return found


def find_delivery(settings: LakeSettings, contract: SetContract, partition: str) -> Delivery:
    """Returns the complete delivery of one partition.

    Raises:
        DeliveryError: there is none, or it is incomplete, empty, different from its manifest, or has links to locations
            outside landing.
        StoreError: the store of landing refuses a request, or does not respond.
    """
    require_partition(contract, partition)
    title = f"{contract.name}/{partition}"
    landing = open_landing(settings)
    location = f"{landing.root}/{title}"
    try:
        listing = landing.list_partition(contract.name, partition)
        delivery = _inspect_delivery(settings, contract, landing, partition, listing)
    except FileNotFoundError:
        fix = f"Put its files into {location}, or make some with `lakeshare deliver {contract.name}`."
        raise DeliveryError(title, "has not arrived", fix) from None
    except OSError as error:
        fix = f"Check {location} and the permissions of its files."
        raise DeliveryError(title, f"cannot be read: {error.strerror}", fix) from error
    for marker in listing.markers.values():
        if marker.problem:
            raise DeliveryError(title, f"{marker.name} {marker.problem}", NO_LINKS)
    if not any(file.size_bytes for file in delivery.files):
        names = ", ".join(file.name for file in delivery.files)
        what = f"is empty: {names} without a byte" if names else "is empty: no files"
        raise DeliveryError(title, what, f"Put its files into {location} and deliver again.")
    if not delivery.complete:
        fix = f"Write {SUCCESS} into {location}, or wait until it has been quiet for {settings.quiet_s} s."
        if delivery.manifest is not None:
            fix = f"Files that {MANIFEST} lists are still to come; run again when they are there."
        raise DeliveryError(title, "is not complete", fix)
    assign_files(contract, delivery)
    _require_manifest(delivery)
    return delivery


def find_deliveries_of_run(
    settings: LakeSettings, contract: SetContract, partitions: Sequence[str]
) -> list[Delivery]:
    """Returns the complete deliveries of a run; none for a set that takes no deliveries. Raises as `find_delivery`."""
    _require_range(contract, partitions)
    if contract.takes_deliveries:
        return [find_delivery(settings, contract, partition) for partition in partitions]
    for partition in partitions:
        require_partition(contract, partition)
    return []


def require_partition(contract: SetContract, partition: str) -> None:
    """Raises `DeliveryError` if a set has no such partition."""
    if not contract.is_partition(partition):
        raise make_partition_error(contract, partition)


def make_partition_error(contract: SetContract, partition: str) -> DeliveryError:
    """Returns the error of a key that is no partition; with a second dimension it names the contract's field."""
    title, second = f"{contract.name}/{partition}", contract.partitioning.second
    problem = f"{partition!r} is no partition of set {contract.name}"
    if second is None:
        return DeliveryError(title, problem, contract.partitioning.expected)
    first, name = split_key(partition)
    if contract.partitioning.time_dimension.is_key(first) and name:
        problem = (
            f"{name!r} is none of the names of {second.column}, the second dimension of its partitioning"
        )
        if second.values is not None:
            fix = f"Add it to second.static in {contract.path.name}, or deliver as one of {', '.join(second.values)}."
            return DeliveryError(title, problem, fix)
    elif first and not name:
        problem = (
            f"it has no folder of {second.column} between the {contract.partitioning.noun} and the files"
        )
    fix = f"{contract.partitioning.expected.removesuffix('.')} ({contract.path.name})."
    return DeliveryError(title, problem, fix)


def _require_range(contract: SetContract, partitions: Sequence[str]) -> None:
    """Raises `DeliveryError` if a run has not every name of its second dimension in every partition of time."""
    times, names = (set(found) for found in zip(*map(split_key, partitions), strict=True))
    if len(times) * len(names) != len(set(partitions)):
        problem = (
            f"the run has {len(set(partitions))} of the {len(times) * len(names)} partitions of its ranges"
        )
        fix = "Start a run for each day, or give a range of each dimension."
        raise DeliveryError(contract.name, problem, fix)


def require_in_time(contract: SetContract, partitions: Sequence[str], now: dt.datetime | None = None) -> None:
    """Raises `DeliveryError` if the lateness window of a partition is over; `now` is the current time by default."""
    now = now or dt.datetime.now(dt.UTC)
    for partition in partitions:
        require_partition(contract, partition)
        if contract.partitioning.is_late(partition, now):
            end = contract.partitioning.get_window(partition)[1]
            raise DeliveryError(
                f"{contract.name}/{partition}",
                f"the partition ended at {end:%Y-%m-%d %H:%M} UTC, and takes deliveries for "
                f"{contract.partitioning.lateness_hours} hours after that (latenessHours)",
                f"Raise latenessHours of its partitioning in {contract.path.name}, or run it with the tag "
                "lakeshare/late: allow (`lakeshare publish --allow-late`).",
            )


def require_unchanged(delivery: Delivery) -> None:
    """Checks that the files are the same as when the delivery was found.

    Raises:
        DeliveryError: they are not.
        StoreError: the store of landing does not say.
    """
    try:
        files = delivery.landing.list_partition(delivery.set_name, delivery.partition).files
        # A link could lead to other bytes when Spark opens it: it is listed as a problem, and differs.
        is_same = files == delivery.files and delivery.landing.compute_digest(files) == delivery.digest
    except StoreError:
        raise
    except (OSError, DeliveryError):
        is_same = False
    if not is_same:
        raise make_changed_error(delivery.title)


@contextmanager
def blame_changed_delivery(deliveries: Sequence[Delivery]) -> Iterator[None]:
    """Attributes a failed read to a delivery that changed meanwhile, or to its store.

    Raises:
        DeliveryError: the body failed and a delivery changed.
        StoreError: the body failed and the store of landing does not respond.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, DeliveryError) and not isinstance(error, StoreError):
            raise
        for delivery in deliveries:
            try:
                require_unchanged(delivery)
            except DeliveryError as changed:
                raise changed from error
        raise


def _inspect_delivery(
    settings: LakeSettings, contract: SetContract, landing: Landing, partition: str, listing: PartitionListing
) -> Delivery:
    complete = _is_complete(settings, landing, listing)
    return Delivery(
        set_name=contract.name,
        partition=partition,
        location=listing.location,
        files=listing.files,
        manifest=listing.markers.get(MANIFEST),
        digest=landing.compute_digest(listing.files) if complete else "",
        complete=complete,
        arrived_at=dt.datetime.fromtimestamp(listing.changed_at, dt.UTC),
        landing=landing,
    )


def _is_complete(settings: LakeSettings, landing: Landing, listing: PartitionListing) -> bool:
    # A marker outside landing is never followed; `find_delivery` refuses it.
    if SUCCESS in listing.markers or any(marker.problem for marker in listing.markers.values()):
        return True
    manifest = listing.markers.get(MANIFEST)
    if manifest is None:
        return bool(listing.files) and time.time() - listing.changed_at >= settings.quiet_s
    try:
        entries = _read_manifest(landing, manifest)
    except StoreError:
        raise
    except DeliveryError:
        return True  # `find_delivery` refuses the manifest
    sizes = {file.name: file.size_bytes for file in listing.files if not file.problem}
    return all(
        sizes.get(entry["name"], -1) >= (entry.get("size") or 0)
        for entry in entries
        if is_data(entry["name"])
    )


def _require_manifest(delivery: Delivery) -> None:
    if delivery.manifest is None:
        return
    listed = {entry["name"]: entry for entry in _read_manifest(delivery.landing, delivery.manifest)}
    present = {file.name: file for file in delivery.files}
    fix = f"Deliver again with a {MANIFEST} that fits."
    for name in sorted(listed.keys() ^ present.keys()):
        reason = f"{name} is not in {MANIFEST}"
        if name in listed:
            reason = f"{MANIFEST} lists {name}, which does not exist"
        raise DeliveryError(delivery.title, reason, fix)
    for name, entry in listed.items():
        size = present[name].size_bytes
        if entry.get("size") not in (None, size):
            reason = f"{name} has {size} bytes, {MANIFEST} has {entry['size']}"
            raise DeliveryError(delivery.title, reason, fix)
        sha256 = entry.get("sha256")
        if sha256 is not None and sha256.lower() != delivery.landing.compute_sha256(present[name]):
            raise DeliveryError(delivery.title, f"{name} has another SHA-256 than in {MANIFEST}", fix)


# By the listed object: a sensor reads the manifest of a delivery in a store once.
_manifests: dict[DeliveredFile, list[dict[str, Any]]] = {}


def _read_manifest(landing: Landing, file: DeliveredFile) -> list[dict[str, Any]]:
    if file in _manifests:
        return _manifests[file]
    if file.size_bytes > MAX_MANIFEST_BYTES:
        raise _make_manifest_error(file, f"it has more than {MAX_MANIFEST_BYTES >> 20} MiB")
    with landing.translate_errors(file), landing.open(file) as opened:
        content = opened.read()
    try:
        manifest = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _make_manifest_error(file, str(error)) from error
    entries = manifest.get("files") if isinstance(manifest, dict) else None
    is_valid = isinstance(entries, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and entry["name"] == PurePosixPath(entry["name"]).name
        and isinstance(entry.get("size"), int | None)
        and isinstance(entry.get("sha256"), str | None)
        for entry in entries
    )
    if not entries or not is_valid:
        raise _make_manifest_error(file, "it does not list files by name, size and sha256")
    if file.etag:
        if len(_manifests) >= CACHE_SIZE:
            _manifests.clear()
        _manifests[file] = list(entries)
    return list(entries)


def _make_manifest_error(file: DeliveredFile, reason: str) -> DeliveryError:
    form = '{"files": [{"name": "departures.csv", "size": 1234, "sha256": "…"}]}, size and sha256 optional'
    title = "/".join(file.location.split("/")[-3:-1])
    return DeliveryError(title, f"{MANIFEST} cannot be read: {reason}", f"Write it as {form}.")
