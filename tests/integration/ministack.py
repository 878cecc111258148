"""MiniStack on a free loopback port: an S3 server that takes every key and checks every signature but its owner's."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import boto3

from tests.integration.processes import connect, free_ports, running
from tests.integration.s3_server import REGION, S3User

INSTALL = Path(__file__).parents[2] / "deploy" / "ministack.sh"
OWNER = S3User("AKOWNEROWNEROWNER", "secret-of-owner")
EVERYTHING = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:*","glue:*"],"Resource":"*"}]}'
)


@dataclass(frozen=True)
class MiniStack:
    """Where it is, and a user whose signature it checks."""

    endpoint: str
    user: S3User


@contextmanager
def running_ministack(folder: Path) -> Iterator[MiniStack]:
    """MiniStack with its data in memory, until the end of the block."""
    install = subprocess.run(["bash", str(INSTALL)], check=True, capture_output=True, text=True)
    (port,) = free_ports(1)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "AUTH": "true",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "AWS_ACCESS_KEY_ID": OWNER.access_key,
        "AWS_SECRET_ACCESS_KEY": OWNER.secret_key,
    }
    command, log = [install.stdout.strip()], folder / "ministack.log"
    with running(command, log, partial(connect, port), cwd=folder, env=environment):
        endpoint = f"http://127.0.0.1:{port}"
        yield MiniStack(endpoint, _a_user(endpoint))


def _a_user(endpoint: str) -> S3User:
    owner = boto3.client(
        "iam",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=OWNER.access_key,
        aws_secret_access_key=OWNER.secret_key,
    )
    owner.create_user(UserName="user")
    owner.put_user_policy(UserName="user", PolicyName="everything", PolicyDocument=EVERYTHING)
    key = owner.create_access_key(UserName="user")["AccessKey"]
    return S3User(key["AccessKeyId"], key["SecretAccessKey"])
