"""The set-up: locked, and clear about what is wrong."""

import os
import re
import subprocess
import tomllib
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
    ],
)
def test_a_wrong_argument_is_one_clear_line(command: list[str], line: str) -> None:
    result = run(*command)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"{line}\n")


def test_kafka_without_maven_and_without_root_is_one_clear_line(tmp_path: Path) -> None:
    # A PATH with what the script needs except Maven and any package manager.
    for tool in ("bash", "dirname", "mkdir", "flock", "mktemp", "cat", "rm"):
        source = next(p for d in os.environ["PATH"].split(":") if (p := Path(d) / tool).exists())
        (tmp_path / tool).symlink_to(source)
    result = run("scripts/kafka", PATH=str(tmp_path), KJBOD_CACHE=str(tmp_path / "cache"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "kjbod: scripts/kafka needs Maven: apt-get install maven\n"


@pytest.mark.parametrize("script", ["setup", "test", "check", "kafka", "lock"])
def test_every_script_says_on_top_what_it_is(script: str) -> None:
    first, second = (ROOT / "scripts" / script).read_text().splitlines()[:2]
    assert first == "#!/usr/bin/env bash"
    assert second.startswith("# ")
