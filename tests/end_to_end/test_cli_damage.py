"""What `mq consume` makes of a damaged segment: the other queues, and one sentence for a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer, PullConsumer
from cometmq.errors import Damaged
from cometmq.testing.process import BrokerProcess, run_mq


@pytest.fixture
def damaged(broker: BrokerProcess) -> BrokerProcess:
    """Two queues; in the first the second of three batches is damaged, while the broker runs."""
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("t", queues=2)
        keys: dict[int, str] = {}
        for number in range(20):
            keys.setdefault(
                producer.send(Message("t", b"key", sharding_key=f"{number}")).queue, f"{number}"
            )
        for body in (b"before", b"broken body", b"behind"):
            for queue in (0, 1):
                producer.send(Message("t", b"%s %d" % (body, queue), sharding_key=keys[queue]))
    (segment,) = [path for path in sorted(broker.data.rglob("*")) if path.is_file() and holds(path)]
    content = bytearray(segment.read_bytes())
    with segment.open("r+b") as file:
        file.seek(content.index(b"broken body 0"))
        file.write(b"B")
    return broker


def holds(path: Path) -> bool:
    return b"broken body 0" in path.read_bytes()


def test_the_other_queues_are_read_and_one_sentence_names_the_command(
    damaged: BrokerProcess,
) -> None:
    done = run_mq("consume", "t", address=damaged.address)
    assert b"behind 1" in done.out and b"before 0" in done.out and b"behind 0" not in done.out
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert "queue 0 of t can't be read before offset" in line and "seek" not in line
    assert "damaged bytes" in damaged.log.read_text()
    command = line.partition("`mq ")[2].partition("`")[0]
    assert command.startswith("consume t --queue 0 --from ")
    assert run_mq(*command.split(), address=damaged.address).ok() == b"behind 0\n"


def test_a_member_of_a_group_reads_the_other_queues_too(damaged: BrokerProcess) -> None:
    done = run_mq("consume", "t", "--group", "g", address=damaged.address)
    assert b"behind 1" in done.out and b"behind 0" not in done.out
    assert done.code == 1 and "seek" not in done.err.splitlines()[-1]
    command = done.err.splitlines()[-1].partition("`mq ")[2].partition("`")[0]
    assert command.startswith("group reset g --topic t --queue 0 --to ")
    run_mq(*command.split(), address=damaged.address).ok()
    assert run_mq("consume", "t", "--group", "g", address=damaged.address).ok() == b"behind 0\n"


@pytest.mark.parametrize("place", [0, 1])
def test_what_a_start_found_damaged_at_the_edge_of_a_queue_is_not_passed_over(
    broker: BrokerProcess, place: int
) -> None:
    bodies = [b"the first", b"the last"]
    with Producer(broker.address) as producer:
        for topic, text in (("t", bodies[0]), ("t", bodies[1]), ("other", b"x")):
            producer.send(Message(topic, text, sharding_key="k"))
    body = bodies[place]
    assert broker.stop() == 0
    (segment,) = [path for path in broker.data.rglob("*.seg") if body in path.read_bytes()]
    content = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(content.index(body))
        file.write(b"?")
    broker.start()
    assert "at the end of a queue they may look" in broker.log.read_text()
    done = run_mq("consume", "t", address=broker.address)
    assert (done.code, done.out) == (1, b"the first\n" if place else b"")
    assert ".seg" in done.err
    shown = run_mq("topic", "describe", "t", address=broker.address)
    assert b"IN DOUBT" in shown.out


def test_a_consumer_closed_at_once_has_reported_the_damage(
    damaged: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Damaged), PullConsumer(damaged.address, topic="t") as consumer:
        while True:
            consumer.poll(timeout=10)
    assert "could not be reported" not in caplog.text
    assert "damaged bytes" in damaged.log.read_text()
