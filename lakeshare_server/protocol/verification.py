"""Checks of a recipient: whether what it gets of a table is what the provider signed.

Nothing is trusted but the given public keys. All methods raise EvidenceRefused with the first difference.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakeshare_server.errors import ODD_ANSWER, EvidenceRefused, shorten_value
from lakeshare_server.tables import hash_tree
from lakeshare_server.tables.envelope import STATEMENT_TYPE, PublicKey, canonical_json, open_envelope
from lakeshare_server.tables.evidence import DIGESTS, IDS, PREDICATE_TYPE, TREE, describe_file, digest_text

KINDS = ("protocol", "metaData", "file", "endStreamAction")
COLUMN_MAPPING = "delta.columnMapping.mode"


@dataclass(frozen=True)
class Statement:
    """A statement whose signature is valid; the fields are those of its predicate."""

    table: str
    version: int
    predicate: Mapping[str, Any]
    root: str
    depth: int
    key_id: str

    def require(self, table: str, version: int | None, at_least: int = 0) -> None:
        """Refuses the statement of another table or number than was asked for, or of a number below `at_least`."""
        if self.table.lower() != table.lower():
            raise EvidenceRefused(
                f"The evidence is of table {self.table}, not of {table}. If the provider shares {self.table} under "
                f"this name, give --published-as {self.table}."
            )
        if version is not None and self.version != version:
            raise EvidenceRefused(f"The evidence is of number {self.version}, not of {version}.")
        if self.version < at_least:
            raise EvidenceRefused(
                f"The evidence is of number {self.version}, which is older than {at_least}."
            )

    def require_head(self, metadata: Mapping[str, Any], response_format: str) -> None:
        """Refuses a response whose metadata line is not of the table as it was published."""
        inner = _fields(metadata.get("deltaMetadata")) if response_format == "delta" else metadata
        signed = self.predicate
        mode = _fields(inner.get("configuration")).get(COLUMN_MAPPING, "none")
        pairs: dict[str, tuple[object, object]] = {
            "table id": (signed["table"].get("id"), inner.get("id")),
            "schema": (signed["schema"].get(response_format), digest_text(str(inner.get("schemaString")))),
            "partition columns": (signed.get("partitionColumns"), inner.get("partitionColumns")),
        }
        if response_format == "delta":
            pairs["column mapping"] = signed.get("columnMapping"), mode
        for what, (expected, found) in pairs.items():
            if expected != found:
                raise EvidenceRefused(
                    f"The {what} of the response is not what was signed: {shorten_value(found)}."
                )


def read_statement(envelope: object, trusted: Sequence[PublicKey]) -> Statement:
    """The statement in an envelope that one of the trusted keys has signed."""
    payload, key = open_envelope(envelope, trusted)
    with suppress(ValueError, KeyError, TypeError, IndexError, RecursionError, AttributeError):
        content = json.loads(payload)
        predicate, subject = content["predicate"], content["subject"][0]
        files, table, version = predicate["files"], predicate["table"]["name"], predicate["version"]
        is_ours = content["_type"] == STATEMENT_TYPE and content["predicateType"] == PREDICATE_TYPE
        is_whole = (
            subject == {"name": table, "digest": {TREE: files["root"]}}
            and isinstance(table, str)
            and type(version) is int
            and type(files["depth"]) is int
            and 0 < files["depth"] <= hash_tree.MAX_DEPTH
            and isinstance(predicate["schema"], Mapping)
            and isinstance(predicate["details"], str)
        )
        if is_ours and is_whole:
            return Statement(table, version, predicate, files["root"], files["depth"], key.key_id)
    raise EvidenceRefused(
        f"The signed statement is not of the type {PREDICATE_TYPE}: use a newer version of lakeshare."
    )


class AuditedFile(NamedTuple):
    """A signed entry: what a line of the file must have, by its digest, and the digests of its bytes if signed."""

    line_digest: str
    size: int
    sha256: str | None
    vector_sha256: str | None


@dataclass
class VerifiedEvidence:
    """Evidence whose signature and list of files are valid; `is_complete`: no file of the publication is missing."""

    statement: Statement
    is_complete: bool
    files: dict[str, AuditedFile] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


def read_evidence(
    lines: Iterable[bytes], trusted: Sequence[PublicKey], *, accepts_part: bool
) -> VerifiedEvidence:
    """Checks the lines of evidence; `accepts_part`: the recipient knows that it may read a part of the table.

    A server that leaves out files could call a recipient restricted, so a part is refused by default.
    """
    parsed = (parse_line(line) for line in lines if line.strip())
    first = _require_kind(next(parsed, {}), "evidence")
    statement = read_statement(first.get("envelope"), trusted)
    details = _open_details(statement, first.get("details"))
    if details is None and not accepts_part:
        raise EvidenceRefused(
            "The server has evidence of a part of the table for you. If your grant has a row rule, give --restricted: "
            "it cannot be shown then that no file of your part is missing."
        )
    evidence = VerifiedEvidence(statement, details is not None, details=details or {})
    leaves: list[tuple[int, bytes]] = []
    is_ended = False
    for line in parsed:
        if is_ended or "end" in line:
            is_ended = not is_ended and line.get("end") == {"files": len(evidence.files)}
            if not is_ended:
                break
            continue
        leaf = _add_file(evidence, _require_kind(line, "file"))
        if evidence.is_complete:
            leaves.append(leaf)
    if not is_ended:
        raise EvidenceRefused("The evidence is cut off, or its last line is wrong: get it again.")
    if details is not None:
        _require_complete(evidence, leaves)
    return evidence


def _open_details(statement: Statement, opened: object) -> Mapping[str, Any] | None:
    if opened is None:
        return None
    with suppress(*ODD_ANSWER, RecursionError):
        salt, text = bytes.fromhex(opened["salt"]), opened["text"]  # type: ignore[index]
        if hash_tree.commit_text(salt, text) == statement.predicate["details"]:
            details = json.loads(text)
            if type(details["files"]) is int and bytes.fromhex(details["padding"]):
                return dict(details)
    raise EvidenceRefused("The details in the evidence are not those that were signed.")


def _add_file(evidence: VerifiedEvidence, fields: Mapping[str, Any]) -> tuple[int, bytes]:
    """Adds a file; returns the place and the hash of its entry, checked if the evidence is not complete."""
    statement = evidence.statement
    try:
        entry, place, salt = fields["entry"], int(fields["place"]), bytes.fromhex(fields["salt"])
        leaf, content = hash_tree.hash_leaf(salt, entry.encode()), json.loads(entry)
        proof = [] if evidence.is_complete else [bytes.fromhex(each) for each in fields["proof"]]
        file_id, file = str(content["id"]), _read_entry(content)
    except (*ODD_ANSWER, OverflowError, RecursionError) as error:
        raise EvidenceRefused("A line of the evidence has no entry of a file.") from error
    if len(salt) != hash_tree.SALT_BYTES or not 0 <= place < 1 << statement.depth:
        raise EvidenceRefused(f"The entry of file {file_id} has a wrong salt or place.")
    is_within = (
        len(proof) == statement.depth and hash_tree.find_root(leaf, place, proof).hex() == statement.root
    )
    if not (evidence.is_complete or is_within):
        raise EvidenceRefused(f"File {file_id} is not in the list of files that was signed.")
    if file_id in evidence.files:
        raise EvidenceRefused(f"File {file_id} is twice in the evidence.")
    evidence.files[file_id] = file
    return place, leaf


def _read_entry(content: Mapping[str, Any]) -> AuditedFile:
    described = {name: value for name, value in content.items() if name not in (*DIGESTS, *IDS)}
    sha256, vector_sha256 = (content.get(name) for name in DIGESTS)
    line_digest = digest_text(canonical_json(described))
    return AuditedFile(line_digest, content["size"], sha256, vector_sha256)


def _require_complete(evidence: VerifiedEvidence, leaves: list[tuple[int, bytes]]) -> None:
    statement, details = evidence.statement, evidence.details
    if details["files"] != len(evidence.files):
        missing = f"{len(evidence.files)} files, and {details['files']} were published"
        raise EvidenceRefused(f"The evidence lists {missing}: one was left out or added.")
    if statement.depth != hash_tree.find_depth(details["files"]):
        raise EvidenceRefused("The tree of the statement has a wrong depth.")
    with suppress(ValueError):
        if (
            hash_tree.HashTree(leaves, statement.depth, bytes.fromhex(details["padding"])).root.hex()
            == statement.root
        ):
            return
    raise EvidenceRefused("The list of files in the evidence is not the one that was signed.")


@dataclass
class ResponseCheck:
    """Compares the lines of a query's response with evidence, as they arrive."""

    evidence: VerifiedEvidence
    response_format: str
    seen: set[str] = field(default_factory=set)
    has_head: bool = False
    is_ended: bool = False

    def check(self, line: Mapping[str, Any]) -> tuple[Mapping[str, Any], AuditedFile] | None:
        """The fields of a file's line and its entry; None for the other lines."""
        if self.is_ended:
            raise EvidenceRefused("The response has lines after its end.")
        kind, content = next(iter(line.items()), ("", None))
        if len(line) != 1 or kind not in KINDS or not isinstance(content, Mapping):
            raise EvidenceRefused(f"The response has a line of the kind {kind!r}, which no snapshot has.")
        if kind == "file":
            return self._check_file(content)
        if kind == "metaData":
            self.evidence.statement.require_head(content, self.response_format)
            self.has_head = True
        elif kind == "endStreamAction":
            action = content
            if action.get("errorMessage") or action.get("nextPageToken"):
                raise EvidenceRefused(
                    f"The response is not whole: {action.get('errorMessage') or 'it has pages'}."
                )
            self.is_ended = True
        return None

    def _check_file(self, line: Mapping[str, Any]) -> tuple[Mapping[str, Any], AuditedFile]:
        file_id = str(line.get("id"))
        fields = dict(line)
        if self.response_format == "delta":
            fields = dict(_fields(_fields(line.get("deltaSingleAction")).get("add")))
        audited = self.evidence.files.get(file_id)
        if audited is None:
            raise EvidenceRefused(f"The server hands out file {file_id}, which is not in the evidence.")
        if file_id in self.seen:
            raise EvidenceRefused(f"The server hands out file {file_id} twice.")
        described = describe_file(fields, line.get("deletionVectorFileId"))
        if digest_text(canonical_json(described)) != audited.line_digest:
            raise EvidenceRefused(
                f"File {file_id} has another size, partition, statistics or deletes than were signed."
            )
        self.seen.add(file_id)
        return fields, audited

    def finish(self) -> None:
        """Refuses a response that was cut off, or that lacks files of the evidence."""
        if not self.is_ended or not self.has_head:
            raise EvidenceRefused("The response of the query is cut off: run it again.")
        missing = len(self.evidence.files) - len(self.seen)
        if missing:
            raise EvidenceRefused(f"The server does not hand out {missing} of the files that were signed.")


def _fields(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def parse_line(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        content = json.loads(line)
        if isinstance(content, dict):
            return content
    raise EvidenceRefused(f"A line is no JSON object: {shorten_value(line.decode('utf-8', 'replace'))}")


def _require_kind(line: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    content = line.get(kind)
    if not isinstance(content, Mapping):
        raise EvidenceRefused(f"The evidence lacks a line of the kind {kind!r}: it is not of this format.")
    return content
