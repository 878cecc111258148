"""What a store lets a writer do: read, write, list and delete, take the first of two writes; and its clock."""

import time
from dataclasses import dataclass
from uuid import uuid4

from lakeshare_server.errors import StoreDenied, StoreMissing, Unavailable
from lakeshare_server.storage.stores import Stores

MAX_SKEW_S = 60
RIGHTS = (
    "reading, writing, listing and deleting, in S3 s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket, in "
    "Google Cloud Storage roles/storage.objectUser, in Azure Storage Blob Data Contributor"
)
ONE_WRITER = (
    "Use a store that refuses a second write with `If-None-Match: *`, as AWS, MinIO, Ceph and SeaweedFS do."
)


@dataclass(frozen=True)
class Shortcoming:
    """What a store does not do for a writer, and the remedy."""

    what: str
    remedy: str


def find_shortcoming(stores: Stores, location: str) -> Shortcoming | None:
    """Writes, lists, reads and deletes an object in a folder of its own below `location`."""
    folder = _make_folder(location)
    probe, written_at_s = f"{folder}/object", time.time()
    try:
        stores.write(probe, b"1")
        found = next(iter(stores.list(folder)), None)
        stores.read(probe)
        stores.delete_folder(folder)
        is_exclusive = takes_first_write(stores, location)
    except StoreMissing:
        return Shortcoming(
            f"{location} is in no bucket that exists", "Create the bucket, or correct the location."
        )
    except StoreDenied as error:
        return Shortcoming(str(error).rstrip("."), f"Allow these credentials {RIGHTS}.")
    except Unavailable as error:
        return Shortcoming(error.what, error.fix)
    if found is None:
        what = f"the store of {location} does not list an object that was written just before"
        return Shortcoming(what, "Use a store whose listings are consistent: tables are read by them.")
    skew_s = abs(found.modified_ms / 1000 - written_at_s)
    if skew_s > MAX_SKEW_S:
        what = f"the clock of the store of {location} differs by {skew_s:.0f} s from this host's"
        return Shortcoming(what, "Set both clocks by NTP: ages of files and signatures depend on them.")
    if not is_exclusive:
        what = f"the store of {location} lets a second write replace what must be written once"
        return Shortcoming(what, f"{ONE_WRITER} Commits of Delta tables overwrite each other otherwise.")
    return None


def takes_first_write(stores: Stores, location: str) -> bool:
    """Whether of two writes of an object that must not exist the store refuses the second.

    Raises StoreDenied or Unavailable: the store does not let the object be written, or does not respond.
    """
    folder = _make_folder(location)
    try:
        first = stores.write(f"{folder}/object", b"1", if_absent=True)
        return first and not stores.write(f"{folder}/object", b"2", if_absent=True)
    finally:
        stores.delete_folder(folder)


def _make_folder(location: str) -> str:
    return f"{location}/.lakeshare-probe-{uuid4().hex}"
