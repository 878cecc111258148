"""The host that a signature covers."""

from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def host_header(url: str) -> str:
    """The host of a URL as clients send it in their header: without the port that goes without saying."""
    parts = urlsplit(url)
    return parts.netloc.removesuffix(f":{DEFAULT_PORTS[parts.scheme]}")
