"""Who may make jobs: whoever signs with keys that the stand-in knows (AWS Signature Version 4 in headers).

A job reads and writes with the stand-in's own identity, so an unsigned port would lend that identity to its network.
"""

import datetime as dt
import hmac
import re
from collections.abc import Mapping
from hashlib import sha256

from starlette.requests import Request

from lakeshare_pipelines.backup.batch_server.refusals import denied
from lakeshare_pipelines.backup.stores.async_s3 import Identity, Signer, SigningKeys

Keys = Mapping[str, SigningKeys]
"""The keys that are known, by access key."""
SESSIONS = 2
"""Keys of a role change every few hours: those before the present ones are still good for a while."""

AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<access>[^/,]+)/\d{8}/(?P<region>[^/,]+)/s3/aws4_request,\s*"
    r"SignedHeaders=(?P<names>[^,]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
ADDED = ("host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token")
"""Headers that the signer adds by itself."""
SKEW = dt.timedelta(minutes=15)


class OwnKeys:
    """The stand-in's own keys: who has them could do by hand what a job does."""

    def __init__(self, identity: Identity) -> None:
        self._identity, self._seen = identity, list[SigningKeys]()

    async def now(self) -> Keys:
        """The keys of now, and those before them.

        Raises:
            BackupError: there are none.
        """
        keys = await self._identity.keys()
        if keys not in self._seen:
            self._seen = [keys, *self._seen][:SESSIONS]
        return {one.access_key: one for one in self._seen}


def require_signature(keys: Keys, request: Request, body: bytes) -> None:
    """Refuse a request that is not signed, now and as it is, with one of the keys.

    Raises:
        Refused: it is not.
    """
    said = AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    if said is None:
        raise denied("the request is not signed with Signature Version 4 for the service s3.")
    known = keys.get(said["access"])
    if known is None:
        raise denied(f"the access key {said['access']} is not known here.")
    content_sha256 = sha256(body).hexdigest()
    if request.headers.get("x-amz-content-sha256") != content_sha256:
        raise denied("x-amz-content-sha256 is not the hash of the body.")
    expected = Signer(said["region"]).signed(
        known,
        request.method,
        request.headers.get("host", ""),
        request.scope["raw_path"].decode(),
        _sorted(request.url.query),
        {name: request.headers.get(name, "") for name in said["names"].split(";") if name not in ADDED},
        content_sha256,
        _moment(request.headers.get("x-amz-date", "")),
    )["authorization"]
    if not hmac.compare_digest(expected[-64:], said["signature"]) or "host" not in said["names"].split(";"):
        raise denied("the signature is not that of this request.")


def _moment(stamp: str) -> dt.datetime:
    try:
        moment = dt.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    except ValueError as error:
        raise denied("x-amz-date is no moment such as 20260102T030405Z.") from error
    if abs(dt.datetime.now(dt.UTC) - moment) > SKEW:
        raise denied("x-amz-date is more than 15 minutes away from now.")
    return moment


def _sorted(query: str) -> str:
    return "&".join(sorted(part if "=" in part else f"{part}=" for part in query.split("&") if part))
