"""Requests to AWS checked before they are sent, by everything that botocore's own model of the service says.

botocore sends wrong enums, patterns and lengths, and its Stubber takes them: that a request is sent proves nothing.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from botocore.model import ServiceModel, Shape

KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "list": (list, tuple),
    "map": (dict,),
    "structure": (dict,),
}


def check_request(service: str, operation: str, said: Mapping[str, Any]) -> None:
    """Refuse a request that the service would refuse by its model: names, types, enums, patterns, least and most.

    `said` is what a call of boto3 gets; its values are of the types that botocore takes.

    Raises:
        BackupError: it has faults; all of them are named, each with its path.
    """
    shape = _model(service).operation_model(operation).input_shape
    faults = [*_faults("", shape, said)]
    if operation == "CreateJob":
        faults += _faults_of_a_job(said)
    if faults:
        raise BackupError(
            f"{service}.{operation}",
            f"the request is not valid: {'; '.join(faults)}",
            "Correct the backup's `batch`, `target` or account.",
        )


@cache
def _model(service: str) -> "ServiceModel":
    import botocore.session

    return botocore.session.get_session().get_service_model(service)


def _faults(path: str, shape: "Shape", value: Any) -> Iterator[str]:
    """What is wrong with a value of a shape; `Any`: it is what a caller wrote."""
    name = path or shape.name
    kinds = KINDS.get(shape.type_name)
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        yield f"{name} is {value!r}, not a {shape.type_name}"
        return
    yield from _out_of_bounds(name, shape, value)
    if shape.type_name == "structure":
        yield from _faults_of_members(path, shape, value)
    elif shape.type_name == "list":
        for number, one in enumerate(value):
            yield from _faults(f"{name}[{number}]", shape.member, one)


def _faults_of_members(path: str, shape: "Shape", value: Mapping[str, Any]) -> Iterator[str]:
    below = f"{path}." if path else ""
    for missing in sorted(set(shape.required_members) - set(value)):
        yield f"{below}{missing} is missing"
    for name, one in value.items():
        if name in shape.members:
            yield from _faults(f"{below}{name}", shape.members[name], one)
        else:
            yield f"{below}{name} is not known"


def _out_of_bounds(name: str, shape: "Shape", value: Any) -> Iterator[str]:
    limits = shape.metadata
    if "enum" in limits and value not in limits["enum"]:
        yield f"{name} is {value!r}, none of {', '.join(limits['enum'])}"
    if "pattern" in limits and not re.fullmatch(limits["pattern"], value):
        yield f"{name} is {value!r}, not like {limits['pattern']}"
    size = value if shape.type_name in {"integer", "long"} else _length(value)
    what = "" if size is value else " long"
    if size is not None and "min" in limits and size < limits["min"]:
        yield f"{name} is {size}{what}, at least {limits['min']}"
    if size is not None and "max" in limits and size > limits["max"]:
        yield f"{name} is {size}{what}, at most {limits['max']}"


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, str | list | tuple) else None


def _faults_of_a_job(said: Mapping[str, Any]) -> Iterator[str]:
    """What the service refuses and its model does not say."""
    if len(said.get("Operation", {})) != 1:
        yield "Operation needs exactly one operation"
    if ("Manifest" in said) == ("ManifestGenerator" in said):
        yield "exactly one of Manifest and ManifestGenerator is needed"
    location = said.get("Manifest", {}).get("Location", {})
    if '"' in str(location.get("ETag", "")):
        yield "Manifest.Location.ETag has quotes"
    report = said.get("Report", {})
    if report.get("Enabled") and not {"Bucket", "Format", "ReportScope"} <= set(report):
        yield "Report needs Bucket, Format and ReportScope where it is enabled"
