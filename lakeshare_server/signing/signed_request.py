"""S3 requests of a client, signed in their headers for it: reads of one object, nothing else.

Presigned URLs will not do: clients send headers of their own, and S3 refuses those named `x-amz-…` that are not signed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from lakeshare_server.errors import Denied, shown
from lakeshare_server.stores.s3 import AwsKeys, Bucket

METHODS = ("GET", "HEAD")
# What clients add to say which call they make; it changes nothing of what is read.
CALLS = ("", "x-id=GetObject", "x-id=HeadObject")
# What the client says of its own signature, which ours takes the place of.
OF_THE_SIGNATURE = ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token")

Headers = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class SignedRequest:
    """The request as the client has to send it."""

    uri: str
    headers: dict[str, list[str]]


def read_key(bucket: Bucket, method: str, uri: str) -> str:
    """The key that a request reads from a bucket.

    Raises:
        Denied: it does anything else.
    """
    address, _, query = uri.partition("?")
    if method not in METHODS or query not in CALLS:
        raise Denied(f"Only plain reads of a table's files are signed, this is none: {shown(method)}.")
    before = f"{bucket.url}/"
    if not address.startswith(before):
        raise Denied(
            f"Requests are signed for {before}… only. Take endpoint and addressing from the table's config."
        )
    try:
        return unquote(address.removeprefix(before), errors="strict")
    except UnicodeDecodeError:
        raise Denied("The key in the URL is not UTF-8; no file of a table has such a name.") from None


def signed_request(bucket: Bucket, keys: AwsKeys, method: str, key: str, headers: Headers) -> SignedRequest:
    """The read of a key with its signature; S3 takes it for 15 minutes."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    # Spelt anew from the key that was looked up, so that nothing else can be read with the signature.
    uri = f"{bucket.url}/{quote(key, safe='/~')}"
    request = AWSRequest(method, uri, headers=_to_sign(headers))
    S3SigV4Auth(Credentials(keys.access_key, keys.secret_key, keys.token), "s3", bucket.region).add_auth(
        request
    )
    return SignedRequest(uri, {name: [value] for name, value in request.headers.items()})


def _to_sign(headers: Headers) -> dict[str, str]:
    return {
        name: ",".join(values)
        for name, values in headers.items()
        if name.lower().startswith("x-amz-") and name.lower() not in OF_THE_SIGNATURE
    }
