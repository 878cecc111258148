"""A client of the console that keeps cookies, and sends forms with the token of the page they are on."""

import html
import re
from dataclasses import dataclass

import httpx

from tests.builders.administration import Administered

TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


@dataclass(frozen=True)
class ConsoleClient:
    client: httpx.Client

    def page(self, path: str, status: int = 200) -> str:
        """The text of a page, with its entities resolved."""
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return html.unescape(response.text)

    def send(self, page: str, path: str, status: int = 303, **fields: str) -> httpx.Response:
        """Sends a form of a page."""
        return self.post(path, status, form_token=TOKEN.findall(self.client.get(page).text)[-1], **fields)

    def post(self, path: str, status: int, **fields: str) -> httpx.Response:
        response = self.client.post(path, data=fields)
        assert response.status_code == status, response.text
        return response


def sign_in(administered: Administered, role: str = "owner") -> ConsoleClient:
    """A signed-in client of a role."""
    return sign_in_with(administered.root, administered.keys[role])


def sign_in_with(root: str, key: str) -> ConsoleClient:
    client = httpx.Client(base_url=root, timeout=30)
    response = client.post("/console/sign-in", data={"key": key})
    assert response.status_code == 303, response.text
    return ConsoleClient(client)
