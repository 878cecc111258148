"""Where a store is and whose credentials reach it, without any secret: small, frozen, goes to Spark's executors."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lakeshare_server.settings import Endpoint

FOLDER, S3 = "folder", "s3"


class StoreAddress(BaseModel):
    """A folder of this host, or a bucket (or a prefix of one) of S3 or its relatives.

    Keys are told whole: of `s3://lake/sales/` they begin with `sales/`; of a folder they are relative to it, with
    slashes. `bucket` is what a listing's column of that name says: the bucket's name, or the folder's path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="An absolute path, or s3://bucket or s3://bucket/prefix/.")
    endpoint: Endpoint | None = Field(None, description="URL of an S3-compatible store; AWS by default.")
    region: str | None = Field(None, description="Region of the bucket; boto3's usual one by default.")
    profile: str | None = Field(
        None, description="Profile of the AWS configuration files; boto3's usual credentials by default."
    )
    account: str | None = Field(
        None, pattern=r"^\d{12}$", description="Account that must own the bucket; requests say so (AWS)."
    )

    @field_validator("url")
    @classmethod
    def _is_known(cls, url: str) -> str:
        if url.startswith("s3://") and url.removeprefix("s3://").partition("/")[0]:
            return url
        if url.startswith("/"):
            return url.rstrip("/") or "/"
        raise ValueError("give an absolute path or s3://bucket/prefix/")

    @property
    def kind(self) -> Literal["folder", "s3"]:
        """`folder` or `s3`."""
        return "folder" if self.url.startswith("/") else "s3"

    @property
    def bucket(self) -> str:
        """The bucket's name, or the folder's path."""
        return self.url if self.kind == FOLDER else self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """What every key begins with: empty, or ends with a slash."""
        prefix = "" if self.kind == FOLDER else self.url.removeprefix("s3://").partition("/")[2].strip("/")
        return f"{prefix}/" if prefix else ""

    def at(self, bucket: str) -> "StoreAddress":
        """Another whole bucket (or folder) that is reached the same way."""
        return self.model_copy(update={"url": bucket if bucket.startswith("/") else f"s3://{bucket}"})

    def location(self, key: str) -> str:
        """The URL of a key, as tables spell it: `/folder/key` or `s3://bucket/key`."""
        return f"{self.bucket}/{key}" if self.kind == FOLDER else f"s3://{self.bucket}/{key}"

    def __str__(self) -> str:
        return self.url
