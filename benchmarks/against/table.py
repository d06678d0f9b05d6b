"""The table of a comparison: figures, ratios and targets, as text and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.against.medians import Spread, spread
from benchmarks.against.pairs import LOAD, Run, Runs
from benchmarks.against.targets import BASE, NEW, Row
from benchmarks.comparison import number

MET: Final = "met"
MISSED: Final = "missed"
NOT_RUN: Final = "not run"
SHOWN: Final = ""
"""The verdict of a row without a target."""
NOTE: Final = (
    "Median: of the ratios or differences of all pairs, or of the figure where neither is compared. Interval: two of these values, which enclose "
    "the true median with the given probability."
)
HEADS: Final = ("figure", "target", "median", "interval", "new", "compared with", "pairs", "result")


@dataclass(frozen=True, slots=True)
class Line:
    """A row with its results.

    Attributes:
        row: the row.
        new: the figure of the working tree; None if it was not measured.
        other: the figure of the base or peer; None if it was not measured.
        compared: what the target is for: the ratio or the difference of each pair, or the figure itself; None if it is unknown.
        verdict: `met`, `missed`, `not run`, or empty for a row without a target.
        remark: why it was not run, or what else is wrong.
    """

    row: Row
    new: Spread | None
    other: Spread | None
    compared: Spread | None
    verdict: str
    remark: str = ""


def lines(rows: Sequence[Row], runs: Runs) -> list[Line]:
    """Return the rows with their results."""
    return [_line(row, runs) for row in rows]


def text(filled: Sequence[Line], versions: Mapping[str, str]) -> str:
    """Return the lines as a table.

    Args:
        filled: the lines.
        versions: of the peers.
    """
    cells = [HEADS, *(_cells(line, versions) for line in filled)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADS))]
    return "\n".join([*("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells), "", NOTE])


def load(runs: Runs) -> str:
    """Return a sentence about the load of the machine after the measurements of each side."""
    loads = {
        side: [run.metrics[LOAD] for run in runs.runs if run.system == side and run.metrics] for side in (BASE, NEW)
    }
    shown = (f"{side} {number(spread(values).median)}" for side, values in loads.items() if values)
    return f"Load average, median: {', '.join(shown) or 'unknown'}."


def as_json(filled: Sequence[Line], runs: Runs) -> dict[str, Any]:
    """Return the lines, and every measurement."""
    return {
        "rows": [
            {
                "figure": line.row.title,
                "unit": line.row.of,
                "target": str(line.row.target or ""),
                "compared_with": line.row.other,
                "compared_by": None if line.row.other is None else "difference" if line.row.is_difference else "ratio",
                **{key: _spread(getattr(line, key)) for key in ("new", "other", "compared")},
                "result": line.verdict,
                "remark": line.remark,
            }
            for line in filled
        ],
        "peers": runs.versions,
        "measurements": [asdict(run) for run in runs.runs],
    }


def _line(row: Row, runs: Runs) -> Line:
    new, new_problems = _values(row, runs.of(row.unit, NEW))
    other, other_problems = _values(row, runs.of(row.unit, row.other or BASE)) if not row.unit.only_new else ({}, [])
    both = sorted(new.keys() & other.keys())
    if row.other is None:
        values = list(new.values())
    elif row.is_difference:
        values = [new[pair] - other[pair] for pair in both]
    else:
        values = [new[pair] / other[pair] for pair in both if other[pair]]
    problems = [f"new: {reason}" for reason in new_problems]
    problems += [f"{row.other or BASE}: {reason}" for reason in other_problems]
    flaws = _flaws(row, runs.of(row.unit, NEW))
    compared = _spread_of(values)
    if compared is None:
        verdict, remark = NOT_RUN, "; ".join(problems) or "not measured"
    else:
        verdict = SHOWN if row.target is None else MET if row.target.met(compared.median) and not flaws else MISSED
        remark = "; ".join([*flaws, *problems])
    return Line(row, _spread_of(list(new.values())), _spread_of(list(other.values())), compared, verdict, remark)


def _values(row: Row, runs: Mapping[int, Run]) -> tuple[dict[int, float], list[str]]:
    """Return the figure of each pair, and the reasons why pairs lack it."""
    values, reasons = dict[int, float](), list[str]()
    for pair, run in runs.items():
        if run.metrics is None:
            reasons.append(run.reason)
            continue
        try:
            values[pair] = row.value(run.metrics)
        except KeyError as error:
            reasons.append(f"no metric {error}")
        except ZeroDivisionError:
            reasons.append("a divisor is 0")
    if not values:
        return values, list(dict.fromkeys(reasons))
    return values, [f"{reason} ({reasons.count(reason)} of {len(runs)})" for reason in dict.fromkeys(reasons)]


def _flaws(row: Row, runs: Mapping[int, Run]) -> list[str]:
    sums = {flaw: sum((run.metrics or {}).get(flaw, 0) for run in runs.values()) for flaw in row.flaws}
    return [f"{flaw}: {int(value):,}" for flaw, value in sums.items() if value]


def _cells(line: Line, versions: Mapping[str, str]) -> tuple[str, ...]:
    row, compared = line.row, line.compared
    other = (
        row.other if row.other is None or row.other == BASE else f"{row.other} {versions.get(row.other, '')}".strip()
    )
    against = f"{_amount(line.other, row.of)} {other or BASE}".strip() if line.other else "-"
    size = "×" if row.other and not row.is_difference else f" {row.of}".rstrip()
    than = f" more than {row.other}" if row.is_difference else f" of {row.other}"
    return (
        row.title,
        f"{row.target or '-'}{than if row.other and row.target else ''}",
        f"{number(compared.median)}{size}" if compared else "-",
        f"{number(compared.low)}–{number(compared.high)} ({compared.confidence:.0%})" if compared else "-",
        _amount(line.new, row.of),
        against,
        str(compared.number) if compared else "0",
        ": ".join(filter(None, [line.verdict, line.remark])),
    )


def _amount(spread_: Spread | None, of: str) -> str:
    return f"{number(spread_.median)} {of}".rstrip() if spread_ else "-"


def _spread_of(values: Sequence[float]) -> Spread | None:
    return spread(values) if values else None


def _spread(value: Spread | None) -> dict[str, float] | None:
    return asdict(value) if value else None
