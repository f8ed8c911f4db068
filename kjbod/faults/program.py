"""The name of the command in messages, in a form that a user can type."""

import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "kjbod faults"


def typed() -> str:
    """Return the command to paste into a shell, with its path if the shell would not find this program's ``kjbod``."""
    here = Path(sys.executable).with_name("kjbod")
    found = shutil.which("kjbod")
    if not here.exists() or (found is not None and Path(found).samefile(here)):
        return PROGRAM
    return f"{shlex.quote(str(here))} faults"
