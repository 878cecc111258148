"""Copying one object inside a store of S3's kind: one request, only if the object still is what was listed.

Larger ones than one request takes go in parts (parts.py), to other stores piece by piece (streamed.py).
"""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Protocol

from lakeshare_pipelines.backup.copy.outcomes import NotCopied, Outcome, Wanted
from lakeshare_pipelines.backup.declared import COPY_LIMIT_BYTES
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.answers import Answer
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3
from lakeshare_pipelines.backup.stores.signature import quoted_path

_CHECKSUM = re.compile(rb"<Checksum(CRC64NVME|SHA256|CRC32C|CRC32|SHA1)>([^<]+)</")


@dataclass(frozen=True)
class CopyTerms:
    """What holds for every object of a task."""

    as_of: dt.datetime
    copy_limit_bytes: int = COPY_LIMIT_BYTES
    overwrite: bool = True
    """False: a key of the target that is taken stays as it is, and the row fails as `AlreadyThere`."""
    source: StoreAddress | None = None
    """Whose account must own the objects of its bucket, where it names one."""
    is_conditional: bool = True
    """The store honours conditions on the source of a copy; where it does not, the source is asked before and after."""
    copies_parts: bool = True
    """The store copies ranges into parts; where it does not, larger objects are streamed."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers for what is written, as S3 spells them: storage class, tags, encryption, …"""


class Copier(Protocol):
    """Copies objects from one store to another; for one event loop."""

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one.

        Raises:
            NotCopied: it cannot be copied, others may.
            BackupError: nothing can be copied.
        """
        ...


async def copy_object(target: AsyncS3, wanted: Wanted, terms: CopyTerms) -> Outcome:
    """Copy an object by one CopyObject request (S3 API), with the condition that it is the listed one.

    Raises:
        NotCopied: the store refused: `NoSuchKey` (vacuumed since), `PreconditionFailed` (changed), `AccessDenied`, …
        NoAnswer: it did not answer.
    """
    there = await found_there(target, wanted, terms)
    if there is not None:
        return there
    headers = {**source_headers(wanted, terms), **written_headers(terms)}
    answer = await target.request("PUT", wanted.stored_key, headers=headers)
    if not answer.is_success:
        raise NotCopied.by(answer)
    return copied(wanted, answer)


def source_headers(wanted: Wanted, terms: CopyTerms) -> dict[str, str]:
    """The source of a copy and its conditions."""
    version = f"?versionId={quoted_path(wanted.version_id)}" if wanted.version_id else ""
    headers = {"x-amz-copy-source": f"/{wanted.bucket}/{quoted_path(wanted.key)}{version}"}
    if wanted.etag:
        headers["x-amz-copy-source-if-match"] = f'"{wanted.etag}"'
    if terms.source and terms.source.account and terms.source.bucket == wanted.bucket:
        headers["x-amz-source-expected-bucket-owner"] = terms.source.account
    if not wanted.etag:
        headers["x-amz-copy-source-if-unmodified-since"] = format_datetime(terms.as_of, usegmt=True)
    return headers


def written_headers(terms: CopyTerms) -> dict[str, str]:
    """Headers of what is written."""
    return {**terms.headers, **({} if terms.overwrite else {"if-none-match": "*"})}


async def found_there(target: AsyncS3, wanted: Wanted, terms: CopyTerms) -> Outcome | None:
    """Where nothing is to be overwritten: the copy that is there already, None where the key is free.

    Asked before, as not all stores keep the condition.

    Raises:
        NotCopied: something else has the key.
    """
    if terms.overwrite:
        return None
    answer = await target.request("HEAD", wanted.stored_key)
    if answer.status == 404:
        return None
    if not answer.is_success:
        raise NotCopied.by(answer)
    size, etag = answer.headers.get("content-length"), answer.headers.get("etag", "").strip('"')
    if etag != wanted.etag or size != str(wanted.size_bytes):
        raise already_there(target.address.location(wanted.stored_key))
    return copied(wanted, answer)


def already_there(location: str) -> NotCopied:
    """What is said of a key that something else has."""
    return NotCopied("AlreadyThere", 412, f"something else is at {location}, and nothing is overwritten")


def copied(wanted: Wanted, answer: Answer, checksum: str | None = None) -> Outcome:
    """The row of a copy; a store that gives no ETag has not copied.

    Raises:
        NotCopied: there is no ETag in the answer.
    """
    etag = (answer.text("ETag") or answer.headers.get("etag", "")).strip('"')
    if not etag:
        raise NotCopied("NoETag", answer.status, "the store said it was done, but gave no ETag")
    version = answer.headers.get("x-amz-version-id")
    return Outcome(
        wanted,
        stored_etag=etag,
        stored_version_id=None if version == "null" else version,
        checksum=checksum or _checksum_in(answer.body),
    )


def _checksum_in(body: bytes) -> str | None:
    found = _CHECKSUM.search(body)
    # "…-3" is a checksum of checksums of parts: not one of the content.
    if found is None or b"-" in found[2]:
        return None
    return f"{found[1].decode().lower()}:{found[2].decode()}"


class ServerSideCopier:
    """Copies within one store: nothing of the objects passes through this host."""

    def __init__(self, source: AsyncS3, target: AsyncS3, terms: CopyTerms, larger: Copier) -> None:
        self._source, self._target, self._terms, self._larger = source, target, terms, larger

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one: by a request, or by parts where it is larger than one takes."""
        if not self._terms.is_conditional:
            await self._require_unchanged(wanted)
        if wanted.size_bytes > self._terms.copy_limit_bytes:
            outcome = await self._larger.copy(wanted)
        else:
            outcome = await copy_object(self._target, wanted, self._terms)
        if not self._terms.is_conditional:
            await self._require_unchanged(wanted)
        return outcome

    async def _require_unchanged(self, wanted: Wanted) -> None:
        query = {"versionId": wanted.version_id} if wanted.version_id else {}
        answer = await self._source.at(wanted.bucket).request("HEAD", wanted.key, query)
        if not answer.is_success:
            raise NotCopied.by(answer)
        if wanted.etag and answer.headers.get("etag", "").strip('"') != wanted.etag:
            raise NotCopied.changed("it changed since it was listed")
