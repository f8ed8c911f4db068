"""What a reader types: lines of a page, with the paths and addresses of a test in the place of the page's."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.pages.markdown import ROOT, Command

TIMEOUT_S = 120
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def with_names(line: str, names: Mapping[str, str]) -> str:
    """A line with other names in the place of some."""
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({pattern})(?![\w.-])", lambda found: names[found[1]], line)


def run(
    command: Command,
    names: Mapping[str, str],
    *,
    before: str = "",
    prefix: Sequence[str] = (),
    arguments: Sequence[str] = (),
    cwd: Path = ROOT,
    programs: Path | None = None,
    said: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell, as root without ``sudo``.

    Args:
        command: the line.
        names: what is called otherwise here.
        before: lines of shell before it.
        prefix: what the shell is started by.
        arguments: of the shell, for ``before``.
        cwd: where it is typed.
        programs: a directory of programs that are found first.
        said: what the reader says when asked.
    """
    line = with_names(re.sub(r"\bsudo ", "", command.text), names)
    path = ":".join([*([str(programs)] if programs else []), f"{sys.prefix}/bin", _SYSTEM_PATH])
    return subprocess.run(
        [*prefix, "bash", "-c", f"set -eo pipefail\n{before}\n{line}\n", "bash", *arguments],
        cwd=cwd,
        env={"PATH": path, "HOME": os.environ.get("HOME", "/"), "PYTHONDONTWRITEBYTECODE": "1"},
        input=said,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
