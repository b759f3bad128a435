"""Have the C library keep memory that comes and goes in large pieces."""

from __future__ import annotations

KEPT_BYTES = 4 << 20


def keep_pages() -> None:
    """Keep the memory of one poll's messages, or of a producer's batches, for the next.

    What is freed at the end of its heap glibc gives back to the system beyond twice the largest
    block that it has seen come and go, and larger blocks come from the system at once; each page
    then has to be found and cleared anew, which is a tenth of what reading a message of 1 KiB costs
    and up to a third of sending it. Of this block no page is ever touched.
    """
    bytes(KEPT_BYTES)
