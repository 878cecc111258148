"""A browser of the console: it keeps cookies, and sends forms with the token of the page that they are on."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from tests.builders.administration import Administered

TOKEN = re.compile(r'name="form_token" value="([^"]+)"')
REVISION = re.compile(r'name="revision" value="([0-9]+)"')


@dataclass(frozen=True)
class Browser:
    """A client of the console that keeps cookies, and sends forms with the token of the page they are on."""

    client: httpx.Client

    def page(self, path: str, status: int = 200) -> str:
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return html.unescape(response.text)

    def send(
        self, page: str, path: str, fields: Mapping[str, str] | None = None, status: int = 303
    ) -> httpx.Response:
        """Sends a form of a page with its token and revision."""
        text = self.client.get(page).text
        revision = REVISION.search(text)
        hidden = {"form_token": TOKEN.findall(text)[-1], "revision": revision[1] if revision else ""}
        return self.post(path, {**hidden, **(fields or {})}, status)

    def post(self, path: str, fields: Mapping[str, str], status: int) -> httpx.Response:
        response = self.client.post(path, data=fields)
        assert response.status_code == status, response.text
        return response


def browser(administered: Administered, role: str | None = "owner") -> Browser:
    """A browser that has signed in with the key of a role."""
    return open_browser(administered.root, None if role is None else administered.keys[role])


def open_browser(root: str, key: str | None) -> Browser:
    """A browser of a server, signed in with a key if one is given."""
    opened = Browser(httpx.Client(base_url=root, timeout=30))
    if key is not None:
        opened.post("/console/sign-in", {"key": key}, 303)
    return opened
