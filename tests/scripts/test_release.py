"""``scripts/release``: what a host installs."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kjbod import __version__
from kjbod.config.load import load_guard_config
from kjbod.config.page import guard_file
from scripts import release_build
from tests.depth import at

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
DEB = f"kjbod_{__version__}_amd64.deb"


def release(out: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.release_build", "--out", out, "--python", PYTHON],
        capture_output=True,
        text=True,
        check=False,
        cwd=release_build.ROOT,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_a_package_installs_and_runs_with_what_it_has_and_the_same_commit_gives_the_same_bytes(
    world: None, as_root: None, tmp_path: Path
) -> None:
    out = release(tmp_path / "one")
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    if at(quick=False, ci=False, deep=True):
        assert (release(tmp_path / "two") / "SHA256SUMS").read_text() == (out / "SHA256SUMS").read_text()

    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "-x", out / DEB, root], check=True)
    assert (root / "etc/kjbod/guard.properties").read_text() == guard_file()
    assert (
        "--guard-config /etc/kjbod/guard.properties"
        in (root / "usr/lib/systemd/system/kjbod-guard.service").read_text()
    )
    assert "complete" in (root / "usr/share/bash-completion/completions/kjbod").read_text()
    assert not list(root.rglob("pip")), "nothing that installs or builds"
    # In the place of /opt: the host's own Python is below another prefix on some machines.
    python = Path(sys.executable).resolve()
    (root / "opt/kjbod/bin/python").unlink()
    (root / "opt/kjbod/bin/python").symlink_to(python)
    (root / "opt/kjbod/pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    shown = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount --bind {root}/opt /opt && exec /opt/kjbod/bin/kjbod --version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.stdout, shown.stderr) == (f"kjbod {__version__}\n", "")

    if shutil.which("rpmbuild"):
        (package,) = out.glob("*.rpm")
        listed = subprocess.run(["rpm", "-qlp", package], capture_output=True, text=True, check=True).stdout.split()
        assert {"/opt/kjbod/bin/kjbod", "/usr/lib/systemd/system/kjbod-guard.service"} <= set(listed)
        (tmp_path / "empty").mkdir()
        install = ["rpm", "-i", "--test", "--nodeps", "--root", str(tmp_path / "empty"), str(package)]
        assert subprocess.run(install, capture_output=True, check=False).returncode == 0

    with tarfile.open(out / f"kjbod-{__version__}-wheelhouse.tar.gz") as archive:
        names = [Path(name).name for name in archive.getnames()]
    for name, version, _ in release_build.locked():
        assert any(one.lower().startswith(f"{name.replace('-', '_')}-{version}-") for one in names), name


def test_the_guard_of_the_package_may_read_the_directory_of_its_file(world: None) -> None:
    files = {path: text for path, text, _ in release_build._host_files()}
    unit = files["usr/lib/systemd/system/kjbod-guard.service"]
    assert "d       /etc/kjbod  0750  root  kjbod" in files["usr/lib/tmpfiles.d/kjbod.conf"]
    assert "\nUser=kafka\nGroup=kafka\nSupplementaryGroups=kjbod\n" in unit


def test_each_locked_package_is_in_the_list_with_its_hashes() -> None:
    locked = list(release_build.locked())
    assert {"msgspec", "uvloop", "prometheus-client"} <= {name for name, _, _ in locked}
    assert all(hashes for _, _, hashes in locked)


def test_an_sbom_names_each_package(world: None) -> None:
    made = release_build.sbom(0)
    assert made["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    assert [one["purl"] for one in made["components"]] == [
        f"pkg:pypi/{name}@{version}" for name, version, _ in release_build.locked()
    ]
    json.dumps(made)


def test_a_version_of_python_without_a_release_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        release_build.main(["--python", "3.11,2.7"])
    assert end.value.code == 2
    assert "no release is made for Python 2.7" in capsys.readouterr().err


def test_a_guard_starts_with_the_file_of_the_package_as_with_none(tmp_path: Path) -> None:
    broker, own, empty = tmp_path / "server.properties", tmp_path / "guard.properties", tmp_path / "empty.properties"
    broker.write_text(
        "node.id=1\nprocess.roles=broker\nlog.dirs=/d1\ncontroller.listener.names=C\n"
        "controller.quorum.bootstrap.servers=h:1\n"
    )
    own.write_text(guard_file())
    empty.write_text("")
    assert load_guard_config(broker, own, lambda _: []) == load_guard_config(broker, empty, lambda _: [])
    plain = guard_file().replace("\n#kjbod", "\nkjbod")
    own.write_text("".join(f"{line}\n" for line in plain.splitlines() if not line.endswith("=")))
    assert load_guard_config(broker, own, lambda _: []) == load_guard_config(broker, empty, lambda _: [])
