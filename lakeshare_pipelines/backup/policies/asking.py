"""One bucket's settings, asked for through boto3: what it says, that it has none, or why it does not say."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.s3 import REFUSALS, s3_client

ABSENT = {
    "NoSuchBucketPolicy", "ObjectLockConfigurationNotFoundError", "OwnershipControlsNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError", "NoSuchPolicy",
}  # fmt: skip
UNKNOWN = {"NotImplemented", "MethodNotAllowed", "405", "501"}
CHECK_ENDPOINT = "Check the endpoint, the network and the credentials."


@dataclass(frozen=True)
class Answer:
    """`said` is boto3's answer; where there is none, `refusal` says why and `fix` what to do about it."""

    said: dict[str, Any] = field(default_factory=dict)
    refusal: str = ""
    fix: str = ""
    is_absent: bool = False
    """The bucket answers that it has no such setting, or the store that it has none for any bucket."""

    @property
    def is_there(self) -> bool:
        """Something was said."""
        return not self.refusal


class Asked:
    """A bucket that is asked about itself, always with the account that should own it."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address

    @cached_property
    def _client(self) -> Any:
        """boto3's client; it ships no types."""
        return s3_client(self._address)

    @property
    def region(self) -> str:
        """The region that requests are signed for."""
        region: str = self._client.meta.region_name
        return region

    def ask(self, call: str) -> Answer:
        """What the bucket answers to a call of boto3's client."""
        from botocore.exceptions import BotoCoreError, ClientError

        owner = {"ExpectedBucketOwner": self._address.account} if self._address.account else {}
        try:
            return Answer(getattr(self._client, call)(Bucket=self._address.bucket, **owner))
        except ClientError as error:
            return self._refused(call, str(error.response.get("Error", {}).get("Code", "")), str(error))
        except BotoCoreError as error:
            return Answer(refusal=f"it cannot be asked: {str(error).rstrip('.')}", fix=CHECK_ENDPOINT)

    def policy(self) -> list[dict[str, Any]] | Answer:
        """The bucket's policy, as one document or none; an Answer when it does not say."""
        answer = self.ask("get_bucket_policy")
        if answer.is_there:
            return [json.loads(answer.said["Policy"])]
        return [] if answer.is_absent else answer

    def _refused(self, call: str, code: str, words: str) -> Answer:
        action = "".join(part.capitalize() for part in call.split("_"))
        if code in ABSENT:
            return Answer(refusal="it has none", fix="Set it.", is_absent=True)
        if code in UNKNOWN:
            return Answer(refusal=f"the store does not know {action}", fix="Look by hand.", is_absent=True)
        if code in {"404", "NoSuchBucket"}:
            return Answer(refusal=REFUSALS["NoSuchBucket"][0], fix=REFUSALS["NoSuchBucket"][1])
        if code in {"403", "AccessDenied"}:
            account = self._address.account
            other = f", or it is not of account {account}" if account else ""
            return Answer(refusal=f"{action}: access is denied{other}", fix=REFUSALS["AccessDenied"][1])
        reason, fix = REFUSALS.get(code, (f"{action}: {words}", CHECK_ENDPOINT))
        return Answer(refusal=reason, fix=fix)
