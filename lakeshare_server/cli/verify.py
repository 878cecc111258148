"""`lakeshare verify`: proves to a recipient that what it downloads is what the provider's pipelines audited."""

import hashlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from lakeshare_server.cli.console import AsJson, ServerRefused, given, print_json
from lakeshare_server.errors import BadRequest, EvidenceRefused, Unavailable
from lakeshare_server.lazy import gc_disabled

if TYPE_CHECKING:
    import httpx

    from lakeshare_server.protocol.verification import AuditedFile, VerifiedEvidence

    Opened = AbstractContextManager[httpx.Response]

PIECE_BYTES = 1 << 20
AUDIT_NUMBERS = ("checks", "failed", "blocking")
DOWNLOADS = 8
QUIET_S, EVERY_S = 2.0, 1.0
TIMEOUT_S = 60.0


def verify(
    table: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE#SHARE.SCHEMA.TABLE",
            help="Table, as in a client. With --folder no profile is needed: SHARE.SCHEMA.TABLE.",
        ),
    ],
    key: Annotated[
        list[Path],
        typer.Option(help="PEM file with a public key that the provider gave you; may be repeated."),
    ],
    version: Annotated[int | None, typer.Option(min=0, help="The number; the latest by default.")] = None,
    at_least: Annotated[
        int, typer.Option(min=0, help="Refuse a lower number, as the one that you have verified before.")
    ] = 0,
    files: Annotated[
        bool, typer.Option("--files", help="Download every file and compare its bytes, too.")
    ] = False,
    published_as: Annotated[
        str | None, typer.Option(help="The provider's name of the table, if it is shared under another one.")
    ] = None,
    restricted: Annotated[
        bool,
        typer.Option(
            "--restricted", help="Your grant has a row rule: accept evidence of your part of the table."
        ),
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Save the evidence in this file, for later.")] = None,
    evidence: Annotated[Path | None, typer.Option(help="Use evidence that was saved in this file.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Compare the files of this folder, without a server; needs --evidence."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that what you get of a table is what the provider audited and signed, with its public key only.

    The signature, table, number, schema and list of files are compared with a query's response; with --files also the
    bytes of each file. Exit code 0: no difference was found; the last line shows what was not compared. Exit code 1:
    refused. Get the public key from the provider itself: a key from the server that you check proves nothing.

    Example: lakeshare verify bob.share#sales.lake.orders --key provider.pem --files

    Offline: lakeshare verify sales.lake.orders --key provider.pem --evidence saved.jsonl --folder downloads
    """
    from lakeshare_server.tables.envelope import parse_public_keys

    if not key:
        raise BadRequest("--key", "none", "Give the provider's public key, a PEM file.")
    if folder is not None and evidence is None:
        raise BadRequest("--folder", str(folder), "Give --evidence, too: the file that --save has written.")
    if save is not None and evidence is not None:
        # It may be the same file, which is emptied before it is read.
        raise BadRequest("--save", str(save), f"Leave it out: {evidence} has the evidence.")
    keys = parse_public_keys("--key", key)
    profile, names = _parse_table(table, is_offline=folder is not None)
    verification = Verification(
        names, version, published_as or f"{names[1]}.{names[2]}", keys, restricted, at_least
    )
    try:
        if folder is not None and evidence is not None:
            result = verification.verify_folder(evidence, folder)
        else:
            with open_client(profile) as client:
                result = verification.verify_table(client, evidence=evidence, save=save, downloads=files)
    except EvidenceRefused as error:
        if as_json:
            print_json({"accepted": False, "fully_verified": False, "refusal": str(error)})
            raise typer.Exit(1) from error
        raise
    if as_json:
        print_json({"accepted": True, "fully_verified": result.is_full, **asdict(result)})
    else:
        typer.echo("\n".join(result.lines()))


def _parse_table(text: str, *, is_offline: bool) -> tuple[Path, tuple[str, str, str]]:
    from lakeshare_server.provider.serveability import parse_profile_table

    return parse_profile_table(text if "#" in text or not is_offline else f"-#{text}")


@dataclass(kw_only=True)
class VerificationResult:
    """What was compared. `digests` and `sizes` are files compared by SHA-256, and by size only."""

    table: str
    number: int
    published_at: str
    key_id: str
    is_complete: bool
    files: int
    downloaded: int = 0
    digests: int = 0
    sizes: int = 0
    has_response: bool = True
    bytes: int = 0
    audit: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.is_complete and self.downloaded == self.files and not self.sizes and not self.gaps

    @property
    def gaps(self) -> list[str]:
        """What was not proven, in sentences."""
        gaps = []
        if not self.is_complete:
            gaps.append(
                "that no file of your part of the table is missing (a row rule hides the other files)"
            )
        if not self.downloaded and self.files:
            gaps.append("the bytes of files: they were not downloaded (--files)")
        if self.sizes:
            gaps.append(f"the content of {self.sizes} files: only their sizes are signed and were compared")
        if not self.has_response:
            gaps.append(
                "the server's response: schema, partition values and deletes come from the evidence only"
            )
        return gaps

    def lines(self) -> Iterator[str]:
        yield f"{self.table}, number {self.number}, published {self.published_at}"
        yield f"ok  signature: key {self.key_id}"
        if self.audit:
            numbers = ", ".join(f"{self.audit[name]} {name}" for name in AUDIT_NUMBERS if name in self.audit)
            yield f"ok  audit: {numbers}"
        part = "every file of the publication" if self.is_complete else "the files of your part of the table"
        yield f"ok  list of files: {self.files}, {part}"
        if self.has_response:
            yield "ok  response: table, number, schema, partitions, statistics and deletes are as signed"
        if self.downloaded:
            yield f"ok  bytes: {self.digests} of {self.downloaded} files have the signed SHA-256 ({self.bytes} bytes)"
        if self.is_full:
            yield "fully verified"
        else:
            yield f"verified in part; not proven: {'; '.join(self.gaps)}"


@dataclass(frozen=True)
class Verification:
    """What is to be verified: a table by its shared names and its published one, a number, and the trusted keys."""

    names: tuple[str, str, str]
    version: int | None
    published_as: str
    keys: Sequence[Any]
    restricted: bool
    at_least: int = 0

    def verify_folder(self, evidence: Path, folder: Path) -> VerificationResult:
        """Compares the files of a folder with saved evidence, by their digests, whatever their names."""
        with _open_saved(evidence) as lines:
            verified = self._read(lines)
        result = _make_result(verified, has_response=False)
        # Two files may have the same content.
        digests = Counter(file.sha256 for file in verified.files.values() if file.sha256)
        sizes = Counter(file.size for file in verified.files.values() if not file.sha256)
        vectors = {file.vector_sha256 for file in verified.files.values() if file.vector_sha256}
        missing_vectors = set(vectors)
        with _Progress("compared", result.files) as progress:
            for path in _list_files(folder):
                found, size = _hash_file(path)
                progress.add(size)
                result.bytes += size
                if digests[found]:
                    digests[found] -= 1
                elif found in vectors:
                    missing_vectors.discard(found)
                elif sizes[size]:
                    sizes[size] -= 1
                    result.sizes += 1
                else:
                    raise EvidenceRefused(
                        f"{path} is none of the files that were signed: its bytes were changed, or it is there twice."
                    )
        missing = digests.total() + sizes.total() + len(missing_vectors)
        if missing:
            raise EvidenceRefused(f"{missing} of the files that were signed are not in {folder}.")
        result.downloaded, result.digests = result.files, result.files - result.sizes
        return result

    def verify_table(
        self, client: "SharingClient", *, evidence: Path | None, save: Path | None, downloads: bool
    ) -> VerificationResult:
        """Compares what a server responds with its evidence, or with saved evidence."""
        with ExitStack() as opened:
            if evidence is not None:
                lines: Iterable[bytes] = opened.enter_context(_open_saved(evidence))
            else:
                response = opened.enter_context(client.read_evidence(self.names, self.version))
                lines = iterate_lines(response)
            verified = self._read(lines if save is None else _tee(lines, save))
            if evidence is None:
                _require_number(response, verified.statement.version)
        result = _make_result(verified)
        with client.query(self.names, self.version) as response:
            _check_response(client, response, verified, result, downloads=downloads)
        return result

    def _read(self, lines: Iterable[bytes]) -> "VerifiedEvidence":
        from lakeshare_server.protocol.verification import read_evidence

        # The files of a large table are objects that all stay.
        with gc_disabled(), _Progress("read the evidence of", None) as progress:
            counted = progress.count(lines)
            verified = read_evidence(counted, self.keys, accepts_part=self.restricted)
        verified.statement.require(self.published_as, self.version, self.at_least)
        return verified


def _make_result(verified: "VerifiedEvidence", *, has_response: bool = True) -> VerificationResult:
    statement = verified.statement
    hidden = {"padding"}
    return VerificationResult(
        table=statement.table,
        number=statement.version,
        published_at=str(statement.predicate.get("publishedAt")),
        key_id=statement.key_id,
        is_complete=verified.is_complete,
        files=len(verified.files),
        audit=statement.predicate.get("audit") or {},
        details={name: value for name, value in verified.details.items() if name not in hidden},
        has_response=has_response,
    )


def _require_number(response: "httpx.Response", signed: int) -> None:
    number = response.headers.get("delta-table-version")
    if number != str(signed):
        raise EvidenceRefused(
            f"The server responds with number {number}, and the evidence is of {signed}. If another number was "
            "published meanwhile, run it again."
        )


def _check_response(
    client: "SharingClient",
    response: "httpx.Response",
    verified: "VerifiedEvidence",
    result: VerificationResult,
    *,
    downloads: bool,
) -> None:
    from lakeshare_server.protocol.lines import HEADER, parse_capabilities
    from lakeshare_server.protocol.verification import ResponseCheck, parse_line

    _require_number(response, result.number)
    formats = parse_capabilities(response.headers.get(HEADER)).response_formats
    response_format = "delta" if "delta" in formats else "parquet"
    check = ResponseCheck(verified, response_format)
    with (
        _Progress("checked", result.files) as progress,
        _Downloads(client, response_format, result, progress) as queue,
    ):
        for line in iterate_lines(response):
            found = check.check(parse_line(line))
            if found is None:
                continue
            if downloads:
                queue.add(*found)
            else:
                progress.add(0)
        check.finish()


class _Downloads:
    """Downloads files beside each other, and compares their bytes with the evidence."""

    def __init__(
        self, client: "SharingClient", response_format: str, result: VerificationResult, progress: "_Progress"
    ) -> None:
        self._client, self._response_format = client, response_format
        self._result, self._progress = result, progress
        self._pool = ThreadPoolExecutor(DOWNLOADS, "verify")
        self._room = threading.Semaphore(2 * DOWNLOADS)
        self._turn = threading.Lock()
        self._vectors: set[str] = set()
        self._running: list[Future[None]] = []

    def __enter__(self) -> "_Downloads":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for running in self._running:
                running.result()

    def add(self, fields: Mapping[str, Any], audited: "AuditedFile") -> None:
        """Downloads a file and the vector of its deletes; raises the error of an earlier one."""
        for running in [each for each in self._running if each.done()]:
            running.result()
            self._running.remove(running)
        vector = fields.get("deletionVector") or {}
        # Clients of the delta format read the path only, whatever else a line has.
        url = str(fields.get("path" if self._response_format == "delta" else "url"))
        vector_url = str(vector["pathOrInlineDv"]) if vector.get("storageType") == "p" else None
        self._room.acquire()
        self._running.append(self._pool.submit(self._check, url, vector_url, audited))

    def _check(self, url: str, vector_url: str | None, audited: "AuditedFile") -> None:
        try:
            sha256, size = self._client.hash_file(url)
            if size != audited.size or (audited.sha256 and sha256 != audited.sha256):
                raise EvidenceRefused(f"The bytes of {_shorten_url(url)} are not those that were signed.")
            is_vector_new = vector_url is not None and audited.vector_sha256 not in self._vectors
            if vector_url is not None and audited.vector_sha256 and is_vector_new:
                found, _ = self._client.hash_file(vector_url)
                if found != audited.vector_sha256:
                    raise EvidenceRefused(
                        f"The deletes in {_shorten_url(vector_url)} are not those that were signed."
                    )
                self._vectors.add(found)
            has_digests = audited.sha256 and (vector_url is None or audited.vector_sha256)
            with self._turn:
                self._result.downloaded += 1
                self._result.bytes += size
                self._result.digests += bool(has_digests)
                self._result.sizes += not has_digests
                self._progress.add(size)
        finally:
            self._room.release()


def _shorten_url(url: str) -> str:
    """The URL without its signature."""
    return url.partition("?")[0]


class _Progress:
    """Reports on the terminal's error output what takes longer than two seconds."""

    def __init__(self, verb: str, files: int | None) -> None:
        self._verb, self._files = verb, files
        self._done = self._bytes = 0
        self._next_s = time.monotonic() + QUIET_S
        self._is_shown = False

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown and sys.stderr.isatty():
            typer.echo(err=True)

    def count(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The lines, counted as files."""
        for line in lines:
            self.add(0)
            yield line

    def add(self, size: int) -> None:
        self._done += 1
        self._bytes += size
        if time.monotonic() < self._next_s:
            return
        is_terminal = sys.stderr.isatty()
        text = f"{self._verb} {self._done:,} files"
        if self._files is not None:
            text = f"{self._verb} {self._done:,} of {self._files:,} files ({self._done / max(self._files, 1):.0%})"
        if self._bytes:
            text += f", {self._bytes / 1e6:,.0f} MB"
        typer.echo(f"\r{text}" if is_terminal else text, err=True, nl=not is_terminal)
        self._is_shown = True
        self._next_s = time.monotonic() + (EVERY_S if is_terminal else 10 * EVERY_S)


@dataclass(frozen=True)
class SharingClient:
    """Requests of a recipient with its profile; files are downloaded without its token."""

    endpoint: str
    client: "httpx.Client"
    plain: "httpx.Client"

    def read_evidence(self, names: tuple[str, str, str], version: int | None) -> "Opened":
        """The response with a table's evidence."""
        url = f"{self.endpoint}{_table_path(names)}/evidence"
        return self._send(self.client, "GET", url, params=given(version=version))

    def query(self, names: tuple[str, str, str], version: int | None) -> "Opened":
        """The response to a query for all files of a table, with ids of the delta format."""
        from lakeshare_server.protocol.lines import HEADER
        from lakeshare_server.tables.delta.snapshot import READER_WRITER

        # All features: bytes are compared, and no column is read.
        features = ",".join(sorted(feature.lower() for feature in READER_WRITER))
        capabilities = f"responseformat=delta,parquet;readerfeatures={features};includeendstreamaction=true"
        headers = {HEADER: capabilities, "fileidhash": "delta"}
        url = f"{self.endpoint}{_table_path(names)}/query"
        return self._send(self.client, "POST", url, json=given(version=version), headers=headers)

    def hash_file(self, url: str) -> tuple[str, int]:
        """The SHA-256 and the size of a file."""
        digest, size = hashlib.sha256(), 0
        with self._send(self.plain, "GET", url) as response:
            for piece in response.iter_bytes(PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
        return digest.hexdigest(), size

    @contextmanager
    def _send(
        self, client: "httpx.Client", method: str, url: str, **fields: Any
    ) -> "Iterator[httpx.Response]":
        import httpx

        try:
            response = client.send(client.build_request(method, url, **fields), stream=True)
            try:
                if not response.is_success:
                    response.read()
                    raise ServerRefused(response)
                yield response
            finally:
                response.close()
        # The last is of a host that cannot be a name in the DNS.
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            what = f"{_shorten_url(url)} cannot be read: {error or type(error).__name__}"
            raise Unavailable(what, "Try again; check the endpoint in the profile.") from error


@contextmanager
def open_client(profile: Path) -> Iterator[SharingClient]:
    """A client for a profile with a bearer token, OAuth client credentials or a password. Raises BadRequest."""
    import httpx

    fields = _read_profile(profile)
    endpoint = str(fields.get("endpoint", "")).rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise BadRequest("PROFILE", str(profile), "Give a profile file with an endpoint.")
    with httpx.Client(timeout=TIMEOUT_S) as plain:
        auth = _make_auth(profile, fields, plain)
        with httpx.Client(auth=auth, timeout=TIMEOUT_S) as client:
            yield SharingClient(endpoint, client, plain)


def _read_profile(profile: Path) -> dict[str, Any]:
    try:
        fields = json.loads(profile.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest("PROFILE", str(profile), f"Give a readable profile file ({error}).") from error
    if not isinstance(fields, dict):
        raise BadRequest("PROFILE", str(profile), "Give a profile file, a JSON object.")
    return fields


def _make_auth(profile: Path, fields: Mapping[str, Any], plain: "httpx.Client") -> Any:
    """What httpx authenticates with; Any, because it is one of several classes of httpx."""
    import httpx

    kind = fields.get("type", "bearer_token")
    try:
        if kind == "bearer_token":
            return partial(_add_token, fields["bearerToken"])
        if kind == "basic":
            return httpx.BasicAuth(str(fields["username"]), str(fields["password"]))
        if kind == "oauth_client_credentials":
            form = {"grant_type": "client_credentials", **given(scope=fields.get("scope"))}
            client = httpx.BasicAuth(str(fields["clientId"]), str(fields["clientSecret"]))
            response = plain.post(str(fields["tokenEndpoint"]), data=form, auth=client)
            if not response.is_success:
                raise ServerRefused(response)
            issued = response.json()
            if isinstance(issued, dict) and "access_token" in issued:
                return partial(_add_token, issued["access_token"])
            raise Unavailable("the response of the token endpoint has no token", "Check the profile.")
    except KeyError as error:
        raise BadRequest("PROFILE", str(profile), f"The profile of type {kind} lacks {error}.") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        endpoint = fields.get("tokenEndpoint")
        raise Unavailable(f"{endpoint} issues no token: {error}", "Try again; check the profile.") from error
    raise BadRequest(
        "PROFILE", str(kind), "Give a profile of type bearer_token, oauth_client_credentials or basic."
    )


def _add_token(token: object, request: "httpx.Request") -> "httpx.Request":
    request.headers["Authorization"] = f"Bearer {token}"
    return request


def _table_path(names: tuple[str, str, str]) -> str:
    share, schema, table = (quote(name, safe="") for name in names)
    return f"/shares/{share}/schemas/{schema}/tables/{table}"


def iterate_lines(response: "httpx.Response") -> Iterator[bytes]:
    """The lines of a streamed response; httpx would split at separators inside of texts, too."""
    rest = b""
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        yield from filter(None, lines)
    if rest:
        yield rest


@contextmanager
def _open_saved(path: Path) -> Iterator[Iterable[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise BadRequest("--evidence", str(path), f"Give a readable file of evidence ({error}).") from error


def _tee(lines: Iterable[bytes], path: Path) -> Iterator[bytes]:
    try:
        with path.open("wb") as file:
            for line in lines:
                file.write(line.rstrip(b"\n") + b"\n")
                yield line
    except OSError as error:
        raise BadRequest("--save", str(path), f"Give a file that can be written ({error}).") from error


def _list_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise BadRequest("--folder", str(folder), "Give the folder of the downloaded files.")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _hash_file(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size
