# SPDX-License-Identifier: Apache-2.0
"""The wheel that `make test` made and installed (MICA_TEST_INSTALLED is the folder): use, command, checker."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from conftest import ROOT

SITE = os.environ.get("MICA_TEST_INSTALLED")
sys.path.insert(0, str(ROOT / "tools/wheel"))
pytestmark = pytest.mark.skipif(not SITE, reason="MICA_TEST_INSTALLED does not name a folder with the installed wheel")


def run(*command, **environment):
    environment = {**os.environ, **environment}
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    return result.returncode, result.stdout, result.stderr


def test_attention_beside_the_formula():
    pytest.importorskip("numpy", reason="NumPy is not installed")
    code, out, err = run(sys.executable, ROOT / "tools/wheel/wheel_smoke.py")
    assert code == 0, err
    assert json.loads(out)["error_numpy"] < 1e-5


def test_import_takes_the_installed_package_and_neither_torch_nor_numpy():
    code, out, err = run(sys.executable, ROOT / "tools/wheel/wheel_smoke.py", "--import-only")
    assert code == 0, err
    found = json.loads(out)
    assert found["package"] == str(pathlib.Path(SITE, "mica")) and found["import_ms"] > 0


@pytest.fixture
def layout(tmp_path):
    """Puts the launcher and commands (scripts that print their own place) where an installation would."""
    def make(launcher, *packages, version=None):
        import mica
        (tmp_path / launcher).mkdir(parents=True)
        shutil.copy(pathlib.Path(SITE, "bin", "mica"), tmp_path / launcher / "mica")
        for package in packages:
            command = tmp_path / package / "mica" / "bin" / "mica"
            command.parent.mkdir(parents=True)
            command.write_text('#!/bin/sh\necho "$0 $*"\n')
            command.chmod(0o755)
            metadata = tmp_path / package / f"mica_attention-{version or mica.__version__}.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.touch()
        return tmp_path / launcher / "mica"
    return make


@pytest.mark.parametrize("launcher, package", [
    ("bin", "lib/python3.9/site-packages"),
    ("bin", "lib/python3.14t/site-packages"),
    ("bin", "lib64/python3.12/site-packages"),
    ("local/bin", "local/lib/python3.11/dist-packages"),
    ("bin", "local/lib/python3.11/dist-packages"),
    ("bin", "."),
    ("we[i]rd *\\ name/bin", "we[i]rd *\\ name/lib/python3.9/site-packages"),
    ("mica_attention-9.data/scripts", "."),
])
def test_launcher_finds_the_package(layout, tmp_path, launcher, package):
    code, out, err = run(layout(launcher, package), "info", "two words")
    assert (code, err) == (0, "")
    place, arguments = out.strip().split("/mica/bin/mica ", 1)
    assert os.path.realpath(place) == str((tmp_path / package).resolve())
    assert arguments == "info two words"


def test_launcher_through_a_link(layout, tmp_path):
    mica = layout("tool/bin", "tool/lib/python3.11/site-packages")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "mica").symlink_to(mica)
    assert run("mica", "x", PATH=str(tmp_path / "path") + ":/usr/bin:/bin")[0] == 0


def test_launcher_takes_the_package_of_its_version(layout, tmp_path):
    mica = layout("bin", "lib/python3.9/site-packages", version="0.0.1")
    own = tmp_path / "lib/python3.11/site-packages"
    shutil.copytree(tmp_path / "lib/python3.9/site-packages/mica", own / "mica")
    import mica as package
    (own / f"mica_attention-{package.__version__}.dist-info").mkdir()
    (own / f"mica_attention-{package.__version__}.dist-info" / "METADATA").touch()
    assert "python3.11" in run(mica)[1]
    shutil.rmtree(own)
    assert "python3.9" in run(mica)[1]


def test_launcher_alone_says_so(layout):
    code, out, err = run(layout("bin"))
    assert (code, out, err.count("\n")) == (127, "", 1)
    assert "install mica-attention again" in err


def test_installed_command():
    code, out, err = run(pathlib.Path(SITE, "bin", "mica"), "info", "--json")
    assert code == 0, err
    assert json.loads(out)["library"] == str(pathlib.Path(SITE, "mica", "lib", "libmica.so.0"))


@pytest.fixture
def wheel():
    found = list((ROOT / "out" / "test-wheels").glob("mica_attention-*.whl"))
    if len(found) != 1:
        pytest.skip("out/test-wheels does not hold the wheel")
    return found[0]


def test_the_doctor_finds_nothing_wrong(wheel):
    """Our own medicine: each wheel agrees with itself, and the library in it loads in this Python."""
    mica = pathlib.Path(SITE, "bin", "mica")
    wheels = sorted(wheel.parent.glob("*.whl"))
    code, out, err = run(mica, "inspect", "--json", *wheels)
    report = json.loads(out)
    assert (code, len(report["files"])) == (0, len(wheels)), [report["verdicts"], err]
    assert all(verdict["severity"] == "note" for verdict in report["verdicts"]), report["verdicts"]
    code, out, err = run(mica, "doctor", "--json", "--python", sys.executable, *wheels)
    verdicts = json.loads(out)["verdicts"]
    assert code == 0, [verdicts, err]
    assert [v["code"] for v in verdicts if v["subject"].endswith("libmica.so.0")] == ["LOADS"], verdicts


def rewritten(wheel, path, change):
    """The wheel with `change(name, data) -> data or None` applied to every member."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            data = change(info.filename, source.read(info))
            if data is not None:
                target.writestr(info, data)
    return path


def keep(name, data):
    return data


@pytest.mark.parametrize("complaint, tag, change", [
    (None, None, keep),
    ("RECORD has", None, lambda name, data: data + b"#" if name == "mica/__init__.py" else data),
    ("not in both", None, lambda name, data: None if name == "mica/errors.py" else data),
    ("holds no mica/lib/libmica.so.0", None, lambda name, data: None if name == "mica/lib/libmica.so.0" else data),
    ("Requires-Python is", None, lambda name, data: data.replace(b">=3.9", b">=3.7")),
    ("requires numpy", None, lambda name, data: data.replace(b"\nRequires-P", b"\nRequires-Dist: numpy\nRequires-P")),
    ("METADATA says", None, lambda name, data: data.replace(b"\nVersion: ", b"\nVersion: 9")),
    ("WHEEL has the tags", "linux_riscv64", keep),
    ("is for ELF machine", "linux_riscv64", keep),
    ("want at most GLIBC_2.17", "manylinux2014_" + os.uname().machine, keep),
])
def test_the_checker_complains(wheel, tmp_path, complaint, tag, change):
    import wheel_check
    path = tmp_path / wheel.name.replace(wheel.name.split("-")[-1], f"{tag}.whl" if tag else wheel.name.split("-")[-1])
    found = list(wheel_check.complaints(rewritten(wheel, path, change)))
    assert any(complaint in line for line in found) if complaint else found == [], found
