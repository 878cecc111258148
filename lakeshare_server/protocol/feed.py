"""The feed of a share on the wire: JSON Feed 1.1, Atom (RFC 4287, paged by RFC 5005), and CloudEvents 1.0."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

from lakeshare_server.catalog.feed import FeedEvent, FeedPage, FeedPosition
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.tokens import TokenSealer
from lakeshare_server.settings import ServerSettings

JSON_FEED = "application/feed+json"
ATOM = "application/atom+xml"
CLOUD_EVENT = "application/cloudevents+json"
FORMATS = {"json": JSON_FEED, "atom": ATOM}
ATOM_NAMESPACE = "http://www.w3.org/2005/Atom"
# Characters that XML 1.0 cannot hold.
NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
TEST_EVENT = "lakeshare.webhook.test"


@dataclass(frozen=True)
class FeedRequest:
    """The parameters of a feed; `table` is `schema.table`."""

    share: str
    table: str | None
    max_results: str | None


@dataclass(frozen=True)
class _FeedToken:
    holder: str
    feed: str
    at: str
    table_key: int
    number: int


class FeedTokens:
    """Page tokens of feeds, bound to the recipient, the share and the table."""

    def __init__(self, key: bytes) -> None:
        self._sealer = TokenSealer(key, "feed page v1")

    def seal(self, holder: str, request: FeedRequest, position: FeedPosition) -> str:
        at = position.at.isoformat()
        content = {"at": at, "table_key": position.table_key, "number": position.number}
        return self._sealer.seal({"holder": holder, "feed": _feed_name(request), **content})

    def open(self, holder: str, request: FeedRequest, token: str) -> FeedPosition:
        """The position of a token. Raises BadRequest if it is invalid or of another feed or recipient."""
        opened = self._sealer.open(token, _FeedToken)
        if opened is None or (opened.holder, opened.feed) != (holder, _feed_name(request)):
            raise BadRequest("pageToken", token, "Pass on the nextPageToken of the page before, unchanged.")
        return FeedPosition(datetime.fromisoformat(opened.at), opened.table_key, opened.number)


def _feed_name(request: FeedRequest) -> str:
    return f"{request.share.lower()}/{(request.table or '').lower()}"


def choose_format(requested: str | None, accepted: Mapping[str, float]) -> str:
    """The media type of a feed by `?format=`, else by the weights of Accept; JSON Feed by default."""
    if requested is not None:
        if requested.lower() not in FORMATS:
            raise BadRequest("format", requested, f"It is {' or '.join(FORMATS)}.")
        return FORMATS[requested.lower()]
    weights = {JSON_FEED: max(accepted.get(name, 0) for name in (JSON_FEED, "application/json"))}
    is_atom = accepted.get(ATOM, 0) > weights[JSON_FEED]
    return ATOM if is_atom else JSON_FEED


def describe_event(event: FeedEvent) -> dict[str, Any]:
    """The fields of an event, for feeds and for webhooks."""
    table = event.table
    fields = {
        "event": event.kind,
        "share": table.share,
        "schema": table.schema,
        "table": table.name,
        "tableId": table.id,
        "number": event.number,
        "publishedAt": format_moment(event.at) if event.kind == "publication" else None,
        "schemaChanged": event.schema_changed,
        "rows": event.rows,
        "sizeBytes": event.size_bytes,
        "retireDate": table.retire_date,
        "successor": None if table.successor is None else f"{table.share}.{table.successor}",
    }
    return {name: value for name, value in fields.items() if value is not None}


def make_cloud_event(event: FeedEvent, settings: ServerSettings) -> dict[str, Any]:
    """The event in the structured JSON of CloudEvents 1.0."""
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": f"{settings.base_url()}/shares/{quote(event.table.share)}",
        "type": event.type,
        "subject": event.table.path,
        "time": format_moment(event.at),
        "datacontenttype": "application/json",
        "data": {**describe_event(event), "portal": settings.portal_url(event.table.path)},
    }


def make_test_event(event_id: str, at: datetime, settings: ServerSettings, recipient: str) -> dict[str, Any]:
    """A CloudEvent without content, which shows that a webhook works."""
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": settings.base_url(),
        "type": TEST_EVENT,
        "time": format_moment(at),
        "datacontenttype": "application/json",
        "data": {"recipient": recipient},
    }


def make_json_feed(
    page: FeedPage, request: FeedRequest, token: str | None, settings: ServerSettings
) -> dict[str, Any]:
    """The page as JSON Feed 1.1; the fields for programs are in its extension `_lakeshare`."""
    links = {"feed_url": _feed_url(request, None, settings)}
    if token is not None:
        links["next_url"] = _feed_url(request, token, settings)
    feed = {
        "version": "https://jsonfeed.org/version/1.1",
        "title": _title(page),
        "home_page_url": settings.portal_url(),
        **links,
        "authors": [{"name": _provider(settings)}],
        "items": [
            {
                "id": event.id,
                "url": settings.portal_url(event.table.path),
                "title": _item_title(event),
                "content_text": _item_text(event),
                "date_published": format_moment(event.at),
                "tags": [event.kind, event.table.alias],
                "_lakeshare": describe_event(event),
            }
            for event in page.events
        ],
    }
    return feed if token is None else {**feed, "_lakeshare": {"nextPageToken": token}}


def make_atom_feed(
    page: FeedPage, request: FeedRequest, token: str | None, settings: ServerSettings
) -> bytes:
    """The page as an Atom document in UTF-8."""
    feed = ElementTree.Element("feed", {"xmlns": ATOM_NAMESPACE})
    own = _feed_url(request, None, settings, "atom")
    _add(feed, "id", settings.feed_url(request.share))
    _add(feed, "title", _title(page))
    # Of the newest item; an empty feed has the time of its share, so that it stays the same.
    newest = max((event.at for event in page.events), default=page.share.created_at)
    _add(feed, "updated", format_moment(newest))
    _add(_add(feed, "author"), "name", _provider(settings))
    _add(feed, "link", rel="self", href=own, type=ATOM)
    _add(feed, "link", rel="alternate", href=settings.portal_url(), type="text/html")
    if token is not None:
        _add(feed, "link", rel="next", href=_feed_url(request, token, settings, "atom"), type=ATOM)
    for event in page.events:
        entry = _add(feed, "entry")
        _add(entry, "id", f"urn:uuid:{event.id}")
        _add(entry, "title", _item_title(event))
        for moment in ("published", "updated"):
            _add(entry, moment, format_moment(event.at))
        _add(entry, "link", rel="alternate", href=settings.portal_url(event.table.path), type="text/html")
        _add(entry, "category", term=event.kind)
        _add(entry, "summary", _item_text(event))
    document: bytes = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return document


def format_moment(at: datetime) -> str:
    """A time in RFC 3339, to the millisecond, in UTC."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _add(
    parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: str
) -> ElementTree.Element:
    clean = {name: NOT_IN_XML.sub("\ufffd", value) for name, value in attributes.items()}
    child = ElementTree.SubElement(parent, tag, clean)
    child.text = None if text is None else NOT_IN_XML.sub("\ufffd", text)
    return child


def _feed_url(
    request: FeedRequest, token: str | None, settings: ServerSettings, feed_format: str | None = None
) -> str:
    parameters = {
        "format": feed_format,
        "table": request.table,
        "maxResults": request.max_results,
        "pageToken": token,
    }
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return settings.feed_url(request.share) + (f"?{query}" if query else "")


def _title(page: FeedPage) -> str:
    return f"{page.share.display_name or page.share.name}: what is new"


def _provider(settings: ServerSettings) -> str:
    return settings.provider_name or settings.host_name()


def _item_title(event: FeedEvent) -> str:
    if event.kind == "retirement":
        return f"{event.table.alias} is to retire on {event.table.retire_date}"
    return f"{event.table.alias}: number {event.number}"


def _item_text(event: FeedEvent) -> str:
    if event.kind == "retirement":
        return event.table.notice or ""
    text = f"Number {event.number} of {event.table.path} was published at {format_moment(event.at)}."
    if event.schema_changed:
        text += " Its schema changed."
    if event.rows is not None:
        text += f" It has {event.rows} rows."
    return text
