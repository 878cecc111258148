"""Requests are served that are signed, as they are and now, with keys that the stand-in has; no others."""

import asyncio
import datetime as dt
from hashlib import sha256
from typing import Any

import pytest
from starlette.requests import Request

from lakeshare_pipelines.backup.stores.async_s3 import Signer, SigningKeys
from tests.builders.batch_server.requests import OwnKeys, Refused, require_signature

KEYS = SigningKeys("AK", "secret", "token")
BODY, QUERY = b"<x/>", "jobStatuses=Ready&maxResults=2"


def a_request(body: bytes = BODY, keys: SigningKeys = KEYS, age_s: int = 0, **changed: str) -> Request:
    """A signed request, of which some headers are changed afterwards."""
    moment = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)
    path, account = "/v20180820/jobs/a%2Fb", {"x-amz-account-id": "222222222222"}
    headers = Signer("eu-central-1").signed(
        keys, "GET", "batch.lan:8088", path, QUERY, account, sha256(body).hexdigest(), moment
    )
    headers.update({name.replace("_", "-"): value for name, value in changed.items()})
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/v20180820/jobs/a/b",
        "raw_path": path.encode(),
        "query_string": QUERY.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    return Request(scope)


def test_a_signed_request_is_served() -> None:
    require_signature({"AK": KEYS}, a_request(), BODY)


@pytest.mark.parametrize(
    ("said", "body", "told"),
    [
        ({"authorization": ""}, BODY, "not signed"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential=AK/x"}, BODY, "not signed"),
        ({"keys": SigningKeys("OTHER", "secret")}, BODY, "access key OTHER is not known"),
        ({"keys": SigningKeys("AK", "guess", "token")}, BODY, "not that of this request"),
        ({}, b"<other/>", "not the hash of the body"),
        ({"x_amz_account_id": "111111111111"}, BODY, "not that of this request"),
        ({"host": "elsewhere.lan"}, BODY, "not that of this request"),
        ({"age_s": 1000}, BODY, "more than 15 minutes"),
        ({"x_amz_date": "yesterday"}, BODY, "no moment"),
    ],
)
def test_any_other_is_denied(said: dict[str, Any], body: bytes, told: str) -> None:
    with pytest.raises(Refused, match=told) as refused:
        require_signature({"AK": KEYS}, a_request(**said), body)
    assert (refused.value.code, refused.value.status) == ("AccessDenied", 403)


class _Renewing:
    """An identity whose keys are others each time."""

    def __init__(self) -> None:
        self.number = 0

    async def keys(self) -> SigningKeys:
        self.number += 1
        return SigningKeys(f"AK{self.number}", "secret")


def test_keys_of_a_session_before_are_good_for_a_while() -> None:
    own = OwnKeys(_Renewing())  # type: ignore[arg-type]
    seen = [set(asyncio.run(own.now())) for _ in range(3)]
    assert seen == [{"AK1"}, {"AK1", "AK2"}, {"AK2", "AK3"}]
