"""A module without the package around it."""

import sys
from pathlib import Path

import pytest

from kjbod.bare_import import import_alone


def test_a_module_comes_without_its_package_which_is_whole_for_who_imports_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "around"
    root.mkdir()
    (root / "__init__.py").write_text("whole = True\n")
    (root / "within.py").write_text("from .beside import answer\n")
    (root / "beside.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    within = import_alone("around", "within")
    assert within.answer == 42
    assert "around" not in sys.modules
    import around  # type: ignore[import-not-found]

    assert around.whole and import_alone("around", "within") is within


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package_here"):
        import_alone("no_such_package_here", "within")
