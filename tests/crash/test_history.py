"""The history checker: a right history passes, and each way of being wrong has its name."""

from __future__ import annotations

import msgspec
import pytest

from cometmq.testing.history import (
    Anomaly,
    AnomalyKind,
    History,
    Jump,
    Seen,
    Send,
    check_history,
    describe,
)


def value(queue: int, offset: int) -> bytes:
    return b"%d-%d" % (queue, offset)


def right() -> History:
    """Two queues of five, all acknowledged and seen by a consumer and the last reader."""
    history = History()
    for queue in (0, 1):
        for offset in range(5):
            said = value(queue, offset)
            history.sends.append(
                Send(f"p{queue}", offset, said, "ok", queue, offset, "disk", life=1)
            )
            history.final.append(Seen(queue, offset, said))
    history.polls["c"] = list(history.final)
    return history


def kinds(anomalies: list[Anomaly]) -> list[AnomalyKind]:
    return [anomaly.kind for anomaly in anomalies]


def remove(history: History, *offsets: int) -> None:
    """Offsets of queue 0 that nobody finds any more; the rest of it is told as a jump."""
    gone = {value(0, offset) for offset in offsets}
    history.final = [seen for seen in history.final if seen.value not in gone]
    history.polls = {}


def change_send(history: History, at: int, **changes: object) -> None:
    history.sends[at] = msgspec.structs.replace(history.sends[at], **changes)


def test_a_right_history_has_no_anomaly() -> None:
    assert check_history(right(), repeats=False) == []
    assert check_history(History()) == []


@pytest.mark.parametrize("outcome", ["unknown", "failed"])
def test_what_was_not_acknowledged_may_be_missing(outcome: str) -> None:
    history = right()
    change_send(history, 4, outcome=outcome, queue=-1, offset=-1)
    remove(history, 4)
    assert check_history(history, repeats=False) == []


def test_the_unknown_may_be_there() -> None:
    history = right()
    change_send(history, 2, outcome="unknown", queue=-1, offset=-1)
    assert check_history(history, repeats=False) == []


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([0], ["lost-first"]),
        ([2], ["lost-middle", "poll-skipped"]),
        ([3, 4], ["lost-last", "lost-last"]),
        ([0, 1, 2, 3, 4], ["lost-last"] * 5),
    ],
)
def test_what_is_lost_is_told_by_its_place(offsets: list[int], expected: list[str]) -> None:
    history = right()
    remove(history, *offsets)
    found = check_history(history)
    assert kinds(found) == expected
    lost = [anomaly for anomaly in found if anomaly.kind.startswith("lost")]
    assert [(anomaly.queue, anomaly.offset) for anomaly in lost] == [(0, o) for o in offsets]


def test_a_weak_level_may_lose_the_last_ones_of_a_life() -> None:
    history = right()
    for at in (2, 3, 4):
        change_send(history, at, level="memory")
    remove(history, 3, 4)
    assert check_history(history, sure=("disk",)) == []
    assert kinds(check_history(history)) == ["lost-last"] * 2


def test_a_weak_level_may_not_lose_one_before_another() -> None:
    history = right()
    for at in range(5):
        change_send(history, at, level="memory")
    remove(history, 2)
    assert "lost-middle" in kinds(check_history(history, sure=("disk",)))


def test_the_place_of_a_lost_weak_one_may_be_taken() -> None:
    history = right()
    history.sends.append(Send("q", 0, b"early", "ok", 0, 4, "memory", life=0))
    history.polls["early"] = [Seen(0, 4, b"early")]
    assert check_history(history, sure=("disk",)) == []
    assert "inconsistent-offset" in kinds(check_history(history))


def test_a_duplicate_counts_unless_repeats_are_allowed() -> None:
    history = right()
    history.final.append(Seen(0, 5, value(0, 4)))
    assert kinds(check_history(history, repeats=False)) == ["duplicate"]
    assert check_history(history, repeats=True) == []


def test_what_nobody_sent_is_unexpected() -> None:
    history = right()
    history.final.append(Seen(0, 5, b"stranger"))
    (found,) = check_history(history)
    assert (found.kind, found.queue, found.offset) == ("unexpected", 0, 5)


def test_what_was_refused_is_unexpected_also_when_only_polled() -> None:
    history = right()
    history.sends.append(Send("p0", 5, b"refused", "failed"))
    history.polls["c"].append(Seen(0, 5, b"refused"))
    (found,) = check_history(history)
    assert found.kind == "unexpected" and "not stored" in found.text


def test_two_values_at_one_offset() -> None:
    history = right()
    history.polls["c"][1] = Seen(0, 1, value(1, 1))
    assert kinds(check_history(history)) == ["inconsistent-offset"]


def test_an_acknowledged_place_that_is_another_ones() -> None:
    history = right()
    change_send(history, 1, offset=7)
    assert kinds(check_history(history)) == ["inconsistent-offset"]


def test_an_acknowledgement_at_a_place_with_another_value() -> None:
    history = right()
    change_send(history, 1, offset=2)
    assert "inconsistent-offset" in kinds(check_history(history))


def test_order_is_per_producer_and_queue() -> None:
    history = right()
    change_send(history, 1, number=3)
    change_send(history, 3, number=1)
    assert kinds(check_history(history)) == ["order", "order"]
    change_send(history, 1, producer="other")
    change_send(history, 3, producer="another")
    assert check_history(history) == []


def test_a_repeat_behind_later_messages_breaks_no_order() -> None:
    history = right()
    history.final.append(Seen(0, 5, value(0, 1)))
    assert check_history(history) == []


def test_a_poll_that_goes_back() -> None:
    history = right()
    history.polls["c"].append(Seen(0, 2, value(0, 2)))
    assert kinds(check_history(history)) == ["poll-backwards"]
    history.polls["c"].insert(-1, Jump(0, 2))
    assert check_history(history) == []


def test_a_poll_that_skips() -> None:
    history = right()
    del history.polls["c"][2]
    assert kinds(check_history(history)) == ["poll-skipped"]
    history.polls["c"].insert(2, Jump(0, 3))
    assert check_history(history) == []


def test_values_must_be_unique() -> None:
    history = right()
    change_send(history, 1, value=value(0, 0))
    with pytest.raises(ValueError, match="one value"):
        check_history(history)


def test_a_description_names_the_first_ones() -> None:
    history = right()
    remove(history, 3, 4)
    text = describe(check_history(history), most=1)
    assert text.startswith("2 anomalies\nlost-last at queue 0 offset 3: b'0-3' was acknowledged")
    assert text.endswith("… and 1 more")
