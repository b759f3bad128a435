"""When what happens again and again is due."""

from __future__ import annotations


def next_tick_s(now_s: float, every_s: float) -> float:
    """A multiple of `every_s` on the same clock, half to one and a half of it from now. So timers
    of several parts come in one turn of the loop: to be woken is most of what each costs a broker
    that has nothing to do."""
    return (round(now_s / every_s) + 1) * every_s
