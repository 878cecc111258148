"""Scan requests of Iceberg clients, and the tokens of what is left of a plan (REST specification, `planTableScan`).

Nothing of a plan is kept: a token says which question it belongs to and where the next page begins.
"""

import base64
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from lakeshare_server.errors import BadRequest, NotFound, shown
from lakeshare_server.protocol.seals import Seals
from lakeshare_server.protocol.table_tokens import Asker

TOO_LONG = "It is too long for a plan of more than one page; ask for less, or plan the scan in the client."
INCREMENTAL = "Changes between snapshots are not planned here; leave it out, or plan the scan in the client."


@dataclass(frozen=True, kw_only=True)
class ScanRequest:
    """What a client asks for; `filter` is the expression as it came, `snapshot_id` None means the newest snapshot."""

    snapshot_id: int | None
    filter: Any
    is_case_sensitive: bool
    is_of_snapshot: bool
    stats_fields: tuple[str, ...]


@dataclass(frozen=True)
class PlanTask:
    """Where a page of a plan begins: of this snapshot, at this place among its files."""

    snapshot_id: int
    start: int


def parse_scan_request(fields: Mapping[str, Any]) -> ScanRequest:
    """The request in a body.

    Raises:
        BadRequest: a field has a value that cannot be used, or asks for what is not planned here.
    """
    for name in ("start-snapshot-id", "end-snapshot-id"):
        if fields.get(name) is not None:
            raise BadRequest(name, fields[name], INCREMENTAL)
    _texts(fields, "select")
    return ScanRequest(
        snapshot_id=_whole_number(fields, "snapshot-id"),
        filter=fields.get("filter"),
        is_case_sensitive=_flag(fields, "case-sensitive", default=True),
        is_of_snapshot=_flag(fields, "use-snapshot-schema", default=False),
        stats_fields=_texts(fields, "stats-fields"),
    )


@dataclass(frozen=True)
class _PlanToken:
    """What a token holds; `until` is in seconds since 1970, `question` the scan request in few characters."""

    recipient: str
    table: str
    until: int
    question: str
    task: PlanTask


SCAN_REQUEST = TypeAdapter(ScanRequest)


class PlanTasks:
    """Makes and reads the tokens of plans; their life is in seconds.

    They carry the whole question, and come back in a body of at most `max_body_bytes`.
    """

    def __init__(self, key: bytes, life_s: int, max_body_bytes: int) -> None:
        self._seals, self._life_s = Seals(key, "iceberg plan task v1"), life_s
        # A seal makes a third more of it.
        self._longest = max_body_bytes // 2

    def token(self, asker: Asker, asked: ScanRequest, task: PlanTask) -> str:
        """The token of a page.

        Raises:
            BadRequest: the filter is too long to be carried about.
        """
        question = base64.b85encode(zlib.compress(json.dumps(asdict(asked)).encode())).decode()
        if len(question) > self._longest:
            raise BadRequest("filter", asked.filter, TOO_LONG)
        until = int(time.time()) + self._life_s
        who = {"recipient": asker.recipient_id, "table": asker.table_id, "until": until}
        return self._seals.sealed({**who, "question": question, "task": asdict(task)})

    def opened(self, asker: Asker, token: str) -> tuple[ScanRequest, PlanTask]:
        """What a token asks for.

        Raises:
            NotFound: it is not one of ours, has expired, or is of another table or recipient.
        """
        found = self._seals.opened(token, _PlanToken)
        whose = (asker.recipient_id, asker.table_id)
        if found is None or (found.recipient, found.table) != whose or found.until < time.time():
            raise NotFound("plan-task", shown(token))
        try:
            text = zlib.decompress(base64.b85decode(found.question))
            return SCAN_REQUEST.validate_json(text, strict=True), found.task
        except (zlib.error, ValueError) as error:
            # Of another lakeshare version.
            raise NotFound("plan-task", shown(token)) from error


def tasks_json(tasks: Sequence[str], deletes: Sequence[Mapping[str, Any]], following: str | None) -> str:
    """The members of an answer that are its tasks; files of deletes go only with tasks that name them."""
    members = [f'"file-scan-tasks":[{",".join(tasks)}]']
    if deletes:
        members.append(f'"delete-files":{json.dumps(deletes, separators=(",", ":"))}')
    if following is not None:
        members.append(f'"plan-tasks":[{json.dumps(following)}]')
    return ",".join(members)


def _whole_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise BadRequest(name, value, "Give a whole number.")


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise BadRequest(name, value, "Give true or false.")


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise BadRequest(name, value, "Give a list of names of columns.")
