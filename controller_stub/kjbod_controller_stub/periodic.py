"""Periodic tasks of the controller (``PeriodicTaskControlManager``): each has a period, and makes a
:class:`~kjbod_controller_stub.results.Result` or nothing. Pure: the caller passes the time."""

from collections.abc import Callable

from msgspec import Struct

from kjbod_controller_stub.results import Result


class _Task(Struct):
    name: str
    period_ms: int
    run: Callable[[int], Result | None]
    due_ms: int


class PeriodicTasks:
    """Runs one task at a time; the most overdue task is first."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    def add(self, name: str, period_ms: int, run: Callable[[int], Result | None]) -> None:
        """Run a task each ``period_ms``, first one period after :meth:`activate`."""
        self._tasks.append(_Task(name, period_ms, run, period_ms))

    def activate(self, now_ms: int) -> None:
        """Count the periods from now."""
        for task in self._tasks:
            task.due_ms = now_ms + task.period_ms

    def hasten(self, name: str, now_ms: int) -> None:
        """Run a task at the next pass, because it did not finish or its input changed.

        Raises:
            KeyError: there is no such task.
        """
        for task in self._tasks:
            if task.name == name:
                task.due_ms = now_ms
                return
        raise KeyError(name)

    def next_due_ms(self) -> int | None:
        """Return the next time at which :meth:`run` has work; None: there are no tasks."""
        return min((task.due_ms for task in self._tasks), default=None)

    def run(self, now_ms: int) -> Result | None:
        """Return the result of the first due task that has one; None if there is none."""
        for task in sorted(self._tasks, key=lambda task: task.due_ms):
            if task.due_ms > now_ms:
                break
            task.due_ms = now_ms + task.period_ms
            result = task.run(now_ms)
            if result is not None:
                return result
        return None
