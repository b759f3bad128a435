"""A member of a group as a process of its own: writes what it handles into a file, a line each.

Usage: member.py ADDRESS FILE JSON   (JSON: options of Consumer, and topic, tags, orderly, pause_s)
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time

from cometmq import Consumer, ReceivedMessage


def main() -> None:
    address, path, text = sys.argv[1:]
    options = json.loads(text)
    topic, tags = options.pop("topic", "orders"), options.pop("tags", "*")
    orderly, pause_s = options.pop("orderly", False), options.pop("pause_s", 0.0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(message: ReceivedMessage) -> None:
        if pause_s:
            time.sleep(pause_s)
        body = message.body.decode()
        os.write(out, f"{os.getpid()} {message.queue} {message.offset} {body}\n".encode())

    with Consumer(address, **options) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.subscribe(topic, tags=tags, handler=handle, workers=4, orderly=orderly)
        consumer.run()


if __name__ == "__main__":
    main()
