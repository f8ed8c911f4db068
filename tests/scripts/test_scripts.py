"""The set-up: locked, and clear about what is wrong."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "scripts" / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(name: str) -> dict[str, str]:
    lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    return {m[1]: m[2] for line in lines if (m := re.match(r"([a-z0-9-]+)==(\S+)", line))}


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("base", PROJECT["project"]["dependencies"]),
        ("fleet", PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["fleet"]),
        ("dev", PROJECT["dependency-groups"]["dev"]),
        ("build", PROJECT["build-system"]["requires"]),
    ],
)
def test_every_dependency_is_locked_in_a_version_that_the_project_allows(name: str, wanted: list[str]) -> None:
    versions = pinned(name)
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[requirement.name], prereleases=True), requirement


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_locked_requirements_have_hashes_and_name_no_index(path: Path) -> None:
    text = path.read_text()
    assert text.count("==") <= text.count("--hash=sha256:")
    assert "://" not in text
    assert not re.search(r"^--", text, re.MULTILINE)


def test_all_requirement_files_agree_so_that_pip_can_take_them_together() -> None:
    together: dict[str, str] = {}
    for name in ("base", "fleet", "dev", "build"):
        for package, version in pinned(name).items():
            assert together.setdefault(package, version) == version, package


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            ["scripts/setup", "--everything"],
            "kjbod: scripts/setup: unknown option --everything (see scripts/setup --help)",
        ),
        (
            ["scripts/check", "spelling"],
            "kjbod: scripts/check: no step spelling (format lint types imports shell tests)",
        ),
        *(
            (
                [script, version],
                f"kjbod: scripts/kafka: Apache Kafka {version} has no JBOD in KRaft (KIP-858): choose 3.7 or later",
            )
            for script in ("scripts/kafka", "scripts/kafka-tables")
            for version in ("3.6.2", "3.0", "2.8.2", "0.11")
        ),
        *(
            (
                ["scripts/kafka", version],
                f"kjbod: scripts/kafka: '{version}' is no version with checksums in scripts/kafka.d: choose one of "
                "3.7.2 3.8.1 3.9.2 4.0.2 4.1.2 4.2.2 4.3.1 4.4.0",
            )
            for version in ("", "4.4", "4.4.9", "3.60.1", "30.1.0", "../4.4.0", "new")
        ),
    ],
)
def test_a_wrong_argument_is_one_clear_line(command: list[str], line: str) -> None:
    result = run(*command)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"{line}\n")


@pytest.mark.usefixtures("world")
def test_kafka_without_maven_and_without_root_is_one_clear_line(tmp_path: Path) -> None:
    # A PATH with what the script needs except Maven and any package manager.
    for tool in ("bash", "dirname", "mkdir", "flock", "mktemp", "cat", "rm"):
        source = next(p for d in os.environ["PATH"].split(":") if (p := Path(d) / tool).exists())
        (tmp_path / tool).symlink_to(source)
    result = run("scripts/kafka", PATH=str(tmp_path), KJBOD_CACHE=str(tmp_path / "cache"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "kjbod: scripts/kafka needs Maven: apt-get install maven\n"


@pytest.mark.usefixtures("world")
def test_a_jar_of_kafka_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    jars = tmp_path / "kafka-4.4.0" / "libs"
    jars.mkdir(parents=True)
    names = [line.split()[1] for line in (ROOT / "scripts/kafka.d/4.4.0.sha256").read_text().splitlines()]
    for name in names:
        (jars / name).touch()
    assert run("scripts/kafka", "4.4.0", KJBOD_CACHE=str(tmp_path)).stdout == f"{jars}\n"
    for name in (names[0], names[-1]):
        (jars / name).unlink()
        result = run("scripts/kafka", "4.4.0", KJBOD_CACHE=str(tmp_path))
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == f"kjbod: {jars / name}: not there: remove {jars}, and run scripts/kafka 4.4.0\n"
        (jars / name).touch()


@pytest.mark.parametrize("script", ["setup", "test", "deep", "check", "fix", "kafka", "lock"])
def test_every_script_says_on_top_what_it_is(script: str) -> None:
    first, second = (ROOT / "scripts" / script).read_text().splitlines()[:2]
    assert first == "#!/usr/bin/env bash"
    assert second.startswith("# ")


WITH_HELP = [
    *(
        "demo",
        "setup",
        "kafka",
        "lock",
        "check",
        "fix",
        "deep",
        "universe",
        "faults",
        "fuzz",
        "real-brokers",
        "compatibility",
    ),
    *(f"bench/{name}" for name in ("agent-cost", "controller", "detection", "false-positives", "guard", "replicas")),
]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("script", WITH_HELP)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_shown_on_a_machine_without_anything_and_sets_nothing_up(
    tmp_path: Path, script: str, option: str
) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    before = sorted(tmp_path.rglob("*"))
    result = subprocess.run(
        [tmp_path / "scripts" / script, option],
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KJBOD_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert f"scripts/{script}" in result.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("world")
def test_the_help_of_the_demonstration_is_its_own_where_it_can_run() -> None:
    result = run("scripts/demo", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "--plain-directories   no real disks, as without root" in result.stdout


DEVELOPMENT_ONLY = """
import importlib.abc, pkgutil, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import scripts.story, kjbod.fleet, scripts.rig, kjbod.faults
for package in (scripts.story, kjbod.fleet, scripts.rig, kjbod.faults):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
"""


@pytest.mark.usefixtures("world")
def test_the_demonstration_needs_no_development_tools() -> None:
    named = {Requirement(text).name for text in PROJECT["dependency-groups"]["dev"]}
    modules = {name.replace("-", "_") for name in named} | {"kafka", "_pytest", "importlinter"}
    result = run(sys.executable, "-c", DEVELOPMENT_ONLY.replace("{names}", repr(modules)))
    assert (result.returncode, result.stderr) == (0, "")
    assert '"$root/scripts/setup" --fleet\n' in (ROOT / "scripts/demo").read_text()


@pytest.mark.usefixtures("world")
def test_nobody_is_sent_to_a_package_index_for_kjbod() -> None:
    """The name is not ours there."""
    said = run(
        "git", "grep", "-nE", r"kjbod\[|pip3? install .*kjbod($|[^./a-z_-])", "--", ":!tests/scripts", ":!*.lock"
    )
    assert said.stdout == ""


@pytest.mark.usefixtures("world")
def test_what_is_installed_has_what_breaks_disks_and_neither_rig_nor_test(tmp_path: Path) -> None:
    alone = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    built = run(sys.executable, "-m", "pip", "wheel", *alone, "-w", str(tmp_path), ".")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith("kjbod-")}
    assert {name.partition("/")[0] for name in names} == {
        "kjbod",
        "kjbod_agent",
        "kjbod_controller_stub",
        "kjbod_guard",
        "kjbod_host",
    }
    assert {f"kjbod/faults/{name}.py" for name in ("cli", "watchdog", "fuseserver")} <= names
    assert not [name for name in names if "rig" in name.split("/") or "test" in name]


def cloned(tmp_path: Path) -> Path:
    """A clone with a ``.venv`` whose pip writes what it is asked for into ``pip.log``; its ``setup``."""
    for name in ("scripts", "pyproject.toml", "kjbod/__init__.py"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    python = (
        f'#!/bin/sh\ncase "$*" in *"-m pip"*) echo "$*" >>{tmp_path}/pip.log ;; *) exec {sys.executable} "$@" ;; esac\n'
    )
    for name, text in (("python", python), ("pip", "#!/bin/sh\n")):
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    return tmp_path / "scripts/setup"


@pytest.mark.usefixtures("world")
def test_who_sets_up_less_than_is_there_changes_nothing(tmp_path: Path) -> None:
    """The demonstration and the tests in turns: each part is installed once."""
    setup = cloned(tmp_path)

    def installed(option: str) -> str:
        """What pip is asked for."""
        log = tmp_path / "pip.log"
        log.write_text("")
        result = subprocess.run([setup, option], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return log.read_text()

    assert "base.txt" in installed("--base")
    assert "fleet.txt" in installed("--fleet")
    assert installed("--base") == installed("--fleet") == ""
    (tmp_path / "kjbod/__init__.py").write_text('__version__ = "9"\n')
    assert "base.txt" in installed("--base")
    assert "fleet.txt" in installed("--fleet"), "of another version"


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("usable", [True, False])
def test_an_environment_of_another_user_is_named_and_left_alone(tmp_path: Path, usable: bool) -> None:
    setup, venv = cloned(tmp_path), tmp_path / ".venv"
    if not usable:
        (venv / "bin/python").chmod(0o644)
    for path in (venv, venv / "bin"):
        os.chown(path, 65534, 65534)
    plain = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    result = subprocess.run([*plain, setup, "--fleet"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"kjbod: {venv} belongs to nobody and has to be set up anew or further")
    assert (venv / "bin/pip").exists() and not (tmp_path / "pip.log").exists()
