"""What a CreateJob request must say beyond the shapes of the service model: the rules of the user guide."""

from collections.abc import Iterator
from typing import Any

from lakeshare_pipelines.backup.batch_server.refusals import bad_request, too_many_tags
from lakeshare_pipelines.backup.batch_server.shapes import operation, problems

RUNS = ("S3PutObjectCopy", "S3PutObjectRetention", "S3InitiateRestoreObject", "S3ComputeObjectChecksum")
CSV_FORMAT, INVENTORY_FORMAT = "S3BatchOperations_CSV_20180820", "S3InventoryReport_CSV_20161130"
CHECKSUMS = ("CRC32", "CRC32C", "CRC64NVME", "MD5", "SHA1", "SHA256", "SHA512")
MAX_TAGS = 50


def require_acceptable(account: str, request: dict[str, Any]) -> None:
    """Refuse a CreateJob request that AWS would refuse, or that this stand-in cannot run.

    Raises:
        Refused: all that is wrong with it.
    """
    if len(request.get("Tags", ())) > MAX_TAGS:
        raise too_many_tags(len(request["Tags"]))
    shape = operation("CreateJob").input_shape
    # What hangs on the members is looked at only when they are what they should be.
    found = list(problems(shape, {**request, "AccountId": account})) or list(_contradictions(request))
    if found:
        raise bad_request(" ".join(found))


def bucket_of(arn: str) -> str | None:
    """The bucket of an ARN such as arn:aws:s3:::bucket; None when there is none."""
    name = arn.split(":", 5)[-1]
    return name if name and "/" not in name and arn.split(":")[2:5] == ["s3", "", ""] else None


def object_of(arn: str) -> tuple[str, str] | None:
    """Bucket and key of an ARN such as arn:aws:s3:::bucket/key; None when it is no object's."""
    bucket, _, key = arn.split(":", 5)[-1].partition("/")
    return (bucket, key) if bucket and key else None


def _contradictions(request: dict[str, Any]) -> Iterator[str]:
    name, told = next(iter(request["Operation"].items()))
    if name not in RUNS:
        yield f"Operation {name} is not run here; {', '.join(RUNS)} are."
    elif name == "S3PutObjectCopy":
        yield from _of_copy(told)
    elif name == "S3PutObjectRetention":
        yield from _of_retention(told)
    elif name == "S3InitiateRestoreObject":
        if told.get("ExpirationInDays", 0) < 1:
            yield "Operation.S3InitiateRestoreObject.ExpirationInDays is 1 or more for archived classes."
    elif name == "S3ComputeObjectChecksum":
        yield from _of_checksum(told)
    yield from _of_manifest(request)
    yield from _of_report(request["Report"])


def _of_copy(told: dict[str, Any]) -> Iterator[str]:
    at = "Operation.S3PutObjectCopy"
    if bucket_of(told.get("TargetResource", "")) is None:
        yield f"{at}.TargetResource is the ARN of a bucket, arn:aws:s3:::bucket."
    for left_out in (
        "AccessControlGrants",
        "ObjectLockEventHold",
        "ObjectLockEventHoldDuration",
        "AnnotationDirective",
    ):
        if left_out in told:
            yield f"{at}.{left_out} is not run here; leave it out."
    if ("ObjectLockMode" in told) != ("ObjectLockRetainUntilDate" in told):
        yield f"{at}: ObjectLockMode and ObjectLockRetainUntilDate go together."
    if "NewObjectMetadata" in told and told.get("MetadataDirective") != "REPLACE":
        yield f"{at}.NewObjectMetadata needs MetadataDirective REPLACE."


def _of_retention(told: dict[str, Any]) -> Iterator[str]:
    retention = told["Retention"]
    if set(retention) - {"Mode", "RetainUntilDate"}:
        yield "Operation.S3PutObjectRetention.Retention: event holds are not run here; leave them out."
    if ("Mode" in retention) != ("RetainUntilDate" in retention):
        yield "Operation.S3PutObjectRetention.Retention: Mode and RetainUntilDate go together."


def _of_checksum(told: dict[str, Any]) -> Iterator[str]:
    at = "Operation.S3ComputeObjectChecksum"
    if told.get("ChecksumAlgorithm") not in CHECKSUMS:
        yield f"{at}.ChecksumAlgorithm can be {', '.join(CHECKSUMS)} here."
    if told.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        yield f"{at}.ChecksumType can be FULL_OBJECT only here."


def _of_manifest(request: dict[str, Any]) -> Iterator[str]:
    if ("Manifest" in request) == ("ManifestGenerator" in request):
        yield "CreateJob takes a Manifest or a ManifestGenerator, one of them."
        return
    if "ManifestGenerator" in request:
        yield "ManifestGenerator is not run here; write a manifest and give its Location."
        return
    spec, location = request["Manifest"]["Spec"], request["Manifest"]["Location"]
    fields = spec.get("Fields", [])
    named = [field for field in fields if field != "Ignore"]
    if spec["Format"] == CSV_FORMAT and not {"Bucket", "Key"} <= set(named):
        yield "Manifest.Spec.Fields has to name Bucket and Key for a CSV manifest."
    if len(named) != len(set(named)):
        yield "Manifest.Spec.Fields names a column twice."
    if spec["Format"] == INVENTORY_FORMAT and fields:
        yield "Manifest.Spec.Fields belongs to CSV manifests; an inventory report has its own schema."
    if object_of(location["ObjectArn"]) is None:
        yield "Manifest.Location.ObjectArn is the ARN of an object, arn:aws:s3:::bucket/key."
    if '"' in location["ETag"]:
        yield "Manifest.Location.ETag has quotes; give it without."


def _of_report(report: dict[str, Any]) -> Iterator[str]:
    if not report["Enabled"]:
        return
    for name in ("Bucket", "Format", "ReportScope"):
        if name not in report:
            yield f"Report.{name} is missing, and Report.Enabled is true."
    if "Bucket" in report and bucket_of(report["Bucket"]) is None:
        yield "Report.Bucket is the ARN of a bucket, arn:aws:s3:::bucket."
