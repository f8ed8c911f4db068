"""Rights of a guard's daemon: its user after the start of the helper, and the capabilities that it drops.

Only the helper needs capabilities; the daemon works like any program of the broker's user. So a daemon that was started
as root continues as the owner of the log directories, and drops all capabilities irreversibly. The daemon also cannot
be traced, so an attacker with the broker's user does not get access to the helper.

Disks may hang, so only a child looks at files on them, and a stuck child is left behind. This happens before the start
of the helper: a stuck child would hold the helper's socket open.
"""

import contextlib
import ctypes
import functools
import grp
import json
import os
import pwd
import select
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kjbod.config import Config
from kjbod.errors import ConfigError, KjbodError
from kjbod.permissions import advice, user_name

ANSWER_MS: Final = 3_000
"""Maximum time for answers from log directories, the group database and kjbod's own directories."""
ANSWER_BYTES_MAX: Final = 1 << 20
NAMES_MAX: Final = 10_000
"""Maximum number of names in kjbod's own directories that are checked."""
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITIES_MAX: Final = 64
_CAPABILITY_VERSION_3: Final = 0x20080522
_META_PROPERTIES: Final = "meta.properties"

_libc = ctypes.CDLL(None, use_errno=True)


class NoOwnerError(KjbodError):
    """No log directory shows its owner now. It may later, when its disk is mounted."""


class User(Struct, frozen=True):
    """A user, with the groups of the group database."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def text(self) -> str:
        """``kafka (uid 996)``."""
        return f"{user_name(self.uid)} (uid {self.uid})"


def log_paths(config: Config) -> tuple[str, ...]:
    """Return all log directories of a broker, including the directory of the metadata log."""
    return tuple(dict.fromkeys((*config.log_dirs, config.metadata_log_dir)))


def owner(paths: Collection[str]) -> User:
    """Return the owner of the log directories. Blocks for 2 x :data:`ANSWER_MS` at most.

    Only a directory with ``meta.properties`` counts. Root owns a mount point without its disk, and a mask.

    Raises:
        ConfigError: the directories have different owners.
        NoOwnerError: no directory shows its owner.
    """
    told = _asked({path: functools.partial(_owner_of, path) for path in paths})
    found = {path: one for path in paths if (one := told.get(path)) is not None}
    if not found:
        raise NoOwnerError(
            f"no log directory ({', '.join(paths)}) is there, formatted and answers, and a guard that was started as "
            "root goes on as their owner: mount one, or start the guard as the broker's user"
        )
    uids = {uid: path for path, (uid, _) in reversed(found.items())}
    if len(uids) > 1:
        whose = " and ".join(f"{path} is {user_name(uid)}'s" for uid, path in sorted(uids.items()))
        raise ConfigError(
            f"log directories of different users: {whose}: a guard that acts goes on as their owner: give them all to "
            "the user that the broker runs as (chown -R)"
        )
    uid, gid = next(iter(found.values()))
    gid, groups = _asked({"": functools.partial(_groups_of, uid)}).get("") or (gid, [])
    return User(uid, gid, tuple(groups))


def _owner_of(path: str) -> tuple[int, int] | None:
    here = Path(path).stat()
    if not (Path(path) / _META_PROPERTIES).is_file():
        return None
    return here.st_uid, here.st_gid


def _groups_of(uid: int) -> tuple[int, list[int]] | None:
    """Return the primary group and all groups of a user; None: the user has no name. May ask a directory service."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    groups = {one.gr_gid for one in grp.getgrall() if entry.pw_name in one.gr_mem}
    return entry.pw_gid, sorted({entry.pw_gid, *groups, *os.getgrouplist(entry.pw_name, entry.pw_gid)})


def why_unusable(config: Config, user: User | None) -> str | None:
    """Return why ``user`` cannot use kjbod's own directories, in one line with the remedy; None: no reason is known, or
    they do not answer. Blocks for :data:`ANSWER_MS` at most.

    Args:
        config: has the paths of these directories.
        user: user to check; None: the present user of this process.
    """

    def look() -> str | None:
        if user is not None:
            _become(user)
            _clear_capabilities()
        for program in (sys.executable, __file__):
            if not os.access(program, os.R_OK):
                return f"{program}: {advice(program, program)}, or install kjbod where it can be read"
        for name, root in (
            ("kjbod.state.dir", config.kjbod_state_dir),
            ("kjbod.reports.dir", config.kjbod_reports_dir),
        ):
            for path in _files(Path(root)):
                if not _is_usable(path):
                    return f"{name}={root}: {_remedy(path, Path(root))}"
        return None

    told = _asked({"": look}).get("")
    return None if told is None else str(told)


def _files(root: Path) -> Iterable[Path]:
    """Yield ``root`` and all paths below it, or the existing directory in which ``root`` would be made."""
    above = root
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    yield above
    if above != root:
        return
    count = 0
    for here, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(here, name)
            count += 1
            if count > NAMES_MAX:
                return
            if not path.is_symlink():
                yield path


def _is_usable(path: Path) -> bool:
    """Whether permissions allow the use of a path. A missing path, or one on a read-only file system, counts as
    usable."""
    if os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)):
        return True
    return not os.path.lexists(path) or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _remedy(path: Path, root: Path) -> str:
    if path in root.parents:  # a chown of that directory would not help
        me = user_name(os.geteuid())
        return f"it is not there, and {me} cannot make it in {path}: install -d -o {me} {root}"
    return advice(path, root)


# ----------------------------------------------------------------------------------------------------------- giving up


def give_up(user: User | None) -> None:
    """Continue as ``user`` (None: as the present user) without any capability, irreversibly. No other thread may run
    yet.

    Raises:
        KjbodError: the rights cannot be dropped.
    """
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # This needs CAP_SETPCAP. Without it, no_new_privs still keeps an exec'd program from getting capabilities.
    for number in range(_CAPABILITIES_MAX):
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    try:
        if user is not None:
            _become(user)
        _clear_capabilities()
    except OSError as error:
        raise KjbodError(f"a guard that acts cannot give its own rights up: {error.strerror}") from None
    # Otherwise a process of the same user could take the helper's socket (pidfd_getfd).
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _become(user: User) -> None:
    if (user.uid, user.gid) != (os.geteuid(), os.getegid()):
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)


def _clear_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    now = ctypes.create_string_buffer(24)  # effective, permitted, inheritable, twice
    if _libc.capget(header, now) == 0 and not any(now.raw):
        return  # a sandbox may forbid capset
    if _libc.capset(header, bytes(24)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ----------------------------------------------------------------------------------------------------------- children


def _asked(questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the answers of one child per question, as JSON values. Leave out children that raise, or are later than
    :data:`ANSWER_MS`."""
    waiting: dict[int, tuple[str, int]] = {}
    for name, question in questions.items():
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                with contextlib.suppress(Exception):
                    os.write(write_end, json.dumps(question()).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        waiting[read_end] = (name, pid)
    answers: dict[str, Any] = {}
    until_ns = time.monotonic_ns() + ANSWER_MS * 1_000_000
    while waiting:
        left_s = max(0, until_ns - time.monotonic_ns()) / 1e9
        ready = select.select(list(waiting), [], [], left_s)[0]
        for fd in ready or list(waiting):
            name, pid = waiting.pop(fd)
            if ready and (said := os.read(fd, ANSWER_BYTES_MAX)):
                answers[name] = json.loads(said)
            os.close(fd)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0 if ready else os.WNOHANG)
    return answers
