"""A plan in words, line by line like Terraform's, and as JSON."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from lakeshare_server.catalog.declared.file_plan import Left, Plan
from lakeshare_server.catalog.declared.planning import Difference, Step

SIGNS = {"create": "+", "update": "~", "delete": "-"}
WHOSE = {"hand": "whoever made it by hand", "contracts": "a contract", "files": "files"}
LONGEST = 120


def plan_lines(plan: Plan) -> Iterator[str]:
    """The plan as people read it: a sign in front of each line, a summary at the end."""
    for step in plan.steps:
        yield f"  {SIGNS[step.verb]} {step.kind} {step.name}{_remark(step)}"
        for one in step.differences:
            yield f"      {_sign(step, one)} {one.field}: {_change(step, one)}"
    for left in plan.left:
        yield f"  ? {left.held.key[0]} {left.held.name}: {_why(left)}"
    yield summary(plan)


def summary(plan: Plan) -> str:
    """`Plan 3f2a…: 2 to add, 1 to change, 0 to remove.`"""
    if not plan.steps:
        end = f"; {len(plan.left)} left as they are" if plan.left else ""
        return f"No changes: the catalog holds what the files say{end}."
    add, change, remove = _counts(plan)
    return f"Plan {plan.digest}: {add} to add, {change} to change, {remove} to remove."


def done(plan: Plan) -> str:
    """`Applied: 2 added, 1 changed, 0 removed.`"""
    add, change, remove = _counts(plan)
    return f"Applied: {add} added, {change} changed, {remove} removed."


def _counts(plan: Plan) -> tuple[int, ...]:
    return tuple(sum(step.verb == verb for step in plan.steps) for verb in SIGNS)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "digest": plan.digest,
        "changes": [_step_json(step) for step in plan.steps],
        "left": [
            {"kind": left.held.key[0], "name": left.held.name, "why": left.why, "keptBy": left.held.keeper}
            for left in plan.left
        ],
        "summary": dict(zip(SIGNS, _counts(plan), strict=True)),
    }


def _step_json(step: Step) -> dict[str, Any]:
    origin = step.wanted.origin if step.wanted else None
    found = step.wanted.found if step.wanted else None
    return {
        "action": step.verb,
        "kind": step.kind,
        "name": step.name,
        "fields": {
            one.field: {"before": jsonable(one.before), "after": jsonable(one.after)}
            for one in step.differences
        },
        **({} if found is None else {"remark": found.remark}),
        **({} if origin is None else {"file": str(origin.file.path), "line": origin.line}),
    }


def jsonable(value: object) -> Any:
    """A value of a field with times as text in UTC."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {key: jsonable(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(inner) for inner in value]
    return value


def _remark(step: Step) -> str:
    held = step.held
    if held is None and step.wanted is not None and step.wanted.found is not None:
        return f"  # {step.wanted.found.remark}"
    if step.verb != "update" or held is None or held.updated_at is None:
        return ""
    return f"  # as {held.updated_by or 'somebody'} left it {held.updated_at:%Y-%m-%d %H:%MZ}"


def _sign(step: Step, one: Difference) -> str:
    if step.verb != "update":
        return SIGNS[step.verb]
    return "+" if one.before in (None, {}, ()) else "-" if one.after in (None, {}, ()) else "~"


def _change(step: Step, one: Difference) -> str:
    if one.field == "kept_by":
        return f"{WHOSE[str(one.before)]} → {WHOSE[str(one.after)]}"
    if step.verb == "create":
        return _shown(one.after)
    if step.verb == "delete":
        return _shown(one.before)
    return f"{_shown(one.before)} → {_shown(one.after)}"


def _shown(value: object) -> str:
    if value in (None, {}, ()):
        return "none"
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _why(left: Left) -> str:
    if left.why == "orphan":
        return "is in no file any more; --prune removes it"
    if left.why == "needed":
        return "is in no file any more, and stays: others have granted it, or made something in it"
    by = f" by {left.held.updated_by}" if left.held.updated_by else ""
    return f"was made by hand{by} in a share of the files, and stays"
