"""How a location is spelt: a local one as an absolute path, any other as `scheme://root/key` of its store.

Keys are exact text: nothing here encodes, decodes or folds one. Spellings of other tools become ours.
"""

import re
from dataclasses import dataclass

from lakeshare_server.errors import BadRequest

LOCAL, S3, GCS, AZURE = "local", "s3", "gcs", "azure"

_SCHEMES = {
    "s3": S3, "s3a": S3, "s3n": S3,
    "gs": GCS, "gcs": GCS,
    "abfss": AZURE, "abfs": AZURE, "wasbs": AZURE, "wasb": AZURE, "az": AZURE, "azure": AZURE,
}  # fmt: skip
_SPELT = {S3: "s3", GCS: "gs", AZURE: "abfss"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ROOT = re.compile(r"[A-Za-z0-9_.-]+")
_AZURE_ROOT = re.compile(r"([A-Za-z0-9$_-]+)@([A-Za-z0-9-]+)\.(?:dfs|blob)\.([A-Za-z0-9.-]+)")
_SPELLINGS = (
    "Give an absolute path, s3://bucket/key, gs://bucket/key or "
    "abfss://container@account.dfs.core.windows.net/key."
)


@dataclass(frozen=True)
class Place:
    """A location taken apart: the kind of store, its root (`""` for the local disk) and the key below it."""

    kind: str
    root: str
    key: str

    @property
    def location(self) -> str:
        """The location in our spelling."""
        return self.key if self.kind == LOCAL else f"{self.root}/{self.key}" if self.key else self.root

    @property
    def bucket(self) -> str:
        """The bucket, or the container."""
        return self.root.partition("://")[2].partition("@")[0]


def place_of(location: str, azure_account: str | None = None) -> Place:
    """Take a location in any known spelling apart; `azure_account` completes one that names a container only.

    Raises:
        BadRequest: it is relative, of an unknown scheme or without a bucket.
    """
    if location.startswith("/"):
        return Place(LOCAL, "", location)
    spelt = _SCHEME.match(location)
    if spelt is None:
        raise BadRequest("location", _shown(location), _SPELLINGS)
    scheme, rest = spelt[1].lower(), location[spelt.end() :]
    if scheme == "file":
        return Place(LOCAL, "", "/" + rest.removeprefix("//localhost/").lstrip("/"))
    kind = _SCHEMES.get(scheme)
    if kind is None or not rest.startswith("//"):
        raise BadRequest("location", _shown(location), _SPELLINGS)
    root, _, key = rest[2:].partition("/")
    return Place(kind, f"{_SPELT[kind]}://{_root(kind, root, location, azure_account)}", key)


def normalised(location: str, azure_account: str | None = None) -> str:
    """The location in our own spelling: the same object has the same text.

    Raises:
        BadRequest: it is relative, of an unknown scheme or without a bucket.
    """
    return place_of(location, azure_account).location


def azure_host(place: Place) -> tuple[str, str]:
    """The account of an Azure place and the domain of its cloud, `core.windows.net` for most."""
    account, _, domain = place.root.partition("@")[2].partition(".dfs.")
    return account, domain


def _root(kind: str, root: str, location: str, azure_account: str | None) -> str:
    if kind != AZURE:
        if not _ROOT.fullmatch(root):
            raise BadRequest("location", _shown(location), "It names no bucket. " + _SPELLINGS)
        return root
    if "@" not in root and azure_account:
        root = f"{root}@{azure_account}.dfs.core.windows.net"
    spelt = _AZURE_ROOT.fullmatch(root)
    if spelt is None:
        hint = "Spell it abfss://container@account.dfs.core.windows.net/key, or set LAKESHARE_AZURE_ACCOUNT."
        raise BadRequest("location", _shown(location), hint)
    return f"{spelt[1]}@{spelt[2].lower()}.dfs.{spelt[3].lower()}"


def _shown(location: str) -> str:
    """The location without what may be a password or a signature in it."""
    # Keys of AWS hold slashes, and whoever copies a signed URL may change its scheme.
    return re.sub(r"(?s)//[^@]*:.*@", "//…@", re.sub(r"(?s)\?.*", "?…", location))
