"""Our own signing as the limit and the cost table use it: the very call that the server makes, without the server."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from lakeshare_server.locations import find_root
from lakeshare_server.settings import FILES_PATH, ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, load_key

# Of a store that is signed for and never asked; no server of the benchmark reads from it.
S3_ROOT = "s3://lakeshare-bench"
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "LAKESHARE_S3_REGION": "eu-central-1",
}

Sign = Callable[[pa.StringArray], pa.StringArray]


def bench_signing(state_dir: Path, public_url: str, location: str) -> Sign:
    """The batch call of a server at `public_url` for a file like this and its neighbours; URLs of the usual life."""
    settings = ServerSettings(state_dir=state_dir, public_url=public_url)
    signers = Signers(settings, LocalSigner(load_key(settings), settings.base_url() + FILES_PATH))
    root = find_root(location) or f"/{location.split('/')[1]}"
    return signers.session([root], lambda folder: folder.strip("/"), settings.url_life_s).sign


def location_of(url: str) -> str:
    """The location that a URL of ours was signed for; of a local file its ticket instead of its folder."""
    path = urlsplit(url).path
    _, found, below = path.partition(FILES_PATH + "/")
    return unquote(f"/{below}" if found else S3_ROOT + path)
