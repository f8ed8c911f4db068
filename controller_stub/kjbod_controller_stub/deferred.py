"""Answers that wait for durable records."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DeferredAnswers(Generic[T]):
    """Answers that wait for the log to be durable up to an offset (``DeferredEventQueue``)."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_offset: int, answer: T) -> None:
        """Hold ``answer`` until the durable end reaches ``end_offset``, which never goes back from call to call.

        Raises:
            ValueError: it went back.
        """
        if self._waiting and self._waiting[-1][0] > end_offset:
            raise ValueError(f"answer for offset {end_offset} after one for {self._waiting[-1][0]}")
        self._waiting.append((end_offset, answer))

    def complete(self, durable_end: int) -> list[T]:
        """Return the answers that may be sent now, in the order of their requests."""
        ready = []
        while self._waiting and self._waiting[0][0] <= durable_end:
            ready.append(self._waiting.popleft()[1])
        return ready
