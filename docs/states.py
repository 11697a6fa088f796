"""
Draws the states of a job and the moves between them, from the one table of moves that the code has.

Where boxes and arrows are is written here; what leads where is not. A move without an arrow, an arrow without a move,
and one that ends at the wrong box are errors. ``python docs/states.py`` writes ``images/states.svg`` anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, MOVES, TERMINAL, Event, JobState

FILE: Final = Path(__file__).parent / "images/states.svg"

Point = tuple[int, int]


class Box(NamedTuple):
    """
    Where a state stands.
    """

    left: int
    top: int
    width: int = 130
    height: int = 56

    def has_on_its_edge(self, point: Point) -> bool:
        x, y = point[0] - self.left, point[1] - self.top
        is_inside = 0 <= x <= self.width and 0 <= y <= self.height
        return is_inside and (x in {0, self.width} or y in {0, self.height})


class Arrow(NamedTuple):
    """
    The way of a move, from its beginning to its end, and where its label stands.
    """

    way: tuple[Point, ...]
    label: Point | None = None


BOXES: Final = {
    JobState.PENDING: Box(70, 60),
    JobState.FAILED: Box(70, 250),
    JobState.PROCESSING: Box(320, 60, height=246),
    JobState.DONE: Box(590, 60),
    JobState.DEAD: Box(590, 155),
    JobState.CANCELED: Box(590, 250),
}
ARROWS: Final = {
    (Event.CLAIMED, JobState.PENDING): Arrow(((200, 74), (320, 74)), (260, 66)),
    (Event.REQUEUED, JobState.PROCESSING): Arrow(((320, 102), (200, 102)), (260, 118)),
    (Event.FAILED, JobState.PROCESSING): Arrow(((320, 264), (200, 264)), (260, 256)),
    (Event.CLAIMED, JobState.FAILED): Arrow(((200, 292), (320, 292)), (260, 308)),
    (Event.DONE, JobState.PROCESSING): Arrow(((450, 88), (590, 88)), (520, 80)),
    (Event.DEAD, JobState.PROCESSING): Arrow(((450, 183), (590, 183)), (520, 175)),
    (Event.CANCELED, JobState.PROCESSING): Arrow(((450, 278), (590, 278)), (520, 270)),
    (Event.CANCELED, JobState.PENDING): Arrow(((70, 88), (30, 88), (30, 355), (640, 355), (640, 306)), (385, 333)),
    (Event.CANCELED, JobState.FAILED): Arrow(((135, 306), (135, 340), (670, 340), (670, 306))),
}
LABELS: Final = {
    Event.CLAIMED: "claim",
    Event.DONE: "success",
    Event.FAILED: "failure",
    Event.DEAD: "last failure",
    Event.CANCELED: "cancel",
    Event.REQUEUED: "requeue",
}
# The picture brings its own background, in either scheme: it is readable on a page that has chosen the other one.
STYLE: Final = """
.page { fill: #ffffff; } .line { stroke: #57606a; } .tip { fill: #57606a; } text { fill: #1f2328; }
.waits { fill: #fff4d6; stroke: #b58105; } .held { fill: #dbeafe; stroke: #2563a8; }
.over { fill: #e7e9ec; stroke: #57606a; }
@media (prefers-color-scheme: dark) {
.page { fill: #16191d; } .line { stroke: #9aa4af; } .tip { fill: #9aa4af; } text { fill: #e6e9ec; }
.waits { fill: #3b3011; stroke: #d8a521; } .held { fill: #16304f; stroke: #6aa5e8; }
.over { fill: #2a2f35; stroke: #9aa4af; }
}
"""
TIP: Final = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9" orient="auto">'
    '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'
)


def moves() -> Iterator[tuple[Event, JobState, JobState]]:
    """
    Yield each event with a state that it leaves and the one that it enters, in the order of the code.
    """
    for event, (leaves, enters) in MOVES.items():
        for state in JobState:
            if state in leaves:
                yield event, state, enters


def drawn() -> str:
    """
    Return the picture as SVG.
    """
    lines = [*map(_box, JobState), *(_arrow(*move) for move in moves())]
    missing = ARROWS.keys() - {(event, state) for event, state, _ in moves()}
    if missing:
        raise ValueError(f"these arrows are of no move: {sorted(missing)}")
    told = "; ".join(f"{state} to {enters} by {event}" for event, state, enters in moves())
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 750 385" role="img" font-family="sans-serif">',
            f"<title>The states of a job</title>\n<desc>{told}</desc>\n<style>{STYLE}</style>",
            f"<defs>{TIP}</defs>",
            '<rect class="page" width="750" height="385" rx="6"/>',
            '<text x="80" y="38" font-size="12">waits</text><text x="330" y="38" font-size="12">has a lease</text>',
            '<text x="600" y="38" font-size="12">over, for good</text>',
            *lines,
            "</svg>\n",
        ]
    )


def _box(state: JobState) -> str:
    box = BOXES[state]
    kind = "waits" if state in CLAIMABLE else "held" if state in HELD else "over"
    x, y = box.left + box.width // 2, box.top + box.height // 2 + 5
    return (
        f'<rect class="{kind}" x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}" rx="8"'
        f' stroke-width="{3 if state in TERMINAL else 1.5}"/>'
        f'<text x="{x}" y="{y}" font-size="15" font-weight="bold" text-anchor="middle">{state}</text>'
    )


def _arrow(event: Event, leaves: JobState, enters: JobState) -> str:
    arrow = ARROWS[event, leaves]
    for state, point in ((leaves, arrow.way[0]), (enters, arrow.way[-1])):
        if not BOXES[state].has_on_its_edge(point):
            raise ValueError(f"the arrow for {event} from {leaves} should touch {state}, and {point} doesn't")
    points = " ".join(f"{x},{y}" for x, y in arrow.way)
    line = f'<polyline class="line" points="{points}" fill="none" stroke-width="1.5" marker-end="url(#tip)"/>'
    if arrow.label is None:
        return line
    x, y = arrow.label
    return f'{line}<text x="{x}" y="{y}" font-size="12.5" text-anchor="middle">{LABELS[event]}</text>'


if __name__ == "__main__":
    FILE.write_text(drawn())
