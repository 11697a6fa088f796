"""
Draws the dashboard in ``monitoring/dashboard.json`` with made-up curves, as the picture that the docs show of it.

It is a drawing, not a screenshot: which panels there are, where they are and what they are called comes from the
dashboard; the curves come from a random generator with a fixed seed. ``python docs/dashboard.py`` writes it anew.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "monitoring"
COLUMN: Final = 40
ROW: Final = 20
GAP: Final = 3
COLOURS: Final = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9")
VALUES: Final = {"Oldest ready job": "2.1 s", "Waiting": "38", "Died in the last hour": "0", "Busy slots": "62 %"}
LEGENDS: Final = {
    "{{topic}}": ["email.send", "invoice.print", "ledger.post"],
    "{{state}}": ["pending", "processing", "failed"],
    "{{outcome}}": ["failed", "canceled", "dead"],
    "{{reason}}": ["lease_expired", "shutdown"],
}


def drawn(dashboard: dict[str, Any]) -> str:
    """
    Return the picture as SVG.
    """
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * ROW
    width = 24 * COLUMN
    body = "\n".join(line for panel in panels for line in _panel(panel))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="11">\n<rect width="{width}" height="{height}" fill="#111217"/>\n{body}\n</svg>\n'
    )


def _panel(panel: dict[str, Any]) -> Iterator[str]:
    place = panel["gridPos"]
    x, y = place["x"] * COLUMN + GAP, place["y"] * ROW + GAP
    width, height = place["w"] * COLUMN - 2 * GAP, place["h"] * ROW - 2 * GAP
    title = escape(panel["title"])
    if panel["type"] == "stat":
        yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="#2f6b3a"/>'
        yield f'<text x="{x + 8}" y="{y + 16}" fill="#fff">{title}</text>'
        value = VALUES[panel["title"]]
        yield f'<text x="{x + 8}" y="{y + height - 14}" fill="#fff" font-size="26">{value}</text>'
        return
    yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="#181b1f" stroke="#2c3235"/>'
    yield f'<text x="{x + 8}" y="{y + 16}" fill="#ccccdc">{title}</text>'
    legends = [
        name for target in panel["targets"] for name in LEGENDS.get(target["legendFormat"], [target["legendFormat"]])
    ]
    at = x + 8
    for number, name in enumerate(legends):
        colour = COLOURS[number % len(COLOURS)]
        chance = random.Random(f"{title} {name}")  # noqa: S311 - of a picture
        yield _curve(chance, x + 8, y + 26, width - 16, height - 52, colour)
        yield f'<rect x="{at}" y="{y + height - 15}" width="8" height="3" fill="{colour}"/>'
        yield f'<text x="{at + 12}" y="{y + height - 9}" fill="#ccccdc" font-size="10">{escape(name)}</text>'
        at += 24 + 6 * len(name)


def _curve(chance: random.Random, x: float, y: float, width: float, height: float, colour: str) -> str:
    level, points = chance.uniform(0.3, 0.7), []
    for step in range(61):
        level = min(max(level + chance.uniform(-0.08, 0.08), 0.05), 0.95)
        points.append(f"{x + width * step / 60:.1f},{y + height * (1 - level):.1f}")
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


if __name__ == "__main__":
    source = json.loads((FOLDER / "dashboard.json").read_text())
    (FOLDER / "dashboard.svg").write_text(drawn(source))
