"""Temporary credentials of S3: STS hands them out for a role or for ourselves, narrowed by a session policy."""

import json
from typing import Any

from lakeshare_server.errors import LakeshareError, Unavailable, Unserveable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.signing.temporary import TemporaryCredentials
from lakeshare_server.stores import Place
from lakeshare_server.stores.s3 import AWS, S3Access

KIND = "awsTempCredentials"
# As it is named where services are.
STS = "STS"
SESSION = "lakeshare"
# STS hands out nothing shorter, and roles that were not changed nothing longer.
SHORTEST_S, LONGEST_S = 900, 3600
LONGEST_POLICY = 2048
PATTERNS = "*?$"
THROTTLED = {
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "InternalFailure",
}


class S3Vendor:
    """Issues them with the keys the server runs with."""

    def __init__(self, access: S3Access, settings: StoreSettings) -> None:
        self._access = access
        self._settings = settings

    def refusal(self, place: Place) -> str | None:
        if self._settings.s3_role_arn is None and self._access.keys().token:
            return (
                "the server's own S3 keys are temporary, and such keys get no federation token; "
                "set LAKESHARE_S3_ROLE_ARN"
            )
        if not self._on_aws(place) and any(one in place.key for one in PATTERNS):
            return f"the store's policies take one of {PATTERNS} in the folder's name for a pattern"
        if len(self._policy(place)) > LONGEST_POLICY:
            return "the folder's name is too long for a session policy"
        return None

    def vend(self, place: Place, life_s: int, now_s: int) -> TemporaryCredentials:
        from botocore.exceptions import BotoCoreError, ClientError

        life_s = max(SHORTEST_S, min(life_s, LONGEST_S))
        bucket = self._access.bucket(place.bucket)
        endpoint = self._settings.s3_sts_endpoint or self._settings.s3_endpoint
        try:
            sts = self._access.client("sts", bucket.region, endpoint)
            handed = self._access.services.of(STS).call(
                lambda: self._asked(sts, place, life_s), (BotoCoreError,)
            )
        except ClientError as error:
            raise _refused(error.response) from None
        except BotoCoreError as error:
            raise Unavailable(f"STS does not answer ({type(error).__name__})", "Try again later.") from None
        fields = {
            "accessKeyId": handed["AccessKeyId"],
            "secretAccessKey": handed["SecretAccessKey"],
            "sessionToken": handed["SessionToken"],
        }
        return TemporaryCredentials(
            place.location, KIND, fields, int(handed["Expiration"].timestamp() * 1000)
        )

    # A client of boto3 comes without types.
    def _asked(self, sts: Any, place: Place, life_s: int) -> Any:
        policy, role = self._policy(place), self._settings.s3_role_arn
        if role is None:
            return sts.get_federation_token(Name=SESSION, Policy=policy, DurationSeconds=life_s)[
                "Credentials"
            ]
        return sts.assume_role(RoleArn=role, RoleSessionName=SESSION, Policy=policy, DurationSeconds=life_s)[
            "Credentials"
        ]

    def _policy(self, place: Place) -> str:
        region = self._access.bucket(place.bucket).region
        return session_policy(place.bucket, place.key, region, on_aws=self._on_aws(place))

    def _on_aws(self, place: Place) -> bool:
        return AWS.fullmatch(self._access.bucket(place.bucket).endpoint) is not None


def session_policy(bucket: str, key: str, region: str, on_aws: bool) -> str:
    """A policy that allows to read and to list below `key`, and nothing else."""
    arn = f"arn:{_partition(region)}:s3:::{bucket}"
    below = f"{_literal(key)}/*" if key else "*"
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{arn}/{below}"},
        # Not the bare name: that would list its siblings' names, too.
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": arn,
            "Condition": {"StringLike": {"s3:prefix": below}},
        },
    ]
    if on_aws:  # objects that are encrypted by KMS are decrypted on behalf of whoever reads them
        by_s3 = {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}}
        statements.append({"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "*", "Condition": by_s3})
    policy = {"Version": "2012-10-17", "Statement": statements}
    return json.dumps(policy, separators=(",", ":"), ensure_ascii=False)


def _literal(key: str) -> str:
    """What policies match as patterns, as the letters they are; AWS alone has a spelling for it."""
    return "".join(f"${{{one}}}" if one in PATTERNS else one for one in key.strip("/"))


def _partition(region: str) -> str:
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _refused(response: dict[str, Any]) -> LakeshareError:
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500 or code in THROTTLED:
        return Unavailable(f"STS does not answer as it should ({code})", "Try again later.")
    return Unserveable(
        f"STS issues no credentials ({code}).",
        "Let the server's identity assume the role of LAKESHARE_S3_ROLE_ARN, or call sts:GetFederationToken.",
    )
