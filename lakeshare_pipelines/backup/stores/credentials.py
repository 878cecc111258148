"""Who asks a store of S3's kind, and at which endpoint: what boto3 is set up for, refreshed before it ends."""

import asyncio
import re
import time
from typing import Any
from urllib.parse import urlsplit

from lakeshare_pipelines.backup.stores.address import StoreAddress
from lakeshare_pipelines.backup.stores.s3 import CREDENTIALS, s3_client
from lakeshare_pipelines.backup.stores.signature import SigningKeys
from lakeshare_pipelines.errors import BackupError

DEFAULT_REGION = "us-east-1"
AWS = re.compile(r"(\S+\.)?amazonaws\.com(\.cn)?")
HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Buckets that may stand in front of a host whose certificate covers one label."""
LOOK_AGAIN_S = 30.0
"""botocore refreshes keys ten minutes before their end: they are not asked for at every request."""


class Identity:
    """Credentials by botocore's chain and the endpoint by boto3's configuration, of one address."""

    def __init__(self, address: StoreAddress) -> None:
        said, endpoint, credentials = _configured(address)
        self.region: str = DEFAULT_REGION if said in {None, "aws-global"} else str(said)
        self._address, self._endpoint = address, endpoint.rstrip("/")
        self._lock = asyncio.Lock()
        self._keys: SigningKeys | None = None
        self._looked_at = 0.0
        # botocore's credentials come without types.
        self._credentials: Any = credentials

    def bucket_url(self, bucket: str, region: str | None = None) -> str:
        """The URL in front of `/key`: by path at an endpoint that was given, and where the name is no host's."""
        endpoint = self._endpoint
        parts = urlsplit(endpoint)
        if AWS.fullmatch(parts.hostname or ""):
            if region is not None:
                tail = ".cn" if endpoint.endswith(".cn") else ""
                endpoint = f"{parts.scheme}://s3.{region}.amazonaws.com{tail}"
            if HOST_LABEL.fullmatch(bucket):
                return endpoint.replace("://", f"://{bucket}.", 1)
        return f"{endpoint}/{bucket}"

    async def keys(self) -> SigningKeys:
        """The keys of now.

        Raises:
            BackupError: there are none.
        """
        if self._keys is None or time.monotonic() - self._looked_at > LOOK_AGAIN_S:
            async with self._lock:
                if self._keys is None or time.monotonic() - self._looked_at > LOOK_AGAIN_S:
                    self._keys = await asyncio.to_thread(self._look)
                    self._looked_at = time.monotonic()
        return self._keys

    async def renewed(self) -> bool:
        """Look for other keys than those that have ended; False where there are none."""
        had = self._keys
        self._keys = None
        return await self.keys() != had

    def _look(self) -> SigningKeys:
        if self._credentials is None:
            raise BackupError(str(self._address), "there are no credentials for it", CREDENTIALS)
        try:
            now = self._credentials.get_frozen_credentials()
        # Each provider of botocore's chain has errors of its own.
        except Exception as error:
            reason = f"its credentials cannot be refreshed: {str(error).rstrip('.')}"
            raise BackupError(str(self._address), reason, CREDENTIALS) from error
        return SigningKeys(now.access_key, now.secret_key, now.token)


# Credentials of botocore come without types.
def _configured(address: StoreAddress) -> tuple[str | None, str, Any]:
    """Region, endpoint and credentials, as boto3 is set up; a client takes a while: it is made for AWS's endpoint."""
    import boto3

    if address.endpoint:
        session = boto3.Session(profile_name=address.profile, region_name=address.region)
        return session.region_name, address.endpoint, session.get_credentials()
    client = s3_client(address)
    return client.meta.region_name, client.meta.endpoint_url, client._request_signer._credentials
