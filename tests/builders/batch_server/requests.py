"""The requests of S3 Batch Operations as the test double reads them: shapes, XML, signatures, refusals."""

import datetime as dt
import hmac
import re
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from typing import Any
from xml.etree import ElementTree as ET

from starlette.requests import Request

from lakeshare_pipelines.backup.stores.async_s3 import Identity, Signer, SigningKeys


class Refused(Exception):
    """A request that is answered with an error; the edge turns it into XML."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message


def bad_request(message: str) -> Refused:
    """The request says what the service model or the guide rules out."""
    return Refused("BadRequestException", 400, message)


def not_found(job_id: str) -> Refused:
    """The account has no such job."""
    return Refused("NotFoundException", 404, f"the account has no job {job_id}. List its jobs with ListJobs.")


def wrong_status(message: str) -> Refused:
    """The job's status does not allow what is asked."""
    return Refused("JobStatusException", 400, message)


def other_request(job_id: str) -> Refused:
    """The token was used for a request that said something else."""
    return Refused(
        "IdempotencyException",
        400,
        f"this ClientRequestToken made job {job_id} from another request. Take a new token for a new job.",
    )


def too_many_tags(count: int) -> Refused:
    """More tags than a job can have."""
    return Refused("TooManyTagsException", 400, f"a job has at most 50 tags, not {count}.")


def bad_next_token(token: str) -> Refused:
    """A page that no answer told of."""
    return Refused("InvalidNextTokenException", 400, f"no page of jobs is called {token!r}.")


def denied(message: str) -> Refused:
    """Nobody known signed the request."""
    return Refused("AccessDenied", 403, message)


def out_of_order(reason: str) -> Refused:
    """The stand-in itself cannot go on."""
    return Refused(
        "InternalServiceException", 500, f"jobs are not run any more: {reason}. Start the service again."
    )


Shape = Any

# Python's `re` knows no classes of Unicode properties; in the model's patterns they stand in brackets only.
PROPERTIES = {r"\p{L}": r"\w", r"\p{Z}": r"\s", r"\p{N}": r"\d"}
ONE_OF = {
    "JobOperation": "an operation",
    "JobManifestGenerator": "a manifest generator",
}


@cache
def operation(name: str) -> Any:
    """The model of one operation; botocore ships no types."""
    import botocore.session

    return botocore.session.get_session().get_service_model("s3control").operation_model(name)


def member_name(shape: Shape, member: str) -> str:
    """The element that holds a member of a structure."""
    name: str = shape.members[member].serialization.get("name", member)
    return name


def problems(shape: Shape, value: Any, path: str = "") -> Iterator[str]:
    """What is wrong with a value that should be of a shape: one sentence each, none when all is well."""
    if shape.type_name == "structure":
        yield from _problems_of_structure(shape, value, path)
    elif shape.type_name == "list":
        yield from _problems_of_length(shape, len(value), path, "members")
        for number, one in enumerate(value):
            yield from problems(shape.member, one, f"{path}[{number}]")
    elif shape.type_name == "map":
        yield from _problems_of_length(shape, len(value), path, "entries")
        for key, one in value.items():
            yield from problems(shape.key, key, f"{path} key {key!r}")
            yield from problems(shape.value, one, f"{path}.{key}")
    elif shape.type_name == "string":
        yield from _problems_of_string(shape, value, path)
    elif shape.type_name in ("integer", "long"):
        yield from _problems_of_length(shape, value, path, "")


def _problems_of_structure(shape: Shape, value: dict[str, Any], path: str) -> Iterator[str]:
    for name in shape.required_members:
        if name not in value:
            yield f"{_at(path, name)} is missing."
    if shape.name in ONE_OF and len(value) != 1:
        said = ", ".join(value) or "none"
        yield f"{path or shape.name} takes exactly one member, {ONE_OF[shape.name]}; it has {said}."
    for name, one in value.items():
        if name not in shape.members:
            yield f"{_at(path, name)} is not known."
        else:
            yield from problems(shape.members[name], one, _at(path, name))


def _problems_of_string(shape: Shape, value: str, path: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        yield f"{path} is {value!r}; it can be {', '.join(shape.enum)}."
    yield from _problems_of_length(shape, len(value), path, "characters")
    pattern = shape.metadata.get("pattern")
    if pattern is not None and not re.fullmatch(_for_python(pattern), value):
        yield f"{path} is {value!r}, which does not match {pattern}."


def _problems_of_length(shape: Shape, size: int, path: str, unit: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    told = f"{size} {unit}".strip()
    if least is not None and size < least:
        yield f"{path} has {told}, at least {least} are wanted."
    if most is not None and size > most:
        yield f"{path} has {told}, at most {most} are allowed."


@cache
def _for_python(pattern: str) -> str:
    for theirs, ours in PROPERTIES.items():
        pattern = pattern.replace(theirs, ours)
    return pattern


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


NAMESPACE = "http://awss3control.amazonaws.com/doc/2018-08-20/"
MAX_BODY_BYTES = 1024 * 1024
NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to say; keys and the words of stores may hold it."""
TRUTHS = {"true": True, "false": False}


def read(body: bytes, shape: Shape) -> dict[str, Any]:
    """The members that a request's body gives, by the model's names.

    Raises:
        Refused: it is no XML, has another root or namespace, or an element the shape does not know.
    """
    # Entities are what makes XML of strangers dangerous; no request has any.
    if b"<!" in body:
        raise bad_request("the body declares a document type or entities; leave them out.")
    try:
        root = ET.fromstring(body)
    except ET.ParseError as error:
        raise bad_request(f"the body is no XML: {error}.") from error
    wanted = f"{{{NAMESPACE}}}{shape.serialization.get('name', shape.name)}"
    if root.tag != wanted:
        raise bad_request(f"the body is a {root.tag}, not a {wanted}.")
    members = {
        name: member for name, member in shape.members.items() if "location" not in member.serialization
    }
    return _structure(root, members, shape)


def write(shape: Shape, value: dict[str, Any]) -> bytes:
    """A result as XML; members that are None are left out."""
    root = ET.Element(shape.name, xmlns=NAMESPACE)
    _fill(root, shape, value)
    return _document(root)


def write_refusal(refused: Refused, request_id: str) -> bytes:
    """An error as XML."""
    root = ET.Element("ErrorResponse")
    error = ET.SubElement(root, "Error")
    ET.SubElement(error, "Code").text = refused.code
    ET.SubElement(error, "Message").text = NO_CHARACTER.sub("\ufffd", refused.message)
    ET.SubElement(root, "RequestId").text = request_id
    return _document(root)


def _structure(element: ET.Element, members: dict[str, Shape], shape: Shape) -> dict[str, Any]:
    by_tag = {member_name(shape, name): (name, member) for name, member in members.items()}
    found: dict[str, Any] = {}
    for child in element:
        tag = child.tag.removeprefix(f"{{{NAMESPACE}}}")
        if tag not in by_tag:
            raise bad_request(f"{shape.name} has no {tag}.")
        name, member = by_tag[tag]
        if name in found:
            raise bad_request(f"{shape.name} says {tag} twice.")
        found[name] = _value(child, member)
    return found


def _value(element: ET.Element, shape: Shape) -> Any:
    if shape.type_name == "structure":
        return _structure(element, dict(shape.members), shape)
    if shape.type_name == "list":
        return [_value(child, shape.member) for child in element]
    if shape.type_name == "map":
        return dict(_entry(child, shape) for child in element)
    text = element.text or ""
    try:
        return _scalar(text, shape.type_name)
    except (KeyError, ValueError) as error:
        tag = element.tag.removeprefix(f"{{{NAMESPACE}}}")
        raise bad_request(f"{tag} is {text!r}, not a {shape.type_name}.") from error


def _entry(element: ET.Element, shape: Shape) -> tuple[str, str]:
    if len(element) != 2:
        raise bad_request(f"an entry of {shape.name} has a key and a value.")
    return element[0].text or "", element[1].text or ""


def _scalar(text: str, type_name: str) -> Any:
    if type_name == "boolean":
        return TRUTHS[text]
    if type_name in ("integer", "long"):
        return int(text)
    if type_name == "timestamp":
        moment = dt.datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return text


def _fill(element: ET.Element, shape: Shape, value: Any) -> None:
    if shape.type_name == "structure":
        for name, one in value.items():
            if one is not None:
                _fill(ET.SubElement(element, member_name(shape, name)), shape.members[name], one)
    elif shape.type_name == "list":
        for one in value:
            _fill(ET.SubElement(element, shape.member.serialization.get("name", "member")), shape.member, one)
    elif shape.type_name == "map":
        for key, one in value.items():
            entry = ET.SubElement(element, "entry")
            ET.SubElement(entry, "key").text = key
            ET.SubElement(entry, "value").text = one
    elif shape.type_name == "boolean":
        element.text = "true" if value else "false"
    elif shape.type_name == "timestamp":
        element.text = value.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    else:
        element.text = NO_CHARACTER.sub("\ufffd", str(value))


def _document(root: ET.Element) -> bytes:
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


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


Keys = Mapping[str, SigningKeys]
"""The keys that are known, by access key."""
SESSIONS = 2
"""Keys of a role change every few hours: those before the present ones are still good for a while."""

AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<access>[^/,]+)/\d{8}/(?P<region>[^/,]+)/s3/aws4_request,\s*"
    r"SignedHeaders=(?P<names>[^,]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
ADDED = ("host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token")
"""Headers that the signer adds by itself."""
SKEW = dt.timedelta(minutes=15)


class OwnKeys:
    """The stand-in's own keys: who has them could do by hand what a job does."""

    def __init__(self, identity: Identity) -> None:
        self._identity, self._seen = identity, list[SigningKeys]()

    async def now(self) -> Keys:
        """The keys of now, and those before them.

        Raises:
            BackupError: there are none.
        """
        keys = await self._identity.keys()
        if keys not in self._seen:
            self._seen = [keys, *self._seen][:SESSIONS]
        return {one.access_key: one for one in self._seen}


def require_signature(keys: Keys, request: Request, body: bytes) -> None:
    """Refuse a request that is not signed, now and as it is, with one of the keys.

    Raises:
        Refused: it is not.
    """
    said = AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    if said is None:
        raise denied("the request is not signed with Signature Version 4 for the service s3.")
    known = keys.get(said["access"])
    if known is None:
        raise denied(f"the access key {said['access']} is not known here.")
    content_sha256 = sha256(body).hexdigest()
    if request.headers.get("x-amz-content-sha256") != content_sha256:
        raise denied("x-amz-content-sha256 is not the hash of the body.")
    expected = Signer(said["region"]).signed(
        known,
        request.method,
        request.headers.get("host", ""),
        request.scope["raw_path"].decode(),
        _sorted(request.url.query),
        {name: request.headers.get(name, "") for name in said["names"].split(";") if name not in ADDED},
        content_sha256,
        _moment(request.headers.get("x-amz-date", "")),
    )["authorization"]
    if not hmac.compare_digest(expected[-64:], said["signature"]) or "host" not in said["names"].split(";"):
        raise denied("the signature is not that of this request.")


def _moment(stamp: str) -> dt.datetime:
    try:
        moment = dt.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    except ValueError as error:
        raise denied("x-amz-date is no moment such as 20260102T030405Z.") from error
    if abs(dt.datetime.now(dt.UTC) - moment) > SKEW:
        raise denied("x-amz-date is more than 15 minutes away from now.")
    return moment


def _sorted(query: str) -> str:
    return "&".join(sorted(part if "=" in part else f"{part}=" for part in query.split("&") if part))
