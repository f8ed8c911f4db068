"""Nothing that a user or a tool of theirs sees changes by accident: what there is stands in ``tests/surface.txt``."""

import ast

from tests.surface import FILE, commands, events, surface


def test_commands_events_metrics_exit_codes_and_names_in_answers_are_as_they_were() -> None:
    told = (
        "see the change: .venv/bin/python -m tests.surface | diff tests/surface.txt -; UPGRADING.md names what is gone"
    )
    assert surface() == FILE.read_text(encoding="utf-8"), told


def test_what_is_listed_is_what_there_is() -> None:
    listed = list(commands())
    assert any(line.startswith("kjbod guard check ") and "--gate" in line for line in listed)
    module = ast.parse("""
event = "disk.gone" if late else "disk.here"
log.warning(event, path=path)
log.info("disk.asked", path=path, **more)
log.info("no event")
""")
    found = {"disk.gone": {"..."}, "disk.here": {"..."}, "disk.asked": {"path", "..."}}
    assert events({"module.py": module}) == found
