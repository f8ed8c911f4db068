"""The archive of Spark's classes, with which Java starts in half the time (:mod:`.archive_making`).

Java 17 to 24 has archives of classes (AppCDS), Java 25 also of how they were linked (an AOT cache). Either belongs to
one build of Java and one class path, so that the name has a hash of both: after an update of either the archive is not
found, and nothing is different from a machine that never had one. Nor is it used when it was written to since it was
made. Java checks again, and goes on without most of what it does not like; what it logs of that is switched off.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from kjbod.fleet.java import Java
from kjbod.fleet.spark_home import needed_jars, spark_jars, spark_version

AOT_SINCE = 25
"""Java 24 has AOT caches too, but makes them in two steps; it still has the archives of before."""
MAKING_TIMEOUT_S = 600
"""Java writes the archive when it ends, on a busy machine for minutes."""
_OTHERS_WRITE = 0o022


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Directory of archives: ``fleet`` in KJBOD_CACHE, or in ``kjbod`` of the user's caches."""
    if kept := environ.get("KJBOD_CACHE"):
        return Path(kept).absolute() / "fleet"
    if caches := environ.get("XDG_CACHE_HOME"):
        return Path(caches).absolute() / "kjbod/fleet"
    return Path(environ.get("HOME") or "/nonexistent").absolute() / ".cache/kjbod/fleet"


def archive_path(java: Java, environ: Mapping[str, str]) -> Path | None:
    """Place of the archive for this Java and this Spark, made or not; None without a Spark."""
    jars = spark_jars(environ)
    if not jars:
        return None
    place = _short_hash(str(java.executable.absolute()), str(jars[0].parent))
    content = _short_hash(java.build, *(jar.name for jar in needed_jars(jars, environ)))
    build = re.sub(r"[^\w.+-]+", "-", java.build.replace("build ", "")).strip("-")[:60] or str(java.version)
    suffix = "aot" if java.version >= AOT_SINCE else "jsa"
    return cache_directory(environ) / f"{place}-spark{spark_version(jars)}-java{build}-{content}.{suffix}"


def archive_options(java: Java, environ: Mapping[str, str]) -> list[str]:
    """Options of Java to use the archive; none where there is none that is ours. Never raises."""
    try:
        path = archive_path(java, environ)
        if path is None or not _is_ours(path) or not _is_ours(path.parent):
            return []
        if not _is_ours(seal(path)) or seal(path).read_text(encoding="ascii") != stamp(path):
            return []
    except (OSError, ValueError):
        return []
    if java.version >= AOT_SINCE:  # with which -Xshare must not be said
        return [quoted(f"-XX:AOTCache={path}"), "-Xlog:disable"]
    return [quoted(f"-XX:SharedArchiveFile={path}"), "-Xshare:auto", "-Xlog:disable"]


def making_options(java: Java, path: Path) -> list[str]:
    """Options of Java to write an archive to ``path`` when it ends."""
    option = "AOTCacheOutput" if java.version >= AOT_SINCE else "ArchiveClassesAtExit"
    return [quoted(f"-XX:{option}={path}"), "-Xlog:disable"]


def seal(path: Path) -> Path:
    """File that says how the archive was when it was made: with one that was cut short, Java 17 does not start."""
    return path.with_name(f"{path.name}.made")


def stamp(path: Path) -> str:
    """Size and time of the last change of a file, as its seal has them."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _is_ours(path: Path) -> bool:
    """Java runs what is in an archive: whoever may write it must be us or root."""
    status = path.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & _OTHERS_WRITE


def _short_hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()[:10]


def quoted(option: str) -> str:
    """As Spark's launcher takes the options apart."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
