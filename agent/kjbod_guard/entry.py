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
        owned: as it was last read; None while it could not be, or is not this broker's.
        reason: why it is not watched; None: it is.
        survey: what lies around it; None while nobody knows.
        surveyed_ms: when that was looked at.
        passed: full probes in a row since it failed.
        real_path: where the path led when it was last read; empty while it never was.
        still_ms: when one that has failed was last seen not to be well, as a look at it says.
        place: mount that the path led to when it was last read; empty where the mount table does not tell.
        renewed: the one for which a worker that is stuck in another one was left behind.
        rests_until_ms: until when it is not touched.
        rests_on: the mount that its path led to then.
        silence: that it did not answer when it was last read; None: it did, in whatever way.
        silent_ms: since when it has not, wall clock.
        errs: whether it answered EIO then, as a file system that was shut down does.
        unread: reads it when it answers; None: ``owned`` is what it has said, and not what is remembered of it.
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
