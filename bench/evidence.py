"""Signing a publication of 100,000 files in at most 4 times the time of its file index, and the cost of digests.

Run: `python -m bench.evidence [FILES]`. The files are in the table's log only: the list of files is measured without
their bytes, and the digest of bytes beside a plain read of the same file.
"""

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bench.wide_table import many_files_table
from lakeshare_server.catalog import Ledger, NewPublication, open_catalog
from lakeshare_server.lazy import gc_disabled
from lakeshare_server.protocol.verification import read_evidence
from lakeshare_server.settings import StateSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import describe_index, read_delta, write_index
from lakeshare_server.tables.evidence import EvidenceWriter, open_entries, render_evidence
from lakeshare_server.tables.publications import PublicationFiles

Result = TypeVar("Result")
FILES, MOST = 100_000, 4.0
CONTENT_BYTES = 512 << 20


def main() -> int:
    """Measure, print, and return the exit code."""
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory(dir=os.environ.get("LAKESHARE_BENCH_DIR")) as folder:
        ratio = _measure_list(Path(folder), files)
        _measure_digest(Path(folder) / "content")
    return 0 if ratio <= MOST else 1


def _measure_list(folder: Path, files: int) -> float:
    many_files_table(folder / "table", files)
    settings = StateSettings(_env_file=None, state_dir=folder / "state", evidence_digests="none")
    stores = Stores(settings)
    indexed_s, index = _timed(
        lambda: write_index(read_delta(str(folder / "table"), None, stores), settings.index_dir)
    )
    catalog = open_catalog(settings.catalog_url)
    writer = EvidenceWriter.open(PublicationFiles.open(stores, settings), catalog)
    new = NewPublication(
        table="lake.wide",
        set_name="lake",
        format="delta",
        delta_version=0,
        **describe_index(index.header),
        index_digest=index.digest,
        contract_digest="",
        verdicts={},
        run_id="run",
        partition="all",
    )
    before_mb = _reset_peak()
    prepared_s, sign = _timed(lambda: writer.prepare([new]))
    peak_mb = _peak_mb()
    appended_s, [publication] = _timed(lambda: Ledger(catalog).append([new], sign=sign))
    evidence = writer.store.find("lake.wide", publication.version)
    assert evidence is not None
    entries = open_entries(writer.files, evidence.entries_digest)
    assert entries is not None
    rendered_s, lines = _timed(lambda: list(render_evidence(evidence, entries, None)))
    with gc_disabled():  # as the command
        verified_s, _ = _timed(lambda: read_evidence(_split(lines), [writer.key.public], accepts_part=False))
    catalog.close()
    print(
        f"{files:,} files: index {indexed_s:.2f} s, list of files signed in {prepared_s:.2f} s "
        f"({prepared_s / indexed_s:.1f} times, at most {MOST}; {peak_mb - before_mb:.0f} MB more memory), ledger and "
        f"statement {appended_s * 1000:.0f} ms, response {rendered_s:.2f} s, {sum(map(len, lines)) / 1e6:.0f} MB, "
        f"verified in {verified_s:.2f} s"
    )
    return prepared_s / indexed_s


def _split(pieces: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from piece.splitlines()


def _measure_digest(path: Path) -> None:
    path.write_bytes(os.urandom(CONTENT_BYTES))
    read_s, _ = _timed(path.read_bytes)
    with path.open("rb") as file:
        digest_s, _ = _timed(lambda: hashlib.file_digest(file, "sha256"))
    speed = CONTENT_BYTES / digest_s / 1e6
    print(
        f"SHA-256 of new files: {speed:,.0f} MB/s on one core, {digest_s / read_s:.1f} times a read from the cache"
    )


def _peak_mb() -> float:
    """The largest resident memory since `_reset_peak`."""
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _reset_peak() -> float:
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mb()


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


if __name__ == "__main__":
    sys.exit(main())
