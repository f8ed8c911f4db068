"""The command's name in messages, and the command as a person can type it."""

import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "kjbod faults"


def typed() -> str:
    """The command to paste into a shell: with its path where the shell would not find the ``kjbod`` of this program."""
    here = Path(sys.executable).with_name("kjbod")
    found = shutil.which("kjbod")
    if not here.exists() or (found is not None and Path(found).samefile(here)):
        return PROGRAM
    return f"{shlex.quote(str(here))} faults"
