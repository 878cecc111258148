"""Data files, deletion vectors and file ids."""

import struct
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from lakeshare_conformance.case import (
    COUNT,
    DELTA,
    MUST,
    NAME,
    PARQUET,
    SHOULD,
    URL,
    ExpectationFailed,
    Group,
    NotApplicable,
    expect,
    expect_fields,
    expect_kind,
    one_of,
)
from lakeshare_conformance.client import Response
from lakeshare_conformance.reply import Action, Reply
from lakeshare_conformance.rows import (
    LARGEST_BYTES,
    MAGIC,
    can_read_as,
    count_marked_rows,
    find_broken_bound,
    get_columns,
    get_physical_name,
    read_parquet,
    unpack_inline_vector,
)
from lakeshare_conformance.targets import View

DATA_FILES = Group("data-files", "The bytes behind the URLs")

MOST_FILES = 3
LATEST_SECONDS = 100_000_000_000
PRECONDITION_FAILED, NOT_IMPLEMENTED = 412, 501


@DATA_FILES.on_views(MUST, "6.2", "0.19")
def a_file_is_as_long_as_told(view: View) -> None:
    """GET of a URL, without a token, is 200 with exactly size bytes."""
    for action in sample(view.snapshot):
        _expect_whole(view, action)


@DATA_FILES.on_views(MUST, "0.6", "10")
def a_range_is_206(view: View) -> None:
    """GET with Range is 206 with those bytes, Content-Range and Content-Length: first bytes, middle, open end."""
    for action in sample(view.snapshot):
        whole = view.table.client.fetch(action.url).expect_status(200).body
        size = len(whole)
        for first, last in ((0, 3), (size // 2, size - 1), (size - 4, size - 1)):
            _expect_part(view, action, f"bytes={first}-{last}", whole, first, last)
        _expect_part(view, action, f"bytes={size // 2}-", whole, size // 2, size - 1)


@DATA_FILES.on_views(SHOULD, "10")
def a_suffix_range_is_206(view: View) -> None:
    """GET with Range: bytes=-n is 206 with the last n bytes, where Parquet has its footer."""
    for action in sample(view.snapshot):
        whole = view.table.client.fetch(action.url).expect_status(200).body
        _expect_part(view, action, "bytes=-8", whole, len(whole) - 8, len(whole) - 1)


@DATA_FILES.on_views(SHOULD, "10")
def a_range_beyond_the_end_is_416(view: View) -> None:
    """GET with a Range that begins after the last byte is 416."""
    for action in sample(view.snapshot):
        start = action.size_bytes + 10
        view.table.client.fetch(action.url, headers={"Range": f"bytes={start}-{start + 5}"}).expect_status(
            416
        )


@DATA_FILES.on_views(MUST, "10", "6.1")
def head_tells_the_length_or_refuses(view: View) -> None:
    """HEAD of a URL is 200 with Content-Length, or 403, which clients survive."""
    for action in sample(view.snapshot):
        response = view.table.client.fetch(action.url, "HEAD").expect_status(200, 403)
        if response.status == 200:
            length = response.header("content-length")
            expect(
                length == str(action.size_bytes),
                response.request,
                f"Content-Length {action.size_bytes}",
                length,
            )


@DATA_FILES.on_views(SHOULD, "10")
def head_tells_that_ranges_are_served(view: View) -> None:
    """HEAD of a URL is 200 with Accept-Ranges: bytes."""
    for action in sample(view.snapshot):
        response = view.table.client.fetch(action.url, "HEAD").expect_status(200)
        expect(
            response.header("accept-ranges") == "bytes",
            response.request,
            "Accept-Ranges: bytes",
            response.summary,
        )


@DATA_FILES.on_views(MUST, "10")
def a_url_that_was_altered_is_refused(view: View) -> None:
    """A URL with another path, another signature or none is 4xx."""
    changes: tuple[Callable[[str], str], ...] = (_other_path, _other_signature, _no_signature)
    for action in sample(view.snapshot)[:1]:
        for change in changes:
            response = view.table.client.fetch(change(action.url))
            where = f"{response.request} after {change.__name__.strip('_').replace('_', ' ')}"
            expect(400 <= response.status < 500, where, "a refusal by 4xx", response.status)


@DATA_FILES.on_views(MUST, "2.7", "6.2")
def urls_end_no_sooner_than_told(view: View) -> None:
    """expirationTimestamp is no later than the end that the URL itself states: clients refresh by it."""
    tried = [
        (action, ends) for action in view.snapshot.actions if (ends := _url_ends_ms(action.url)) is not None
    ]
    if not tried or all(action.expires_ms is None for action, _ in tried):
        raise NotApplicable("no URL states its end, or no file has expirationTimestamp")
    for action, ends in tried:
        reported = action.expires_ms
        # URLs state whole seconds.
        expect(
            reported is None or reported < ends + 1000,
            f"{action.where}, expirationTimestamp",
            f"up to {ends}",
            reported,
        )


@DATA_FILES.on_views(MUST, "10")
def urls_are_for_reading_only(view: View) -> None:
    """PUT, POST and DELETE of a URL are refused by 4xx (or 501), and the file stays as it is."""
    # A store that lets the method in finds the precondition false and changes nothing; PUT sends the file's own bytes.
    [action, *_] = sample(view.snapshot)
    client = view.table.client
    content = client.fetch(action.url).expect_status(200).body
    for method, precondition, body in (
        ("PUT", {"If-None-Match": "*"}, content),
        ("POST", {"If-None-Match": "*"}, content),
        ("DELETE", {"If-Match": '"lakeshare-conformance"'}, None),
    ):
        response = client.fetch(action.url, method, precondition, body)
        is_refused = 400 <= response.status < 500 and response.status != PRECONDITION_FAILED
        expect(
            is_refused or response.status == NOT_IMPLEMENTED,
            response.request,
            "a refusal of the method",
            response.status,
        )
    again = client.fetch(action.url).expect_status(200)
    expect(again.body == content, again.request, "the same bytes as before", f"{len(again.body)} bytes")


@DATA_FILES.on_views(MUST, "2.1", "2.2")
def files_are_parquet_with_the_columns_of_the_schema(view: View) -> None:
    """Each file is Parquet; it has columns of the schema, of types that read as the schema's."""
    columns = get_columns(view.snapshot)
    stored = set(columns) - {
        get_physical_name(view.snapshot, name) for name in view.snapshot.partition_columns
    }
    for action in sample(view.snapshot):
        # Files may have other columns beside: of an older schema, or the writer's own.
        found = read_parquet(view, action).schema
        known = [name for name in found.names if name in stored]
        expect(bool(known) or not stored, action.where, f"a file with some of {sorted(stored)}", found.names)
        for name in known:
            reported, kind = columns[name]
            is_fit = can_read_as(found.field(name).type, kind)
            expect(is_fit, f"{action.where}, column {reported}", f"a {kind}", str(found.field(name).type))


@DATA_FILES.on_views(MUST, "2.1", "1.7")
def statistics_count_the_rows(view: View) -> None:
    """stats.numRecords is the number of rows in the file."""
    tried = [action for action in sample(view.snapshot) if "numRecords" in (action.stats or {})]
    if not tried:
        raise NotApplicable("no file tells numRecords")
    for action in tried:
        reported, found = (action.stats or {})["numRecords"], read_parquet(view, action).num_rows
        expect(reported == found, f"{action.where}, stats.numRecords", str(found), reported)


@DATA_FILES.on_views(MUST, "2.1", "0.15")
def statistics_hold_the_rows(view: View) -> None:
    """No value of a file lies outside its minValues and maxValues, and nullCount is the number of nulls."""
    tried = [action for action in sample(view.snapshot) if action.stats]
    if not tried:
        raise NotApplicable("no file has statistics")
    for action in tried:
        found = find_broken_bound(action.stats or {}, read_parquet(view, action), view.snapshot)
        expect(found is None, f"{action.where}, stats", "bounds around every value", found)


def sample(reply: Reply) -> list[Action]:
    """A few files of a reply, the smallest.

    Raises:
        NothingToTry: there are none, or they are too large to fetch.
    """
    if not reply.actions:
        raise NotApplicable("no table has files")
    found = sorted(reply.actions, key=lambda action: action.size_bytes)[:MOST_FILES]
    found = [action for action in found if action.size_bytes <= LARGEST_BYTES]
    if not found:
        raise NotApplicable(f"every file is larger than {LARGEST_BYTES} bytes")
    return found


def a_file_is_served(view: View, action: Action) -> None:
    """Expect the bytes of one file, if it is not too large to fetch."""
    if action.size_bytes <= LARGEST_BYTES:
        _expect_whole(view, action)


def _expect_whole(view: View, action: Action) -> None:
    response = view.table.client.fetch(action.url).expect_status(200)
    size = len(response.body)
    expect(size == action.size_bytes, response.request, f"{action.size_bytes} bytes", size)


def _expect_part(view: View, action: Action, request: str, whole: bytes, first: int, last: int) -> Response:
    response = view.table.client.fetch(action.url, headers={"Range": request}).expect_status(206)
    wanted = whole[first : last + 1]
    where = f"bytes {first}-{last}/{len(whole)}"
    reported = response.header("content-range")
    expect(reported.strip() == where, response.request, f"Content-Range: {where}", reported)
    length = response.header("content-length")
    expect(length == str(len(wanted)), response.request, f"Content-Length {len(wanted)}", length)
    expect(
        response.body == wanted, response.request, "the bytes of that range", f"{len(response.body)} others"
    )
    return response


def _url_ends_ms(url: str) -> int | None:
    """When a URL stops working, by the parameters of S3, Google Cloud Storage, Azure, or by `expires`; None without."""
    params = {key.lower(): value for key, value in parse_qsl(urlsplit(url).query)}
    for begin, life in (("x-amz-date", "x-amz-expires"), ("x-goog-date", "x-goog-expires")):
        if begin in params and life in params:
            began = datetime.strptime(params[begin], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            return int((began + timedelta(seconds=int(params[life]))).timestamp() * 1000)
    if "se" in params and "sig" in params:
        return int(datetime.fromisoformat(params["se"]).timestamp() * 1000)
    ends = params.get("expires", "")
    if not ends.isdigit():
        return None
    # Seconds since 1970 until the year 5138, milliseconds after 1973.
    return int(ends) if int(ends) > LATEST_SECONDS else int(ends) * 1000


def _other_path(url: str) -> str:
    return url.replace("?", "x?", 1) if "?" in url else url + "x"


def _other_signature(url: str) -> str:
    parts = urlsplit(url)
    pairs = [
        (key, _turned(value) if "sig" in key.lower() else value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return parts._replace(query=urlencode(pairs)).geturl()


def _no_signature(url: str) -> str:
    return url.partition("?")[0]


def _turned(value: str) -> str:
    """The text with its middle character changed: the last one may hold bits that count for nothing."""
    middle = len(value) // 2
    return value[:middle] + ("0" if value[middle : middle + 1] != "0" else "1") + value[middle + 1 :]


DELETION_VECTORS = Group("deletion-vectors", "Deletion vectors, and the bytes they are made of")

INLINE, ABSOLUTE = "i", "p"
MOST_VECTORS = 10
FORMAT_VERSION = 1


@DELETION_VECTORS.on_views(MUST, "0.5", "2.3", formats=(DELTA,))
def vectors_have_the_documented_fields(view: View) -> None:
    """A deletion vector is stored as p with a URL, or as i, with pathOrInlineDv, sizeInBytes and cardinality."""
    for action, vector in _vectors(view.snapshot):
        kinds = {
            "storageType": one_of(ABSOLUTE, INLINE),
            "pathOrInlineDv": NAME,
            "sizeInBytes": COUNT,
            "cardinality": COUNT,
        }
        expect_fields(f"{action.where}, deletionVector", vector, kinds, {"offset": COUNT})
        if vector["storageType"] == ABSOLUTE:
            expect_kind(f"{action.where}, pathOrInlineDv", URL, vector["pathOrInlineDv"])


@DELETION_VECTORS.on_views(MUST, "0.5", "2.3", formats=(DELTA,))
def stored_vectors_have_an_id(view: View) -> None:
    """Every vector that is not inline has a deletionVectorFileId of its own, the same when asked again."""
    stored = {
        action.id: action for action, vector in _vectors(view.snapshot) if vector["storageType"] != INLINE
    }
    if not stored:
        raise NotApplicable("no deletion vector is stored in a file")
    ids = {}
    for action in stored.values():
        expect_fields(action.where, action.outer, {"deletionVectorFileId": NAME}, {})
        ids[action.id] = action.outer["deletionVectorFileId"]
    expect(
        len(set(ids.values())) == len(ids), view.snapshot.where, "an id for each vector", sorted(ids.values())
    )
    for action, _ in _vectors(Reply(view.ask({}))):
        if action.id in ids:
            again = action.outer.get("deletionVectorFileId")
            expect(
                again == ids[action.id], action.where, f"deletionVectorFileId {ids[action.id]} again", again
            )


@DELETION_VECTORS.on_views(MUST, "2.3", formats=(DELTA,))
def vectors_can_be_read(view: View) -> None:
    """The bytes of a vector are Delta's: format version 1, length, magic number and checksum; as many rows as told."""
    for action, vector in _vectors(view.snapshot)[:MOST_VECTORS]:
        where = f"{action.where}, deletionVector"
        content = _inline(where, vector) if vector["storageType"] == INLINE else _stored(view, where, vector)
        magic = content[:4]
        expect(magic == MAGIC, where, f"the magic number {MAGIC.hex()}", magic.hex())
        found = count_marked_rows(content)
        expect(found == vector["cardinality"], where, f"{vector['cardinality']} deleted rows", found)


@DELETION_VECTORS.on_views(SHOULD, "2.3", formats=(DELTA,))
def vectors_delete_no_more_than_there_is(view: View) -> None:
    """A vector's cardinality is at most the number of rows of its file."""
    for action, vector in _vectors(view.snapshot):
        rows = (action.stats or {}).get("numRecords")
        is_fit = not isinstance(rows, int) or vector["cardinality"] <= rows
        expect(is_fit, action.where, f"at most {rows} deleted rows", vector["cardinality"])


@DELETION_VECTORS.on_views(SHOULD, "0.14", "2.5", formats=(DELTA,))
def tables_with_features_are_paged_and_streamed(view: View) -> None:
    """Tables with deletion vectors or mapped columns are answered in pages, and in windows where history is shared."""
    is_mapped = view.snapshot.is_mapped
    if not is_mapped and not any(action.vector for action in view.snapshot.actions):
        raise NotApplicable("no table has deletion vectors or mapped columns")
    view.ask({"maxFiles": 1}).expect_status(200)
    try:
        versions = view.versions
    except NotApplicable:
        return
    view.ask({"startingVersion": versions[-1]}).expect_status(200)


def _vectors(reply: Reply) -> list[tuple[Action, dict[str, Any]]]:
    found = [(action, action.vector) for action in reply.actions if action.vector is not None]
    if not found:
        raise NotApplicable("no table has deletion vectors")
    return found


def _inline(where: str, vector: dict[str, Any]) -> bytes:
    try:
        content = unpack_inline_vector(vector["pathOrInlineDv"])
    except ValueError as error:
        raise ExpectationFailed(where, "pathOrInlineDv in Z85", vector["pathOrInlineDv"]) from error
    size = vector["sizeInBytes"]
    expect(len(content) >= size, where, f"{size} bytes", len(content))
    return content[:size]


def _stored(view: View, where: str, vector: dict[str, Any]) -> bytes:
    offset, size = int(vector.get("offset") or 0), int(vector["sizeInBytes"])
    response = view.table.client.fetch(vector["pathOrInlineDv"]).expect_status(200)
    expect(
        response.body[:1] == bytes([FORMAT_VERSION]),
        response.request,
        "format version 1",
        response.body[:1].hex(),
    )
    framed = response.body[offset : offset + size + 8]
    expect(len(framed) == size + 8, response.request, f"{size + 8} bytes from {offset}", len(framed))
    reported, content, checksum = framed[:4], framed[4:-4], framed[-4:]
    expect(struct.unpack(">I", reported)[0] == size, where, f"the length {size} at {offset}", reported.hex())
    wanted = struct.pack(">I", zlib.crc32(content))
    expect(checksum == wanted, where, f"the checksum {wanted.hex()}", checksum.hex())
    return content


FILE_IDS = Group("file-ids", "The header fileidhash")

HEADER = "fileidhash"


@FILE_IDS.on_views(MUST, "1.12", "6.2")
def the_scheme_of_ids_is_echoed(view: View) -> None:
    """fileidhash parquet or delta, in any case, is echoed in lower case: who sent it insists on it."""
    for request in (PARQUET, DELTA, "Parquet", "DELTA"):
        _expect_echo(view.ask({}, **{HEADER: request}), request)


@FILE_IDS.on_views(MUST, "1.12", "1.8")
def the_scheme_of_ids_is_echoed_with_changes(view: View) -> None:
    """fileidhash is echoed with changes, too."""
    for request in (PARQUET, DELTA):
        _expect_echo(view.ask_changes({"startingVersion": view.change_start}, **{HEADER: request}), request)


@FILE_IDS.on_views(MUST, "1.12", "0.19")
def other_schemes_are_400(view: View) -> None:
    """Any other fileidhash is 400, also an empty one."""
    for request in ("md5", "", "parquet,delta"):
        view.ask({}, **{HEADER: request}).refusal(400)


@FILE_IDS.on_views(MUST, "1.12", "2.6", formats=(DELTA,))
def the_scheme_chooses_the_ids(view: View) -> None:
    """With fileidhash both formats answer the same ids for the same files; without it, those of their own format."""
    other = view.table.view(PARQUET)
    if other is None:
        raise NotApplicable("no table is served in both formats")
    for scheme, native in ((PARQUET, other), (DELTA, view)):
        for one in (view, other):
            reply = Reply(one.ask({}, **{HEADER: scheme}))
            expect(
                reply.ids == native.snapshot.ids,
                reply.where,
                f"the ids of {scheme} format",
                sorted(reply.ids)[:2],
            )


def _expect_echo(response: Response, request: str) -> None:
    reported = response.expect_status(200).header(HEADER)
    expect(reported == request.lower(), response.request, f"{HEADER}: {request.lower()}", reported)
