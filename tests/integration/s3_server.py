"""A real S3 server (SeaweedFS) on free loopback ports, with users of more and of less rights.

`running_s3` starts and stops one; the fixture `s3` is that of a worker, without the buckets of other files of tests.
Its STS is on the same port: everybody may assume `role_arn`, which may everything that the session's own policy allows.
"""

import base64
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lakeshare_pipelines.demo.processes import WEED_PORTS, make_weed_command
from tests.integration.processes import free_ports, running

REGION = "us-east-1"


@dataclass(frozen=True)
class S3User:
    """Keys of one user."""

    access_key: str
    secret_key: str


@dataclass(frozen=True)
class S3Server:
    """Where it is and who may what; the endpoint's host has a name, so that addressing by path shows.

    `iceberg` is the URL of its Iceberg REST catalog.
    """

    endpoint: str
    iceberg: str = ""
    admin: S3User = S3User("AKADMIN", "secret-of-admin")
    keeper: S3User = S3User("AKKEEPER", "secret-of-keeper")
    lister: S3User = S3User("AKLISTER", "secret-of-lister")
    reader: S3User = S3User("AKREADER", "secret-of-reader")
    stranger: S3User = S3User("AKSTRANGER", "secret-of-stranger")
    role_arn: str = "arn:aws:iam::000000000000:role/reader"

    def client(self, user: S3User | None = None) -> Any:
        """A client of boto3."""
        return a_client(self.endpoint, user or self.admin)

    def buckets(self) -> frozenset[str]:
        """The names of all buckets."""
        return frozenset(bucket["Name"] for bucket in self.client().list_buckets()["Buckets"])

    def drop(self, bucket: str) -> None:
        """Remove a bucket with its objects, also those that are locked in governance mode."""
        client = self.client()
        try:
            # SeaweedFS removes the objects of a bucket with it, unless one is locked.
            client.delete_bucket(Bucket=bucket)
        except client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "BucketNotEmpty":
                raise
        else:
            return
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
            versions = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            objects = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in versions]
            client.delete_objects(Bucket=bucket, Delete={"Objects": objects}, BypassGovernanceRetention=True)
        client.delete_bucket(Bucket=bucket)


@cache
def a_client(endpoint: str, user: S3User, token: str | None = None) -> Any:
    """A client of boto3 that gives up soon; made once for each user, which takes longer than its requests."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=user.access_key,
        aws_secret_access_key=user.secret_key,
        aws_session_token=token,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20),
    )


@contextmanager
def running_s3(folder: Path, keys_s: int = 3600) -> Iterator[S3Server]:
    """SeaweedFS with its data in `folder`, until the end of the block; keys of its STS live for `keys_s` by default."""
    ports = dict(zip(WEED_PORTS, free_ports(len(WEED_PORTS)), strict=True))
    server = S3Server(f"http://localhost:{ports['s3.port']}", f"http://127.0.0.1:{ports['s3.port.iceberg']}")
    command, not_yet = _command(folder, server, ports, keys_s), (BotoCoreError, ClientError)
    try:
        with running(command, folder / "weed.log", _takes_objects(server), not_yet=not_yet):
            yield server
    finally:
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()


def _command(folder: Path, server: S3Server, ports: dict[str, int], keys_s: int) -> list[str]:
    rights = {
        "admin": ["Admin", "Read", "Write", "List", "Tagging"],
        "keeper": ["Read", "Write", "List", "Tagging"],
        "lister": ["List"],
        "reader": ["Read", "List"],
        "stranger": ["Read:elsewhere"],
    }
    users = {
        "admin": server.admin,
        "keeper": server.keeper,
        "lister": server.lister,
        "reader": server.reader,
        "stranger": server.stranger,
    }
    identities = [
        {
            "name": name,
            "credentials": [{"accessKey": user.access_key, "secretKey": user.secret_key}],
            "actions": rights[name],
        }
        for name, user in users.items()
    ]
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": identities}))
    options = [f"-s3.config={config}", f"-s3.iam.config={_roles(folder, server, keys_s)}"]
    return make_weed_command(folder, ports, options)


def _roles(folder: Path, server: S3Server, keys_s: int) -> Path:
    everything = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]}
        ],
    }
    anybody = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}],
    }
    reader = {
        "roleName": "reader",
        "roleArn": server.role_arn,
        "trustPolicy": anybody,
        "attachedPolicies": ["All"],
    }
    tokens = {
        "tokenDuration": f"{keys_s}s",
        "maxSessionLength": "12h",
        "issuer": "seaweedfs-sts",
        "signingKey": base64.b64encode(secrets.token_bytes(32)).decode(),
    }
    config = folder / "iam.json"
    config.write_text(
        json.dumps(
            {
                "sts": tokens,
                "policy": {"defaultEffect": "Deny", "storeType": "memory"},
                "roles": [reader],
                "policies": [{"name": "All", "document": everything}],
            }
        )
    )
    return config


def _takes_objects(server: S3Server) -> Callable[[], None]:
    """What can be done once it takes objects: the port opens about a second earlier."""
    client = server.client()
    steps = [
        lambda: client.create_bucket(Bucket="readiness"),
        lambda: client.put_object(Bucket="readiness", Key="probe", Body=b""),
    ]

    def go_on() -> None:
        while steps:
            steps[0]()
            steps.pop(0)

    return go_on
