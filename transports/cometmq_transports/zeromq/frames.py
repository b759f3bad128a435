"""Moving one message over a ZeroMQ socket, without ever blocking.

Small frames are copied, larger ones are not: from 8 KiB on a copy costs more than the bookkeeping
that avoids it. A received frame that was not copied is a view of ZeroMQ's own buffer, which lives
as long as the view does.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from cometmq.environment import Buffer

COPY_BELOW_BYTES = 8192

_MORE = zmq.NOBLOCK | zmq.SNDMORE


def content(frame: zmq.Frame) -> Buffer:
    """The bytes of a received frame; a view if they are many."""
    return frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message is there now."""
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)


def receive_frames(socket: zmq.Socket[bytes], frames_max: int) -> tuple[zmq.Frame, list[Buffer]]:
    """Receive one message: its first frame as ZeroMQ gave it, and the contents of all.

    What exceeds `frames_max` is read and thrown away, but for one frame that shows the excess.
    Raises zmq.Again if no message is there.
    """
    first = frame = socket.recv(zmq.NOBLOCK, copy=False)
    frames = [content(frame)]
    while frame.more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        if len(frames) <= frames_max:
            frames.append(content(frame))
    return first, frames


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    """Send one message of at least one frame. Raises zmq.Again if there is no room for it, and
    zmq.ZMQError with EHOSTUNREACH if a ROUTER knows no peer of that routing id."""
    last = frames[-1]
    if len(frames) > 1:
        for frame in frames[:-1]:
            socket.send(frame, _MORE, copy=len(frame) < COPY_BELOW_BYTES)
    socket.send(last, zmq.NOBLOCK, copy=len(last) < COPY_BELOW_BYTES)
