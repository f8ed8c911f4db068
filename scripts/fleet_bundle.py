"""``scripts/fleet-bundle``: ``kjbod fleet`` as two files for ``spark-submit``.

The zip has the package ``kjbod`` and the pure Python that its command line needs beside Spark, which is Click; without
the agent, the controller and anything that was compiled. The same sources give the same bytes.
"""

import argparse
import ast
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

PACKAGES: Final = ("kjbod", "click")
ZIP, ENTRY = "kjbod-fleet.zip", "kjbod-fleet.py"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = 0o100644 << 16

_ENTRY: Final = '''"""``kjbod fleet`` for spark-submit: see scripts/fleet-bundle of kjbod."""

import sys

from kjbod.cli.main import run

sys.exit(run(["fleet", *sys.argv[1:]]))
'''


def write_bundle(out: Path) -> tuple[Path, Path]:
    """Write both files into ``out``. Returns the zip and what to submit with it."""
    out.mkdir(parents=True, exist_ok=True)
    bundle, entry = out / ZIP, out / ENTRY
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, path in sorted(_contents()):
            info = zipfile.ZipInfo(name, _EPOCH)
            # Stored, not deflated: other versions of zlib would make other bytes of it.
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_STORED, _MODE, 3
            archive.writestr(info, path.read_bytes())
    entry.write_text(_ENTRY)
    return bundle, entry


def _contents() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        (folder,) = import_module(package).__path__
        for path in Path(folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".md"):
                yield f"{package}/{path.relative_to(folder).as_posix()}", path


def compiled(bundle: Path) -> list[str]:
    """Files of a bundle that are no Python source: what another machine may not be able to load."""
    with zipfile.ZipFile(bundle) as archive:
        return [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]


def sources(bundle: Path) -> dict[str, ast.Module]:
    """Python modules of a bundle, parsed."""
    with zipfile.ZipFile(bundle) as archive:
        return {name: ast.parse(archive.read(name)) for name in archive.namelist() if name.endswith(".py")}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the bundle."""
    parser = argparse.ArgumentParser(
        prog="scripts/fleet-bundle", description="Make kjbod-fleet.zip and kjbod-fleet.py, for spark-submit."
    )
    parser.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR", help="where they go (dist)")
    bundle, entry = write_bundle(parser.parse_args(argv).out)
    print(f"spark-submit --py-files {bundle} {entry} --help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
