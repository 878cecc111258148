"""One task of a job, an object of its manifest, and what became of it."""

from dataclasses import dataclass
from urllib.parse import unquote_plus


@dataclass(frozen=True)
class Task:
    """One row of a manifest; `key_in_manifest` is URL-encoded as it stands there, and so in the report."""

    number: int
    bucket: str
    key_in_manifest: str
    version_id: str | None
    """None where the manifest has no versions; empty where it should have one and has none."""

    @property
    def key(self) -> str:
        """The object's key. A plus is a space, as in every form that is URL-encoded."""
        return unquote_plus(self.key_in_manifest)


@dataclass(frozen=True)
class Outcome:
    """What became of a task; `http_status` and `message` are told of both, `error_code` of failures only."""

    number: int
    http_status: int
    error_code: str
    message: str

    @property
    def succeeded(self) -> bool:
        """It was done."""
        return not self.error_code
