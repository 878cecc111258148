"""Scrapes of metrics, and the names and labels that queries of Prometheus read."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

SELECTOR = re.compile(r"\b(lakeshare_\w+|up)(?:\{([^}]*)\})?(?=[\s\[)}+*/<>=!-]|$)")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)")
# Labels that Prometheus adds, and that of buckets.
ADDED = frozenset({"job", "instance", "le"})


@dataclass
class Scrape:
    """All samples of some scrapes: the label sets of each name, and the last value by name and labels."""

    samples: dict[str, list[tuple[Mapping[str, str], float]]] = field(default_factory=dict)
    log: str = ""

    def add(self, text: str) -> None:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def labels(self, name: str) -> set[str]:
        return {label for labels, _ in self.samples.get(name, ()) for label in labels}

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of all samples with these labels, the oldest scrape first."""
        return [
            value
            for found, value in self.samples.get(name, ())
            if all(found.get(label) == wanted for label, wanted in labels.items())
        ]


@dataclass(frozen=True)
class Selected:
    """A metric in a query, and its conditions on labels as (label, operator, value)."""

    name: str
    conditions: tuple[tuple[str, str, str], ...]


def select_metrics(query: str) -> list[Selected]:
    """The metrics that a query reads."""
    return [
        Selected(found[1], tuple((c[1], c[2], c[3]) for c in MATCHER.finditer(found[2] or "")))
        for found in SELECTOR.finditer(query)
    ]


def find_groupings(query: str) -> set[str]:
    """The labels that a query groups or matches by."""
    return {
        label.strip() for found in GROUPING.finditer(query) for label in found[1].split(",") if label.strip()
    }


def list_panel_queries(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of each target of a Grafana dashboard."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
