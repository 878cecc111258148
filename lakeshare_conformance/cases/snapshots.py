"""Files of a snapshot: their lines in both response formats, the bytes behind the URLs, deletion vectors, file ids."""

import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlencode, urlsplit

from lakeshare_conformance import rows, wire
from lakeshare_conformance.case import DELTA, PARQUET, Group, NotApplicable, expect, require
from lakeshare_conformance.client import END, Response
from lakeshare_conformance.targets import DeltaView, ParquetView, View

MIN_LIFE_S = 15 * 60
MIN_TOKEN = 10


class Snapshots(Group):
    """The latest snapshot: lines, files, ids and expiry."""

    def a_snapshot_is_head_and_files(self, view: View) -> None:
        """must §1.7, §0.1, §2.1, §2.2: A snapshot is the lines protocol and metaData, then lines of one key,
        file, and nothing else."""
        view.snapshot.expect_head()
        view.snapshot.expect_later("file", END)
        view.snapshot.expect_actions("add")

    def an_end_is_sent_on_request_only(self, view: View) -> None:
        """must §0.1, §1.13: No endStreamAction comes to a client that did not ask for it: the Python client
        dies of it."""
        view.snapshot.expect_end(False)

    def parquet_files_have_the_documented_fields(self, view: ParquetView) -> None:
        """must §2.1, §0.3: A file in parquet format has url (http or https), id, partitionValues and size, and
        stats as a text."""
        view.snapshot.expect_actions("add")

    def delta_files_have_the_documented_fields(self, view: DeltaView) -> None:
        """must §2.2, §0.3: A file in delta format has an id and an add with path (a URL), partitionValues,
        size, modificationTime."""
        view.snapshot.expect_fields("modification_time", "data_change")

    def partition_values_are_of_the_partition_columns(self, view: View) -> None:
        """must §2.1, §2.2: partitionValues has exactly the partition columns, by their physical names where
        columns are mapped."""
        reply = view.snapshot
        columns = rows.get_partition_columns(reply)
        for action in reply.actions:
            found = set(action.partition_values)
            action.expect(found == columns, f"partition values of {sorted(columns)}", sorted(found))

    def partition_values_are_written_as_their_type_is(self, view: View) -> None:
        """must §2.1: Partition values are texts in the form of their type: decimal numbers, yyyy-MM-dd, true
        and false."""
        reply = view.snapshot
        kinds = {rows.get_physical_name(reply, column.name): column.type for column in reply.columns}
        require(reply.metadata.partition_columns, "no table is partitioned")
        for action in reply.actions:
            for name, value in action.partition_values.items():
                is_fit = rows.is_partition_value(value, kinds.get(name))
                action.expect(is_fit, f"a {kinds.get(name)} as text", value, f"partition value {name}")

    def statistics_are_json(self, view: View) -> None:
        """must §2.1: stats holds JSON: numRecords, and minValues, maxValues and nullCount of columns of the table."""
        names = {column.name for column in view.snapshot.columns}
        for action, stats in _list_statistics(view.snapshot.actions):
            unknown = {*stats.min_values, *stats.max_values, *stats.null_count} - names
            # Statistics of mapped columns may name columns that were dropped.
            is_fit = view.snapshot.is_mapped or not unknown
            action.expect(is_fit, "columns of the table only", sorted(unknown), "stats")

    def ids_are_unique(self, view: View) -> None:
        """must §2.6, §6.2: Ids are unique in a reply: Spark keys its URLs by them."""
        counts = Counter(action.id for action in view.snapshot.actions)
        repeated = sorted(id for id, count in counts.items() if count > 1)
        view.snapshot.expect(not repeated, "ids that are unique", repeated)

    def ids_stay(self, view: View) -> None:
        """must §2.6, §4: Asked again, the same version answers the same ids, with URLs that may be new."""
        view.ask({}).read().expect_ids(view.snapshot.ids, "the same ids again")

    def urls_live_as_long_as_clients_need(self, view: View) -> None:
        """must §2.7, §6.2: expirationTimestamp, where sent, is more than 15 minutes ahead: Spark takes less for
        an error and guesses."""
        now_ms = time.time() * 1000
        timed = [action for action in view.snapshot.actions if action.expiration_timestamp is not None]
        for action in require(timed, "no file has expirationTimestamp"):
            left_s = ((action.expiration_timestamp or 0) - now_ms) / 1000
            action.expect(left_s > MIN_LIFE_S, f"a URL valid for more than {MIN_LIFE_S} s", f"{left_s} s")

    def urls_have_an_expiry(self, view: View) -> None:
        """should §2.7: Every file has expirationTimestamp."""
        view.snapshot.expect_fields("expiration_timestamp")

    def urls_do_not_hold_the_token(self, view: View) -> None:
        """should §1.0: The bearer token is not part of any URL."""
        token = view.client.token
        require(len(token) >= MIN_TOKEN, "the token is so short that it may be part of any text")
        for action in view.snapshot.actions:
            action.expect(token not in action.url, "a URL without the bearer token", "one with it")

    def a_plain_read_has_no_version_in_its_lines(self, view: ParquetView) -> None:
        """should §2.1: Without version or timestamp in the request, metaData and files have no version."""
        found = [line.where for line in view.snapshot.lines[1:] if line.value.get("version") is not None]
        view.snapshot.expect(not found, "lines without version", found[:3])

    def an_empty_object_asks_for_all(self, view: View) -> None:
        """must §1.7: The body {} asks for everything, and so does one with fields that the server does not know."""
        unknown = {"lakeshareConformance": {"a": [1]}, "requested_columns": [], "queryDeltaLog": False}
        view.expect_all_files({}, unknown)

    def the_content_type_of_a_request_is_optional(self, view: View) -> None:
        """should §1.7: A query is read with any content type and with none, and an empty body asks for everything."""
        for media_type in ("application/json", ""):
            view.expect_all_files({}, **{"Content-Type": media_type})
        view.expect_all_files(b"")

    def both_formats_answer_the_same_files(self, view: DeltaView) -> None:
        """should §1.7: A table served in both formats has the same files in both."""
        other = require(view.table.view(PARQUET), "no table is served in both formats")
        sizes, wanted = (sorted(action.size for action in one.snapshot.actions) for one in (view, other))
        view.snapshot.expect(sizes == wanted, f"files of the sizes {wanted[:20]}", sizes[:20])


SIGNATURE_KEYS = {"x-amz-signature", "sp", "x-goog-credential", "x-oss-credential", "x-databricks-signature"}


class DeltaFormat(Group):
    """What delta format adds to a file."""

    def urls_have_a_signature_the_python_client_knows(self, view: DeltaView) -> None:
        """must §0.2, §6.1: The query of each URL, of vectors too, has a key that the Python client knows, like
        X-Amz-Signature."""
        for action in view.snapshot.actions:
            vector = action.deletion_vector
            more = [vector.path_or_inline_dv] if vector and vector.storage_type == "p" else []
            for url in (action.url, *more):
                keys = {key.lower() for key, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
                wanted = f"one of {sorted(SIGNATURE_KEYS)} in the URL"
                action.expect(keys & SIGNATURE_KEYS, wanted, sorted(keys))

    def mapped_columns_keep_their_mapping(self, view: DeltaView) -> None:
        """must §2.2: With column mapping every column of schemaString has its id and its physical name."""
        require(view.snapshot.is_mapped, "no table maps its columns")
        for column in view.snapshot.columns:
            wire.parse(wire.ColumnMapping, column.metadata, f"{view.snapshot.where}, column {column.name}")

    def row_tracking_is_whole(self, view: DeltaView) -> None:
        """must §0.18, §2.2: With delta.enableRowTracking every file has baseRowId and defaultRowCommitVersion;
        Spark fails otherwise."""
        require(view.snapshot.is_on("delta.enableRowTracking"), "no table is sent with row tracking")
        view.snapshot.expect_fields("base_row_id", "default_row_commit_version")


MAX_VECTORS = 10


class DeletionVectors(Group):
    """Deletion vectors, and the bytes they are made of."""

    def vectors_have_the_documented_fields(self, view: DeltaView) -> None:
        """must §0.5, §2.3: A deletion vector is stored as p with a URL, or as i, with pathOrInlineDv,
        sizeInBytes and cardinality."""
        _list_vectors(view.snapshot)

    def stored_vectors_have_an_id(self, view: DeltaView) -> None:
        """must §0.5, §2.3: Every vector that is not inline has a deletionVectorFileId of its own, the same when
        asked again."""
        stored = [action for action, vector in _list_vectors(view.snapshot) if vector.storage_type == "p"]
        for action in require(stored, "no deletion vector is stored in a file"):
            action.expect(action.deletion_vector_file_id is not None, "deletionVectorFileId", "none")
        ids = {action.id: action.deletion_vector_file_id for action in stored}
        is_unique = len(set(ids.values())) == len(ids)
        view.snapshot.expect(is_unique, "an id for each vector", sorted(map(str, ids.values())))
        for action, _ in _list_vectors(view.ask({}).read()):
            again, wanted = action.deletion_vector_file_id, ids.get(action.id)
            action.expect(wanted is None or again == wanted, f"deletionVectorFileId {wanted} again", again)

    def vectors_can_be_read(self, view: DeltaView) -> None:
        """must §2.3: The bytes of a vector are Delta's: format version 1, length, magic number and checksum;
        its cardinality fits."""
        for action, vector in _list_vectors(view.snapshot)[:MAX_VECTORS]:
            where, is_inline = f"{action.where}, deletionVector", vector.storage_type == "i"
            content = _read_inline(where, vector) if is_inline else _read_stored(view, where, vector)
            magic, marked = content[: len(rows.MAGIC)], rows.count_marked_rows(content)
            expect(magic == rows.MAGIC, where, f"the magic number {rows.MAGIC.hex()}", magic.hex())
            expect(marked == vector.cardinality, where, f"{vector.cardinality} deleted rows", marked)

    def vectors_delete_no_more_than_there_is(self, view: DeltaView) -> None:
        """should §2.3: A vector's cardinality is at most the number of rows of its file."""
        for action, vector in _list_vectors(view.snapshot):
            is_fit = action.rows is None or action.rows >= 0
            action.expect(is_fit, "no more deleted rows than numRecords", vector.cardinality)

    def tables_with_features_are_paged_and_streamed(self, view: DeltaView) -> None:
        """should §0.14, §2.5: Tables with deletion vectors or mapped columns are answered in pages, and in
        windows where history is shared."""
        has_features = view.snapshot.is_mapped or view.snapshot.has_vectors
        require(has_features, "no table has deletion vectors or mapped columns")
        view.ask({"maxFiles": 1}).expect_status(200)
        with suppress(NotApplicable):
            view.ask({"startingVersion": view.versions[-1]}).expect_status(200)


def _list_vectors(reply: Response) -> list[tuple[wire.Action, wire.DeletionVector]]:
    found = [(action, vector) for action in reply.actions if (vector := action.deletion_vector) is not None]
    return require(found, "no table has deletion vectors")


def _read_inline(where: str, vector: wire.DeletionVector) -> bytes:
    content, size = rows.unpack_inline_vector(vector.path_or_inline_dv, where), vector.size_in_bytes
    expect(len(content) >= size, where, f"{size} bytes", len(content))
    return content[:size]


def _read_stored(view: View, where: str, vector: wire.DeletionVector) -> bytes:
    offset, size = vector.offset, vector.size_in_bytes
    response = view.client.fetch_whole(vector.path_or_inline_dv)
    response.expect(response.body[:1] == b"\x01", "format version 1", response.body[:1].hex())
    framed = response.body[offset : offset + size + 8]
    response.expect(len(framed) == size + 8, f"{size + 8} bytes from {offset}", len(framed))
    length, content, checksum = framed[:4], framed[4:-4], framed[-4:]
    expect(length == struct.pack(">I", size), where, f"the length {size} at {offset}", length.hex())
    wanted = struct.pack(">I", zlib.crc32(content))
    expect(checksum == wanted, where, f"the checksum {wanted.hex()}", checksum.hex())
    return content


MAX_FILES = 3
MAX_SECONDS = 100_000_000_000
PRECONDITION_FAILED, NOT_IMPLEMENTED = 412, 501


class DataFiles(Group):
    """The bytes behind the URLs."""

    def a_file_is_as_long_as_its_size(self, view: View) -> None:
        """must §6.2, §0.19: GET of a URL, without a token, is 200 with exactly size bytes."""
        for action in sample_files(view.snapshot):
            fetch_whole(view, action)

    def a_range_is_206(self, view: View) -> None:
        """must §0.6, §10: GET with Range is 206 with those bytes, Content-Range and Content-Length: first
        bytes, middle, open end."""
        for action in sample_files(view.snapshot):
            whole = view.client.fetch_whole(action.url).body
            size = len(whole)
            for first, last in ((0, 3), (size // 2, size - 1), (size - 4, size - 1)):
                _expect_part(view, action, f"{first}-{last}", whole, first, last)
            _expect_part(view, action, f"{size // 2}-", whole, size // 2, size - 1)

    def a_suffix_range_is_206(self, view: View) -> None:
        """should §10: GET with Range: bytes=-n is 206 with the last n bytes, where Parquet has its footer."""
        for action in sample_files(view.snapshot):
            whole = view.client.fetch_whole(action.url).body
            _expect_part(view, action, "-8", whole, len(whole) - 8, len(whole) - 1)

    def a_range_beyond_the_end_is_416(self, view: View) -> None:
        """should §10: GET with a Range that begins after the last byte is 416."""
        for action in sample_files(view.snapshot):
            beyond = f"bytes={action.size + 10}-{action.size + 15}"
            view.client.fetch(action.url, headers={"Range": beyond}).expect_status(416)

    def head_returns_the_length_or_refuses(self, view: View) -> None:
        """must §10, §6.1: HEAD of a URL is 200 with Content-Length, or 403, which clients survive."""
        for action in sample_files(view.snapshot):
            response = view.client.fetch(action.url, "HEAD").expect_status(200, 403)
            if response.status == 200:
                response.expect_header("content-length", str(action.size))

    def head_announces_ranges(self, view: View) -> None:
        """should §10: HEAD of a URL is 200 with Accept-Ranges: bytes."""
        for action in sample_files(view.snapshot):
            view.client.fetch(action.url, "HEAD").expect_status(200).expect_header("accept-ranges", "bytes")

    def a_url_that_was_altered_is_refused(self, view: View) -> None:
        """must §10: A URL with another path, another signature or none is 4xx."""
        url = sample_files(view.snapshot)[0].url
        path, mark, query = url.partition("?")
        altered = {
            "alter path": f"{path}x{mark}{query}",
            "alter signature": _alter_signature(url),
            "remove query": path,
        }
        for what, changed in altered.items():
            response = view.client.fetch(changed)
            expect(response.is_refusal, f"{response.where} after {what}", "a refusal by 4xx", response.status)

    def urls_end_no_sooner_than_their_expiry(self, view: View) -> None:
        """must §2.7, §6.2: expirationTimestamp is no later than the end that the URL itself states: clients
        refresh by it."""
        ends = [(action, _read_url_end_ms(action.url)) for action in view.snapshot.actions]
        known = [
            (action, end_ms) for action, end_ms in ends if end_ms is not None and action.expiration_timestamp
        ]
        for action, end_ms in require(known, "no URL states its end, or no file has expirationTimestamp"):
            # URLs state whole seconds.
            expiry_ms = action.expiration_timestamp or 0
            action.expect(expiry_ms < end_ms + 1000, f"up to {end_ms}", expiry_ms, "expirationTimestamp")

    def urls_are_for_reading_only(self, view: View) -> None:
        """must §10: PUT, POST and DELETE of a URL are refused by 4xx (or 501), and the file stays as it is."""
        # A store that accepts the method finds the precondition false and changes nothing; PUT sends the same bytes.
        [action, *_] = sample_files(view.snapshot)
        content = view.client.fetch_whole(action.url).body
        for method, precondition, body in (
            ("PUT", {"If-None-Match": "*"}, content),
            ("POST", {"If-None-Match": "*"}, content),
            ("DELETE", {"If-Match": '"lakeshare-conformance"'}, None),
        ):
            response = view.client.fetch(action.url, method, precondition, body)
            is_refused = response.is_refusal and response.status != PRECONDITION_FAILED
            is_fit = is_refused or response.status == NOT_IMPLEMENTED
            response.expect(is_fit, "a refusal of the method", response.status)
        again = view.client.fetch_whole(action.url)
        again.expect(again.body == content, "the same bytes as before", f"{len(again.body)} bytes")

    def files_are_parquet_with_the_columns_of_the_schema(self, view: View) -> None:
        """must §2.1, §2.2: Each file is Parquet; it has columns of the schema, of types that read as the schema's."""
        reply = view.snapshot
        columns = rows.get_columns(reply)
        stored = set(columns) - rows.get_partition_columns(reply)
        for action in sample_files(reply):
            # Files may have further columns: of an older schema, or the writer's own.
            schema = rows.read_parquet(view, action).schema
            known = [name for name in schema.names if name in stored]
            action.expect(known or not stored, f"a file with some of {sorted(stored)}", schema.names)
            for physical in known:
                (name, kind), found = columns[physical], schema.field(physical).type
                action.expect(rows.can_read_as(found, kind), f"a {kind}", str(found), f"column {name}")

    def statistics_count_the_rows(self, view: View) -> None:
        """must §2.1, §1.7: stats.numRecords is the number of rows in the file."""
        parsed = _list_statistics(sample_files(view.snapshot))
        counts = [(action, stats.num_records) for action, stats in parsed if stats.num_records is not None]
        for action, count in require(counts, "no file has numRecords"):
            action.expect_equal(count, rows.read_parquet(view, action).num_rows, part="stats.numRecords")

    def statistics_hold_the_rows(self, view: View) -> None:
        """must §2.1, §0.15: No value of a file lies outside its minValues and maxValues, and nullCount is the
        number of nulls."""
        for action, stats in _list_statistics(sample_files(view.snapshot)):
            broken = rows.find_broken_bound(stats, rows.read_parquet(view, action), view.snapshot)
            action.expect(broken is None, "bounds around every value", broken, "stats")


def _list_statistics(actions: Iterable[wire.Action]) -> list[tuple[wire.Action, wire.Statistics]]:
    parsed = [(action, stats) for action in actions if (stats := action.stats) is not None]
    return require(parsed, "no file has statistics")


def sample_files(reply: Response) -> list[wire.Action]:
    """The smallest files of a reply; `NotApplicable` if there are none that are not too large to fetch."""
    smallest = sorted(reply.actions, key=lambda action: action.size)[:MAX_FILES]
    found = [action for action in smallest if action.size <= rows.MAX_BYTES]
    return require(found, "no table has files, or all are too large to fetch")


def fetch_whole(view: View, action: wire.Action) -> None:
    """Expect the URL to serve all bytes of a file, unless it is too large to fetch."""
    if action.size <= rows.MAX_BYTES:
        response = view.client.fetch_whole(action.url)
        size = len(response.body)
        response.expect(size == action.size, f"{action.size} bytes", size)


def _expect_part(view: View, action: wire.Action, range: str, whole: bytes, first: int, last: int) -> None:
    response = view.client.fetch(action.url, headers={"Range": f"bytes={range}"}).expect_status(206)
    wanted, actual = whole[first : last + 1], f"{len(response.body)} others"
    response.expect_header("content-range", f"bytes {first}-{last}/{len(whole)}")
    response.expect_header("content-length", str(len(wanted)))
    response.expect(response.body == wanted, "the bytes of that range", actual)


def _read_url_end_ms(url: str) -> int | None:
    """The expiry in the parameters of S3, Google Cloud Storage, Azure, or in `expires`; None without."""
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
    return int(ends) if int(ends) > MAX_SECONDS else int(ends) * 1000


def _alter_signature(url: str) -> str:
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    altered = [(key, alter(value) if "sig" in key.lower() else value) for key, value in pairs]
    return parts._replace(query=urlencode(altered)).geturl()


def alter(text: str) -> str:
    """The text with its middle character changed: the last one may hold bits that are not significant."""
    middle = len(text) // 2
    return text[:middle] + ("0" if text[middle : middle + 1] != "0" else "1") + text[middle + 1 :]


class FileIds(Group):
    """The header fileidhash."""

    def the_scheme_of_ids_is_echoed(self, view: View) -> None:
        """must §1.12, §6.2: fileidhash parquet or delta, in any case, is echoed in lower case: who sent it
        insists on it."""
        for scheme in (PARQUET, DELTA, "Parquet", "DELTA"):
            view.ask({}, fileidhash=scheme).expect_status(200).expect_header("fileidhash", scheme.lower())

    def the_scheme_of_ids_is_echoed_with_changes(self, view: View) -> None:
        """must §1.12, §1.8: fileidhash is echoed with changes, too."""
        for scheme in (PARQUET, DELTA):
            response = view.ask_changes({"startingVersion": view.change_start}, fileidhash=scheme)
            response.expect_status(200).expect_header("fileidhash", scheme)

    def other_schemes_are_400(self, view: View) -> None:
        """must §1.12, §0.19: Any other fileidhash is 400, also an empty one."""
        for scheme in ("md5", "", "parquet,delta"):
            view.ask({}, fileidhash=scheme).refusal(400)

    def the_scheme_chooses_the_ids(self, view: DeltaView) -> None:
        """must §1.12, §2.6: With fileidhash both formats answer the same ids for the same files; without it,
        those of their own format."""
        other = require(view.table.view(PARQUET), "no table is served in both formats")
        for scheme, native in ((PARQUET, other), (DELTA, view)):
            for one in (view, other):
                reply = one.ask({}, fileidhash=scheme).read()
                reply.expect_ids(native.snapshot.ids, f"the ids of {scheme} format")
