"""The API's document as a page for people: one file, nothing from elsewhere, no script."""

import base64
import hashlib
from importlib.resources import files
from typing import Any

from fastapi import Response
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

STYLE = (files("lakeshare_server.routes.admin") / "document.css").read_text()
_digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_digest}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
METHODS = ("get", "post", "put", "patch", "delete")

_templates = Environment(
    loader=PackageLoader("lakeshare_server.routes.admin", ""), autoescape=True, trim_blocks=True
)


def page_of(document: dict[str, Any]) -> Response:
    """The page."""
    operations: dict[str, list[dict[str, Any]]] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                told = {"method": method.upper(), "path": f"/api{path}", **item[method]}
                operations.setdefault(item[method]["tags"][0], []).append(told)
    text = _templates.get_template("document.html.jinja").render(
        document=document,
        operations=operations,
        schemas=document["components"]["schemas"],
        style=Markup(STYLE),  # noqa: S704 - ours
    )
    return Response(text, headers=HEADERS, media_type="text/html; charset=utf-8")
