"""What a store of S3's kind said: status, headers, body, and the error in it by its code."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import unescape

STATUS_OF_CODE = {
    "SlowDown": 503,
    "ServiceUnavailable": 503,
    "InternalError": 500,
    "PreconditionFailed": 412,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "AccessDenied": 403,
}
"""What an error says that comes with status 200; 500 where nothing else is known."""
CODE_OF_STATUS = {
    304: "NotModified",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    416: "InvalidRange",
    500: "InternalError",
    503: "SlowDown",
}
"""What a HEAD says, whose answer has no body."""
SLOW = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
PASSING = {
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "OperationAborted",
    "ConditionalRequestConflict",
}
_INSIDE = re.compile(rb"^\s*(?:<\?xml[^>]*\?>)?\s*<Error[\s>]")


@dataclass(frozen=True)
class Answer:
    """One answer; names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it was done."""
        return self.status < 300

    @cached_property
    def code(self) -> str:
        """S3's error code; empty where there is no error."""
        if self.is_success:
            return ""
        return self.text("Code") or CODE_OF_STATUS.get(self.status, f"HTTP{self.status}")

    @property
    def message(self) -> str:
        """S3's words about an error; its code where there are none."""
        return self.text("Message") or self.code

    @property
    def asks_to_slow_down(self) -> bool:
        """503 and 429: too much is asked of it."""
        return self.status in {429, 503} or self.code in SLOW

    @property
    def is_passing(self) -> bool:
        """Whether the same request may go well a moment later; never for 403, 404 and 412."""
        return (
            self.status in {500, 502, 504}
            or self.asks_to_slow_down
            or (self.status in {400, 408, 409} and self.code in PASSING)
        )

    @property
    def has_expired_keys(self) -> bool:
        """The session of the keys has ended."""
        return self.code in {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}

    @property
    def other_region(self) -> str:
        """The region that the store names as the bucket's; empty where it names none."""
        if self.status == 301 or self.code in {"PermanentRedirect", "AuthorizationHeaderMalformed"}:
            return self.headers.get("x-amz-bucket-region") or self.text("Region")
        # A HEAD has no body to name the error in.
        return self.headers.get("x-amz-bucket-region", "") if self.status == 400 else ""

    def text(self, tag: str) -> str:
        """The text of the first XML element of a name; empty where there is none."""
        return element(self.body, tag)


def element(body: bytes, tag: str) -> str:
    """The text of the first XML element of a name, which has no attributes; empty where there is none."""
    opening = f"<{tag}>".encode()
    at = body.find(opening)
    if at < 0:
        return ""
    start = at + len(opening)
    text = body[start : body.find(b"<", start)].decode(errors="replace")
    return unescape(text) if "&" in text else text


def said_by(method: str, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """An answer; the error that a copy or a completed upload may have inside a 200 becomes its status.

    S3 API, CopyObject: "A 200 OK response can contain either a success or an error".
    """
    answer = Answer(status, headers, body)
    if answer.is_success and method in {"PUT", "POST"} and _INSIDE.match(body):
        return Answer(STATUS_OF_CODE.get(answer.text("Code"), 500), headers, body)
    return answer
