"""Correcting rejected rows: the rejected lines of a run's deliveries as files, and deliveries with the corrected lines.

A delivery is corrected in landing and published by a run as any other: nothing is added to a published table here.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import Delivery, find_delivery, require_unchanged
from lakeshare_pipelines.ingest.compression import CutOff, Damaged, remove_codec_suffix, unpack
from lakeshare_pipelines.ingest.delivery import LandingFile, assign_files
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import list_attempts, open_lake_without_spark, read_quarantine
from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import make_private

MAX_LINES = 1_000_000
MAX_DELIVERY_BYTES = 1 << 30
"""Deliveries up to this size, unpacked, are written again; a larger one is corrected where it comes from."""

REASONS = ".reasons.txt"
LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|$)")


@dataclass(frozen=True)
class QuarantinedFile:
    """The rejected rows of one file in one run."""

    run_id: str
    table: str
    file: str
    rows: int
    kept_at: datetime


@dataclass(frozen=True)
class RejectedLines:
    """The rejected lines of a delivered file: the reason of each, by its number from 1."""

    delivery: Delivery
    file: LandingFile
    reasons: Mapping[int, str]

    def list_lines(self) -> list[bytes]:
        """The lines of the file as delivered, each with its end."""
        landed = self.file.file
        with self.delivery.landing.translate_errors(landed), self.delivery.landing.open(landed) as opened:
            content = opened.read()
        try:
            if self.file.codec is not None:
                content = unpack(self.file.codec, content, MAX_DELIVERY_BYTES)
        except (CutOff, Damaged) as error:
            raise DeliveryError(
                self.file.title, f"cannot be unpacked: {error}", "Deliver it again."
            ) from error
        if len(content) > MAX_DELIVERY_BYTES:
            raise _too_large(self.delivery)
        return [line for line in LINE.findall(content) if line]

    @property
    def has_header(self) -> bool:
        return self.file.format == "csv"

    def path_in(self, folder: Path) -> Path:
        """The file of the rejected lines below a folder, not compressed."""
        return folder / self.delivery.partition / remove_codec_suffix(self.file.file.name)


@dataclass(frozen=True)
class Redelivery:
    """A delivery that was written again: how many rejected lines it has no longer, and how many corrected ones."""

    partition: str
    removed: int
    added: int


def list_quarantined(settings: LakeSettings, set_name: str) -> list[QuarantinedFile]:
    """The files with rows in quarantine, the newest run first."""
    rows = read_quarantine(settings, set_name, limit=MAX_LINES)
    counts = Counter((row["run_id"], row["table"], row["file"]) for row in rows)
    kept_at = {row["run_id"]: row["kept_at"] for row in rows}
    found = [QuarantinedFile(*of, count, kept_at[of[0]]) for of, count in sorted(counts.items())]
    return sorted(found, key=lambda file: file.kept_at, reverse=True)


def export_rejected(
    settings: LakeSettings, catalog: Catalog, contract: SetContract, run_id: str, folder: Path
) -> list[Path]:
    """Write the rejected lines of a run, as delivered, to `folder/<partition>/<file>`, for their owner only.

    Beside each is a file with the reasons. Returns the files of lines.

    Raises:
        BadRequest: the run has none, or a file to write exists; nothing is written.
        DeliveryError: a delivery was replaced since, or its rows are not lines.
    """
    rejected = _find_rejected(settings, catalog, contract, run_id)
    paths = [of_file.path_in(folder) for of_file in rejected]
    if existing := [str(path) for path in paths if path.exists()]:
        raise BadRequest("--to", str(folder), f"{existing[0]} exists: give another folder, or remove it.")
    for of_file, path in zip(rejected, paths, strict=True):
        lines = of_file.list_lines()
        wanted = [1] if of_file.has_header else []
        wanted += sorted(of_file.reasons)
        make_private(path.parent)
        _write(path, b"".join(_end(lines[number - 1]) for number in wanted))
        reasons = [f"line {number}: {reason}" for number, reason in sorted(of_file.reasons.items())]
        _write(path.with_name(path.name + REASONS), "\n".join(reasons).encode() + b"\n")
    return paths


def redeliver(
    settings: LakeSettings, catalog: Catalog, contract: SetContract, run_id: str, folder: Path
) -> list[Redelivery]:
    """Write the deliveries of a run again, with the lines of `folder` in place of the rejected ones.

    Corrected lines come last in their file; lines that the folder's file lacks are left out.

    Raises:
        BadRequest: the run has no rejected rows, or a file of the folder is missing or has another header; no
            delivery is changed.
        DeliveryError: a delivery was replaced since, is too large, or its rows are not lines.
        StoreError: the store of landing refuses a request, or does not respond.
    """
    corrected: dict[str, list[tuple[RejectedLines, list[bytes]]]] = {}
    for of_file in _find_rejected(settings, catalog, contract, run_id):
        lines = _read_corrected(of_file, folder)
        corrected.setdefault(of_file.delivery.partition, []).append((of_file, lines))
    done = []
    for partition, files in corrected.items():
        delivery = files[0][0].delivery
        contents = _read_others(delivery, {of_file.file.file.name for of_file, _ in files})
        for of_file, lines in files:
            name = of_file.file.file.name
            kept = [line for at, line in enumerate(of_file.list_lines(), 1) if at not in of_file.reasons]
            content = b"".join(map(_end, (*kept, *lines)))
            contents[name] = content if of_file.file.codec is None else of_file.file.codec.pack(content)
        require_unchanged(delivery)
        delivery.landing.replace(contract.name, partition, contents)
        removed = sum(len(of_file.reasons) for of_file, _ in files)
        done.append(Redelivery(partition, removed, sum(len(lines) for _, lines in files)))
    return done


def _find_rejected(
    settings: LakeSettings, catalog: Catalog, contract: SetContract, run_id: str
) -> list[RejectedLines]:
    if contract.has_sources:
        fix = "Correct the rows in the source, and run the set again."
        raise BadRequest("SET", contract.name, f"Its rejected rows are not lines of deliveries. {fix}")
    rows = read_quarantine(settings, contract.name, run_id, limit=MAX_LINES)
    if not rows:
        fix = f"`lakeshare quarantine list {contract.name}` shows the runs that have some."
        raise BadRequest("--run", run_id, f"It has no rejected rows of set {contract.name}. {fix}")
    reasons: dict[str, dict[str, dict[int, str]]] = {}
    for row in rows:
        of_partition = reasons.setdefault(str(row["partition"]), {})
        of_partition.setdefault(str(row["file"]), {})[int(row["line"])] = str(row["reason"])
    read_by_run = _find_deliveries(settings, catalog, contract, run_id)
    found = []
    for partition, files in sorted(reasons.items()):
        delivery = find_delivery(settings, contract, partition)
        if delivery.digest != read_by_run.get(partition):
            fix = "Correct the new delivery: publish it, and use the run that rejected its rows."
            raise DeliveryError(delivery.title, f"is not the delivery that run {run_id} read", fix)
        if sum(file.size_bytes for file in delivery.files) > MAX_DELIVERY_BYTES:
            raise _too_large(delivery)
        landed = {file.label: file for file in assign_files(contract, delivery)}
        for label, of_file in sorted(files.items()):
            _require_lines(landed[label])
            found.append(RejectedLines(delivery, landed[label], of_file))
    return found


def _find_deliveries(
    settings: LakeSettings, catalog: Catalog, contract: SetContract, run_id: str
) -> Mapping[str, str]:
    """The digests of the deliveries that a run read, by partition; empty for a run without any record."""
    for publication in Ledger(catalog).by_run(run_id):
        if publication.table in {table.name for table in contract.tables}:
            return dict(publication.verdicts["deliveries"])
    for attempt in list_attempts(open_lake_without_spark(settings)):
        if (attempt.staged.set_name, attempt.staged.run_id) == (contract.name, run_id):
            return attempt.staged.deliveries
    return {}


def _require_lines(file: LandingFile) -> None:
    kinds = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro", "xml": "XML"}
    if file.format in kinds or (file.format in ("csv", "jsonl") and file.table.reading.multiline):
        kind = kinds.get(file.format, "records over several lines")
        fix = "Correct them where the file comes from, and deliver it again."
        raise DeliveryError(file.title, f"its rows cannot be corrected as lines: it has {kind}", fix)


def _read_corrected(of_file: RejectedLines, folder: Path) -> list[bytes]:
    path = of_file.path_in(folder)
    try:
        lines = [line for line in LINE.findall(path.read_bytes()) if line.strip()]
    except FileNotFoundError:
        fix = "Export and correct them; an empty file, for CSV with its header, leaves them out."
        raise BadRequest("--from", str(path), f"It lacks the lines of {of_file.file.label}. {fix}") from None
    if not of_file.has_header:
        return lines
    header = of_file.list_lines()[0].strip()
    if not lines or lines[0].strip() != header:
        hint = f"Its first line must be the header of the delivery: {header.decode(errors='replace')}"
        raise BadRequest("--from", str(path), hint)
    return lines[1:]


def _read_others(delivery: Delivery, corrected: Iterable[str]) -> dict[str, bytes]:
    """The bytes of the files of a delivery that have no rejected lines, by name."""
    contents = {}
    for file in delivery.files:
        if file.name not in corrected:
            with delivery.landing.translate_errors(file), delivery.landing.open(file) as opened:
                contents[file.name] = opened.read()
    return contents


def _too_large(delivery: Delivery) -> DeliveryError:
    fix = "Correct it where it comes from, and deliver it again."
    return DeliveryError(delivery.title, f"is larger than {MAX_DELIVERY_BYTES >> 30} GiB", fix)


def _end(line: bytes) -> bytes:
    return line if line.endswith((b"\n", b"\r")) else line + b"\n"


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def format_quarantined(found: Iterable[QuarantinedFile]) -> Iterator[str]:
    for file in found:
        yield f"{file.run_id}  {file.table}  {file.file}  {file.rows} rows  {file.kept_at:%Y-%m-%d %H:%M}"
