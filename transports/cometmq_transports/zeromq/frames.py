"""Moving one message over a ZeroMQ socket, without ever blocking.

Small frames are copied, larger ones are not. Receiving, that pays from 8 KiB on: the frame is a
view of ZeroMQ's own buffer, which lives as long as the view does. Sending, the bookkeeping wakes a
thread for every frame, and measured as dearer than the copy up to half a MiB.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from cometmq.environment import Buffer

RECEIVE_COPY_BELOW_BYTES = 8 << 10
SEND_COPY_BELOW_BYTES = 512 << 10

_MORE = zmq.NOBLOCK | zmq.SNDMORE


def content(frame: zmq.Frame) -> Buffer:
    """The bytes of a received frame; a view if they are many."""
    return frame.bytes if len(frame) < RECEIVE_COPY_BELOW_BYTES else frame.buffer


def ready(socket: zmq.Socket[bytes], wanted: int = zmq.POLLIN) -> bool:
    """Whether one of the `wanted` events (to read, if not told otherwise) is there now. Costs half
    of what it costs to try in vain."""
    return bool(int(socket.get(zmq.EVENTS)) & wanted)


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
            socket.send(frame, _MORE, copy=len(frame) < SEND_COPY_BELOW_BYTES)
    socket.send(last, zmq.NOBLOCK, copy=len(last) < SEND_COPY_BELOW_BYTES)
