"""Prints the queries of the dashboards as recording rules, by which promtool checks them."""

import json
from pathlib import Path

DASHBOARDS = Path(__file__).with_name("dashboards")


def list_rules() -> list[dict[str, str]]:
    """A rule for each query of each panel."""
    rules = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for number, target in enumerate(panel["targets"]):
                name = f"panel:{path.stem}_{panel['id']}:query{number}"
                rules.append({"record": name, "expr": target["expr"]})
    return rules


if __name__ == "__main__":
    # JSON is YAML.
    print(json.dumps({"groups": [{"name": "panels", "rules": list_rules()}]}, indent=1))
