"""Horizontal bar charts as self-contained SVG, drawn without a library.

One kind of chart is enough, and configuring a library would take as many lines. A style sheet in the file has a light and a
dark set of colours, which follow the reader's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
LABELS: Final = 210
"""Pixels for the names on the left."""
VALUES: Final = 130
"""Pixels for the figures on the right."""
STEP: Final = 26
BAR: Final = 17
HEAD: Final = 56
LINE: Final = 20
FOOT: Final = 14
GLYPH: Final = 7.2
"""Approximate width of a letter in pixels."""
STYLE: Final = """
text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #212529; }
.title { font-size: 15px; font-weight: 600; }
.note { fill: #5c636a; }
.figure { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
.paper { fill: #ffffff; }
.mark { stroke: #212529; stroke-width: 1.5; stroke-dasharray: 4 3; }
.c0 { fill: #e8590c; } .c1 { fill: #868e96; } .c2 { fill: #1c7ed6; }
.c3 { fill: #2f9e44; } .c4 { fill: #ae3ec9; } .c5 { fill: #f08c00; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9aa4af; }
  .figure { stroke: #0d1117; }
  .paper { fill: #0d1117; }
  .mark { stroke: #e6edf3; }
  .c0 { fill: #ff8c42; } .c1 { fill: #8b949e; } .c2 { fill: #4dabf7; }
  .c3 { fill: #51cf66; } .c4 { fill: #cc5de8; } .c5 { fill: #fcc419; }
}
"""
COLOURS: Final = 6
OURS: Final = 0
THEIRS: Final = 1


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a chart.

    Attributes:
        label: its name.
        parts: its lengths from left to right; usually one.
        figure: the text after the bar.
        colour: of the first part, `OURS` or `THEIRS`; the other parts take the following colours.
    """

    label: str
    parts: tuple[float, ...]
    figure: str
    colour: int = OURS


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across all bars: an upper limit or a target of the figures."""

    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The content of a chart.

    Attributes:
        name: of the file, without its suffix.
        title: the subject of the figures.
        note: how to read them.
        bars: from top to bottom.
        legend: the parts of each bar, if there are several.
        mark: a line to compare with, or None.
    """

    name: str
    title: str
    note: str
    bars: Sequence[Bar]
    legend: tuple[str, ...] = ()
    mark: Mark | None = None


def write(folder: Path, chart: Chart) -> Path:
    """Draw a chart into a folder, which is created if missing; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{chart.name}.svg"
    path.write_text(svg(chart), encoding="utf-8")
    return path


def svg(chart: Chart) -> str:
    """Return the drawing."""
    top = HEAD + LINE * bool(chart.legend) + LINE * (chart.mark is not None)
    bottom = top + STEP * len(chart.bars)
    height = bottom + FOOT
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    longest = max([*(sum(bar.parts) for bar in chart.bars), chart.mark.value if chart.mark else 0.0]) or 1.0
    scale = (WIDTH - LABELS - VALUES) / longest
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(chart.title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="14" y="24">{escape(chart.title)}</text>',
        f'<text class="note" x="14" y="43">{escape(chart.note)}</text>',
        *_legend(chart.legend),
    ]
    tops = range(top, bottom, STEP)
    for bar, at in zip(chart.bars, tops, strict=True):
        lines += _bar(bar, at, scale)
    if chart.mark:
        lines += _mark(chart.mark, top, bottom, scale)
    for bar, at in zip(chart.bars, tops, strict=True):
        lines.append(_figure(bar, at, scale))
    return "\n".join([*lines, "</svg>", ""])


def _legend(names: tuple[str, ...]) -> list[str]:
    lines, left, top = list[str](), 14.0, HEAD
    for number, name in enumerate(names):
        lines += [
            f'<rect class="{_colour(number)}" x="{left:.0f}" y="{top - 4}" width="11" height="11"/>',
            f'<text class="note" x="{left + 16:.0f}" y="{top + 6}">{escape(name)}</text>',
        ]
        left += 16 + GLYPH * len(name) + 18
    return lines


def _bar(bar: Bar, top: int, scale: float) -> list[str]:
    lines = [f'<text x="{LABELS - 8}" y="{top + 13}" text-anchor="end">{escape(bar.label)}</text>']
    left = float(LABELS)
    for number, part in enumerate(bar.parts):
        colour = _colour(bar.colour + number)
        lines.append(f'<rect class="{colour}" x="{left:.1f}" y="{top}" width="{part * scale:.1f}" height="{BAR}"/>')
        left += part * scale
    return lines


def _figure(bar: Bar, top: int, scale: float) -> str:
    """Draw a figure with a paper-coloured edge, legible over a mark."""
    left = LABELS + sum(bar.parts) * scale + 7
    return f'<text class="figure" x="{left:.1f}" y="{top + 13}">{escape(bar.figure)}</text>'


def _mark(mark: Mark, top: int, bottom: int, scale: float) -> list[str]:
    left = LABELS + mark.value * scale
    return [
        f'<line class="mark" x1="{left:.1f}" y1="{top - 6}" x2="{left:.1f}" y2="{bottom - STEP + BAR + 4}"/>',
        f'<text class="note" x="{left:.1f}" y="{top - 11}" text-anchor="middle">{escape(mark.label)}</text>',
    ]


def _colour(number: int) -> str:
    return f"c{number % COLOURS}"
