"""What every page, whatever becomes of it, tells the browser: no foreign content, no frames, no traces."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshare_server.settings import ACTIVATION_PATH, PORTAL_PATH

STATIC_PATH = "/pages"

# Scripts are files of ours, and what they write into a page is text: nothing of a provider's or a recipient's runs.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    # A link is a secret until it was used: no other site is to learn where the reader came from.
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Robots-Tag": "noindex, nofollow",
}
NO_STORE = "no-store"
LOOK = "look_at_link"


class PageHeaders:
    """Adds the headers to every answer below the paths of pages, refusals included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_of_pages(scope["path"]):
            await self.app(scope, receive, send)
            return

        if scope["path"].startswith(f"{ACTIVATION_PATH}/"):
            # The audit log names the path of what no route takes, and these paths are secrets.
            scope["state"]["note"].action = LOOK

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                # Files of ours have their own; profiles, links and rows stay in no cache.
                headers.setdefault("Cache-Control", NO_STORE)
            await send(message)

        await self.app(scope, receive, send_guarded)


def _is_of_pages(path: str) -> bool:
    return path == "/" or any(
        path == root or path.startswith(f"{root}/") for root in (ACTIVATION_PATH, PORTAL_PATH, STATIC_PATH)
    )
