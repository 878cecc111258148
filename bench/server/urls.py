"""Our own signing as the limit and the cost table use it: the very call that the server makes, without the server."""

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from lakeshare_server.routes.files import PREFIX
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing import LocalSigner, load_key

RECIPIENT = "bench"

Sign = Callable[[pa.StringArray], list[bytes]]


def bench_signing(state_dir: Path, public_url: str) -> Sign:
    """The batch call of a server at `public_url`, for URLs of the usual life."""
    settings = ServerSettings(state_dir=state_dir, public_url=public_url)
    signer = LocalSigner(load_key(settings), settings.base_url() + PREFIX)
    expires_at_ms = int((time.time() + settings.url_life_s) * 1000)
    return lambda paths: signer.sign(paths, RECIPIENT, expires_at_ms)


def path_of(url: str) -> str:
    """The path that a URL of ours was signed for."""
    return unquote(urlsplit(url).path.partition(PREFIX)[2])
