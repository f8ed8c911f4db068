"""``scripts/release``: a Debian package, an RPM, a wheelhouse, an SBOM and checksums, from the locked packages.

The package has a Python environment of its own below ``/opt/kjbod``, without pip and without anything that builds. One
environment serves all versions of Python that the package is made for: ``bin/python`` is the host's ``python3``, which
takes the directory of its own version below ``lib``. The same commit gives the same bytes.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kjbod import __version__
from kjbod.config.page import guard_file

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "scripts" / "requirements" / "base.txt"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
PREFIX: Final = "opt/kjbod"
PLATFORMS: Final = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
"""glibc of Debian 12 and of all later ones."""
UNIT: Final = "kjbod-guard.service"
OWN_FILE: Final = "/etc/kjbod/guard.properties"

CONTROL: Final = """Package: kjbod
Version: {version}
Architecture: amd64
Maintainer: kjbod
Installed-Size: {size}
Depends: python3 (>= {first}), python3 (<< {beyond})
Recommends: util-linux, smartmontools
Section: admin
Priority: optional
Description: disks that hang, beside Apache Kafka brokers in KRaft mode
 A guard watches the log directories of a Kafka broker, reports a disk that
 hangs, and acts on it if it is told to. With it come an agent, a controller
 for test rigs, and commands that look at any Kafka cluster.
"""
POSTINST: Final = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    systemd-sysusers kjbod.conf 2>/dev/null || true
    systemd-tmpfiles --create kjbod.conf 2>/dev/null || true
    version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    python3 -m compileall -q -j0 "/opt/kjbod/lib/python$version" || true
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        for unit in kjbod-guard kjbod-agent kjbod-controller; do
            systemctl try-restart "$unit.service" || true
        done
    fi
fi
"""
PRERM: Final = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now kjbod-guard.service kjbod-agent.service kjbod-controller.service || true
fi
find /opt/kjbod -name __pycache__ -type d -prune -exec rm -rf {} +
"""
POSTRM: Final = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
    rm -rf /var/lib/kjbod /var/lib/kjbod-controller
    rmdir --ignore-fail-on-non-empty /etc/kjbod 2>/dev/null || true
    if getent passwd kjbod >/dev/null; then userdel kjbod || true; fi
fi
"""

SPEC: Final = """Name: kjbod
Version: {version}
Release: 1
Summary: disks that hang, beside Apache Kafka brokers in KRaft mode
License: Apache-2.0
BuildArch: x86_64
AutoReqProv: no
Requires: (python3.11 or python3 >= {first})
Requires: systemd
%description
A guard watches the log directories of a Kafka broker, reports a disk that hangs, and acts on it if it is told to.
With it come an agent, a controller for test rigs, and commands that look at any Kafka cluster.
%install
cp -a {tree}/. %{{buildroot}}/
%files
/opt/kjbod
/usr/bin/kjbod
/usr/lib/systemd/system/kjbod-*
/usr/lib/sysusers.d/kjbod.conf
/usr/lib/tmpfiles.d/kjbod.conf
/usr/share/kjbod
/usr/share/bash-completion/completions/kjbod
/usr/share/zsh/vendor-completions/_kjbod
/usr/share/fish/vendor_completions.d/kjbod.fish
/usr/share/doc/kjbod
%config(noreplace) /etc/kjbod/guard.properties
%post
for version in {pythons}; do
    if [ -x /usr/bin/python$version ]; then
        ln -sfn /usr/bin/python$version /opt/kjbod/bin/python
        /opt/kjbod/bin/python -m compileall -q -j0 /opt/kjbod/lib/python$version || :
        break
    fi
done
systemd-sysusers kjbod.conf 2>/dev/null || :
systemd-tmpfiles --create kjbod.conf 2>/dev/null || :
systemctl daemon-reload 2>/dev/null || :
if [ $1 -gt 1 ]; then systemctl try-restart kjbod-guard kjbod-agent kjbod-controller 2>/dev/null || :; fi
%preun
if [ $1 = 0 ]; then systemctl disable --now kjbod-guard kjbod-agent kjbod-controller 2>/dev/null || :; fi
find /opt/kjbod -name __pycache__ -type d -prune -exec rm -rf {{}} + || :
%postun
systemctl daemon-reload 2>/dev/null || :
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build; gives the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__.split("\n\n", 1)[0].partition(": ")[2])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go (dist)")
    parser.add_argument("--python", default=",".join(PYTHONS), help="versions of Python, separated by commas (all)")
    given = parser.parse_args(arguments)
    pythons = given.python.split(",")
    if unknown := sorted(set(pythons) - set(PYTHONS)):
        parser.error(f"no release is made for Python {', '.join(unknown)}: {', '.join(PYTHONS)}")
    if shutil.which("dpkg-deb") is None:
        print("scripts/release: no dpkg-deb here: apt install dpkg", file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    epoch = int(_output("git", "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="kjbod-release-") as folder:
        wheels = Path(folder) / "wheels"
        _fetch(wheels, pythons, epoch)
        tree = Path(folder) / "root"
        made = [
            _wheelhouse(wheels, given.out, epoch),
            _package(wheels, tree, given.out, pythons, epoch),
            _sbom(given.out, epoch),
        ]
        if shutil.which("rpmbuild") is None:
            print("scripts/release: no rpm is made: apt install rpm", file=sys.stderr)
        else:
            made.append(_rpm(tree, Path(folder), given.out, pythons, epoch))
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(made))
    (given.out / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    return 0


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _pip(epoch: int, *arguments: str) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)


def _for(python: str) -> list[str]:
    return ["--python-version", python, "--only-binary=:all:", *(f"--platform={one}" for one in PLATFORMS)]


def _fetch(wheels: Path, pythons: Sequence[str], epoch: int) -> None:
    """Get the locked wheels, and build that of kjbod."""
    for python in pythons:
        _pip(epoch, "download", "--no-deps", "--require-hashes", "-r", str(LOCK), *_for(python), "-d", str(wheels))
    _pip(epoch, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT))


def _wheelhouse(wheels: Path, out: Path, epoch: int) -> Path:
    """Write the tarball: wheels, the lock, and how to install them."""
    name = f"kjbod-{__version__}-wheelhouse"
    how = (
        "python3 -m venv /opt/kjbod\n"
        "/opt/kjbod/bin/pip install --no-index --find-links wheels --require-hashes -r base.txt\n"
        f"/opt/kjbod/bin/pip install --no-index --no-deps wheels/kjbod-{__version__}-py3-none-any.whl\n"
    )
    files = {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in wheels.iterdir()}
    files |= {"base.txt": LOCK.read_bytes(), "INSTALL": how.encode(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    target = out / f"{name}.tar.gz"
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return target


def _package(wheels: Path, tree: Path, out: Path, pythons: Sequence[str], epoch: int) -> Path:
    """Write the Debian package."""
    for python in pythons:
        _environment(wheels, tree / PREFIX, python, epoch)
    _write(
        tree / PREFIX / "pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {pythons[0]}\n"
    )
    _write(
        tree / PREFIX / "bin" / "kjbod",
        "#!/opt/kjbod/bin/python\nimport sys\n\nfrom kjbod.cli.main import main\n\nsys.exit(main())\n",
        0o755,
    )
    for name in ("python", "python3"):
        (tree / PREFIX / "bin" / name).symlink_to("/usr/bin/python3")
    for path, content, mode in _host_files():
        _write(tree / path, content, mode)
    (tree / "usr" / "bin").mkdir(parents=True)
    (tree / "usr" / "bin" / "kjbod").symlink_to("/opt/kjbod/bin/kjbod")
    (tree / "usr" / "share" / "kjbod").symlink_to("/opt/kjbod/share/kjbod/systemd")
    size = sum(file.lstat().st_size for file in tree.rglob("*")) // 1024
    first, last = pythons[0], pythons[-1]
    beyond = f"3.{int(last.partition('.')[2]) + 1}"
    for name, text, mode in (
        ("control", CONTROL.format(version=__version__, size=size, first=first, beyond=beyond), 0o644),
        ("conffiles", f"{OWN_FILE}\n", 0o644),
        ("postinst", POSTINST, 0o755),
        ("prerm", PRERM, 0o755),
        ("postrm", POSTRM, 0o755),
    ):
        _write(tree / "DEBIAN" / name, text, mode)
    target = out / f"kjbod_{__version__}_amd64.deb"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(target)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return target


def _rpm(tree: Path, folder: Path, out: Path, pythons: Sequence[str], epoch: int) -> Path:
    """Write the RPM of the same tree."""
    shutil.rmtree(tree / "DEBIAN")
    spec = folder / "kjbod.spec"
    newest_first = " ".join(reversed(pythons))
    spec.write_text(SPEC.format(version=__version__, tree=tree, first=pythons[0], pythons=newest_first))
    macros = {
        "_topdir": str(folder / "rpm"),
        "_buildhost": "localhost",
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        "_build_id_links": "none",
        "__os_install_post": "%{nil}",  # strips nothing, and compiles nothing: the wheels stay as they are
    }
    defined = [part for name, value in macros.items() for part in ("--define", f"{name} {value}")]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = ["rpmbuild", "-bb", "--quiet", "--target", "x86_64", *defined, str(spec)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"scripts/release: rpmbuild: {done.stderr.strip()}")
    (made,) = (folder / "rpm" / "RPMS" / "x86_64").glob("*.rpm")
    return Path(shutil.move(made, out / made.name))


def _environment(wheels: Path, prefix: Path, python: str, epoch: int) -> None:
    """Put the packages for one version of Python below ``lib``."""
    site = prefix / "lib" / f"python{python}" / "site-packages"
    site.mkdir(parents=True)
    names = [f"{name}=={version}" for name, version, _ in locked()]
    index = ["--no-index", "--find-links", str(wheels), "--no-deps", "--no-compile", *_for(python)]
    _pip(epoch, "install", "--target", str(site), *index, *names, f"kjbod=={__version__}")
    shutil.rmtree(site / "bin", ignore_errors=True)
    if (site / "share").exists():
        shutil.rmtree(prefix / "share", ignore_errors=True)
        (site / "share").rename(prefix / "share")
    for record in site.glob("*.dist-info/direct_url.json"):  # where this machine had the wheel
        record.unlink()


def _host_files() -> Iterator[tuple[str, str, int]]:
    """Files outside of ``/opt``: path, content and mode."""
    for unit in sorted((ROOT / "systemd").glob("kjbod-*")):
        text = unit.read_text()
        if unit.name == UNIT:
            run = "ExecStart=/opt/kjbod/bin/kjbod guard run -c /etc/kafka/server.properties"
            assert f"{run}\n" in text
            text = text.replace(f"{run}\n", f"{run} --guard-config {OWN_FILE}\n")
            # /etc/kjbod is for root and the group kjbod, and the guard runs as the user of the broker.
            assert "\nGroup=kafka\n" in text
            text = text.replace("\nGroup=kafka\n", "\nGroup=kafka\nSupplementaryGroups=kjbod\n")
        yield f"usr/lib/systemd/system/{unit.name}", text, 0o644
    for folder in ("sysusers.d", "tmpfiles.d"):
        yield f"usr/lib/{folder}/kjbod.conf", (ROOT / "systemd" / folder / "kjbod.conf").read_text(), 0o644
    yield OWN_FILE.lstrip("/"), guard_file(), 0o644
    for shell, path in (
        ("bash", "usr/share/bash-completion/completions/kjbod"),
        ("zsh", "usr/share/zsh/vendor-completions/_kjbod"),
        ("fish", "usr/share/fish/vendor_completions.d/kjbod.fish"),
    ):
        environment = {**os.environ, "_KJBOD_COMPLETE": f"{shell}_source"}
        program = [str(Path(sys.executable).with_name("kjbod"))]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
        yield path, done.stdout, 0o644
    yield "usr/share/doc/kjbod/copyright", (ROOT / "LICENSE").read_text(), 0o644


def _write(path: Path, content: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)


def locked() -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and SHA-256 hashes of each locked package."""
    text = LOCK.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if match := re.match(r"([A-Za-z0-9_.-]+)==([^ ;]+)", line):
            yield match[1], match[2], re.findall(r"--hash=sha256:([0-9a-f]{64})", line)


def sbom(epoch: int) -> dict[str, Any]:
    """Return the list of all components as CycloneDX 1.6 has it."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "kjbod", "version": __version__},
            "timestamp": subprocess.run(
                ["date", "-u", "-d", f"@{epoch}", "+%Y-%m-%dT%H:%M:%SZ"], check=True, capture_output=True, text=True
            ).stdout.strip(),
        },
        "components": [
            {
                "type": "library",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "hashes": [{"alg": "SHA-256", "content": one} for one in hashes],
            }
            for name, version, hashes in locked()
        ],
    }


def _sbom(out: Path, epoch: int) -> Path:
    target = out / f"kjbod-{__version__}.sbom.json"
    target.write_text(json.dumps(sbom(epoch), indent=2) + "\n")
    return target


if __name__ == "__main__":
    sys.exit(main())
