"""The group consumer's faces: handler threads and tasks, iteration, stop and close, for real."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from cometmq import Closed, Consumer, ReceivedMessage, Refused, aio, protocol
from cometmq.batch import RecordTuple, encode_messages
from cometmq.protocol import Operation, Status
from cometmq.testing.scripted_broker import Answer, ScriptedBroker
from cometmq.testing.scripted_groups import ScriptedGroups
from cometmq.testing.waiting import until

ADDRESS = "scripted://broker"
BORN_MS = 1_700_000_000_000


class Broker(ScriptedBroker):
    """Holds some messages from the beginning; every member gets queues 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = ScriptedGroups(self)
        self.groups.advise(("orders", 0), ("orders", 1))

    def fill(self, queue: int, *bodies: bytes) -> None:
        records: list[RecordTuple] = [(BORN_MS, body, "", (), {}) for body in bodies]
        self.put("orders", queue, encode_messages("orders", queue, records))


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Consumer]:
    with Consumer(ADDRESS, group="g", connect=broker.connect) as consumer:
        yield consumer


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- handlers in threads ----------------------------------------------------------------------


def test_run_calls_handlers_until_stop_and_close_leaves(broker: Broker) -> None:
    seen: list[bytes] = []
    broker.fill(0, *numbers(50))
    broker.fill(1, *numbers(50))
    with Consumer(ADDRESS, group="g", connect=broker.connect) as consumer:

        def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if len(seen) == 100:
                consumer.stop()

        consumer.subscribe("orders", handler=handle)
        consumer.run()
    assert sorted(seen) == sorted(numbers(50) * 2)
    assert broker.groups.tokens == {}
    assert [broker.groups.committed("g", "orders", queue) for queue in (0, 1)] == [50, 50]
    assert len(broker.asked(Operation.GROUP_LEAVE)) == 1


def test_as_many_messages_are_handled_at_a_time_as_there_are_workers(
    broker: Broker, consumer: Consumer
) -> None:
    meeting = threading.Barrier(4)
    broker.fill(0, *numbers(8))
    met: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        time.sleep(0.02)
        met.append(meeting.wait(20))

    consumer.subscribe("orders", handler=handle, workers=4)
    consumer.start()
    assert until(lambda: len(met) == 8)


def test_orderly_handles_one_message_of_a_queue_at_a_time(
    broker: Broker, consumer: Consumer
) -> None:
    seen: dict[int, list[bytes]] = {0: [], 1: []}
    inside: set[int] = set()
    broker.fill(0, *numbers(300))
    broker.fill(1, *numbers(300))
    overlaps: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        if message.queue in inside:
            overlaps.append(message.offset)
        inside.add(message.queue)
        seen[message.queue].append(message.body)
        if message.offset % 50 == 0:
            time.sleep(0.001)
        inside.discard(message.queue)

    consumer.subscribe("orders", handler=handle, workers=8, orderly=True)
    consumer.start()
    assert until(lambda: len(seen[0]) + len(seen[1]) == 600)
    assert seen == {0: numbers(300), 1: numbers(300)}
    assert not overlaps


def test_a_handler_that_exits_ends_the_consumer(broker: Broker, consumer: Consumer) -> None:
    broker.fill(0, b"x")

    def handle(message: ReceivedMessage) -> None:
        raise SystemExit(3)

    consumer.subscribe("orders", handler=handle, workers=1)
    with pytest.raises(SystemExit):
        consumer.run()
    consumer.close(timeout=0.05)


def test_a_subscription_may_come_while_it_runs(broker: Broker, consumer: Consumer) -> None:
    seen: list[bytes] = []
    consumer.subscribe("letters", handler=lambda message: None)
    consumer.start()
    broker.fill(0, b"a")
    consumer.subscribe("orders", handler=lambda message: seen.append(message.body))
    broker.groups.advise(("orders", 0))
    assert until(lambda: seen == [b"a"])


def test_what_the_group_refuses_is_raised_by_run(broker: Broker, consumer: Consumer) -> None:
    failure = protocol.Failure("members subscribe something else")
    broker.answer_once(Operation.GROUP_HEARTBEAT, Answer(failure, Status.REFUSED))
    consumer.subscribe("orders", handler=lambda message: None)
    with pytest.raises(Refused, match="something else"):
        consumer.run()


def test_a_closed_consumer_says_so(broker: Broker) -> None:
    consumer = Consumer(ADDRESS, group="g", connect=broker.connect)
    consumer.close()
    consumer.close()
    consumer.stop()
    with pytest.raises(Closed):
        consumer.subscribe("orders")


def test_close_waits_for_handlers_and_not_longer_than_it_was_told(broker: Broker) -> None:
    broker.fill(0, b"x")
    entered, leave = threading.Event(), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        entered.set()
        leave.wait(20)

    consumer = Consumer(ADDRESS, group="g", connect=broker.connect)
    consumer.subscribe("orders", handler=handle)
    consumer.start()
    assert entered.wait(20)
    threading.Timer(0.05, leave.set).start()
    consumer.close()
    assert broker.groups.committed("g", "orders", 0) == 1

    entered.clear()
    leave.clear()
    broker.fill(0, b"y")
    consumer = Consumer(ADDRESS, group="g", connect=broker.connect)
    consumer.subscribe("orders", handler=handle)
    consumer.start()
    assert entered.wait(20)
    consumer.close(timeout=0.05)
    leave.set()
    assert broker.groups.committed("g", "orders", 0) == 1


def test_an_idle_member_closes_at_once(broker: Broker) -> None:
    consumer = Consumer(ADDRESS, group="g", connect=broker.connect)
    consumer.subscribe("orders", handler=lambda message: None)
    consumer.start()
    assert until(lambda: len(consumer.queues) == 2)
    before_s = time.monotonic()
    consumer.close()
    assert time.monotonic() - before_s < 5
    assert len(broker.asked(Operation.GROUP_LEAVE)) == 1


# --- iteration --------------------------------------------------------------------------------


def test_iteration_hands_out_and_acks(broker: Broker) -> None:
    broker.fill(0, *numbers(20))
    broker.fill(1, *numbers(20))
    count = 0
    with Consumer(ADDRESS, group="g", connect=broker.connect) as consumer:
        consumer.subscribe("orders")
        for message in consumer:
            message.ack()
            count += 1
            if count == 40:
                break
        assert consumer.receive(timeout=0.02) is None
        consumer.commit()
        assert broker.groups.committed("g", "orders", 0) == 20
    assert broker.groups.tokens == {}


def test_what_was_not_acknowledged_is_not_committed(broker: Broker) -> None:
    broker.fill(0, *numbers(5))
    with Consumer(ADDRESS, group="g", connect=broker.connect) as consumer:
        consumer.subscribe("orders")
        first = consumer.receive(timeout=20)
        second = consumer.receive(timeout=20)
        assert first is not None and second is not None
        assert (first.body, second.body, second.topic, second.queue) == (b"0", b"1", "orders", 0)
        first.ack()
    assert broker.groups.committed("g", "orders", 0) == 1


def test_stop_ends_the_iteration(broker: Broker, consumer: Consumer) -> None:
    consumer.subscribe("orders")
    threading.Timer(0.05, consumer.stop).start()
    assert list(consumer) == []


def test_pause_and_resume(broker: Broker, consumer: Consumer) -> None:
    consumer.subscribe("orders")
    consumer.pause("orders")
    broker.fill(0, b"a")
    assert consumer.receive(timeout=0.1) is None
    assert len(consumer.queues) == 2
    consumer.resume()
    message = consumer.receive(timeout=20)
    assert message is not None and message.body == b"a"


# --- aio --------------------------------------------------------------------------------------


def aio_consumer(broker: Broker) -> aio.Consumer:
    return aio.Consumer(ADDRESS, group="g", connect=broker.connect)


@pytest.mark.parametrize("awaits", [True, False])
def test_aio_handlers(broker: Broker, awaits: bool) -> None:
    broker.fill(0, *numbers(50))
    broker.fill(1, *numbers(50))
    seen: list[bytes] = []

    async def main() -> None:
        async with aio_consumer(broker) as consumer:

            def plain(message: ReceivedMessage) -> None:
                seen.append(message.body)
                if len(seen) == 100:
                    consumer.stop()

            async def waiting(message: ReceivedMessage) -> None:
                await asyncio.sleep(0)
                plain(message)

            consumer.subscribe("orders", handler=waiting if awaits else plain)
            await consumer.run()

    asyncio.run(main())
    assert sorted(seen) == sorted(numbers(50) * 2)
    assert [broker.groups.committed("g", "orders", queue) for queue in (0, 1)] == [50, 50]
    assert len(broker.asked(Operation.GROUP_LEAVE)) == 1


def test_aio_handlers_that_fail_are_called_again(broker: Broker) -> None:
    broker.fill(0, *numbers(3))
    seen: list[bytes] = []

    async def main() -> None:
        async with aio_consumer(broker) as consumer:

            async def handle(message: ReceivedMessage) -> None:
                seen.append(message.body)
                if seen.count(b"1") == 1 and message.body == b"1":
                    raise ValueError("not now")
                if message.body == b"2":
                    consumer.stop()

            consumer.subscribe("orders", handler=handle, orderly=True)
            await consumer.run()

    asyncio.run(main())
    assert seen == [b"0", b"1", b"1", b"2"]
    assert broker.groups.committed("g", "orders", 0) == 3


def test_aio_iteration(broker: Broker) -> None:
    broker.fill(0, *numbers(20))

    async def first(consumer: aio.Consumer, count: int) -> AsyncIterator[bytes]:
        async for message in consumer:
            message.ack()
            yield message.body
            count -= 1
            if not count:
                return

    async def main() -> None:
        async with aio_consumer(broker) as consumer:
            consumer.subscribe("orders")
            assert [body async for body in first(consumer, 20)] == numbers(20)
            assert await consumer.receive(timeout=0.02) is None
            await consumer.commit()
            assert broker.groups.committed("g", "orders", 0) == 20
            consumer.pause()
            broker.fill(0, b"a")
            assert await consumer.receive(timeout=0.02) is None
            consumer.stop()
            assert await consumer.receive() is None

    asyncio.run(main())
    assert broker.groups.tokens == {}


def test_aio_raises_what_the_group_refuses(broker: Broker) -> None:
    failure = protocol.Failure("members subscribe something else")
    broker.answer_once(Operation.GROUP_HEARTBEAT, Answer(failure, Status.REFUSED))

    async def main() -> None:
        async with aio_consumer(broker) as consumer:
            consumer.subscribe("orders", handler=lambda message: None)
            with pytest.raises(Refused, match="something else"):
                await consumer.run()

    asyncio.run(main())
