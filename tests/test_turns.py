from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.worker.turns import Request, Turns

Ready = Counter[tuple[int, str]]
Taken = list[tuple[int, str]]


def served(request: Request, ready: Ready) -> Taken:
    """
    Answer a request as the claim does: branch by branch, without the rows that were taken already.
    """
    taken: Taken = []
    for priority, topic, skip, limit in request.branches:
        kind = priority, topic
        left = ready[kind] - taken.count(kind) if skip else ready[kind]
        taken += [kind] * min(limit, left, request.want - len(taken))
    ready.subtract(taken)
    return taken


@given(st.integers(1, 30), st.integers(1, 40), st.data())
def test_every_topic_with_work_is_served_within_its_bound(topics: int, slots: int, data: st.DataObject) -> None:
    names = [f"t{n}" for n in range(topics)]
    busy = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    turns = Turns(names)
    turns.learn([(0, data.draw(st.sampled_from(names)))])
    ready = Counter({(0, name): 10_000 for name in busy})
    unserved = set(busy)

    rounds = 0
    while unserved:
        rounds += 1
        taken = served(turns.request(slots), ready)
        turns.learn(taken)
        unserved -= {topic for _, topic in taken}

    # "Topics with ready jobs" is what the bound counts; those without cost nothing.
    assert rounds <= -(-len(busy) // slots) + 1


@given(st.dictionaries(st.tuples(st.integers(-2, 2), st.sampled_from("abcde")), st.integers(1, 20)), st.integers(1, 30))
def test_free_slots_are_filled_from_the_highest_priority_down(counts: dict[tuple[int, str], int], slots: int) -> None:
    taken = served(Turns("abcde").request(slots), Counter(counts))

    waiting = sorted((priority for (priority, _), number in counts.items() for _ in range(number)), reverse=True)
    assert sorted((priority for priority, _ in taken), reverse=True) == waiting[:slots]


def test_topics_of_one_priority_take_turns_though_a_higher_one_interleaves() -> None:
    turns = Turns(["a", "b", "c"])
    ready: Ready = Counter({(0, "b"): 100, (0, "c"): 100})
    taken: Taken = []

    for number in range(6):
        if number % 2 == 0:
            ready[1, "a"] += 1
        answer = served(turns.request(1), ready)
        turns.learn(answer)
        taken += answer

    assert [topic for _, topic in taken] == ["a", "b", "a", "c", "a", "b"]


def test_a_lone_busy_topic_among_many_gets_every_slot() -> None:
    turns = Turns([f"t{n}" for n in range(50)])

    assert len(served(turns.request(100), Counter({(0, "t7"): 10_000}))) == 100


def test_one_free_slot_asks_each_branch_once() -> None:
    assert len(Turns([f"t{n}" for n in range(50)]).request(1).branches) == 5 * 50
