"""JSON schemas of Kubernetes for kubeconform, offline: `python deploy/kube_schemas.py FOLDER RELEASE FILE...`.

Writes a schema into FOLDER for each kind of the rendered FILEs. They come from the package kubernetes-validate, in
which all kinds of a release refer to one file of definitions; kubeconform takes a file for each kind.
"""

import importlib.util
import json
import sys
from pathlib import Path

import yaml

# Of the Prometheus operator: not a kind of Kubernetes itself.
OTHERS = {"ServiceMonitor"}


def main() -> None:
    folder, release, *rendered = sys.argv[1:]
    spec = importlib.util.find_spec("kubernetes_validate")
    if spec is None or spec.origin is None:
        sys.exit(
            "kube_schemas: the package kubernetes-validate is missing; deploy/check.sh runs this with it"
        )
    packaged = Path(spec.origin).parent / "kubernetes-json-schema" / f"v{release}-local-strict"
    if not packaged.is_dir():
        sys.exit(f"kube_schemas: kubernetes-validate has no schemas of Kubernetes {release}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    definitions = json.loads((packaged / "_definitions.json").read_text())["$defs"]
    for name in sorted(
        {name_schema(resource) for file in rendered for resource in load_resources(Path(file))}
    ):
        text = (packaged / name).read_text().replace("/api/_definitions.json#", "#")
        schema = json.loads(text) | {"$defs": definitions}
        schema.pop("$id", None)
        (target / name).write_text(json.dumps(schema).replace("/api/_definitions.json#", "#"))


def load_resources(file: Path) -> list[dict[str, str]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one and one["kind"] not in OTHERS]


def name_schema(resource: dict[str, str]) -> str:
    """The file name of both kubernetes-validate and kubeconform: deployment-apps-v1.json, service-v1.json."""
    group, _, version = resource["apiVersion"].rpartition("/")
    parts = [resource["kind"], *([group.split(".")[0]] if group else []), version]
    return "-".join(parts).lower() + ".json"


if __name__ == "__main__":
    main()
