"""The bytes of local files for signed URLs; other stores serve signed URLs themselves."""

import fcntl
import logging
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lakeshare_server.access.allowed_locations import is_servable
from lakeshare_server.errors import Denied, NotFound
from lakeshare_server.protocol.requests import ByteRange, matches_etag, parse_range
from lakeshare_server.routes.context import AppStateDep, AuditRecordDep
from lakeshare_server.routes.responses import error_response
from lakeshare_server.settings import FILES_PATH, ServerSettings
from lakeshare_server.storage.remote import SIGNATURE, Claim

PIECE_BYTES = 1 << 20
DIGITS = 16
CACHE = "private, no-transform"

router = APIRouter(prefix=FILES_PATH)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenFile:
    stream: BinaryIO
    size: int
    etag: str


class FileResponse(StreamingResponse):
    """The bytes of an open file, which is closed at the end, also if the client disconnects early."""

    def __init__(
        self,
        file: OpenFile,
        byte_range: ByteRange,
        *,
        status_code: int,
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        super().__init__(_pieces(file, byte_range), status_code, headers, media_type)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.stream.close()


@router.api_route("/{ticket}/{name:path}", methods=["GET", "HEAD"], name="read_file")
def read_file(
    ticket: str, name: str, request: Request, app_state: AppStateDep, audit_record: AuditRecordDep
) -> Response:
    audit_record.action = "read_file"
    expires = request.query_params.get("expires", "")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= DIGITS):
        raise Denied("The URL is not signed. Query the table for signed URLs.")
    claim = Claim(ticket, name, int(expires))
    app_state.local_signer.verify(claim, request.query_params.get(SIGNATURE, ""))
    audit_record.recipient, file_ticket = app_state.file_tickets.require(ticket)
    # Concatenated, because joining an absolute name would replace the folder.
    path = f"{file_ticket.folder.rstrip('/')}/{name}"
    audit_record.object_name = path
    file = open_file(path, file_ticket.folder, app_state.settings)
    refusal = _condition_failed(request, file)
    if refusal is not None:
        file.stream.close()
        return refusal
    range_header = request.headers.get("range")
    if request.headers.get("if-range", file.etag) != file.etag:
        range_header = None
    byte_range = parse_range(range_header, file.size)
    if byte_range is None:
        file.stream.close()
        return error_response(
            416,
            "INVALID_PARAMETER_VALUE",
            f"Range: {range_header!r} is outside the file's {file.size} bytes.",
            {"Content-Range": f"bytes */{file.size}"},
        )
    is_head = request.method == "HEAD"
    audit_record.size_bytes = 0 if is_head else byte_range.length
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Length": str(byte_range.length),
        "ETag": file.etag,
        "Cache-Control": CACHE,
    }
    if byte_range.is_partial:
        last = byte_range.start + byte_range.length - 1
        headers["Content-Range"] = f"bytes {byte_range.start}-{last}/{file.size}"
    return FileResponse(
        file,
        ByteRange(0, 0, byte_range.is_partial) if is_head else byte_range,
        status_code=206 if byte_range.is_partial else 200,
        headers=headers,
        media_type="application/octet-stream",
    )


def _condition_failed(request: Request, file: OpenFile) -> Response | None:
    """The response if If-Match or If-None-Match is not fulfilled (RFC 9110 §13.2.2), else None."""
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_match is not None and not matches_etag(if_match, file.etag):
        message = f"If-Match: the file has the entity tag {file.etag}. Query the table again for fresh URLs."
        return error_response(412, "INVALID_PARAMETER_VALUE", message, {"ETag": file.etag})
    if if_match is None and if_none_match is not None and matches_etag(if_none_match, file.etag):
        return Response(status_code=304, headers={"ETag": file.etag, "Cache-Control": CACHE})
    return None


def open_file(path: str, folder: str, settings: ServerSettings) -> OpenFile:
    """A table's local file. Raises NotFound if it is missing, not regular, or may not be served."""
    missing = NotFound("File", Path(path).name)
    try:
        stream = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115  # the response closes it
    except (OSError, ValueError) as error:
        raise missing from error
    try:
        status = os.fstat(stream.fileno())
        # The open file is checked, because its name may lead to another file by now.
        real_path = _path_of_descriptor(stream.fileno())
        is_file = stat.S_ISREG(status.st_mode) and status.st_nlink > 0
        if is_file and is_servable(real_path, folder, settings):
            return OpenFile(stream, status.st_size, f'"{status.st_size:x}-{status.st_mtime_ns:x}"')
    except OSError as error:
        stream.close()
        raise missing from error
    stream.close()
    if is_file:
        _log.warning(
            "%s leads to %s, which is outside of %s or one of the server's own files: it is not served. Put files of "
            "the table into its folder, or allow the other folder with LAKESHARE_FILES_ALSO_IN.",
            path,
            real_path,
            folder,
        )
    raise missing


def _open_without_waiting(path: str, flags: int) -> int:
    # Without NONBLOCK, opening a pipe would wait for a writer.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _path_of_descriptor(descriptor: int) -> Path:
    if sys.platform == "darwin":
        return Path(os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _pieces(file: OpenFile, byte_range: ByteRange) -> Iterator[bytes]:
    file.stream.seek(byte_range.start)
    left = byte_range.length
    while left > 0:
        piece = file.stream.read(min(PIECE_BYTES, left))
        if not piece:
            raise OSError(f"{file.stream.name} became shorter while it was read")
        left -= len(piece)
        yield piece
