"""What has arrived in landing: `<landing>/<set>/<partition>/<files>`, and whether it is whole and still the same."""

import datetime as dt
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.content_digest import digest_of, file_digest
from lakeshare_pipelines.ingest.landing_files import NO_LINKS, assign_files, is_data, is_inside
from lakeshare_pipelines.settings import LakeSettings

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
    root = set_folder(settings, contract)
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
            delivery = _look(settings, contract, path)
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
    path = set_folder(settings, contract) / partition
    if not is_inside(settings.landing, path):
        raise DeliveryError(title, f"{partition} is a link to a folder outside the landing folder", NO_LINKS)
    try:
        delivery = _look(settings, contract, path)
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
        raise DeliveryError(title, "is not complete", _what_is_awaited(settings, path))
    assign_files(contract, partition, delivery.files)
    _require_manifest(delivery)
    return delivery


def set_folder(settings: LakeSettings, contract: SetContract) -> Path:
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


def still_same(delivery: Delivery) -> None:
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
            and digest_of(delivery.path, files) == delivery.digest
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
def unchanged_while(deliveries: Sequence[Delivery]) -> Iterator[None]:
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
                still_same(delivery)
            except DeliveryError as changed:
                raise changed from error
        raise


def _look(settings: LakeSettings, contract: SetContract, path: Path) -> Delivery:
    files = _data_files(path)
    changed_at = max(_changed_at(entry) for entry in (path, *files))
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
    return digest_of(path, [file for file in files if is_inside(settings.landing, file) and file.is_file()])


def _markers_outside(settings: LakeSettings, path: Path) -> list[str]:
    return [name for name in (SUCCESS, MANIFEST) if not is_inside(settings.landing, path / name)]


def _data_files(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(entry for entry in path.iterdir() if is_data(entry.name)))


def _changed_at(path: Path) -> float:
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
        if entry.get("sha256") not in (None, file_digest(there[name])):
            raise DeliveryError(delivery.title, f"{name} has another SHA-256 than {MANIFEST} says", fix)


def _read_manifest(path: Path) -> list[dict[str, Any]]:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _bad_manifest(path, str(error)) from error
    entries = manifest.get("files") if isinstance(manifest, dict) else None
    if (
        not isinstance(entries, list)
        or not entries
        or not all(_is_manifest_entry(entry) for entry in entries)
    ):
        raise _bad_manifest(path, "it does not list files by name, size and sha256")
    return entries


def _bad_manifest(path: Path, reason: str) -> DeliveryError:
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


def _what_is_awaited(settings: LakeSettings, path: Path) -> str:
    if (path / MANIFEST).exists():
        return f"Files that {MANIFEST} lists are still to come; run again when they are there."
    return f"Write {SUCCESS} into {path}, or wait until it has been quiet for {settings.quiet_s} s."
