"""Claims of a story: each is checked, then told; one that does not hold ends the story."""

from collections.abc import Callable

from scripts.rig.processes import WaitTimeoutError, wait_until
from scripts.story.narrate import Narrator, StoryError


class Claiming:
    """Base of a story, which claims what it has checked."""

    def __init__(self, tell: Narrator) -> None:
        self.tell = tell

    def _claim(self, holds: bool, text: str, otherwise: str = "") -> None:
        if not holds:
            raise StoryError(f"not so: {text}" + (f" ({otherwise})" if otherwise else ""))
        self.tell.claim(text)

    def _wait(self, predicate: Callable[[], object], timeout_s: float, what: str) -> None:
        try:
            wait_until(predicate, timeout_s, what)
        except WaitTimeoutError as error:
            raise StoryError(str(error)) from error
