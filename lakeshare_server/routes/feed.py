"""The feed of a share: what is new in it for the recipient."""

import hashlib
import logging
import time

from fastapi import APIRouter, Response

from lakeshare_server.catalog.feed import list_followed, read_feed
from lakeshare_server.errors import LakeshareError
from lakeshare_server.protocol.feed import ATOM, FeedRequest, choose_format, make_atom_feed, make_json_feed
from lakeshare_server.protocol.requests import matches_etag, optional_integer
from lakeshare_server.routes.context import LISTINGS, READ_METHODS, RecipientRequest, RecipientRequestDep
from lakeshare_server.routes.responses import encode_json, parse_weights

DEFAULT_ITEMS, MAX_ITEMS = 50, 500
# Followed tables get their numbers when they are looked at; a feed waits this long for that.
MAX_LOOKING_S = 2.0

_log = logging.getLogger(__name__)
router = APIRouter()


@router.api_route("/shares/{share}/publications", methods=READ_METHODS, name="list_publications")
async def list_publications(request: RecipientRequestDep, share: str) -> Response:
    """The newest publications of a share's tables, and notices of tables that are to retire."""
    return await request.app_state.pools.run(LISTINGS, _respond, request, share)


def _respond(request: RecipientRequest, share: str) -> Response:
    app_state, http_request = request.app_state, request.http_request
    query = http_request.query_params
    media_type = choose_format(query.get("format"), parse_weights(http_request.headers.get("accept", "")))
    table = query.get("table") or None
    feed = FeedRequest(share, table, query.get("maxResults"))
    requested = optional_integer(query, "maxResults", low=1, high=MAX_ITEMS) or DEFAULT_ITEMS
    limit = min(requested, app_state.pager.page_size)
    # An unknown share is refused as such, whatever the token is.
    share_name = request.listings.share(share).name
    token = query.get("pageToken")
    after = app_state.feed_tokens.open(request.reader.id, feed, token) if token else None
    if after is None:
        _look_at_followed(request, share_name, table)
    page = read_feed(app_state.catalog, request.reader.id, share_name, table, after=after, limit=limit)
    following = None if page.next is None else app_state.feed_tokens.seal(request.reader.id, feed, page.next)
    if media_type == ATOM:
        body = make_atom_feed(page, feed, following, app_state.settings)
    else:
        body = encode_json(make_json_feed(page, feed, following, app_state.settings))
    # Also of the media type: a cache that ignores Vary must not mix the two.
    etag = f'"{hashlib.sha256(media_type.encode() + body).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}
    if matches_etag(http_request.headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=f"{media_type}; charset=utf-8")


def _look_at_followed(request: RecipientRequest, share: str, table: str | None) -> None:
    """Numbers the new versions of followed tables, of as many as there is time for."""
    ends_at = time.monotonic() + MAX_LOOKING_S
    for schema, name in list_followed(request.app_state.catalog, share):
        if table is not None and table.lower() != f"{schema}.{name}".lower():
            continue
        if time.monotonic() > ends_at:
            return
        try:
            request.app_state.views.table(request.reader, share, schema, name).latest()
        except LakeshareError as error:
            # Its numbers up to now are in the ledger.
            _log.info("the feed of %s does not look at %s.%s: %s", share, schema, name, error)
