"""Bars as SVG, drawn by hand: no library, and nothing in the file but what it shows."""

from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.comparison import HEADLINES, TOCSIN, Row, number

FILES: Final = {"W1": "fire-lag.svg", "W2": "throughput.svg", "W3": "latency.svg"}
WIDTH: Final = 720
LABELS: Final = 180
"""Pixels for the names on the left."""
VALUES: Final = 90
"""Pixels for the figures on the right."""
STEP: Final = 28
BAR: Final = 18
TOP: Final = 56
OURS: Final = "#d9480f"
THEIRS: Final = "#868e96"


def write(folder: Path, workload: str, rows: list[Row]) -> Path:
    """Draw a comparison into a folder, which is made when missing; the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILES[workload]
    path.write_text(bars(workload, rows), encoding="utf-8")
    return path


def bars(workload: str, rows: list[Row]) -> str:
    """The SVG; a system without a figure has no bar."""
    headline = HEADLINES[workload]
    shown = [(row, row.figure) for row in rows if row.figure is not None]
    longest = max((figure for _, figure in shown), default=1.0)
    better = "longer is better" if headline.more_is_better else "shorter is better"
    height = TOP + STEP * len(shown) + 12
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14" font-weight="bold">{escape(headline.title)}</text>',
        f'<text x="12" y="40" fill="#495057">{better}</text>',
    ]
    for place, (row, figure) in enumerate(shown):
        top = TOP + STEP * place
        length = max(1.0, figure / longest * (WIDTH - LABELS - VALUES))
        text = f"{number(figure)} {headline.unit}"
        lines += [
            f'<text x="{LABELS - 8}" y="{top + 14}" text-anchor="end">{escape(row.system)}</text>',
            f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{_colour(row)}"/>',
            f'<text x="{LABELS + length + 6:.1f}" y="{top + 14}">{escape(text)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _colour(row: Row) -> str:
    return OURS if row.system in TOCSIN else THEIRS
