"""The tables and charts of docs/performance.md, from the numbers in docs/performance.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import yaml

from docs.generators.markdown import table

DOCS = Path(__file__).resolve().parents[1]
NUMBERS = DOCS / "performance.yaml"
PAGE = DOCS / "performance.md"
CHARTS = DOCS / "_static" / "performance"
_BLOCK = re.compile(r"(?P<start><!-- numbers: (?P<name>\w+) -->\n).*?(?P<end><!-- end of numbers -->\n)", re.DOTALL)

#: Colors of a chart by class, for light and dark pages. Text and values need a contrast of 4.5 to the background.
LIGHT = {
    "ground": "#ffffff",
    "text": "#1f2933",
    "note": "#52606d",
    "line": "#7b8794",
    "fast": "#2f7ed8",
    "slow": "#c2570c",
}
DARK = {
    "ground": "#14171a",
    "text": "#e4e7eb",
    "note": "#aab4bf",
    "line": "#7b8794",
    "fast": "#4c9be8",
    "slow": "#e8843c",
}
_WIDTH, _LABELS, _VALUES = 800, 470, 80
_TOP, _ROW, _BAR, _BOTTOM = 44, 26, 14, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row: time of lakehouse / time of the other way, as a range whose bounds may be equal."""

    what: str
    other: str
    low: float
    high: float
    is_cpu: bool

    @property
    def text(self) -> str:
        """The ratio as text."""
        return _text(self.low) if self.low == self.high else f"{_text(self.low)} to {_text(self.high)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The rows that answer one question."""

    name: str
    title: str
    rows: tuple[Comparison, ...]


def load_charts(path: Path = NUMBERS) -> dict[str, Chart]:
    """Return the charts by their names."""
    entries: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        name: Chart(name=name, title=entry["title"], rows=tuple(_comparison(row) for row in entry["rows"]))
        for name, entry in entries.items()
    }


def performance_files() -> dict[Path, str]:
    """Return the generated texts by path: the charts, and the page with its tables."""
    charts = load_charts()
    page = PAGE.read_text(encoding="utf-8")
    return {PAGE: with_numbers(page, charts), **{CHARTS / f"{name}.svg": svg(chart) for name, chart in charts.items()}}


def with_numbers(page: str, charts: Mapping[str, Chart]) -> str:
    """Return a page whose blocks `<!-- numbers: NAME -->` contain the chart and the table of NAME."""
    return _BLOCK.sub(lambda block: f"{block['start']}{_figure(charts[block['name']])}{block['end']}", page)


def svg(chart: Chart) -> str:
    """Return a chart with horizontal bars, whose colors follow the color scheme of the reader."""
    height = _TOP + _ROW * len(chart.rows) + _BOTTOM
    described = "; ".join(f"{row.what} against {row.other.replace('`', '')}: {row.text}" for row in chart.rows)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            'font-family="Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{escape(chart.title)}</title>",
            f"<desc>{escape(described)}</desc>",
            f"<style>{_rules(LIGHT)} @media (prefers-color-scheme: dark) {{ {_rules(DARK)} }}</style>",
            f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
            f'<text class="text" x="12" y="24" font-size="15" font-weight="bold">{escape(chart.title)}</text>',
            *_axis(chart, height),
            *(line for index, row in enumerate(chart.rows) for line in _bar(row, _TOP + index * _ROW, _scale(chart))),
            "</svg>\n",
        )
    )


def _comparison(row: Mapping[str, Any]) -> Comparison:
    low, high = row["ratio"] if isinstance(row["ratio"], list) else (row["ratio"], row["ratio"])
    return Comparison(what=row["what"], other=row["with"], low=low, high=high, is_cpu=row.get("cpu", False))


def _figure(chart: Chart) -> str:
    rows = [(row.what, row.other, f"{row.text}{' (CPU time)' if row.is_cpu else ''}") for row in chart.rows]
    image = f"![{chart.title}](_static/performance/{chart.name}.svg)"
    return f"{image}\n\n{table(('lakehouse', 'compared with', 'ratio, below 1 is faster'), rows)}\n"


def _text(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 0.1 and round(ratio, 2) != ratio else f"{ratio:.2f}"


def _rules(colors: Mapping[str, str]) -> str:
    rules = [f".{name} {{ {'stroke' if name == 'line' else 'fill'}: {color} }}" for name, color in colors.items()]
    # Values have an outline in the color of the background, because the line of equal times may cross them.
    outline = f"paint-order: stroke; stroke: {colors['ground']}; stroke-width: 4"
    return " ".join((*rules, f".value {{ {outline}; fill: {colors['text']} }}"))


def _scale(chart: Chart) -> float:
    """Return the pixels of the ratio 1."""
    return (_WIDTH - _LABELS - _VALUES) / max(1.2, *(row.high for row in chart.rows))


def _axis(chart: Chart, height: int) -> Iterator[str]:
    one, bottom = _LABELS + _scale(chart), height - _BOTTOM + 4
    yield f'<line class="line" x1="{_LABELS}" y1="{_TOP - 6}" x2="{_LABELS}" y2="{bottom}"/>'
    yield f'<line class="line" x1="{one:.1f}" y1="{_TOP - 6}" x2="{one:.1f}" y2="{bottom}" stroke-dasharray="4 3"/>'
    yield f'<text class="note" x="{one:.1f}" y="{bottom + 16}" text-anchor="middle">1 = equal</text>'
    yield f'<text class="note" x="{_LABELS}" y="{bottom + 16}" text-anchor="middle">0</text>'


def _bar(row: Comparison, y: int, scale: float) -> Iterator[str]:
    name, middle = ("fast" if row.high <= 1 else "slow"), y + _BAR - 2
    other = row.other.replace("`", "") + (" (CPU time)" if row.is_cpu else "")
    yield f'<text class="text" x="12" y="{middle}">{escape(row.what)}</text>'
    yield f'<text class="note" x="{_LABELS - 8}" y="{middle}" text-anchor="end">{escape(other)}</text>'
    yield f'<rect class="{name}" x="{_LABELS}" y="{y}" width="{row.high * scale:.1f}" height="{_BAR}"/>'
    yield f'<text class="value" x="{_LABELS + row.high * scale + 6:.1f}" y="{middle}">{row.text}</text>'
