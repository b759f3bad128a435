"""The sans-IO connection: hello, requests until answered, deadlines, reconnects, heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cometmq import protocol
from cometmq.client.calls import Call
from cometmq.client.connection import GREETING_TIMEOUT_S
from cometmq.client.signs_of_life import HEARTBEAT_MIN_S
from cometmq.environment import Buffer
from cometmq.errors import (
    Closed,
    ConfigError,
    Fenced,
    NotAvailable,
    OutcomeUnknown,
    Refused,
    Retryable,
)
from cometmq.interfaces import Channel, Limits
from cometmq.protocol import Operation, Status
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_broker import Answer

HELLO = Operation.HELLO
CREATE = Operation.TOPIC_CREATE
LIST = Operation.TOPIC_LIST


def create(rig: ClientRig, timeout_s: float = 30.0) -> Call[protocol.TopicDescription]:
    """A request that changes something."""
    header = protocol.TopicCreate("orders")
    deadline_s = rig.engine.now_s() + timeout_s
    return rig.engine.call(CREATE, header, protocol.TopicDescription, deadline_s)


def listing(rig: ClientRig, timeout_s: float = 30.0) -> Call[protocol.TopicListing]:
    """A request that only reads."""
    header = protocol.TopicList()
    deadline_s = rig.engine.now_s() + timeout_s
    return rig.engine.call(LIST, header, protocol.TopicListing, deadline_s)


def test_nothing_is_connected_before_it_is_needed() -> None:
    rig = ClientRig()
    rig.pass_time(60)
    assert not rig.broker.channels


def test_hello_goes_first_and_requests_wait_for_its_answer() -> None:
    rig = ClientRig()
    rig.broker.hold(HELLO)
    call = create(rig)
    rig.step()
    assert [request.operation for request in rig.broker.requests] == [HELLO]
    hello = rig.broker.requests[0].header
    assert isinstance(hello, protocol.Hello)
    assert hello.client_id == rig.engine.connection.client_id and hello.client_epoch == 1
    rig.broker.requests[0].answer(rig.broker.default(rig.broker.requests[0]) or pytest.fail())
    rig.step()
    assert call.done and call.result().info.topic == "orders"


def test_what_is_unanswered_goes_again_over_the_next_channel() -> None:
    rig = ClientRig()
    rig.broker.hold(CREATE)
    call = create(rig)
    rig.step()
    rig.broker.break_connection()
    rig.step()
    assert rig.broker.channels[0].closed
    rig.broker.on.clear()
    rig.pass_time(1)
    assert call.result().info.topic == "orders"
    first, second = rig.broker.asked(CREATE)
    assert first.id == second.id and first.channel is not second.channel
    epochs = [r.header.client_epoch for r in rig.broker.asked(HELLO)]  # type: ignore[attr-defined]
    assert epochs == [1, 2]


def test_a_refused_repeat_is_unknown_since_the_first_may_have_worked() -> None:
    rig = ClientRig()
    rig.broker.hold(CREATE)
    call = create(rig)
    rig.step()
    rig.broker.break_connection()
    rig.broker.on[CREATE] = lambda request: request.fail(Status.TOPIC_EXISTS, "it exists")
    rig.pass_time(1)
    with pytest.raises(OutcomeUnknown, match="it exists"):
        call.result()


def test_a_refused_repeat_of_a_question_stays_refused() -> None:
    rig = ClientRig()
    rig.broker.hold(LIST)
    call = listing(rig)
    rig.step()
    rig.broker.break_connection()
    rig.broker.on[LIST] = lambda request: request.fail(Status.NOT_AUTHORIZED, "not you")
    rig.pass_time(1)
    with pytest.raises(Refused, match="not you") as caught:
        call.result()
    assert caught.value.code == "NOT_AUTHORIZED"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.TOPIC_EXISTS, Refused),
        (Status.FENCED, Fenced),
        (Status.UNKNOWN_OPERATION, NotAvailable),
        (Status.STOPPING, Retryable),
        (Status.NO_SPACE, Retryable),
        (Status.DISK_REFUSED, Retryable),
        (999, Refused),
    ],
)
def test_a_status_becomes_what_the_caller_can_do(status: int, kind: type[Exception]) -> None:
    rig = ClientRig()
    rig.broker.on[CREATE] = lambda request: request.fail(status, "so it is")
    call = create(rig)
    rig.step()
    assert type(call.error) is kind and "so it is" in str(call.error)


def test_deadline_of_a_change_that_went_out_is_unknown() -> None:
    rig = ClientRig()
    rig.broker.hold(CREATE)
    call = create(rig, timeout_s=3)
    rig.pass_time(2.9)
    assert not call.done
    rig.pass_time(0.2)
    with pytest.raises(OutcomeUnknown, match="topic create"):
        call.result()


def test_deadline_of_a_question_is_retryable() -> None:
    rig = ClientRig()
    rig.broker.hold(LIST)
    call = listing(rig, timeout_s=3)
    rig.pass_time(3.1)
    with pytest.raises(Retryable) as caught:
        call.result()
    assert caught.value.code == "TIMEOUT"


def test_deadline_of_a_change_that_never_went_out_is_retryable_and_says_why() -> None:
    rig = ClientRig()
    rig.broker.down = ("refused", "nobody listens there")
    call = create(rig, timeout_s=3)
    rig.pass_time(3.1)
    with pytest.raises(Retryable, match="nobody listens there") as caught:
        call.result()
    assert caught.value.code == "NOT_CONNECTED" and "mq run" in str(caught.value)
    assert str(caught.value).startswith("nobody listens there, so the topic create request")


def test_a_name_that_nobody_has_is_no_reason_to_start_a_broker() -> None:
    rig = ClientRig()
    rig.broker.down = ("unknown_host", "no host has that name")
    call = create(rig, timeout_s=3)
    rig.pass_time(3.1)
    with pytest.raises(Retryable, match=r"^no host has that name, so .*: mend the name") as caught:
        call.result()
    assert "mq run" not in str(caught.value)


def test_calls_that_had_long_and_were_answered_soon_leave_nothing_behind() -> None:
    rig = ClientRig()
    for _ in range(2000):
        listing(rig, 86_400.0)
        rig.step()
    assert not rig.engine.connection.pending
    assert len(rig.engine.connection._deadlines) < 600
    rig.broker.hold(LIST)
    late = listing(rig, 1.0)
    rig.pass_time(2.0)
    assert isinstance(late.error, Retryable), "what is still waited for is still told of"


def test_a_broker_that_stays_away_is_told_of_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "cometmq.client.presence")
    rig = ClientRig()
    rig.broker.down = ("refused", "nobody listens there")
    call = create(rig)
    rig.pass_time(0.9)
    assert not caplog.messages
    rig.pass_time(5.0)
    assert caplog.messages == ["waiting for a broker: nobody listens there"]
    rig.broker.down = None
    rig.pass_time(5.0)
    assert call.done
    assert caplog.messages[1:] == ["the broker at scripted://broker is there"]


def test_a_log_in_doubt_is_told_of_once_and_not_as_it_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = ClientRig()
    rig.broker.in_doubt = "a segment is damaged\x1b[2J"
    for _ in range(2):
        create(rig)
        rig.pass_time(5.0)
        rig.broker.break_connection()
    (said,) = [message for message in caplog.messages if "may hold more" in message]
    assert "a segment is damaged" in said and "\x1b" not in said


def test_a_broker_that_is_soon_back_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cometmq.client.presence")
    rig = ClientRig()
    rig.broker.down = ("refused", "nobody listens there")
    call = create(rig)
    rig.pass_time(0.5)
    rig.broker.down = None
    rig.pass_time(5.0)
    assert call.done and not caplog.messages


def test_tries_to_connect_come_slower_and_out_of_step() -> None:
    rig = ClientRig()
    rig.broker.down = ("refused", "nobody listens there")
    call = listing(rig, timeout_s=1000)
    counts = []
    for _ in range(4):
        rig.pass_time(30)
        counts.append(len(rig.broker.channels))
    assert counts[0] >= 8, "quick at first"
    later = counts[3] - counts[2]
    assert 6 <= later <= 12, "every 2.5 to 5 s in the end"
    rig.broker.down = None
    rig.pass_time(6)
    assert call.done


def test_a_session_that_the_broker_forgot_is_opened_anew() -> None:
    rig = ClientRig()
    answer = Answer(protocol.Failure("say hello"), Status.HELLO_REQUIRED)
    rig.broker.answer_once(CREATE, answer)
    call = create(rig)
    rig.pass_time(1)
    assert call.result().info.topic == "orders"
    assert len(rig.broker.channels) == 2 and len(rig.broker.asked(HELLO)) == 2


def test_a_refused_hello_ends_what_waits() -> None:
    rig = ClientRig()
    rig.broker.on[HELLO] = lambda request: request.fail(Status.NOT_AUTHENTICATED, "who are you")
    call = create(rig)
    rig.step()
    with pytest.raises(Refused, match="who are you"):
        call.result()


def test_a_hello_put_off_is_repeated() -> None:
    rig = ClientRig()
    answer = Answer(protocol.Failure("starting", 10), Status.RETRY)
    rig.broker.answer_once(HELLO, answer)
    call = create(rig)
    rig.pass_time(1)
    assert call.done and call.error is None


def test_a_hello_without_an_answer_is_given_up() -> None:
    rig = ClientRig()
    rig.broker.hold(HELLO)
    call = create(rig, timeout_s=60)
    rig.pass_time(GREETING_TIMEOUT_S + 1)
    assert len(rig.broker.channels) == 2
    rig.broker.on.clear()
    rig.pass_time(2 * GREETING_TIMEOUT_S)
    assert call.done and call.error is None


def test_failed_handshakes_in_a_row_are_an_error_within_a_second() -> None:
    rig = ClientRig()
    rig.broker.down = ("handshake_failed", "it speaks something else")
    call = create(rig)
    rig.pass_time(1)
    with pytest.raises(Retryable, match="something else") as caught:
        call.result()
    assert caught.value.code == "HANDSHAKE_FAILED"


def test_an_address_that_no_transport_takes_ends_what_waits() -> None:
    rig = ClientRig()

    def connect(address: str, limits: Limits) -> Channel:
        raise ConfigError("no such address")

    rig.engine._connect = connect
    call = create(rig)
    rig.step()
    with pytest.raises(ConfigError):
        call.result()


def test_unanswered_bytes_are_bounded_by_the_credit_of_hello() -> None:
    rig = ClientRig(limits=Limits(credit_bytes=10_000))
    rig.broker.hold(Operation.SEND)
    batch = bytes(4_000)
    header = protocol.Send([len(batch)], [0])
    deadline_s = rig.engine.now_s() + 30
    for _ in range(4):
        rig.engine.call(Operation.SEND, header, protocol.SendReply, deadline_s, [batch])
    rig.step()
    # The test's batches are no batches, and nobody looks: the broker holds its answers.
    assert len(rig.broker.asked(Operation.SEND)) == 2
    first, second = rig.broker.asked(Operation.SEND)
    first.answer(Answer(protocol.SendReply([])))
    second.answer(Answer(protocol.SendReply([])))
    rig.step()
    assert len(rig.broker.asked(Operation.SEND)) == 4


def test_one_request_larger_than_the_credit_goes_alone() -> None:
    rig = ClientRig(limits=Limits(credit_bytes=100))
    header = protocol.TopicList("x" * 500)
    deadline_s = rig.engine.now_s() + 30
    call = rig.engine.call(LIST, header, protocol.Empty, deadline_s)
    rig.step()
    assert call.done


def test_heartbeats_keep_an_idle_session() -> None:
    rig = ClientRig()
    create(rig)
    rig.pass_time(100)
    assert 9 <= len(rig.broker.asked(Operation.HEARTBEAT)) <= 10
    assert len(rig.broker.channels) == 1


@pytest.mark.parametrize(("answered", "least", "most"), [(True, 0, 0), (False, 9, 10)])
def test_heartbeats_are_for_those_who_say_nothing_else_or_hear_nothing(
    answered: bool, least: int, most: int
) -> None:
    rig = ClientRig()
    create(rig)
    if not answered:
        rig.broker.hold(LIST)
    for _ in range(100):
        listing(rig, timeout_s=300)
        rig.pass_time(1)
    assert least <= len(rig.broker.asked(Operation.HEARTBEAT)) <= most
    assert len(rig.broker.channels) == 1


def test_a_silent_broker_is_given_up_after_the_session_time() -> None:
    rig = ClientRig()
    rig.broker.hold(LIST)
    rig.broker.hold(Operation.HEARTBEAT)
    call = listing(rig, timeout_s=300)
    rig.pass_time(29)
    assert len(rig.broker.channels) == 1
    rig.broker.on.clear()
    rig.pass_time(12)
    assert len(rig.broker.channels) == 2 and call.done


def test_bytes_that_are_no_protocol_end_the_channel_not_the_client() -> None:
    rig = ClientRig()
    rig.broker.hold(CREATE)
    call = create(rig)
    rig.step()
    rig.broker.channels[0].deliver([b"\x00garbage"])
    rig.broker.on.clear()
    rig.pass_time(1)
    assert call.result().info.topic == "orders"
    assert len(rig.broker.channels) == 2


def test_a_channel_that_takes_nothing_for_a_while_is_asked_again() -> None:
    rig = ClientRig()
    rig.broker.full = True
    call = create(rig)
    rig.step()
    assert not rig.broker.requests
    rig.broker.full = False
    rig.pass_time(0.01)
    assert call.done


def test_closing_tells_unknown_from_closed_and_says_goodbye() -> None:
    rig = ClientRig()
    rig.broker.hold(CREATE)
    rig.broker.hold(LIST)
    out, question = create(rig), listing(rig)
    rig.step()
    never_out = create(rig)
    rig.engine.close(Closed("over"))
    with pytest.raises(OutcomeUnknown):
        out.result()
    for call in (question, never_out):
        with pytest.raises(Closed):
            call.result()
    assert rig.broker.requests[-1].operation == Operation.GOODBYE
    assert rig.broker.channels[0].closed
    with pytest.raises(Closed):
        create(rig)


def test_later_is_asked_again_until_the_deadline() -> None:
    rig = ClientRig()
    rig.broker.on[CREATE] = lambda request: request.fail(Status.RETRY, "not yet", 100)
    header = protocol.TopicCreate("orders")
    deadline_s = rig.engine.now_s() + 5
    task = rig.start(rig.engine.ask(CREATE, header, protocol.TopicDescription, deadline_s))
    rig.pass_time(6)
    with pytest.raises(Retryable, match="not yet"):
        task.result()
    assert 4 <= len(rig.broker.asked(CREATE)) <= 20


def test_a_broker_that_never_stops_talking_keeps_nobody_from_deadlines() -> None:
    rig = ClientRig()
    rig.broker.hold(LIST)
    call = listing(rig, timeout_s=1)
    rig.step()
    link = rig.broker.channels[0]
    rounds = 0
    junk = protocol.pack(999_999, Status.OK, protocol.Empty())

    def talk(max_messages: int = 256) -> list[Sequence[Buffer]]:
        nonlocal rounds
        rounds += 1
        assert rounds < 100, "it is listened to for ever"
        return [junk] * max_messages

    link.receive = talk  # type: ignore[method-assign]
    rig.step()
    assert rounds and not call.done
    assert rig.engine.next_s() <= rig.engine.now_s(), "there is more to come for"
    rig.step(1.0)
    with pytest.raises(Retryable, match="in time"):
        call.result()


def test_a_broker_cannot_ask_for_heartbeats_without_a_pause() -> None:
    rig = ClientRig()
    rig.broker.heartbeat_ms = 0
    create(rig)
    rig.step()
    assert rig.engine.next_s() >= rig.engine.now_s() + HEARTBEAT_MIN_S
    rig.pass_time(10 * HEARTBEAT_MIN_S)
    assert 9 <= len(rig.broker.asked(Operation.HEARTBEAT)) <= 10


def test_what_is_asked_for_again_happens_once_at_the_earliest_time() -> None:
    rig = ClientRig()
    happened: list[str] = []

    def one() -> None:
        happened.append("one")
        if len(happened) == 1:
            rig.engine.soon(one, 5)

    rig.engine.soon(one, 7)
    rig.engine.soon(one, 2)
    rig.engine.soon(one, 3)
    rig.engine.soon(lambda: happened.append("another"), 4)
    rig.pass_time(1.5)
    assert happened == []
    rig.pass_time(1)
    assert happened == ["one"]
    rig.engine.soon(one)
    rig.step()
    assert happened == ["one", "one"]
    rig.pass_time(60)
    assert happened == ["one", "one", "another"]


def test_a_broker_that_is_silent_from_the_start_is_told_from_none() -> None:
    rig = ClientRig()
    rig.broker.hold(HELLO)
    call = create(rig, timeout_s=1)
    rig.pass_time(1.1)
    with pytest.raises(Retryable, match="has not answered hello yet"):
        call.result()
