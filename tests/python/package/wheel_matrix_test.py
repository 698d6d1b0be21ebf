# SPDX-License-Identifier: Apache-2.0
"""tools/wheel/wheel_matrix.py: what ran is kept, what did not is said. The environments themselves are make wheel-test's."""

import pathlib
import platform
import subprocess
import sys
import time
import types

import pytest
from conftest import ROOT

if not (ROOT / "tools/wheel/wheel_matrix.py").is_file():
    pytest.skip("tools/ is not here", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tools/wheel"))

import wheel_matrix  # noqa: E402
import wheel_places  # noqa: E402


@pytest.fixture
def matrix(tmp_path, monkeypatch):
    """Runs the tool on a file that stands for a wheel; gives (exit status, rows that were run, report)."""
    wheel, ran, fails = tmp_path / "some.whl", [], set()
    wheel.write_bytes(b"1")

    def one_row(place, wheel, beside, python, torch):
        ran.append((python, torch))
        verdict = "FAILS" if (python, torch) in fails else "works"
        return {"python": python, "machine": wheel.machine, "kind": place.kind, "torch": torch, "verdict": verdict,
                "seconds": 0.0, **({"why": "because"} if verdict == "FAILS" else {})}

    monkeypatch.setattr(wheel_matrix, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(wheel_matrix, "one_row", one_row)
    monkeypatch.setattr(wheel_matrix, "interpreters", lambda versions: {})
    monkeypatch.setattr(wheel_matrix, "commit_of", lambda wheel: "1234abc")
    monkeypatch.setattr(wheel_matrix.wheel_check, "Wheel",
                        lambda path: types.SimpleNamespace(path=pathlib.Path(path), machine=platform.machine()))

    def run(*options):
        ran.clear()
        report = tmp_path / "report.md"
        monkeypatch.setattr(sys, "argv", ["wheel_matrix.py", "--report", str(report), *options, str(wheel)])
        return wheel_matrix.main(), list(ran), report.read_text()

    run.wheel, run.fails = wheel, fails
    return run


EVERY = sum(len(torches) for torches in wheel_matrix.ROWS.values())


def test_a_row_that_worked_is_kept_for_the_same_file(matrix):
    status, ran, report = matrix()
    assert status == 0 and len(ran) == EVERY and report.count("| works |") == EVERY and "Not run" not in report
    assert "some.whl`, 0.00 MB, made at 1234abc\n" in report
    assert matrix()[1] == []
    assert len(matrix("--again")[1]) == EVERY
    matrix.wheel.write_bytes(b"2")
    assert len(matrix()[1]) == EVERY


def test_in_pieces(matrix):
    status, ran, report = matrix("--only", "^3.14t ")
    assert status == 0 and {python for python, _ in ran} == {"3.14t"}
    assert report.count("| works |") == len(ran) and "Not run: Python 3.9 on" in report
    _, ran, report = matrix()
    assert len(ran) == EVERY - len(wheel_matrix.ROWS["3.14t"]) and report.count("| works |") == EVERY


def test_a_failure_decides_and_is_run_again(matrix):
    matrix.fails.add(("3.9", "2.0.1"))
    status, _, report = matrix()
    assert status == 1 and f"- Python 3.9 on {platform.machine()}, PyTorch 2.0.1: because" in report
    matrix.fails.clear()
    status, ran, report = matrix()
    assert status == 0 and ran == [("3.9", "2.0.1")] and "because" not in report


def test_what_the_matrix_must_cover():
    versions = {torch for torches in wheel_matrix.ROWS.values() for torch in torches}
    assert {"3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.14t"} <= wheel_matrix.ROWS.keys()
    assert {None, "2.0.1", wheel_matrix.NEWEST} <= versions  # 2.0.1 has the old C++ ABI


def test_the_commit_of_a_wheel_is_known_by_its_time():
    log = subprocess.run(["git", "log", "-1", "--format=%h %ct"], cwd=ROOT, capture_output=True, text=True)
    if log.returncode:
        pytest.skip("this tree is in no git repository")
    commit, seconds = log.stdout.split()

    def made_at(seconds):
        year, month, day, hour, minute, second = time.gmtime(seconds)[:6]
        info = types.SimpleNamespace(date_time=(year, month, day, hour, minute, second // 2 * 2))
        return types.SimpleNamespace(archive=types.SimpleNamespace(infolist=lambda: [info]))

    assert wheel_matrix.commit_of(made_at(int(seconds))) == commit
    assert wheel_matrix.commit_of(made_at(315532800)) is None


def test_tags_of_a_free_threaded_python():
    tags = wheel_places.tags("3.14t", "aarch64")
    assert tags[tags.index("--python-version") + 1] == "3.14" and "cp314t" in tags and "manylinux2014_aarch64" in tags
    assert wheel_places.requirements("2.0.1") == ["numpy<2", "torch==2.0.1"]
    assert wheel_places.requirements(None) == ["numpy"]
