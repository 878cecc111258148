"""Keys of a store that live for seconds, by an endpoint of container credentials, and runs that outlive them.

The endpoint is that of ECS and EKS: boto3 and the AWS SDK for Java ask it for new keys before the old ones end.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import PipelineError
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, open_lake
from lakeshare_server.catalog import Catalog, Ledger, open_catalog
from lakeshare_server.errors import LakeshareError
from tests.builders.answering_store import answering_store, said
from tests.builders.sets import a_contract, a_delivery, orders
from tests.builders.waiting import wait_until
from tests.integration.s3_server import REGION, S3Server

OTHER_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
URI = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
FAIL, ISSUE = "/fail", "/issue"
MONDAY, TUESDAY = "2024-01-01", "2024-01-02"


@dataclass
class KeyIssuer:
    """What the endpoint has issued; a request for FAIL lets the following ones fail, until one for ISSUE."""

    sts: Any
    role_arn: str
    uri: str = ""
    fails: bool = False
    issued: list[Mapping[str, str]] = field(default_factory=list)

    def answer(self, request: str) -> bytes:
        path = request.split(" ", 2)[1]
        if path in (FAIL, ISSUE):
            self.fails = path == FAIL
            return said("200 OK", "")
        if self.fails:
            return said("500 Internal Server Error", "")
        keys = self.sts.assume_role(RoleArn=self.role_arn, RoleSessionName="run")["Credentials"]
        named = {
            "AccessKeyId": keys["AccessKeyId"],
            "SecretAccessKey": keys["SecretAccessKey"],
            "Token": keys["SessionToken"],
            "Expiration": f"{keys['Expiration']:%Y-%m-%dT%H:%M:%SZ}",
        }
        self.issued.append(named)
        return said("200 OK", json.dumps(named), "Content-Type: application/json")


@contextmanager
def key_issuer(s3: S3Server) -> Iterator[KeyIssuer]:
    sts = boto3.client(
        "sts",
        endpoint_url=s3.endpoint,
        region_name=REGION,
        aws_access_key_id=s3.keeper.access_key,
        aws_secret_access_key=s3.keeper.secret_key,
    )
    issuer = KeyIssuer(sts, s3.role_arn)
    with answering_store(issuer.answer) as endpoint:
        issuer.uri = f"{endpoint.endpoint}/keys"
        yield issuer


def run_longer_than_keys(
    settings: Mapping[str, Any], folder: Path, keys_s: int
) -> dict[str, tuple[list[int], str]]:
    """By format: the numbers of two publications, and the error of a run in between whose keys were not renewed.

    For a process of its own, with the URI of the endpoint in its environment.
    """
    for name in OTHER_KEYS:
        os.environ.pop(name, None)
    made = LakeSettings(_env_file=None, **settings)
    catalog, found = open_catalog(made.catalog_url), {}
    with nessie_for(made, keep=False), open_lake(made) as lake:
        for table_format in ("iceberg", "delta"):
            contract = a_contract(folder, f"renewed_{table_format}", table_format)
            first = _run(lake, catalog, contract, MONDAY, lambda: _outlive(keys_s))
            try:
                _run(lake, catalog, contract, TUESDAY, lambda: _fail(keys_s))
            except (PipelineError, LakeshareError) as error:
                refused = str(error)
            else:
                refused = ""
            numbers = [row.version for row in Ledger(catalog).history(contract.tables[0].name)]
            assert numbers == [first], "nothing is published without keys"
            _switch(ISSUE)
            # As a process of its own has it: without what this one has seen of the chain.
            lake = Lake(made, lambda session=lake.spark: session)
            found[table_format] = [first, _run(lake, catalog, contract, TUESDAY, lambda: None)], refused
    return found


def _run(
    lake: Lake, catalog: Catalog, contract: SetContract, day: str, after_staging: Callable[[], None]
) -> int:
    a_delivery(lake.settings, contract, day, orders(day, 2))
    staged = stage(lake, contract, [day], str(uuid4()))
    after_staging()
    verdicts = audit_and_save(lake, contract, staged)
    return publish(lake, catalog, contract, staged, verdicts)[0].version


def _outlive(keys_s: float) -> None:
    """Wait until all keys that were issued before have ended."""
    ends = time.monotonic() + keys_s
    wait_until(lambda: time.monotonic() >= ends)


def _fail(keys_s: float) -> None:
    _switch(FAIL)
    _outlive(keys_s)


def _switch(path: str) -> None:
    endpoint = os.environ[URI].rpartition("/")[0]
    urllib.request.urlopen(f"{endpoint}{path}", timeout=10).close()
