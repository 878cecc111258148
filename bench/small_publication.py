"""Spark jobs and store requests of one publication of 100 rows in S3, and the jobs of the last version without stores.

Run: `python -m bench.small_publication`. A set of two tables, one of which is derived from the other, is staged,
audited and published on an S3 server (SeaweedFS), through a port that counts requests, and on the local disk by the
commit before tables could be in a store, from this repository's history. The goal (issue 18): at most half as many
jobs, counting requests to the store as none.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from bench.lake import make_lake_in
from bench.server.turns import say
from tests.builders.store_gate import store_gate
from tests.integration.s3_server import running_s3

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "lake" / "small_publications.py"
BEFORE_STORES = "881af46"
FORMATS, GOAL, RUN_S = ("iceberg", "delta"), 0.5, 600


def main() -> int:
    """Prints the counts of both versions and their ratio; 1 if it is over the goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.small_publication", description=__doc__)
    parser.add_argument("--before", default=BEFORE_STORES, help="the commit to compare with")
    before = parser.parse_args().before
    with tempfile.TemporaryDirectory(prefix="lakeshare-small-publication-") as name:
        folder = Path(name)
        say("this version on S3")
        with running_s3(folder) as s3, store_gate(int(s3.endpoint.rpartition(":")[2])) as gate:
            environment = make_lake_in(s3, gate.endpoint)
            now, requests = count(HERE.parent, folder / "now", environment, lambda: Counter(gate.requests))
        for form in FORMATS:
            methods = ", ".join(f"{number} {method}" for method, number in sorted(requests[form].items()))
            print(f"{form}: {described(now[form])} in S3; {requests[form].total()} requests ({methods})")
        tree = history(before, folder / "tree")
        if tree is None:
            print(f"commit {before} is not in this repository's history: nothing to compare with")
            return 0
        say(f"commit {before} on the local disk")
        earlier, _ = count(tree, folder / "before", {}, Counter)
    ratios = {form: now[form].total() / earlier[form].total() for form in FORMATS}
    for form, ratio in ratios.items():
        verdict = "met" if ratio <= GOAL else "missed"
        print(
            f"{form}: {described(earlier[form])} at {before} on the local disk: {ratio:.2f} times "
            f"(goal: at most {GOAL}: {verdict})"
        )
    return int(any(ratio > GOAL for ratio in ratios.values()))


def described(jobs: "Counter[str]") -> str:
    """The jobs of a publication, by step."""
    return f"{jobs.total()} Spark jobs ({', '.join(f'{step} {number}' for step, number in jobs.items())})"


def count(
    tree: Path, folder: Path, environment: Mapping[str, str], get_requests: Callable[[], "Counter[str]"]
) -> tuple[dict[str, "Counter[str]"], dict[str, "Counter[str]"]]:
    """Runs the script by the packages in `tree`; returns jobs and requests of one publication of each format."""
    folder.mkdir()
    variables = {"LAKESHARE_STATE_DIR": str(folder / "state"), "PYTHONPATH": str(tree)}
    jobs: dict[str, dict[str, list[int]]] = {form: {} for form in FORMATS}
    requests: dict[str, list[Counter[str]]] = {form: [] for form in FORMATS}
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), str(folder / "contracts"), *FORMATS],
            env={**os.environ, **variables, **environment},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            began: Counter[str] = Counter()
            for line in child.stdout:
                found = json.loads(line)
                if "begins" in found:
                    began = get_requests()
                else:
                    requests[found["ends"]].append(get_requests() - began)
                    for step, number in found["jobs"].items():
                        jobs[found["ends"]].setdefault(step, []).append(number)
                print(file=child.stdin, flush=True)
            child.wait(RUN_S)
        finally:
            child.kill()
            child.wait()
    if child.returncode:
        raise RuntimeError((folder / "log").read_text()[-3000:])
    return (
        {
            form: Counter({step: int(median(numbers)) for step, numbers in jobs[form].items()})
            for form in FORMATS
        },
        {form: sorted(requests[form], key=Counter.total)[len(requests[form]) // 2] for form in FORMATS},
    )


def history(commit: str, folder: Path) -> Path | None:
    """The files of a commit in a new folder; None if it is not there."""
    command = ["git", "-C", str(HERE.parent), "archive", commit]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        return None
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
