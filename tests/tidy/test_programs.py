"""Our own tools do what they are trusted with: planting bugs, and packing the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import planted_bugs

ROOT = Path(__file__).resolve().parents[2]

LAW = "tests/tidy/test_source.py::test_source_keeps_the_law[data_only]"
OTHER_LAW = "tests/tidy/test_source.py::test_source_keeps_the_law[short_files]"
BUG = """\
Bug: a module of the package evaluates text
Test: {test}

--- /dev/null
+++ b/src/limpet/core/values/planted.py
@@ -0,0 +1,1 @@
+x = eval("1")
"""
STALE = """\
Bug: a patch from long ago
Test: {test}

--- a/src/limpet/limits.py
+++ b/src/limpet/limits.py
@@ -1,1 +1,1 @@
-this line never stood there
+nor this one
"""


@pytest.mark.parametrize(
    ("patch", "test", "outcome"), [(BUG, LAW, "killed"), (BUG, OTHER_LAW, "SURVIVED"), (STALE, LAW, "does not apply")]
)
def test_planted_bug_is_judged(tmp_path: Path, patch: str, test: str, outcome: str):
    path = tmp_path / "bug.patch"
    path.write_text(patch.format(test=test))
    verdicts = planted_bugs.run([planted_bugs.read(path)], workers=1, timeout_s=60)
    assert [verdict.outcome for verdict in verdicts] == [outcome]


@pytest.mark.parametrize("text", ["Bug: no test named\n", BUG.replace("src/", "docs/")])
def test_malformed_patch_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "bug.patch"
    path.write_text(text)
    with pytest.raises(planted_bugs.Malformed):
        planted_bugs.read(path)


def test_wheel_holds_the_whole_package(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "limpet").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected.add("limpet_command.py")
    expected |= {
        f"limpet/_examples/{path.relative_to(ROOT / 'examples')}"
        for path in (ROOT / "examples" / "demo").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert "limpet/py.typed" in packed
