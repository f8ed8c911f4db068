"""A step of a command in a line of text: what Spark has done of it, and how long it may still take."""

from dataclasses import dataclass

_NEWS_MS = 2_000
"""Before this a time that is left is noise."""


@dataclass(frozen=True, slots=True)
class Account:
    """Work of Spark since a step began."""

    done: int = 0
    """Tasks of the running jobs."""
    total: int = 0
    """Likewise, without those that are skipped."""
    active: int = 0
    """Likewise, at this moment."""
    rows_read: int = 0
    rows_written: int = 0
    files: int = 0
    """Read and written."""
    bytes_read: int = 0


class StepProgress:
    """A step, as it goes on."""

    def __init__(self, what: str, now_ms: int) -> None:
        """``what``: for people, such as ``rolling up 3 dates``. Monotonic time."""
        self.what = what
        self.began_ms = now_ms
        self.account = Account()
        self._jobs_began_ms = now_ms
        self._done_then = 0

    def see(self, account: Account, now_ms: int) -> None:
        """The account as it is now."""
        before, self.account = self.account, account
        if account.done < before.done or (account.total and not before.total):  # other jobs than before
            self._jobs_began_ms, self._done_then = now_ms, account.done

    def left_ms(self, now_ms: int) -> int | None:
        """Time left of the running jobs, by their tasks; None where they do not tell yet."""
        done = self.account.done - self._done_then
        took_ms = now_ms - self._jobs_began_ms
        if done <= 0 or took_ms < _NEWS_MS:
            return None
        return took_ms * max(self.account.total - self.account.done, 0) // done


def progress_line(step: StepProgress, now_ms: int) -> str:
    """``rolling up 3 dates: 12 of 40 tasks, 1,200,000 rows read, 40 files, 0:31, about 1:12 left``."""
    account = step.account
    parts = [f"{account.done:,} of {account.total:,} tasks"] if account.total else []
    parts += [
        f"{count:,} {name}"
        for count, name in (
            (account.rows_read, "rows read"),
            (account.rows_written, "rows written"),
            (account.bytes_read, "bytes read"),
            (account.files, "files"),
        )
        if count
    ]
    parts.append(_clock_text(now_ms - step.began_ms))
    if (left_ms := step.left_ms(now_ms)) is not None:
        parts.append(f"about {_clock_text(left_ms)} left")
    return f"{step.what}: {', '.join(parts)}"


def _clock_text(duration_ms: int) -> str:
    minutes, seconds = divmod(max(duration_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
