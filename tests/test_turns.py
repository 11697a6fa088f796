from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.worker.turns import Request, Turns

Ready = Counter[tuple[int, str]]

START = datetime(2026, 1, 1, tzinfo=UTC)


def claim_of(priority: int, topic: str, number: int = 0) -> Claim:
    moment = START + timedelta(seconds=number)
    return Claim(UUID(int=number), topic, None, 1, 0, priority, START, moment, START, "w", START)


def served(request: Request, ready: Ready) -> list[Claim]:
    """
    Answer a request as the claim does: branch by branch, without the rows that were taken already.
    """
    taken: list[tuple[int, str]] = []
    for priority, topic, limit, skip, _ in request.branches:
        kind = priority, topic
        left = ready[kind] - taken.count(kind) if skip else ready[kind]
        taken += [kind] * min(limit, left, request.want - len(taken))
    ready.subtract(taken)
    return [claim_of(*kind) for kind in taken]


@given(st.integers(1, 30), st.integers(1, 40), st.booleans(), st.data())
def test_every_topic_with_work_is_served_within_its_bound(
    topics: int, slots: int, overlapping: bool, data: st.DataObject
) -> None:
    names = [f"t{n}" for n in range(topics)]
    busy = names if overlapping else data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    turns = Turns(names)
    turns.learn(turns.request(slots), [claim_of(0, data.draw(st.sampled_from(names)))])
    ready = Counter({(0, name): 10_000 for name in busy})
    unserved = set(busy)

    rounds = 0
    request = turns.request(slots)
    while unserved:
        rounds += 1
        # Of two pumps one asks before the other has its answer.
        later = turns.request(slots) if overlapping else None
        claims = served(request, ready)
        turns.learn(request, claims)
        unserved -= {claim.topic for claim in claims}
        request = later or turns.request(slots)

    # "Topics with ready jobs" is what the bound counts; those without cost nothing.
    assert rounds <= -(-len(busy) // slots) + 1


@given(st.dictionaries(st.tuples(st.integers(-2, 2), st.sampled_from("abcde")), st.integers(1, 20)), st.integers(1, 30))
def test_free_slots_are_filled_from_the_highest_priority_down(counts: dict[tuple[int, str], int], slots: int) -> None:
    claims = served(Turns("abcde").request(slots), Counter(counts))

    waiting = sorted((priority for (priority, _), number in counts.items() for _ in range(number)), reverse=True)
    assert sorted((claim.priority for claim in claims), reverse=True) == waiting[:slots]


def test_topics_of_one_priority_take_turns_though_a_higher_one_interleaves() -> None:
    turns = Turns(["a", "b", "c"])
    ready: Ready = Counter({(0, "b"): 100, (0, "c"): 100})
    taken: list[str] = []

    for number in range(6):
        if number % 2 == 0:
            ready[1, "a"] += 1
        request = turns.request(1)
        answer = served(request, ready)
        turns.learn(request, answer)
        taken += [claim.topic for claim in answer]

    assert taken == ["a", "b", "a", "c", "a", "b"]


def test_a_lone_busy_topic_among_many_gets_every_slot() -> None:
    turns = Turns([f"t{n}" for n in range(50)])

    assert len(served(turns.request(100), Counter({(0, "t7"): 10_000}))) == 100


def test_one_free_slot_asks_each_branch_once() -> None:
    assert len(Turns([f"t{n}" for n in range(50)]).request(1).branches) == 5 * 50


def marks(request: Request) -> set[tuple[int, str, int]]:
    return {(one.priority, one.topic, one.after[1].int) for one in request.branches if one.after is not None}


def test_a_claim_goes_on_where_the_last_one_of_its_branch_ended() -> None:
    turns = Turns(["a", "b"])
    turns.learn(turns.request(3), [claim_of(0, "a", 1), claim_of(0, "a", 4), claim_of(-1, "b", 2)])

    assert marks(turns.request(3, from_left=False)) == {(0, "a", 4), (-1, "b", 2)}
    assert marks(turns.request(3)) == set()


def test_an_answer_that_comes_late_moves_no_mark_back_unless_it_looked_from_the_left() -> None:
    turns = Turns(["a"])
    turns.learn(turns.request(1), [claim_of(0, "a", 1)])
    early, late = turns.request(1, from_left=False), turns.request(1, from_left=False)
    turns.learn(late, [claim_of(0, "a", 8)])
    turns.learn(early, [claim_of(0, "a", 5)])
    assert marks(turns.request(1, from_left=False)) == {(0, "a", 8)}

    # What a look from the left finds may have more like it behind the mark.
    turns.learn(turns.request(1), [claim_of(0, "a", 3)])
    assert marks(turns.request(1, from_left=False)) == {(0, "a", 3)}


def test_what_was_forgotten_is_looked_for_from_the_left() -> None:
    turns = Turns(["a"])
    turns.learn(turns.request(1), [claim_of(0, "a", 1)])
    turns.forget()

    assert marks(turns.request(1, from_left=False)) == set()


def test_with_many_topics_a_level_is_asked_only_where_something_is_ready() -> None:
    few, many = Turns("abcd"), Turns("abcde")
    assert all(few.request(1).sure)
    assert not any(many.request(1).sure)

    many.learn(many.request(1), [claim_of(1, "a", 1)])
    assert many.request(1, from_left=False).sure == [False, True, False, False, False]
