"""The awaitable face: the same promises on one event loop, without threads."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

import cometmq
from cometmq import Closed, Message, OutcomeUnknown, Refused, SendResult, aio
from cometmq.aio import Admin, Producer, PullConsumer
from cometmq.batch import parse
from cometmq.client.flows import Waitable
from cometmq.protocol import Failure, Operation, Status
from cometmq.testing import EmbeddedBroker
from cometmq.testing.scripted_broker import Answer, ScriptedBroker

SEND = Operation.SEND
ADDRESS = "scripted://broker"


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on a fresh loop that reports what is left behind."""
    asyncio.run(asyncio.wait_for(work, 60), debug=True)


@pytest.mark.parametrize("name", ["Admin", "Consumer", "Producer", "PullConsumer"])
def test_both_faces_have_the_same_names_arguments_and_defaults(name: str) -> None:
    def methods(kind: type) -> dict[str, list[inspect.Parameter]]:
        names = ["__init__", *(each for each in dir(kind) if not each.startswith("_"))]
        found = {each: getattr(kind, each) for each in names}
        return {
            each: list(inspect.signature(function).parameters.values())
            for each, function in found.items()
            if callable(function)
        }

    assert methods(getattr(aio, name)) == methods(getattr(cometmq, name))


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_there_and_back(listen: str | None) -> None:
    async def work(address: str) -> None:
        threads = threading.active_count()
        async with Producer(address) as producer:
            first = await producer.send(Message("orders", b"0", tag="paid"), level="disk")
            assert (first.topic, first.queue, first.offset, first.level) == ("orders", 0, 0, "disk")
            receipts = [await producer.send_soon(Message("orders", b"soon")) for _ in range(100)]
            await producer.flush()
            assert all(receipt.done() for receipt in receipts)
            results = await asyncio.gather(*receipts)
            assert len({(result.queue, result.offset) for result in results}) == 100
            many = await producer.send_many([Message("orders", b"many")] * 100)
            assert all(isinstance(outcome, SendResult) for outcome in many)
            await producer.send_one_way(Message("orders", b"one way"))
            await producer.flush()
        async with PullConsumer(address, group="billing", topic="orders") as consumer:
            count = 0
            while count < 202:
                messages = await consumer.poll(timeout=10)
                assert messages
                count += len(messages)
            await consumer.commit()
            committed = await consumer.committed()
            assert sum(offset or 0 for offset in committed.values()) == 202
            assert await consumer.position(0) == committed["orders", 0]
            await consumer.seek_to_earliest()
            assert await consumer.poll(timeout=10)
        async with Admin(address) as admin:
            assert (await admin.describe_topic("orders")).info.queues == 4
            assert await admin.committed("billing", "orders") == {
                queue: offset for (_, queue), offset in committed.items()
            }
        assert threading.active_count() == threads

    with EmbeddedBroker(listen=listen) as broker:
        run(work(broker.address))


def test_a_receipt_is_awaited_not_waited_for() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        async with Producer(ADDRESS, connect=broker.connect) as producer:
            broker.hold(SEND)
            receipt = await producer.send_soon(Message("orders", b"x"))
            with pytest.raises(RuntimeError, match="await"):
                receipt.result()
            waiting = asyncio.ensure_future(_result(receipt))
            await asyncio.sleep(0)
            (request,) = broker.asked(SEND)
            request.answer(Answer(broker.store(request)))
            assert (await waiting).offset == 0
            assert receipt.result().offset == 0

    run(work())


def test_what_is_handed_over_in_one_go_travels_together() -> None:
    async def work() -> None:
        broker = ScriptedBroker(queues=1)
        async with Producer(ADDRESS, connect=broker.connect, linger_ms=60_000) as producer:
            for awaited in (True, False):  # whether somebody asks for a result
                before = len(broker.asked(SEND))
                receipts = [await producer.send_soon(Message("orders", b"x")) for _ in range(10)]
                if awaited:
                    await asyncio.gather(*receipts)
                while not all(receipt.done() for receipt in receipts):
                    await asyncio.sleep(0)
                (request,) = broker.asked(SEND)[before:]
                assert [parse(view).count for view in request.batches] == [10]

    run(work())


def test_a_send_that_is_awaited_goes_at_once() -> None:
    async def work() -> None:
        broker = ScriptedBroker(queues=1)
        async with Producer(ADDRESS, connect=broker.connect) as producer:
            await producer.send(Message("orders", b"first"))
            broker.hold(SEND)
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
            await asyncio.sleep(0)
            (request,) = broker.asked(SEND)[1:]
            request.answer(Answer(broker.store(request)))
            assert (await sending).offset == 1

    run(work())


def test_a_receipt_can_be_asked_after_its_producer_was_closed() -> None:
    async def work() -> None:
        async with Producer(ADDRESS, connect=ScriptedBroker().connect) as producer:
            receipt = await producer.send_soon(Message("orders", b"x"))
        told: list[object] = []
        receipt.add_done_callback(told.append)
        assert told == [receipt]
        assert (await receipt).offset == 0

    run(work())


async def _result(receipt: Any) -> SendResult:
    result: SendResult = await receipt
    return result


def test_a_cancelled_wait_harms_nobody() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        async with PullConsumer(ADDRESS, connect=broker.connect, topic="orders") as consumer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(timeout=30), 0.05)
            assert await consumer.poll(timeout=0.01) == []

    run(work())


def test_closing_ends_what_waits() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        consumer = PullConsumer(ADDRESS, connect=broker.connect, topic="orders")
        waiting = asyncio.ensure_future(consumer.poll(timeout=30))
        await asyncio.sleep(0.02)
        await consumer.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await consumer.poll()

    run(work())


def test_what_a_poll_found_as_it_was_cancelled_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        with EmbeddedBroker() as broker:
            async with (
                Producer(broker.address) as producer,
                PullConsumer(broker.address, topic="orders") as consumer,
            ):
                await producer.send(Message("orders", b"x"))
                driver = consumer._driver
                run_flow = driver.run

                async def cancelled(flow: Any) -> Any:
                    await run_flow(flow)
                    raise asyncio.CancelledError

                with monkeypatch.context() as patch:
                    patch.setattr(driver, "run", cancelled)
                    with pytest.raises(asyncio.CancelledError):
                        await consumer.poll(timeout=10)
                assert [message.body for message in await consumer.poll(timeout=10)] == [b"x"]

    run(work())


def test_who_waits_in_pieces_leaves_nothing_behind() -> None:
    """A worker of an idle consumer looks twice a second, be it for weeks."""

    async def work() -> None:
        async with Producer(ADDRESS, connect=ScriptedBroker().connect) as producer:
            news: Waitable[None] = Waitable()
            for _ in range(3):
                assert not await producer._driver.wait(news, 0.001)
            assert not news._waiters
            news.resolve(None)
            assert await producer._driver.wait(news, 0.001)

    run(work())


def test_a_consumer_whose_commit_found_no_end_can_be_closed_twice() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        consumer = PullConsumer(ADDRESS, connect=broker.connect, topic="orders", group="g")
        await consumer.seek(1, 0)
        later = Answer(Failure("later", 5_000), Status.RETRY)
        broker.answer_once(Operation.COMMIT, later)
        await consumer.commit(wait=False)
        for _ in range(2):
            await consumer.close()

    run(work())


def test_a_close_in_time_reports_what_is_left() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        broker.hold(SEND)
        producer = Producer(ADDRESS, connect=broker.connect)
        receipt = await producer.send_soon(Message("orders", b"x"))
        with pytest.raises(OutcomeUnknown):
            await producer.close(timeout=0.02)
        with pytest.raises(OutcomeUnknown):
            await receipt

    run(work())


def test_a_lost_connection_is_made_again() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        async with Producer(ADDRESS, connect=broker.connect) as producer:
            await producer.send(Message("orders", b"0"))
            broker.break_connection()
            assert (await producer.send(Message("orders", b"1"))).queue == 1
            assert len(broker.channels) == 2

    run(work())


def test_errors_are_those_of_the_sync_face() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        async with Producer(ADDRESS, connect=broker.connect) as producer:
            with pytest.raises(Refused, match="topic name"):
                await producer.send(Message("no spaces", b""))

    run(work())


def test_callbacks_run_in_the_loop() -> None:
    async def work() -> None:
        broker = ScriptedBroker()
        async with Producer(ADDRESS, connect=broker.connect) as producer:
            receipt = await producer.send_soon(Message("orders", b"x"))
            seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            receipt.add_done_callback(seen.set_result)
            assert await seen is receipt

    run(work())


UNCLOSED = """
import asyncio
from cometmq.aio import PullConsumer
from cometmq.testing.scripted_broker import ScriptedBroker

async def work():
    broker = ScriptedBroker()
    consumer = PullConsumer("scripted://b", connect=broker.connect, topic="orders", group="g")
    for offset in (1, 2):
        await consumer.seek(offset, 0)
        await consumer.commit(wait=False)

asyncio.run(work())
"""


def test_a_consumer_that_nobody_closes_says_that_its_commits_did_not_arrive() -> None:
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("at exit: commits in the background") == 1
