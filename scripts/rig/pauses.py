"""Pauses of clients beside a broker with a bad disk, by class of partition. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LED_BAD, LED_HEALTHY, FOLLOWED_HEALTHY, FOLLOWED_BAD = CLASSES = (
    "led, bad disk",
    "led, healthy",
    "followed, healthy",
    "followed, bad disk",
)
"""A partition's, as the broker with the bad disk has it."""


def class_of(led: bool, bad: bool) -> str:
    """The class of a partition."""
    if led:
        return LED_BAD if bad else LED_HEALTHY
    return FOLLOWED_BAD if bad else FOLLOWED_HEALTHY


@dataclass(frozen=True, slots=True)
class Pause:
    """The longest time without an acknowledgement, or without a record for a consumer.

    Attributes:
        ms: its length.
        begun_ms: its begin, after the fault.
        ended: False where it went on when the watch ended.
    """

    ms: float
    begun_ms: float
    ended: bool

    def __str__(self) -> str:
        return f"{self.ms:.0f}" if self.ended else f">{self.ms:.0f}"


def longest_pause(moments_ms: Sequence[float], fault_ms: float, end_ms: float) -> Pause:
    """The longest pause of one partition that was not over at the fault.

    Args:
        moments_ms: of the acknowledgements, rising.
        fault_ms: of the fault, on the same clock.
        end_ms: of the watch.
    """
    marks = [moment for moment in moments_ms if moment < end_ms]
    before = [moment for moment in marks if moment < fault_ms]
    shown = [before[-1] if before else fault_ms, *(moment for moment in marks if moment >= fault_ms)]
    pauses = [Pause(after - first, first - fault_ms, True) for first, after in itertools.pairwise(shown)]
    pauses.append(Pause(end_ms - shown[-1], shown[-1] - fault_ms, False))
    return max(pauses, key=lambda pause: pause.ms)


def worst_by_class(pauses: Mapping[int, Pause], classes: Mapping[int, str]) -> dict[str, Pause]:
    """The worst pause of each class; the keys are partitions."""
    worst: dict[str, Pause] = {}
    for partition, pause in pauses.items():
        name = classes[partition]
        if name not in worst or (not pause.ended, pause.ms) > (not worst[name].ended, worst[name].ms):
            worst[name] = pause
    return worst
