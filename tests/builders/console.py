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

    def send(self, page: str, path: str, fields: Mapping[str, str], status: int = 303) -> httpx.Response:
        """Sends a form of a page with its token and revision."""
        text = self.client.get(page).text
        revision = REVISION.search(text)
        hidden = {"form_token": TOKEN.findall(text)[-1], "revision": revision[1] if revision else ""}
        response = self.client.post(path, data={**hidden, **fields})
        assert response.status_code == status, response.text
        return response


def browser(administered: Administered, role: str | None = "owner") -> Browser:
    """A browser that has signed in with the key of a role."""
    client = httpx.Client(base_url=administered.root, timeout=30)
    if role is not None:
        response = client.post("/console/sign-in", data={"key": administered.keys[role]})
        assert response.status_code == 303, response.text
    return Browser(client)
