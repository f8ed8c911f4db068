"""Faults of the log directory; mount and disk are healthy."""

import base64
import contextlib
import errno
import os
import random
import re
import stat
from pathlib import Path
from typing import Any

from kjbod.faults import syscalls
from kjbod.faults.device import FAILED, everywhere
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Fault, Injection
from kjbod.files import write_atomically
from kjbod.ids import random_directory_id

_META_PROPERTIES = "meta.properties"
_DIRECTORY_ID = re.compile(rb"^(\s*directory\.id\s*[=:]\s*)\S+", re.MULTILINE)
_AGENTS_OWN = (".kjbod_", ".lock")


def _log_dir(injection: Injection) -> Path:
    path = injection.target.log_dir
    if not path.is_dir():
        raise FaultsError(f"{path}: no such directory")
    return path


# immutable ----------------------------------------------------------------------------------------------------------


def _list_mutable(injection: Injection) -> dict[str, Any]:
    path = _log_dir(injection)
    entries = [path, *(Path(entry) for entry in os.scandir(path) if entry.is_file(follow_symlinks=False))]
    try:
        flags = {str(entry): syscalls.inode_flags(entry) for entry in entries}
    except OSError as error:
        raise FaultsError(f"{path}: it has no inode flags (chattr): {error.strerror}") from None
    return {"flags": {name: value for name, value in flags.items() if not value & syscalls.FS_IMMUTABLE_FL}}


def _make_immutable(injection: Injection) -> None:
    for name, flags in reversed(injection.details["flags"].items()):  # the directory last
        syscalls.set_inode_flags(Path(name), flags | syscalls.FS_IMMUTABLE_FL)


def _make_mutable(injection: Injection) -> None:
    for name, before in injection.details["flags"].items():
        try:
            flags = syscalls.inode_flags(Path(name))
            if not flags & ~before & syscalls.FS_IMMUTABLE_FL:
                continue
            syscalls.set_inode_flags(Path(name), flags & ~syscalls.FS_IMMUTABLE_FL)
        except FileNotFoundError:
            continue


# permissions --------------------------------------------------------------------------------------------------------


def _remember_mode(injection: Injection) -> dict[str, Any]:
    return {"mode": stat.S_IMODE(_log_dir(injection).stat().st_mode)}


def _forbid(injection: Injection) -> None:
    injection.target.log_dir.chmod(0)


def _allow(injection: Injection) -> None:
    path = injection.target.log_dir
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_IMODE(path.lstat().st_mode):  # an operator may have set another mode since
            path.chmod(injection.details["mode"])


# directory-deleted --------------------------------------------------------------------------------------------------


def _whole_or_content(injection: Injection) -> dict[str, Any]:
    path = _log_dir(injection)
    whole = path != injection.target.mount_point
    return {"whole": whole, "entries": [] if whole else sorted(os.listdir(path))}


def _aside(injection: Injection) -> Path:
    path = injection.target.log_dir
    return (path.parent if injection.details["whole"] else path) / injection.hidden_name


def _take_away(injection: Injection) -> None:
    path, aside = injection.target.log_dir, _aside(injection)
    if injection.details["whole"]:
        path.rename(aside)
        return
    aside.mkdir(mode=0o700)
    for name in injection.details["entries"]:
        (path / name).rename(aside / name)


def _give_back(injection: Injection) -> None:
    path, aside = injection.target.log_dir, _aside(injection)
    if not os.path.lexists(aside):
        return
    if aside.is_symlink():
        raise FaultsError(f"{aside}: has become a symbolic link: remove it, then undo again")
    if injection.details["whole"]:
        _rename_back(aside, path)
        return
    for name in sorted(os.listdir(aside)):
        if (path / name).exists() and not name.startswith(_AGENTS_OWN):
            raise FaultsError(f"{path / name} was made since the fault: move it away, then undo again")
        _rename_back(aside / name, path / name)
    aside.rmdir()


def _rename_back(aside: Path, path: Path) -> None:
    try:
        aside.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise FaultsError(
                f"{path} was made since the fault and is not empty: move it away, then undo again"
            ) from None
        raise


# meta-properties-replaced -------------------------------------------------------------------------------------------


def _other_identity(injection: Injection) -> dict[str, Any]:
    path = _log_dir(injection) / _META_PROPERTIES
    try:
        original = path.read_bytes()
    except OSError as error:
        raise FaultsError(f"{path}: {error.strerror}: format the directory first (kjbod format)") from None
    other = str(random_directory_id(random.SystemRandom())).encode()
    replaced, count = _DIRECTORY_ID.subn(lambda match: match[1] + other, original)
    if not count:
        raise FaultsError(f"{path}: it has no directory.id to replace")
    return {
        "original": base64.b64encode(original).decode(),
        "replaced": base64.b64encode(replaced).decode(),
        "mode": stat.S_IMODE(path.stat().st_mode),
        "owner": [path.stat().st_uid, path.stat().st_gid],
    }


def _write_meta_properties(injection: Injection, content: str) -> None:
    path = injection.target.log_dir / _META_PROPERTIES
    write_atomically(path, base64.b64decode(content), temporary_suffix=injection.hidden_name)
    path.chmod(injection.details["mode"])
    os.chown(path, *injection.details["owner"])


def _replace_identity(injection: Injection) -> None:
    _write_meta_properties(injection, injection.details["replaced"])


def _restore_identity(injection: Injection) -> None:
    path = injection.target.log_dir / _META_PROPERTIES
    if not path.parent.exists():
        return
    path.with_name(path.name + injection.hidden_name).unlink(missing_ok=True)
    original = base64.b64decode(injection.details["original"])
    now = path.read_bytes() if path.exists() else b""
    if now not in (original, base64.b64decode(injection.details["replaced"]), b""):
        raise FaultsError(f"{path} was changed since the fault; its old content is in {injection.record}, base64")
    if now != original:
        _write_meta_properties(injection, injection.details["original"])


FAULTS = (
    Fault(
        name="immutable",
        title="directory and files become immutable",
        does="chattr +i on the log directory and on the files directly in it",
        needs="root; a file system that knows the flag",
        says="failed, EPERM",
        layer="directory",
        expectations=everywhere(FAILED),
        scratch_only=False,
        survives_reboot=True,
        prepare=_list_mutable,
        deed=_make_immutable,
        heal=_make_mutable,
    ),
    Fault(
        name="permissions",
        title="the directory may not be entered",
        does="chmod 000 on the log directory",
        needs="an agent without CAP_DAC_OVERRIDE: root is not stopped by permissions",
        says="failed, EACCES; an agent that runs as root stays online, since it can still do all its work",
        layer="directory",
        expectations=everywhere(FAILED),
        scratch_only=False,
        survives_reboot=True,
        prepare=_remember_mode,
        deed=_forbid,
        heal=_allow,
    ),
    Fault(
        name="directory-deleted",
        title="the log directory is gone",
        does="renames it away; where it is the mount point itself, moves its content into a hidden directory",
        needs="nothing",
        says="failed, ENOENT: the directory, or its meta.properties",
        layer="directory",
        expectations=everywhere(FAILED),
        scratch_only=False,
        survives_reboot=True,
        prepare=_whole_or_content,
        deed=_take_away,
        heal=_give_back,
    ),
    Fault(
        name="meta-properties-replaced",
        title="another disk's meta.properties",
        does="gives meta.properties another directory.id",
        needs="a formatted log directory",
        says="failed, ESTALE: directory.id is not what it was",
        layer="directory",
        expectations=everywhere(FAILED),
        scratch_only=False,
        survives_reboot=True,
        prepare=_other_identity,
        deed=_replace_identity,
        heal=_restore_identity,
    ),
)
