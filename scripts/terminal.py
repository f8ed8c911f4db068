"""The common part of this folder's commands at a terminal."""

import sys
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C or SIGTERM."""


def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Signal handler: a SIGTERM is a Ctrl-C, what was built is taken away."""
    raise KeyboardInterrupt


def say(text: str) -> None:
    """A line of progress, apart from the results."""
    print(text, file=sys.stderr, flush=True)
