"""Requests and answers of s3control as XML (the REST-XML protocol), along the shapes of the service model."""

import datetime as dt
import re
from typing import Any
from xml.etree import ElementTree as ET

from lakeshare_pipelines.backup.batch_server.refusals import Refused, bad_request
from lakeshare_pipelines.backup.batch_server.shapes import Shape, member_name

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
        root = ET.fromstring(body)  # noqa: S314
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
