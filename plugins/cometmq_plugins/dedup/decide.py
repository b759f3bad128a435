"""What becomes of a batch that has a sequence number: new, a repeat, or out of its order."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.batch import Batch
from cometmq.interfaces import Answer, Refuse
from cometmq_plugins.dedup.view import Key, Producers, Sent

Place = tuple[int, int]
"""The producer's epoch, and the sequence of the first record."""

_UNKNOWN = (
    "its producer sent nothing for so long that it is forgotten here, or was never known, "
    "and it does not begin at 0"
)


def decide(view: Producers, key: Key, batch: Batch, place: Place) -> Answer | Refuse | None:
    """None: append it. `place` is what the batch says of itself."""
    epoch, sequence = place
    last = view.last(key)
    if last is None:
        return None if not sequence else _refuse("UNKNOWN_PRODUCER", batch, _UNKNOWN)
    if epoch < last.epoch:
        return _refuse("FENCED", batch, f"its producer's epoch {epoch} ended with {last.epoch}")
    expected = last.sequence + last.count if epoch == last.epoch else 0
    if sequence == expected:
        return None
    if sequence > expected:
        return _refuse(
            "OUT_OF_SEQUENCE", batch, f"sequence {sequence} in epoch {epoch}, not {expected}"
        )
    return _repeat(view.window(key), batch, sequence)


def _repeat(window: Sequence[Sent], batch: Batch, sequence: int) -> Answer | Refuse:
    """Where the first copy is."""
    for sent in window:
        if sent.sequence == sequence and sent.count == batch.count:
            return Answer(
                sent.end, sent.base_offset, sent.incarnation, sent.log_epoch, sent.store_time
            )
    return _refuse(
        "REFUSED",
        batch,
        f"sequence {sequence} is none of the last {len(window)} batches, or had another count",
    )


def _refuse(code: str, batch: Batch, why: str) -> Refuse:
    return Refuse(
        f"a batch for queue {batch.queue_claim} of topic {ascii(batch.topic)[1:-1]} is not taken: "
        f"{why}; raise the producer's epoch and start at 0",
        code=code,
    )
