"""Listings in pages."""

from lakeshare_conformance.case import MUST, SHOULD, NothingToTry, expect, on_server
from lakeshare_conformance.ground import Server, page_of, pages


@on_server(MUST, "1.0")
def pages_of_one_give_every_item_once(server: Server) -> None:
    """With maxResults=1 every page holds at most one item, and all pages together the whole listing, each item once."""
    for path in server.listings:
        found = []
        for page in pages(server.client, path, maxResults=1):
            expect(len(page) <= 1, f"GET {path}?maxResults=1", "at most one item on a page", page)
            found += page
        expect(found == server.items(path), f"GET {path}?maxResults=1", "the listing, item by item", found)


@on_server(MUST, "1.0")
def a_page_of_none_is_allowed(server: Server) -> None:
    """maxResults=0 is answered with no items."""
    for path in server.listings:
        answer = server.client.ask("GET", path, params={"maxResults": 0})
        items, _ = page_of(answer)
        expect(not items, answer.asked, "no items", items)


@on_server(MUST, "1.0")
def a_listing_ends(server: Server) -> None:
    """The tokens of a listing come to an end without maxResults too, and then it is empty or missing."""
    for path in server.listings:
        server.items(path)


@on_server(SHOULD, "1.0")
def a_token_goes_on_without_a_size(server: Server) -> None:
    """A token is good for a request without maxResults: it gives the rest."""
    path, token = _listing_with_a_token(server)
    answer = server.client.ask("GET", path, params={"pageToken": token})
    items, _ = page_of(answer)
    expect(
        items == server.items(path)[1:][: len(items)] != [], answer.asked, "the items after the first", items
    )


@on_server(MUST, "1.0")
def a_token_nobody_gave_is_400(server: Server) -> None:
    """A page token that the server did not give is 400."""
    for token in ("nonsense", "AAAA", "%", "é", "x" * 5000):
        answer = server.client.ask("GET", "/shares", params={"pageToken": token, "maxResults": 1})
        answer.refusal(400)


@on_server(SHOULD, "1.0")
def a_token_of_another_listing_is_400(server: Server) -> None:
    """A page token of one listing is refused by another one."""
    path, token = _listing_with_a_token(server)
    for other in server.listings:
        if other != path:
            server.client.ask("GET", other, params={"pageToken": token}).refusal(400)


@on_server(MUST, "1.0")
def sizes_that_are_none_are_400(server: Server) -> None:
    """maxResults is a whole number from 0 that fits 32 bits; anything else is 400."""
    for size in ("-1", "x", "1.5", str(2**40), "0x1"):
        server.client.ask("GET", "/shares", params={"maxResults": size}).refusal(400)


@on_server(SHOULD, "1.0")
def unknown_parameters_are_ignored(server: Server) -> None:
    """A parameter the server does not know changes nothing."""
    for path in server.listings:
        answer = server.client.ask("GET", path, params={"lakeshareConformance": "1"})
        items, _ = page_of(answer)
        expect(items == server.items(path)[: len(items)], answer.asked, "the same listing", items)


def _listing_with_a_token(server: Server) -> tuple[str, str]:
    for path in server.listings:
        items, token = page_of(server.client.ask("GET", path, params={"maxResults": 1}))
        if items and token:
            return path, token
    raise NothingToTry("no listing has two items")
