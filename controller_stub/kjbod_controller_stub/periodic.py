"""Tasks that the controller does by itself from time to time (``PeriodicTaskControlManager``): each has a period, and
makes a :class:`~kjbod_controller_stub.results.Result` or nothing. Pure: who calls says what time it is."""

from collections.abc import Callable

from msgspec import Struct

from kjbod_controller_stub.results import Result


class _Task(Struct):
    name: str
    period_ms: int
    run: Callable[[int], Result | None]
    due_ms: int


class PeriodicTasks:
    """Runs one task at a time, the one that is due longest first."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    def add(self, name: str, period_ms: int, run: Callable[[int], Result | None]) -> None:
        """Run a task each ``period_ms``, the first time one period after :meth:`activate`."""
        self._tasks.append(_Task(name, period_ms, run, period_ms))

    def activate(self, now_ms: int) -> None:
        """Count the periods from now."""
        for task in self._tasks:
            task.due_ms = now_ms + task.period_ms

    def hasten(self, name: str, now_ms: int) -> None:
        """Have a task run at the next pass: it did not finish, or something changed that it looks at.

        Raises:
            KeyError: there is no such task.
        """
        for task in self._tasks:
            if task.name == name:
                task.due_ms = now_ms
                return
        raise KeyError(name)

    def next_due_ms(self) -> int | None:
        """Moment at which :meth:`run` has something to do next; None: there are no tasks."""
        return min((task.due_ms for task in self._tasks), default=None)

    def run(self, now_ms: int) -> Result | None:
        """The result of the first task that is due and has one; None when there is none."""
        for task in sorted(self._tasks, key=lambda task: task.due_ms):
            if task.due_ms > now_ms:
                break
            task.due_ms = now_ms + task.period_ms
            result = task.run(now_ms)
            if result is not None:
                return result
        return None
