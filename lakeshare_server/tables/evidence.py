"""Evidence of publications: an entry for each file, a signed statement that commits to them, and a recipient's part.

Entries and content digests are made once, at publication, and kept in one Arrow file beside the file index. A
recipient of the whole table gets all entries; one with a rule gets its own, each with a proof.
"""

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Self

import orjson
import pyarrow as pa

from lakeshare_server.catalog import (
    Catalog,
    Evidence,
    EvidenceStore,
    Ledger,
    NewPublication,
    Publication,
    Sign,
)
from lakeshare_server.errors import BadRequest, StoreError, StoreMissing, Unavailable
from lakeshare_server.locations import LOCAL, S3
from lakeshare_server.storage import Stores
from lakeshare_server.tables import hash_tree
from lakeshare_server.tables.delta.files import mapping_mode
from lakeshare_server.tables.envelope import STATEMENT_TYPE, SigningKey, canonical_json, load_signing_key
from lakeshare_server.tables.index import (
    CacheFolder,
    FileIndex,
    IndexHeader,
    index_path,
    share_index,
    write_by_digest,
)
from lakeshare_server.tables.publications import PublicationFiles

PREDICATE_TYPE = "urn:lakeshare:publication:v1"
TREE = "lakeshareTreeV1"
LAYOUT = 1
HEADER_KEY = b"lakeshare-evidence"
DIGESTS = ("sha256", "deletesSha256")
IDS = ("id", "parquetId")
READERS = 8
PIECE_BYTES = 8 << 20
LINES_AT_ONCE = 1000
# Of a file of deletion vectors: lines have the sizes of single vectors.
NO_SIZE = 0
# A tree takes 100 bytes for each file.
OPEN_FILES, OPEN_TREES = 64, 4
DETAILS, INPUTS, PADDING = "details", "inputs", "padding"
NEEDED = (
    "path",
    "size",
    "parquet_id",
    "delta_id",
    "common",
    "delta_rest",
    "dv_path",
    "dv_file_id",
    "dv_rest",
)
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("size", pa.int64()),
        ("entry", pa.string()),
        ("salt", pa.binary(hash_tree.SALT_BYTES)),
        ("place", pa.uint64()),
        ("sha256", pa.string()),
        ("vector_id", pa.string()),
        ("vector_sha256", pa.string()),
    ]
)

_log = logging.getLogger(__name__)


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def describe_file(line: Mapping[str, Any], vector_id: str | None) -> dict[str, Any]:
    """The fields of a file that its entry binds, from the fields of its line in either response format.

    Statistics are bound by their digest: they decide which files a client reads.
    """
    stats, vector = line.get("stats"), line.get("deletionVector")
    described: dict[str, Any] = {
        "size": line.get("size"),
        "partitionValues": line.get("partitionValues") or {},
        "stats": None if stats is None else digest_text(str(stats)),
    }
    if vector is not None:
        is_inline = vector.get("storageType") == "i"
        where = {"vector": vector.get("pathOrInlineDv")} if is_inline else {"id": vector_id}
        fields = {name: value for name, value in vector.items() if name != "pathOrInlineDv"}
        described["deletes"] = {**fields, **where}
    return described


def _identify(key: str, size: int) -> bytes:
    return bytes.fromhex(key) + size.to_bytes(8)


class ContentDigests:
    """The digests of files: of the publication before for its files, and of the new files as a setting decides."""

    def __init__(self, stores: Stores, mode: str, known: "EntryFile | None") -> None:
        self._stores, self._mode = stores, mode
        self._known: dict[bytes, bytes] = {}
        self.new_files = 0
        if known is None or mode == "none":
            return
        # What was looked for in the same way, and not found, is not looked for again.
        is_same = known.header.digests == mode
        for batch in known.batches():
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            files = columns["id"], columns["size"], columns["sha256"]
            vectors = columns["vector_id"], repeat(NO_SIZE), columns["vector_sha256"]
            for rows in (zip(*files, strict=True), zip(*vectors, strict=False)):
                self._known |= {
                    _identify(key, size): bytes.fromhex(found or "")
                    for key, size, found in rows
                    if key and (found or is_same)
                }

    def find_all(
        self, files: Sequence[tuple[str, int, str | None]], pool: ThreadPoolExecutor
    ) -> list[str | None]:
        """The digest of each file, given by its id, size and location; None where it is not known."""
        if self._mode == "none":
            return [None] * len(files)
        keys = [_identify(key, size) if location else b"" for key, size, location in files]
        new = {
            key: location
            for key, (*_, location) in zip(keys, files, strict=True)
            if location and key not in self._known
        }
        self.new_files += len(new)
        self._known |= zip(new, pool.map(self._find, new.values()), strict=True)
        return [self._known.get(key, b"").hex() or None for key in keys]

    def _find(self, location: str) -> bytes:
        try:
            return bytes.fromhex(self._read(location) or "")
        except StoreError as error:
            # The publication has the file, signed or not: recipients get the store's error.
            _log.warning("evidence has no digest of a file: %s", error)
            return b""

    def _read(self, location: str) -> str | None:
        place = self._stores.place(location)
        if place.kind == LOCAL:
            try:
                with Path(place.key).open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError as error:
                raise StoreMissing(location) from error
        if self._mode == "read":
            found = hashlib.sha256()
            with self._stores.open(location) as file:
                while piece := file.read(PIECE_BYTES):
                    found.update(piece)
            return found.hexdigest()
        if self._mode == "stored" and place.kind == S3:
            return self._stores.s3.stored_sha256(place)
        return None


@dataclass(frozen=True)
class EntriesHeader:
    """What applies to all entries of a file; `details` and `inputs` open commitments of the statement.

    `digests` is the setting that the digests were looked for with.
    """

    layout: int
    depth: int
    digests: str
    table_id: str
    details: str
    inputs: str


class EntryFile:
    """An open file of entries, in the order of the file index, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.header = EntriesHeader(**json.loads(self._reader.schema.metadata[HEADER_KEY]))
        if self.header.layout != LAYOUT:
            raise ValueError(f"{path} has layout {self.header.layout}")

    def batches(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._reader.num_record_batches):
            yield self._reader.get_batch(number)

    def make_tree(self, padding: bytes) -> hash_tree.HashTree:
        return hash_tree.HashTree(self._leaves(), self.header.depth, padding)

    def _leaves(self) -> Iterator[tuple[int, bytes]]:
        for batch in self.batches():
            columns = (batch.column(name).to_pylist() for name in ("place", "salt", "entry"))
            for place, salt, entry in zip(*columns, strict=True):
                yield place, hash_tree.hash_leaf(salt, entry.encode())

    def select(self, own: FileIndex) -> Iterator[list[dict[str, Any]]]:
        """The entries of the files of an index with a part of the files, in the same order.

        Raises Unavailable if a file has no entry: the index was read again and has other files.
        """
        ids = (each for batch in own.batches(["delta_id"]) for each in batch.column("delta_id").to_pylist())
        wanted = next(ids, None)
        for batch in self.batches():
            found = []
            for number, key in enumerate(batch.column("id").to_pylist()):
                if key == wanted:
                    found.append(number)
                    wanted = next(ids, None)
            if found:
                yield _rows_of(batch.take(pa.array(found)))
        if wanted is not None:
            raise Unavailable("the evidence is of other files than the table's", "Provider: sign it again.")

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """All entries."""
        return map(_rows_of, self.batches())


def _rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return list(batch.select(["entry", "salt", "place"]).to_pylist())


# A file of entries does not change, so an open one serves every request of the process.
_open_entries = lru_cache(OPEN_FILES)(EntryFile)


@lru_cache
def _open_cache(folder: Path, max_bytes: int) -> CacheFolder[EntryFile]:
    return CacheFolder(folder, "evidence", max_bytes, EntryFile)


def open_entries(files: PublicationFiles, digest: str) -> EntryFile | None:
    """The entries with this digest, fetched if another host wrote them; None if they are lost or damaged.

    Raises Unavailable: the store does not respond, or the folder cannot be written.
    """
    settings = files.settings
    with suppress(OSError, KeyError, TypeError, ValueError):
        return _open_entries(index_path(settings.index_dir, digest))

    def fetch(path: Path) -> None:
        if not files.fetch(digest, path):
            raise StoreMissing(digest)

    with suppress(StoreMissing):
        return _open_cache(settings.index_dir / "cache", settings.index_cache_bytes).get((digest,), fetch)
    return None


@lru_cache(OPEN_TREES)
def _make_tree(entries: EntryFile, padding: bytes) -> hash_tree.HashTree:
    return entries.make_tree(padding)


@dataclass(frozen=True)
class PreparedEvidence:
    """The part of a statement that does not depend on the number of the publication."""

    header: IndexHeader
    entries_digest: str
    entries: EntriesHeader
    salt: bytes
    root: bytes


@dataclass(frozen=True)
class EvidenceWriter:
    """Signs publications: entries before they are numbered, the statement in the transaction that numbers them."""

    files: PublicationFiles
    store: EvidenceStore

    @classmethod
    def open(cls, files: PublicationFiles, catalog: Catalog) -> Self:
        return cls(files, EvidenceStore(catalog))

    @cached_property
    def key(self) -> SigningKey:
        """The signing key; its public key is registered when it is first used. Raises as `load_signing_key`."""
        key = load_signing_key(self.files.settings)
        others = [other for other in self.store.list_keys() if other.retired_at is None]
        if self.store.register(key.public.key_id, key.public.pem) and others:
            _log.warning(
                "evidence is signed with the key %s for the first time, beside %s: send recipients the new public key "
                "(lakeshare evidence export), and give all hosts one key (LAKESHARE_EVIDENCE_KEY_FILE).",
                key.public.key_id[:16],
                ", ".join(other.key_id[:16] for other in others),
            )
        return key

    def require_key(self) -> None:
        """Refuses an unusable key before anything is published; raises as `load_signing_key`."""
        _ = self.key

    def prepare(self, news: Sequence[NewPublication]) -> Sign:
        """Writes the entries of publications that are about to be numbered; the result signs their statements.

        Raises Unavailable: a store does not respond.
        """
        prepared, key = {new.table: self._prepare(new) for new in news}, self.key
        return lambda publication: sign_publication(publication, prepared[publication.table], key)

    def sign_again(self, publication: Publication) -> Evidence:
        """Signs a publication that is in the ledger; files without a known digest are read as they are now."""
        if not publication.audited:
            raise BadRequest(
                "VERSION", publication.version, "It is of a followed table, which no audit has seen."
            )
        before = self.store.find(publication.table, publication.version)
        evidence = sign_publication(publication, self._prepare(publication), self.key)
        self.store.put(evidence)
        if before is not None:
            self._remove_entries(before.entries_digest)
        return evidence

    def _remove_entries(self, digest: str) -> None:
        settings, path = self.files.settings, index_path(self.files.settings.index_dir, digest)
        path.unlink(missing_ok=True)
        if settings.shared_root is not None:
            self.files.stores.delete(f"{settings.shared_root}/index/{path.name}")

    def _prepare(self, new: NewPublication) -> PreparedEvidence:
        index, settings, stores = self._index(new), self.files.settings, self.files.stores
        before = self.store.latest(new.table)
        known = None if before is None else open_entries(self.files, before.entries_digest)
        table_id = index.header.head.table_id
        if known is not None and known.header.table_id != table_id:
            known = None
        began_s, salt = time.monotonic(), hash_tree.make_secret()
        digests = ContentDigests(stores, settings.evidence_digests, known)
        padding = hash_tree.derive_salt(salt, PADDING)
        depth = hash_tree.find_depth(index.header.files)
        texts = _describe_publication(new, index, padding), _describe_inputs(new)
        header = EntriesHeader(LAYOUT, depth, settings.evidence_digests, table_id, *texts)
        digest, _ = write_by_digest(
            settings.index_dir, lambda path: _write_entries(path, header, index, digests)
        )
        path = index_path(settings.index_dir, digest)
        share_index(stores, settings.shared_root, path)
        root = EntryFile(path).make_tree(padding).root
        message = "%s: listed %s files for evidence in %.1f s, %s of them read for their digests"
        _log.info(message, new.table, index.header.files, time.monotonic() - began_s, digests.new_files)
        return PreparedEvidence(index.header, digest, header, salt, root)

    def _index(self, new: NewPublication) -> FileIndex:
        if isinstance(new, Publication):
            return self.files.index(new)
        index = self.files.find_index(new.index_digest)
        if index is None:
            raise Unavailable(f"the file index {new.index_digest} is lost", "Run again.")
        return index


def sign_unsigned(
    writer: EvidenceWriter, ledger: Ledger, tables: Sequence[str] | None = None
) -> Iterator[tuple[Publication, Evidence | StoreError]]:
    """Signs each readable publication without a statement; yields the error if its files cannot be read any more."""
    for table, version in writer.store.unsigned(tables):
        publication = ledger.at(table, version)
        if publication is None or version < ledger.oldest_readable(table):
            continue
        try:
            yield publication, writer.sign_again(publication)
        except StoreError as error:
            yield publication, error


def _write_entries(path: Path, header: EntriesHeader, index: FileIndex, digests: ContentDigests) -> None:
    places = iter(hash_tree.choose_places(index.header.files, header.depth))
    schema = COLUMNS.with_metadata({HEADER_KEY: json.dumps(vars(header)).encode()})
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
        ThreadPoolExecutor(READERS, "evidence") as pool,
    ):
        for batch in index.batches(NEEDED):
            columns = {name: batch.column(name).to_pylist() for name in NEEDED}
            files = list(zip(columns["delta_id"], columns["size"], columns["path"], strict=True))
            found = digests.find_all(files, pool)
            # Many files share the file of their vectors: its location is its identity.
            vectors = [(digest_text(path or ""), NO_SIZE, path) for path in columns["dv_path"]]
            vector_digests = digests.find_all(vectors, pool)
            rows = zip(*columns.values(), strict=True)
            entries = [
                _make_entry(dict(zip(NEEDED, row, strict=True)), *each)
                for row, *each in zip(rows, found, vector_digests, strict=True)
            ]
            random = secrets.token_bytes(hash_tree.SALT_BYTES * len(files))
            salts = [
                random[start : start + hash_tree.SALT_BYTES]
                for start in range(0, len(random), hash_tree.SALT_BYTES)
            ]
            ids = [key if location else None for key, _, location in vectors]
            values = columns["delta_id"], columns["size"], entries, salts, list(islice(places, len(files)))
            arrays = [
                pa.array(value, field.type)
                for value, field in zip((*values, found, ids, vector_digests), schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            index.give_back(batch)


def _make_entry(row: Mapping[str, Any], sha256: str | None, vector_sha256: str | None) -> str:
    line = orjson.loads("{" + row["common"] + "}")
    if row["dv_path"] is not None:
        line["deletionVector"] = {"storageType": "p", **orjson.loads("{" + row["dv_rest"][2:-1] + "}")}
    elif "deletionVector" in row["delta_rest"]:
        rest = orjson.loads("{" + row["delta_rest"][1:] + "}")
        line["deletionVector"] = rest.get("deletionVector")
    entry = {"id": row["delta_id"], "parquetId": row["parquet_id"], **describe_file(line, row["dv_file_id"])}
    known = zip(DIGESTS, (sha256, vector_sha256), strict=True)
    entry |= {name: value for name, value in known if value is not None}
    return orjson.dumps(entry, option=orjson.OPT_SORT_KEYS).decode()


def _describe_publication(new: NewPublication, index: FileIndex, padding: bytes) -> str:
    """What only recipients of the whole table get."""
    prefix, failed = f"{new.table}: ", new.verdicts.get("failed_checks") or ()
    details = {
        "files": index.header.files,
        "bytes": index.header.size_bytes,
        "rows": index.header.rows,
        "partition": new.partition,
        "runId": new.run_id,
        "rollbackOf": new.rollback_of,
        "maintenanceOf": new.maintenance_of,
        # Of this table: other tables of the set may not be granted.
        "failedChecks": [name.removeprefix(prefix) for name in failed if name.startswith(prefix)],
        "padding": padding.hex(),
    }
    return canonical_json({name: value for name, value in details.items() if value is not None})


def _describe_inputs(new: NewPublication) -> str:
    """What the publication was made of; recipients get the commitment only: it names tables that are not granted."""
    names = ("deliveries", "inputs", "code", "positions")
    return canonical_json({name: new.verdicts[name] for name in names if name in new.verdicts})


def sign_publication(publication: Publication, prepared: PreparedEvidence, key: SigningKey) -> Evidence:
    """The signed statement of a numbered publication."""
    statement = make_statement(publication, prepared)
    return Evidence(
        table=publication.table,
        version=publication.version,
        key_id=key.public.key_id,
        entries_digest=prepared.entries_digest,
        salt=prepared.salt,
        envelope=key.sign(canonical_json(statement).encode("utf-8", "replace")),
    )


def make_statement(publication: Publication, prepared: PreparedEvidence) -> dict[str, Any]:
    head, verdicts, entries = prepared.header.head, publication.verdicts, prepared.entries
    audit = {
        "digest": verdicts.get("digest"),
        "state": verdicts.get("audited"),
        "checks": verdicts.get("checks"),
        "failed": verdicts.get("failed"),
        "blocking": verdicts.get("blocking"),
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": publication.table, "digest": {TREE: prepared.root.hex()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "table": {"name": publication.table, "id": head.table_id, "format": publication.format},
            "version": publication.version,
            "publishedAt": _format_time(publication.published_at),
            "signedAt": _format_time(datetime.now(UTC)),
            "schema": {
                "delta": digest_text(head.schema_string),
                "parquet": digest_text(prepared.header.parquet_schema_string),
            },
            "partitionColumns": list(head.partition_columns),
            "columnMapping": mapping_mode(head.configuration),
            "contract": publication.contract_digest,
            "audit": {name: value for name, value in audit.items() if value is not None},
            "files": {"root": prepared.root.hex(), "depth": entries.depth},
            "details": hash_tree.commit_text(hash_tree.derive_salt(prepared.salt, DETAILS), entries.details),
            "inputs": hash_tree.commit_text(hash_tree.derive_salt(prepared.salt, INPUTS), entries.inputs),
        },
    }


def _format_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def render_evidence(evidence: Evidence, entries: EntryFile, own: FileIndex | None) -> Iterator[bytes]:
    """The lines of a response: the envelope, an entry for each file, and their number.

    `own` is the index of a recipient that may read a part of the table: its lines have proofs, and no totals.
    """
    line: dict[str, Any] = {"envelope": json.loads(evidence.envelope)}
    tree: hash_tree.HashTree | None = None
    if own is None:
        line["details"] = {
            "salt": hash_tree.derive_salt(evidence.salt, DETAILS).hex(),
            "text": entries.header.details,
        }
    else:
        tree = _make_tree(entries, hash_tree.derive_salt(evidence.salt, PADDING))
    yield _line({"evidence": line})
    files = 0
    for rows in entries.rows() if own is None else entries.select(own):
        files += len(rows)
        for start in range(0, len(rows), LINES_AT_ONCE):
            yield b"".join(
                _line({"file": _open_entry(row, tree)}) for row in rows[start : start + LINES_AT_ONCE]
            )
    yield _line({"end": {"files": files}})


def _open_entry(row: Mapping[str, Any], tree: hash_tree.HashTree | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"entry": row["entry"], "salt": row["salt"].hex(), "place": row["place"]}
    if tree is not None:
        fields["proof"] = [each.hex() for each in tree.prove(row["place"])]
    return fields


def _line(content: Mapping[str, Any]) -> bytes:
    return orjson.dumps(content) + b"\n"
