"""What was measured beside what was wanted: the rows of the table that is printed and goes into the documents."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure and its bound; `measured` None was not measured in this run, for the reason in `says`."""

    text: str
    measured: float | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the figure is within its bound; None when there is none."""
        if self.measured is None:
            return None
        above = self.at_most is None or self.measured <= self.at_most
        return above and (self.at_least is None or self.measured >= self.at_least)

    @property
    def verdict(self) -> str:
        """How the table says it."""
        return {True: "met", False: "missed", None: "not measured"}[self.is_met]


@dataclass(frozen=True)
class Row:
    """One line of the issue's table: what was measured, what came out, and its goals."""

    what: str
    says: str
    goals: tuple[Goal, ...]


@dataclass(frozen=True)
class Series:
    """Figures of one server for a chart, in the order of the chart's places; None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Picture:
    """A panel of the chart."""

    title: str
    places: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass
class Report:
    """All of a run."""

    machine: str
    rows: list[Row] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        """The goals that were not met."""
        return [
            f"{row.what}: {goal.text}, measured {goal.measured:.2f}"
            for row in self.rows
            for goal in row.goals
            if goal.is_met is False
        ]
