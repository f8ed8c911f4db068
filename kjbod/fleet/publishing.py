"""The place of a report: made in a folder beside the old one, and renamed into place when it is whole."""

import contextlib
import errno
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.folders import own_folder

_NO_PLACE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT, errno.ESTALE)
)
"""Errors of a directory that is full, not for us, broken, or was taken away meanwhile."""
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<host>[^/]*))?(?P<path>/.*|$)")
"""A scheme, as Hadoop's file systems have it too; no relative path, which may have a colon in it as well."""


def is_local(given: str) -> bool:
    """Whether a path, or a URI of this machine's own file system."""
    found = _URI.match(given)
    return found is None or (found["scheme"].lower() == "file" and (found["host"] or "localhost") == "localhost")


def no_scheme(given: str) -> str:
    """``i:x`` as a path of this machine, which Hadoop would take for a URI; whatever is a path or a URI, as it is."""
    is_clear = ":" not in given.partition("/")[0] or _URI.match(given) or given.lower().startswith("file:")
    return given if is_clear else f"file:{Path(given).absolute()}"


def local_path(option: str, given: str | Path) -> Path:
    """The path that an option names, as a path or as a ``file:`` URI.

    Raises:
        FleetError: a URI of another kind: a result is renamed into place here, after Spark.
    """
    text = str(given)
    found = _URI.match(text)
    if isinstance(given, Path) or found is None:
        return Path(given)
    if is_local(text):
        return Path(unquote(found["path"]))
    raise FleetError(f"{option} {text}: not a directory of this machine: give a directory, and copy it there")


def _refuse_strange(out_dir: Path, marks: Collection[str]) -> None:
    """A report that is made by mistake in an inbox, or in somebody's home, is hard to take apart again."""
    there = (entry.name for entry in out_dir.iterdir()) if out_dir.is_dir() else ()
    names = [name for name in there if not name.startswith(".") and name != "lost+found"]
    if names and not set(names).intersection(marks):
        raise FleetError(f"{out_dir} is not empty and has no report: give --out a directory of its own")


@contextlib.contextmanager
def workspace(out_dir: Path, marks: Collection[str]) -> Iterator[Path]:
    """A folder on the same file system as ``out_dir``, so that results can be renamed into place.

    Raises:
        FleetError: it cannot be made, or written to, or has something in it and none of ``marks``, which a result of
            before has.
    """
    try:
        _refuse_strange(out_dir, marks)
        made = [folder for folder in (out_dir, *out_dir.parents) if not folder.exists()]
        out_dir.mkdir(parents=True, exist_ok=True)
        stack = contextlib.ExitStack()
        work = stack.enter_context(own_folder(out_dir, ".kjbod-page-"))
    except OSError as error:
        raise FleetError(f"cannot write to {out_dir}: {error.strerror}: give --out another place") from None
    try:
        yield work
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        raise FleetError(f"cannot write to {out_dir}: {error.strerror}: give --out another place") from None
    finally:
        stack.close()
        with contextlib.suppress(OSError):  # folders that a failed run has made for nothing; never one with a report
            for folder in made:
                folder.rmdir()


def publish(work: Path, out_dir: Path, outputs: Sequence[str]) -> None:
    """Replace the parts of a report, which are ``outputs``, one by one and the first last: it is what people look at.

    Raises:
        FleetError: they cannot be renamed.
    """
    old = work / ".old"
    old.mkdir()
    try:
        for name in reversed(outputs):
            if (out_dir / name).exists():
                (out_dir / name).rename(old / name)
            if (work / name).exists():
                (work / name).rename(out_dir / name)
    except BaseException as error:
        _put_back(old, work, out_dir, outputs)
        if not isinstance(error, OSError):
            raise
        raise FleetError(f"cannot write to {out_dir}: {error.strerror}: give --out another place") from None


def _put_back(old: Path, work: Path, out_dir: Path, outputs: Sequence[str]) -> None:
    """Undo what was done of :func:`publish`, as far as it can be: no report is made of the parts of two."""
    for name in outputs:
        with contextlib.suppress(OSError):
            if (out_dir / name).exists() and not (work / name).exists():
                (out_dir / name).rename(work / name)
        with contextlib.suppress(OSError):
            if (old / name).exists():
                (old / name).rename(out_dir / name)
