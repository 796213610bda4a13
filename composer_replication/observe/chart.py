"""Line charts as SVG text. Plain strings, so that the same numbers give the same file on every machine.

A chart is 360 units wide, has its own background, and tells its lines apart by dash as well as by colour (Okabe and Ito's).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

Points: TypeAlias = Sequence[tuple[float, float]]
Ticks: TypeAlias = Sequence[tuple[float, str]]

WIDTH, PLOT_HEIGHT = 360, 150
LEFT, RIGHT = 56, 22
PAPER, INK, MUTED, GRID = "#ffffff", "#1b1f24", "#56606b", "#dfe3e8"
STYLES = (("#0072b2", ""), ("#d55e00", "7 4"), ("#007a5a", "2 3"), ("#8a4a7d", "9 3 2 3"))
CHARACTER = 6.1
"""Width of a character of the legend, on the safe side."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve. A point whose y is NaN makes a gap; a point between two gaps is drawn as a dot."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot. Its range is that of its ticks, and what lies outside is cut off."""

    title: str
    x_label: str
    y_label: str
    x_ticks: Ticks
    y_ticks: Ticks
    lines: Sequence[Line]


def svg(panels: Sequence[Panel]) -> str:
    """Draw the panels, one below the other."""
    body: list[str] = []
    top = 0
    for number, panel in enumerate(panels):
        drawn, height = _panel(panel, top, number)
        body += drawn
        top += height
    label = escape(". ".join(panel.title for panel in panels), quote=True)
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH * 3 // 2}" height="{top * 3 // 2}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}"'
            f' font-family="system-ui, sans-serif" font-size="11" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{top}" fill="{PAPER}"/>',
            *body,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, top: int, number: int) -> tuple[list[str], int]:
    """Return the panel's elements and its height."""
    legend, rows = _legend([line.name for line in panel.lines], top + 34)
    plot_top = top + 34 + 15 * rows
    bottom = plot_top + PLOT_HEIGHT
    (x_low, _), (x_high, _) = panel.x_ticks[0], panel.x_ticks[-1]
    (y_low, _), (y_high, _) = panel.y_ticks[0], panel.y_ticks[-1]

    def x(value: float) -> float:
        return LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return bottom - (value - y_low) / (y_high - y_low) * PLOT_HEIGHT

    middle = (plot_top + bottom) / 2
    parts = [f'<text x="10" y="{top + 18}" font-size="12" font-weight="600">{escape(panel.title)}</text>', *legend]
    for value, text in panel.y_ticks:
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y(value) + 4:.1f}" text-anchor="end" fill="{MUTED}">{escape(text)}</text>')
    for value, text in panel.x_ticks:
        parts.append(f'<path d="M{x(value):.1f} {bottom}v4" stroke="{MUTED}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle" fill="{MUTED}">{escape(text)}</text>')
    parts += [
        f'<path d="M{LEFT} {plot_top}V{bottom}H{WIDTH - RIGHT}" stroke="{MUTED}" fill="none"/>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{bottom + 33}" text-anchor="middle">{escape(panel.x_label)}</text>',
        f'<text transform="translate(13 {middle:.1f}) rotate(-90)" text-anchor="middle">{escape(panel.y_label)}</text>',
        f'<clipPath id="plot{number}"><rect x="{LEFT - 4}" y="{plot_top - 4}" width="{WIDTH - LEFT - RIGHT + 8}"'
        f' height="{PLOT_HEIGHT + 8}"/></clipPath>',
        f'<g clip-path="url(#plot{number})">',
    ]
    for index, line in enumerate(panel.lines):
        for piece in _pieces(line.points):
            parts.append(_stroke([(x(a), y(b)) for a, b in piece], index))
    return [*parts, "</g>"], bottom + 42 - top


def _legend(names: Sequence[str], top: int) -> tuple[list[str], int]:
    """Draw a swatch and a name for every line, and return how many rows they take."""
    parts: list[str] = []
    left, row = 10.0, 0
    for index, name in enumerate(names):
        width = 34 + CHARACTER * len(name) + 10
        if left > 10.0 and left + width > WIDTH:
            left, row = 10.0, row + 1
        at = top + 15 * row
        parts.append(_stroke([(left, at - 4), (left + 28, at - 4)], index))
        parts.append(f'<text x="{left + 33:.1f}" y="{at}">{escape(name)}</text>')
        left += width
    return parts, row + 1


def _pieces(points: Points) -> Iterator[list[tuple[float, float]]]:
    """Yield the runs of points between gaps."""
    piece: list[tuple[float, float]] = []
    for point in points:
        if math.isnan(point[1]):
            if piece:
                yield piece
            piece = []
        else:
            piece.append(point)
    if piece:
        yield piece


def _stroke(points: Points, index: int) -> str:
    colour, dash = STYLES[index]
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="4" fill="{colour}"/>'
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dashes}/>'
