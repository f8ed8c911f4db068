"""A configured log directory, as a guard knows it. Pure."""

from typing import TYPE_CHECKING

from msgspec import Struct

from kjbod_guard.binding import Owned
from kjbod_host.storage.api import DirectoryTimeout, Survey

if TYPE_CHECKING:
    from kjbod_guard.recalling import Unread


class Entry(Struct):
    """A configured directory.

    Attributes:
        path: as configured.
        owned: the directory as last read; None: it was not read, or is not this broker's.
        reason: why the directory is not watched; None: it is watched.
        survey: names around the directory on its file system; None: not known.
        surveyed_ms: monotonic time of the survey.
        passed: full probes that passed in a row since the failure.
        real_path: where the path led when it was last read; empty while it never was.
        still_ms: when a look last showed that the directory still fails.
        place: mount that the path led to when it was last read; empty where the mount table does not tell.
        renewed: mount for which the guard started a new worker and left a stuck worker behind.
        rests_until_ms: monotonic time until which the directory is not touched.
        rests_on: mount that the path led to at the release.
        silence: timeout of the last read; None: the last read got an answer or an error.
        silent_ms: wall clock since when the directory does not answer.
        errs: whether the last read got EIO, as from a file system that was shut down.
        unread: reads the directory when it answers; None: ``owned`` was read, and is not from memory.
    """

    path: str
    owned: Owned | None = None
    reason: str | None = "it was not read yet"
    survey: Survey | None = None
    surveyed_ms: int = 0
    passed: int = 0
    real_path: str = ""
    still_ms: int = 0
    place: str = ""
    renewed: str = ""
    rests_until_ms: int = 0
    rests_on: str = ""
    silence: DirectoryTimeout | None = None
    silent_ms: int = 0
    errs: bool = False
    unread: "Unread | None" = None
