"""What a target does of what copies ask: found out by trying, once for a task, under its work prefix.

Nothing is removed afterwards: who may only add to a target is a target's best copier.
"""

import asyncio

from pydantic import BaseModel, ConfigDict

from lakeshare_pipelines.backup.stores.answers import Answer
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3
from lakeshare_pipelines.backup.stores.s3 import REFUSALS
from lakeshare_pipelines.backup.stores.signature import quoted_path
from lakeshare_pipelines.errors import BackupError

CONTENT = b"lakeshare asks what this store can"


class Capabilities(BaseModel):
    """What a store does; recorded in CopyRecord."""

    model_config = ConfigDict(frozen=True)

    copies_on_condition: bool = True
    """A copy whose source has another ETag than asked for is refused."""
    copies_parts: bool = True
    """Ranges are copied into parts, and the part's ETag is told."""
    writes_on_condition: bool = True
    """A write that is to overwrite nothing is refused where the key is taken."""
    checks_checksums: bool = True
    """A body that is not what its checksum says is refused."""
    versions: bool = False
    locks: bool = False


async def capabilities_of(target: AsyncS3, work_prefix: str) -> Capabilities:
    """What a bucket does.

    Raises:
        BackupError: it takes nothing from us.
    """
    source, copy = f"{work_prefix}probe/source", f"{work_prefix}probe/copy"
    written = await target.request("PUT", source, body=CONTENT)
    if not written.is_success:
        raise refused(target, source, written)
    from_there = {"x-amz-copy-source": f"/{target.address.bucket}/{quoted_path(source)}"}
    other = {**from_there, "x-amz-copy-source-if-match": f'"{"0" * 32}"'}
    wrong_sum = {"x-amz-checksum-sha256": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
    on_condition, again, checked, locked, parts = await asyncio.gather(
        target.request("PUT", copy, headers=other, attempts=1),
        target.request("PUT", source, headers={"if-none-match": "*"}, body=CONTENT, attempts=1),
        target.request("PUT", f"{work_prefix}probe/checked", headers=wrong_sum, body=CONTENT, attempts=1),
        target.request("GET", query={"object-lock": ""}, attempts=1),
        _copies_parts(target, f"{work_prefix}probe/parts", from_there),
    )
    return Capabilities(
        copies_on_condition=on_condition.status == 412,
        copies_parts=parts,
        writes_on_condition=again.status == 412,
        checks_checksums=not checked.is_success,
        versions=written.headers.get("x-amz-version-id") not in {None, "null"},
        locks=locked.is_success and b"Enabled" in locked.body,
    )


async def _copies_parts(target: AsyncS3, key: str, source: dict[str, str]) -> bool:
    begun = await target.request("POST", key, {"uploads": ""}, attempts=1)
    upload = begun.text("UploadId")
    if not begun.is_success or not upload:
        return False
    part = await target.request(
        "PUT",
        key,
        {"partNumber": "1", "uploadId": upload},
        {**source, "x-amz-copy-source-range": f"bytes=0-{len(CONTENT) - 1}"},
        attempts=1,
    )
    await target.request("DELETE", key, {"uploadId": upload}, attempts=1)
    return part.is_success and bool(part.text("ETag"))


def refused(target: AsyncS3, key: str, answer: Answer) -> BackupError:
    """A sentence for a store that takes nothing from us."""
    reason, fix = REFUSALS.get(
        answer.code, (f"the store refused: {answer.message}", "What is copied already stays.")
    )
    return BackupError(target.address.location(key), reason, fix)
