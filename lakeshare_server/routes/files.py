"""The bytes of local files, to whoever holds a signed URL. Stores sign their own URLs; these never come here."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lakeshare_server.access.elsewhere import is_our_own
from lakeshare_server.errors import Denied, NotFound
from lakeshare_server.protocol.byte_range import ByteRange, parse_range
from lakeshare_server.routes.context import NoteDep, PartsDep
from lakeshare_server.routes.responses import error_response
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing.local import SIGNATURE, Claim

PREFIX = "/files"
PIECE_BYTES = 1 << 20
DIGITS = 16

router = APIRouter(prefix=PREFIX)


@dataclass(frozen=True)
class OpenFile:
    """A file opened once: size and bytes are of the same file, whatever happens to its name."""

    stream: BinaryIO
    size: int
    etag: str


class FileResponse(StreamingResponse):
    """Bytes of an open file, closed at the end: clients often leave before they have read anything."""

    def __init__(
        self, file: OpenFile, wanted: ByteRange, *, status_code: int, headers: dict[str, str], media_type: str
    ) -> None:
        super().__init__(_pieces(file, wanted), status_code, headers, media_type)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.stream.close()


@router.api_route("/{path:path}", methods=["GET", "HEAD"], name="read_file")
def read_file(path: str, request: Request, parts: PartsDep, note: NoteDep) -> Response:
    note.action = "read_file"
    claim = _claim("/" + path, request)
    parts.local_signer.verify(claim, request.query_params.get(SIGNATURE, ""))
    note.recipient, note.object_name = claim.recipient, claim.path
    file = opened_file(claim.path, parts.settings)
    asked = request.headers.get("range")
    if request.headers.get("if-range", file.etag) != file.etag:
        asked = None
    wanted = parse_range(asked, file.size)
    if wanted is None:
        file.stream.close()
        return error_response(
            416,
            "INVALID_PARAMETER_VALUE",
            f"Range: {asked!r} is outside the file's {file.size} bytes.",
            {"Content-Range": f"bytes */{file.size}"},
        )
    note.size_bytes = 0 if request.method == "HEAD" else wanted.length
    return _response(file, wanted, head_only=request.method == "HEAD")


def _claim(path: str, request: Request) -> Claim:
    expires = request.query_params.get("expires", "")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= DIGITS):
        raise Denied("The URL is not signed. Query the table for signed URLs.")
    return Claim(path, request.query_params.get("recipient", ""), int(expires))


def opened_file(path: str, settings: ServerSettings) -> OpenFile:
    """A local file that recipients may have.

    Raises:
        NotFound: it is not there, is no regular file, or is one of the server's own.
    """
    missing = NotFound("File", Path(path).name)
    try:
        # What is judged is what is opened: the file at the end of all links.
        place = Path(os.path.realpath(path))
        if is_our_own(place, settings):
            raise missing
        stream = open(place, "rb", opener=_opened_at_once)  # noqa: SIM115  # the response closes it
    except (OSError, ValueError) as error:
        raise missing from error
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode):
        stream.close()
        raise missing
    return OpenFile(stream, status.st_size, f'"{status.st_size:x}-{status.st_mtime_ns:x}"')


def _opened_at_once(path: str, flags: int) -> int:
    # Without NONBLOCK opening a pipe would wait for a writer. A link that is there by now was not judged.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _response(file: OpenFile, wanted: ByteRange, *, head_only: bool) -> Response:
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Length": str(wanted.length),
        "ETag": file.etag,
        "Cache-Control": "private, no-transform",
    }
    if wanted.is_partial:
        headers["Content-Range"] = f"bytes {wanted.start}-{wanted.start + wanted.length - 1}/{file.size}"
    return FileResponse(
        file,
        ByteRange(0, 0, wanted.is_partial) if head_only else wanted,
        status_code=206 if wanted.is_partial else 200,
        headers=headers,
        media_type="application/octet-stream",
    )


def _pieces(file: OpenFile, wanted: ByteRange) -> Iterator[bytes]:
    file.stream.seek(wanted.start)
    left = wanted.length
    while left > 0:
        piece = file.stream.read(min(PIECE_BYTES, left))
        if not piece:
            raise OSError(f"{file.stream.name} became shorter while it was read")
        left -= len(piece)
        yield piece
