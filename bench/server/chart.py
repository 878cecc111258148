"""The pictures of a run as one SVG: bars on a logarithmic scale, one panel beside the other."""

import math
from html import escape

from bench.server.goals import Picture
from bench.server.turns import number

PANEL_WIDTH, HEIGHT, MARGIN = 470, 330, 46
PLOT_TOP, PLOT_BOTTOM = 64, 282
COLOURS = ("#0b6e99", "#9aa5b1", "#d9822b")
FILLED = 0.78
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:11px;fill:#243b53}"
    ".title{font-size:13px;font-weight:600}.figure{font-size:9px}"
)


def svg(pictures: list[Picture]) -> str:
    """The chart."""
    width = PANEL_WIDTH * len(pictures)
    panels = [
        f'<g transform="translate({PANEL_WIDTH * place} 0)">{_panel(one)}</g>'
        for place, one in enumerate(pictures)
    ]
    titles = "; ".join(one.title for one in pictures)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img" '
        f'aria-label="{escape(titles)}"><style>{STYLE}</style>'
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>{"".join(panels)}</svg>\n'
    )


def _panel(picture: Picture) -> str:
    values = [value for one in picture.series for value in one.values if value]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 0.1)
    parts = [f'<text class="title" x="{MARGIN}" y="20">{escape(picture.title)}</text>']
    parts += _legend(picture)
    parts += [_grid(power, low, high) for power in range(low, high + 1)]
    room = (PANEL_WIDTH - MARGIN - 16) / len(picture.places)
    for place, name in enumerate(picture.places):
        left = MARGIN + room * place
        parts.append(
            f'<text x="{left + room / 2:.0f}" y="{PLOT_BOTTOM + 18}" text-anchor="middle">{escape(name)}</text>'
        )
        width = room * FILLED / len(picture.series)
        for series, one in enumerate(picture.series):
            value = one.values[place]
            if value:
                x = left + room * (1 - FILLED) / 2 + width * series
                parts.append(_bar(value, _height(value, low, high), x, width, COLOURS[series]))
    return "".join(parts)


def _legend(picture: Picture) -> list[str]:
    return [
        f'<rect x="{MARGIN + 100 * place}" y="32" width="10" height="10" fill="{COLOURS[place]}"/>'
        f'<text x="{MARGIN + 15 + 100 * place}" y="41">{escape(one.name)}</text>'
        for place, one in enumerate(picture.series)
    ]


def _grid(power: int, low: int, high: int) -> str:
    y = PLOT_BOTTOM - _height(10.0**power, low, high)
    return (
        f'<line x1="{MARGIN}" x2="{PANEL_WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d9e2ec"/>'
        f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>'
    )


def _power(power: int) -> str:
    names = {0: "", 3: "k", 6: "M"}
    unit = max((known for known in names if known <= power), default=0)
    return f"{10 ** (power - unit):g}{names[unit]}"


def _bar(value: float, height: float, x: float, width: float, colour: str) -> str:
    y = PLOT_BOTTOM - height
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}" fill="{colour}"/>'
        f'<text class="figure" x="{x + width / 2:.1f}" y="{y - 3:.1f}" text-anchor="middle">{_short(value)}</text>'
    )


def _short(value: float) -> str:
    return f"{value / 1000:,.0f}k" if value >= 10_000 else number(value)


def _height(value: float, low: int, high: int) -> float:
    return (math.log10(value) - low) / (high - low) * (PLOT_BOTTOM - PLOT_TOP)
