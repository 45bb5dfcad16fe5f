"""The picture of one run as SVG, drawn without a browser: value over steps above, temperature below."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tempopt.report.dashboard.run_curve import Points, RunCurve

# In the proportions of the dashboard's cards, and small, so that the letters are large on one.
_WIDTH, _HEIGHT = 480, 360
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 68, 18, 52, 30, 44
# Of the palette of Okabe and Ito, which is told apart by everybody.
_VALUE, _INK, _FAINT, _GRID = "#0072b2", "#1b1f24", "#57606a", "#d8dee4"
_TEMPERATURES = ("#d55e00", "#009e73", "#cc79a7", "#56b4e9")
# so many letters of the names of temperatures stand side by side
_LETTERS = 54


@dataclass(frozen=True, slots=True)
class _Panel:
    """A rectangle on the page and the ranges that it shows."""

    top: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies on the page."""
        (x0, x1), (y0, y1) = self.x, self.y
        right = _LEFT + (x - x0) / (x1 - x0) * (_WIDTH - _LEFT - _RIGHT)
        return round(right, 1), round(self.top + (y1 - y) / (y1 - y0) * self.height, 1)


def draw(curve: RunCurve) -> str:
    """Return the picture of a run as an SVG document; everything that people wrote is escaped."""
    half = (_HEIGHT - _TOP - _GAP - _BOTTOM) / 2
    steps = (0.0, float(curve.total_steps))
    upper = _Panel(_TOP, half, steps, _range([y for _, y in curve.values]))
    levels = [y for points in curve.temperatures.values() for _, y in points]
    lower = _Panel(_TOP + half + _GAP, half, steps, _range(levels))
    when = f"after {curve.steps} of {curve.total_steps} steps" if curve.steps else "before its first step"
    told = f"{curve.name}: {curve.end} {when}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(told)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 24, told, size=15, weight=600, fill=_INK),
        *_axes(upper, f"{_cut(curve.metric)} ({curve.direction})", has_values=bool(curve.values)),
        *_axes(lower, "" if len(curve.temperatures) > 1 else _titled(curve), has_steps=True),
        *_key(lower, curve),
        *_values(upper, curve),
        *_temperatures(lower, curve),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _titled(curve: RunCurve) -> str:
    """Return what the only temperature is called."""
    return f"temperature {_cut(''.join(curve.temperatures))}"


def _key(panel: _Panel, curve: RunCurve) -> Iterator[str]:
    """Yield the names of several temperatures, each in the colour of its line."""
    if len(curve.temperatures) < 2:
        return
    shown = list(curve.temperatures)[: len(_TEMPERATURES)]
    longest = _LETTERS // len(shown)
    names = "".join(
        f'<tspan fill="{colour}">{escape(_cut(name, longest))}{"" if name is shown[-1] else "  "}</tspan>'
        for name, colour in zip(shown, _TEMPERATURES, strict=False)
    )
    yield f'<text xml:space="preserve" x="{_LEFT}" y="{panel.top - 7:g}" font-size="13">{names}</text>'


def _temperatures(panel: _Panel, curve: RunCurve) -> Iterator[str]:
    for points, colour in zip(curve.temperatures.values(), itertools.cycle(_TEMPERATURES), strict=False):
        yield _line(panel, points, colour, 'stroke-dasharray="3 4" opacity="0.6"')
        yield _line(panel, [point for point in points if point[0] <= curve.steps], colour)


def _values(panel: _Panel, curve: RunCurve) -> Iterator[str]:
    if not curve.values:
        middle = panel.top + panel.height / 2
        yield _text((_LEFT + _WIDTH - _RIGHT) / 2, middle, "nothing was reported", anchor="middle")
        return
    yield _line(panel, curve.values, _VALUE)
    # single reports are seen; of many the line tells enough
    for x, y in (panel.at(*point) for point in curve.values if len(curve.values) <= 60):
        yield f'<circle cx="{x}" cy="{y}" r="3" fill="{_VALUE}"/>'


def _axes(panel: _Panel, title: str, *, has_values: bool = True, has_steps: bool = False) -> Iterator[str]:
    yield _text(_LEFT, panel.top - 7, title)
    for tick in _ticks(*panel.y, 4) if has_values else ():
        x, y = panel.at(panel.x[0], tick)
        yield f'<path d="M{x} {y}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>'
        yield _text(x - 8, y + 4, f"{tick:.4g}", anchor="end")
    bottom = panel.top + panel.height
    yield f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" stroke="{_FAINT}"/>'
    for tick in _ticks(*panel.x, 5):
        x, _ = panel.at(tick, panel.y[0])
        yield f'<path d="M{x} {bottom}v4" stroke="{_FAINT}"/>'
        if has_steps:
            yield _text(x, bottom + 17, f"{tick:g}", anchor="middle")
    if has_steps:
        yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, "training steps", anchor="middle")


def _line(panel: _Panel, points: Points | Sequence[tuple[float, float]], colour: str, more: str = "") -> str:
    path = "L".join(f"{x} {y}" for x, y in (panel.at(*point) for point in points))
    return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" {more}/>' if path else ""


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    weight: int = 400,
    anchor: str = "start",
    fill: str = _FAINT,
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return a range that shows all values with some room, also where they are all the same."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.1 * abs(low) or 1.0
    return low - room, high + room


def _ticks(low: float, high: float, count: int) -> Iterator[float]:
    """Yield about so many round numbers between two."""
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * each for each in (1, 2, 2.5, 5, 10) if unit * each >= rough * 0.999)
    for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield place * step


def _cut(text: str, longest: int = 36) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
