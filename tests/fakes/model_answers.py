"""What the model server answers: the whole protocol over tables in memory, as simply as it can be done.

It shares no line with our own server: it is what the conformance suite is held against, and what defects are put into.
"""

import json
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fakes.model_lines import Sign, Wording, kept, line, wording
from tests.fakes.model_replies import (
    JSON,
    NDJSON,
    decoded,
    first_at,
    json_reply,
    last_at,
    lines_reply,
    missing,
    needs_history,
    page_end,
    share_item,
    table_item,
)
from tests.fakes.model_requests import Ask, Refused, Reply, Request, number, read_ask, text, time_ms
from tests.fakes.model_tables import ModelTable, the_tables

TOKEN, FOREIGN_TOKEN, EXPIRED_TOKEN = "model-token", "token-of-another-recipient", "token-that-has-expired"
FEATURES_OF_PARQUET = "Unsupported Delta Table Properties: the client announced no"


@dataclass(frozen=True)
class Plan:
    """An answer before it is cut into pages: its version, its head, and lines that are files or not."""

    version: int
    head: list[bytes]
    lines: list[tuple[bool, bytes]]


@dataclass
class Model:
    """The server without its sockets. `pending_polls` is how often a query is pending before it is answered."""

    sign: Sign
    tables: tuple[ModelTable, ...] = field(default_factory=the_tables)
    token: str = TOKEN
    pending_polls: int = 1
    tokens: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answer(self, request: Request) -> Reply:
        """The answer to a request."""
        try:
            return self._routed(request)
        except Refused as error:
            body = json.dumps({"errorCode": error.code, "message": str(error)}).encode()
            return Reply(error.status, {"Content-Type": JSON}, body)

    def _routed(self, request: Request) -> Reply:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise Refused(401, "Send the profile's token.", "UNAUTHENTICATED")
        parts = [decoded(part) for part in request.path.split("/")[1:]]
        match (request.method, *parts):
            case ("GET", "shares"):
                return self._listing(request, [share_item(name) for name in self._shares()])
            case ("GET", "shares", share):
                return json_reply({"share": share_item(self._share(share))})
            case ("GET", "shares", share, "schemas"):
                name = self._share(share)
                schemas = sorted({table.schema for table in self.tables if table.share == name})
                return self._listing(request, [{"name": schema, "share": name} for schema in schemas])
            case ("GET", "shares", share, "all-tables"):
                name = self._share(share)
                return self._listing(
                    request, [table_item(table) for table in self.tables if table.share == name]
                )
            case ("GET", "shares", share, "schemas", schema, "tables"):
                tables = [
                    table
                    for table in self.tables
                    if (table.share, table.schema.lower()) == (self._share(share), schema.lower())
                ]
                if not tables:
                    raise missing(schema)
                return self._listing(request, [table_item(table) for table in tables])
            case (method, "shares", share, "schemas", schema, "tables", name, *below):
                return self._table_call(request, self._table(share, schema, name), method, below)
        raise Refused(404, "That is not part of the protocol.", "RESOURCE_DOES_NOT_EXIST")

    def _table_call(self, request: Request, table: ModelTable, method: str, below: list[str]) -> Reply:
        match (method, *below):
            case ("GET",):
                return json_reply(table_item(table) | {"format": "delta"})
            case ("HEAD",) | ("GET", "version"):
                return self._version(request, table)
            case ("GET", "metadata"):
                return self._metadata(request, table)
            case ("POST", "query"):
                return self._query(request, table, read_ask(request.fields))
            case ("GET", "changes"):
                return self._changes(request, table)
            case ("POST", "queries", query_id):
                return self._poll(request, table, query_id)
            case ("POST", "temporary-table-credentials"):
                return self._credentials(request, table)
        raise Refused(405, "That is not part of the protocol.", "METHOD_NOT_ALLOWED")

    # Listings

    def _shares(self) -> list[str]:
        return sorted({table.share for table in self.tables})

    def _share(self, name: str) -> str:
        for share in self._shares():
            if share.lower() == name.lower():
                return share
        raise missing(name)

    def _table(self, *names: str) -> ModelTable:
        for table in self.tables:
            if (table.share, table.schema, table.name) == names or all(
                one.lower() == other.lower()
                for one, other in zip((table.share, table.schema, table.name), names, strict=True)
            ):
                return table
        raise missing("/".join(names))

    def _listing(self, request: Request, items: list[dict[str, Any]]) -> Reply:
        size = number(request.params, "maxResults", high=2**31 - 1)
        start, token = 0, request.params.get("pageToken")
        if token is not None:
            path, start = self._token(token, "the page token", "listing")
            if path != request.path.lower():
                raise Refused(400, "The page token is of another listing.")
        end = len(items) if size is None else start + size
        page: dict[str, Any] = {"items": items[start:end]}
        if end < len(items):
            page["nextPageToken"] = self._new_token("listing", request.path.lower(), end)
        return json_reply(page)

    # One table

    def _version(self, request: Request, table: ModelTable) -> Reply:
        since = time_ms(request.params, "startingTimestamp")
        version = table.latest
        if since is not None:
            needs_history(table)
            later = [number for number in range(table.latest + 1) if table.timestamp_ms(number) >= since]
            if not later:
                raise Refused(400, "The provided timestamp is after the latest available version")
            version = later[0]
        return Reply(200, {"Delta-Table-Version": str(version)})

    def _metadata(self, request: Request, table: ModelTable) -> Reply:
        asked = read_ask(
            {name: request.params[name] for name in ("version", "timestamp") if name in request.params}
        )
        words = self._words(request, table)
        version = self._at(table, asked)
        told = version if request.params else None
        return lines_reply(words.head(table, version, told, None), version, words, request)

    def _query(self, request: Request, table: ModelTable, ask: Ask) -> Reply:
        words = self._words(request, table)
        is_async = request.capabilities.get("asyncquery") == {"true"}
        if is_async:
            if ask.key is None:
                raise Refused(400, "idempotency_key is required for async query")
            self._plan(request, table, ask, words)
            return self._pending(table, self._submitted(request, table, ask))
        return self._answered(request, table, ask, words)

    def _answered(self, request: Request, table: ModelTable, ask: Ask, words: Wording) -> Reply:
        if ask.refresh_token is not None:
            name, version = self._token(ask.refresh_token, "refresh token", "refresh")
            if name != table.name:
                raise Refused(400, "The table specified in the refresh token does not match")
            plan = self._plan(request, table, replace(ask, version=version), words, told=None)
        else:
            plan = self._plan(request, table, ask, words)
        return self._paged(request, table, ask, words, plan)

    def _plan(
        self, request: Request, table: ModelTable, ask: Ask, words: Wording, told: int | None = -1
    ) -> Plan:
        if ask.start is not None:
            return self._window(table, ask, words)
        version = self._at(table, ask)
        stamp = version if (ask.version, ask.at_ms) != (None, None) and told is not None else None
        files = kept(table, table.files(version), ask)
        lines = [(True, words.file(table, file)) for file in files]
        return Plan(version, words.head(table, version, stamp, None), lines)

    def _window(self, table: ModelTable, ask: Ask, words: Wording) -> Plan:
        start, end = self._range(table, ask)
        lines: list[tuple[bool, bytes]] = []
        for version in range(start, end + 1):
            if version > start and version in table.schemas:
                lines.append((False, words.metadata(table, version, version)))
            for change in table.commits[version]:
                if change.data_change and change.kind != "cdc":
                    lines.append((True, words.file(table, change.file, change.kind, version)))
        head = words.head(table, start, start, start if ask.wants_protocols else None)
        return Plan(start, head, lines)

    def _changes(self, request: Request, table: ModelTable) -> Reply:
        words = self._words(request, table)
        given = request.params
        if not table.has_changes:
            raise Refused(400, f"cdf is not enabled on table {table.name}", "UNSUPPORTED_OPERATION")
        if "startingVersion" in given and "startingTimestamp" in given:
            raise Refused(400, "Multiple starting arguments provided for CDF read")
        if "endingVersion" in given and "endingTimestamp" in given:
            raise Refused(400, "Multiple ending arguments provided for CDF read")
        since, until = time_ms(given, "startingTimestamp"), time_ms(given, "endingTimestamp")
        ask = read_ask({key: value for key, value in given.items() if not key.endswith("Timestamp")})
        if since is not None:
            ask = replace(ask, start=first_at(table, since))
        if until is not None:
            ask = replace(ask, end=last_at(table, until))
        if ask.start is None:
            raise Refused(400, "No startingVersion or startingTimestamp provided for CDF read")
        if ask.end is not None and ask.end < ask.start:
            message = (
                f"CDF range from start {ask.start} to end {ask.end} was invalid. End cannot be before start"
            )
            raise Refused(400, message)
        ask = replace(ask, end=min(ask.end if ask.end is not None else table.latest, table.latest))
        return self._paged(request, table, ask, words, self._change_plan(table, ask, words))

    def _change_plan(self, table: ModelTable, ask: Ask, words: Wording) -> Plan:
        start, end = self._range(table, ask)
        lines: list[tuple[bool, bytes]] = []
        for version in range(start, end + 1):
            if ask.wants_metadata and version > start and version in table.schemas:
                lines.append((False, words.metadata(table, version, version)))
            commit = table.commits[version]
            has_rows = any(change.kind == "cdc" for change in commit)
            for change in commit:
                if change.kind == "cdc" or (change.data_change and not has_rows):
                    lines.append((True, words.file(table, change.file, change.kind, version)))
        shown = start if ask.wants_metadata else table.latest
        return Plan(start, words.head(table, shown, shown, None), lines)

    # Pages and tokens

    def _paged(self, request: Request, table: ModelTable, ask: Ask, words: Wording, plan: Plan) -> Reply:
        start, end = 0, len(plan.lines)
        fingerprint = (table.name, request.path.rpartition("/")[2].split("-")[0], ask.fingerprint)
        if ask.page_token is not None:
            *owner, start = self._token(ask.page_token, "the page token", "page")
            if owner[0] != fingerprint[0]:
                raise Refused(
                    400, "The table specified in the page token does not match the table being queried"
                )
            if tuple(owner) != fingerprint:
                raise Refused(400, "Query parameter mismatch detected for the next page query")
        closing: dict[str, Any] = {"minUrlExpirationTimestamp": words.expires_ms}
        if ask.max_files is not None:
            end = page_end(plan.lines, start, ask.max_files)
            if end < len(plan.lines):
                closing["nextPageToken"] = self._new_token("page", *fingerprint, end)
        if ask.wants_refresh:
            closing["refreshToken"] = self._new_token("refresh", table.name, plan.version)
        asked = request.capabilities.get("includeendstreamaction") == {"true"}
        lines = [*plan.head, *(one for _, one in plan.lines[start:end])]
        if asked or ask.max_files is not None or ask.wants_refresh:
            lines.append(line("endStreamAction", closing))
        return lines_reply(lines, plan.version, words, request, echoes=asked)

    def _new_token(self, *content: Any) -> str:
        token = uuid.uuid4().hex
        self.tokens[token] = content
        return token

    def _token(self, token: str, called: str, kind: str) -> tuple[Any, ...]:
        content = self.tokens.get(token)
        if content is None or content[0] != kind:
            raise Refused(400, f"Error decoding {called}")
        return content[1:]

    # Async queries

    def _submitted(self, request: Request, table: ModelTable, ask: Ask) -> str:
        for query_id, query in self.queries.items():
            if (query["table"], query["ask"]) == (table.name, ask):
                return query_id
        query_id = uuid.uuid4().hex
        self.queries[query_id] = {"table": table.name, "ask": ask, "left": self.pending_polls}
        return query_id

    def _pending(self, table: ModelTable, query_id: str) -> Reply:
        headers = {
            "Content-Type": NDJSON,
            "Delta-Table-Version": str(table.latest),
            "delta-sharing-capabilities": "asyncquery=true",
        }
        return Reply(200, headers, line("queryStatus", {"queryId": query_id, "status": "pending"}) + b"\n")

    def _poll(self, request: Request, table: ModelTable, query_id: str) -> Reply:
        query = self.queries.get(query_id)
        if query is None or query["table"] != table.name:
            raise missing(query_id)
        if query["left"] > 0:
            query["left"] -= 1
            return self._pending(table, query_id)
        more = request.fields
        ask = replace(query["ask"], page_token=text(more, "pageToken"), max_files=number(more, "maxFiles"))
        return self._answered(request, table, ask, self._words(request, table))

    # Choices

    def _words(self, request: Request, table: ModelTable) -> Wording:
        scheme = request.headers.get("fileidhash")
        if scheme is not None and scheme.lower() not in ("parquet", "delta"):
            raise Refused(400, f"Unsupported fileidhash: '{scheme}'")
        asked = request.capabilities.get("responseformat", {"parquet"}) & {"parquet", "delta"} or {"parquet"}
        format = "parquet" if table.is_simple and "parquet" in asked else "delta"
        lacking = {name.lower() for name in table.protocol.get("readerFeatures", [])}
        lacking -= request.capabilities.get("readerfeatures", set())
        if format not in asked or (format == "delta" and lacking):
            raise Refused(400, f"{FEATURES_OF_PARQUET} {sorted(lacking)}", "UNSUPPORTED_OPERATION")
        return wording(format, scheme and scheme.lower(), self.sign)

    def _at(self, table: ModelTable, ask: Ask) -> int:
        if ask.version is None and ask.at_ms is None:
            return table.latest
        if ask.refresh_token is None:
            needs_history(table)
        if ask.at_ms is not None:
            if ask.at_ms > table.timestamp_ms(table.latest):
                raise Refused(400, "The provided timestamp (…) is after the latest available version")
            return last_at(table, ask.at_ms)
        assert ask.version is not None
        if ask.version > table.latest:
            raise Refused(400, f"There is no version {ask.version}")
        return ask.version

    def _range(self, table: ModelTable, ask: Ask) -> tuple[int, int]:
        needs_history(table)
        start, end = ask.start or 0, table.latest if ask.end is None else ask.end
        if start > end and ask.end is not None:
            message = f"startingVersion({start}) must be smaller than or equal to endingVersion({end})"
            raise Refused(400, message)
        if end > table.latest:
            raise Refused(400, "End version cannot be greater than the latest version")
        if start > table.latest:
            raise Refused(400, f"There is no version {start}")
        return start, end

    def _credentials(self, request: Request, table: ModelTable) -> Reply:
        location = text(request.fields, "location")
        if not table.credentials:
            raise Refused(400, "This table is not served by directory access.", "UNSUPPORTED_OPERATION")
        if location not in (None, f"s3://model/{table.name}"):
            raise Refused(400, "That is not a location of the table.")
        keys = dict.fromkeys(("accessKeyId", "secretAccessKey", "sessionToken"), "secret")
        ends = int(time.time() * 1000) + 3_600_000
        given = {"location": f"s3://model/{table.name}", "awsTempCredentials": keys, "expirationTime": ends}
        return json_reply({"credentials": given})
