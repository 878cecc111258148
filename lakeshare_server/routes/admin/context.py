"""What the admin API's routes are given: who administers, the body that was sent, the revision that was looked at."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response

from lakeshare_server.access.administrators import Administrator, Permission
from lakeshare_server.access.rules import require_decidable_rules
from lakeshare_server.access.versions_ahead import find_versions_ahead
from lakeshare_server.catalog.sharing.editing import Edit, editing
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.admin.fields import Reply, RequestBody, parsed
from lakeshare_server.protocol.bodies import json_object
from lakeshare_server.protocol.paging import Keyed, PageRequest
from lakeshare_server.protocol.parameters import whole_number
from lakeshare_server.routes.context import Note, Parts, address_of, whole_body
from lakeshare_server.routes.responses import json_response

# Proxies that compress weaken entity tags: the number counts.
TAG = re.compile(r'(?:W/)?"([0-9]{1,18})"')
NAMES = ("share", "recipient", "group", "policy", "key", "table")
# What is told of people, and links that are told once, are nobody's to keep.
NOT_KEPT = {"Cache-Control": "no-store"}

AnyBody = TypeVar("AnyBody", bound=RequestBody)
Entry = TypeVar("Entry", bound=Keyed)


@dataclass(frozen=True)
class AdminRequest:
    """A request of a known administrator whose role is enough for it."""

    request: Request
    parts: Parts
    by: Administrator

    @contextmanager
    def editing(self) -> Iterator[Edit]:
        """One transaction in the administrator's name; rules that it writes are such as partitions decide.

        Raises:
            BadRequest: one is not.
        """
        note: Note = self.request.state.note
        with editing(self.parts.catalog, self.by.name, request_id=note.request_id) as edit:
            yield edit
            require_decidable_rules(edit, self.parts.versions)

    def find_versions_ahead(self, share: str, tables: Iterable[str] = (), *, writes_rule: bool) -> None:
        """Find the versions of followed tables that rules will be held against, in front of the edit."""
        parts = self.parts
        find_versions_ahead(parts.catalog, parts.versions, share, tables, writes_rule=writes_rule)

    @property
    def revision(self) -> int | None:
        """The revision that the client has looked at; None when it does not say, or says any.

        Raises:
            BadRequest: it says something else.
        """
        said = self.request.headers.get("if-match")
        if said is None or said.strip() == "*":
            return None
        tag = TAG.fullmatch(said.strip())
        if tag is None:
            raise BadRequest("If-Match", said, 'Give the ETag of what you have looked at, like "7".')
        return int(tag[1])

    def page(
        self, listing: str, read: Callable[[int, int | None], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """The page of a listing that is asked for, all of it by default; `read(after, limit)` gets the entries.

        Raises:
            BadRequest: the size or the token cannot be used.
        """
        query, pager = self.request.query_params, self.parts.pager
        asked, token = query.get("max_results"), query.get("page_token") or None
        if asked is None and token is None:
            return read(0, None), None
        size = min(whole_number("max_results", asked or 0), pager.page_size) or pager.page_size
        try:
            return pager.page(self.by.name, f"admin/{listing}", PageRequest(str(size), token), read)
        except BadRequest as error:
            hint = "Pass on the next_page_token of the page before, unchanged."
            raise BadRequest("page_token", token, hint) from error


def _asking(permission: Permission) -> Callable[[Request], AdminRequest]:
    def asked(request: Request) -> AdminRequest:
        parts: Parts = request.app.state.parts
        note: Note = request.state.note
        note.action = request.scope["endpoint"].__name__
        names = [request.path_params[name] for name in NAMES if name in request.path_params]
        note.object_name = ".".join(names) or None
        by = parts.administrators.authenticated(request.headers.get("authorization"), address_of(request))
        note.principal = by.name
        by.require(permission)
        return AdminRequest(request, parts, by)

    asked.__name__ = f"may_{permission.name.lower()}"
    return asked


LookDep = Annotated[AdminRequest, Depends(_asking(Permission.LOOK))]
ShareDep = Annotated[AdminRequest, Depends(_asking(Permission.SHARE))]
OwnerDep = Annotated[AdminRequest, Depends(_asking(Permission.ADMINISTER))]


def body(model: type[AnyBody]) -> Any:  # a dependency's default, as FastAPI has them
    """The body of a request, read after its sender is known: stand it behind the administrator."""

    async def read(request: Request) -> AnyBody:
        settings = request.app.state.parts.settings
        return parsed(
            model, json_object(await whole_body(request, settings.max_body_bytes, settings.slow_client_s))
        )

    reading: Callable[[Request], Awaitable[AnyBody]] = read
    return Depends(reading)


def takes(model: type[RequestBody]) -> dict[str, Any]:
    """What the API's document says of a route that reads this body."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def reply(told: Reply | None, *, revision: int | None = None, status: int = 200) -> Response:
    """What a client is told, with the revision as entity tag; nothing is an empty object."""
    content: Mapping[str, Any] = {} if told is None else told.model_dump(mode="json", exclude_none=True)
    headers = dict(NOT_KEPT)
    if revision is not None:
        headers["ETag"] = f'"{revision}"'
    return json_response(content, status, headers)
