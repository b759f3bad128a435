"""The main road: hello, send, fetch; each batch decided alone, all of a drain written once."""

from __future__ import annotations

import asyncio

from cometmq.batch import encode_messages, parse
from cometmq.protocol import Fetch, FetchPart, Operation, Send, Status
from cometmq.testing.raw_client import running_broker


def batch(topic: str, queue: int, *bodies: bytes) -> bytearray:
    return encode_messages(topic, queue, [(1_750_000_000_000, body, "", (), {}) for body in bodies])


def send_header(*batches: bytearray, level: str | None = None) -> Send:
    return Send([len(each) for each in batches], [0] * len(batches), level)  # type: ignore[arg-type]


def test_what_was_sent_is_fetched() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            one = batch("orders", 0, b"a", b"b")
            sent = await client.ask(Operation.SEND, send_header(one), [one])
            assert sent.status == Status.OK
            assert sent.header.level == "disk"
            assert sent.header.results[0].base_offset == 0
            got = await client.ask(Operation.FETCH, Fetch([FetchPart("orders", 0, 0)]))
            assert got.header.results[0].next_offset == 2
            stored = parse(got.body[0])
            assert bytes(stored.view[76:]) == bytes(one[76:])

    asyncio.run(scenario())
