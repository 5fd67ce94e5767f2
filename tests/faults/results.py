"""What outlives a run: its figures as JSON with commit and seeds, and the evidence of a fault."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import cast

ROOT = Path(__file__).parents[2]


def keep(programme: str, **figures: int | float | str) -> None:
    """Add a programme's figures to faults.json in the folder that LIMPET_RESULTS names, if any."""
    folder = os.environ.get("LIMPET_RESULTS")
    if not folder:
        return
    path = Path(folder) / "faults.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = cast("dict[str, object]", json.loads(path.read_text()) if path.exists() else {})
    whole[programme] = {**figures, "commit": _commit(), "python": platform.python_version()}
    path.write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")


def keep_evidence(source: Path, name: str) -> Path:
    """Copy a file or folder that shows a fault to where no test clears up; return the copy."""
    target = Path(tempfile.mkdtemp(prefix="limpet-fault-")) / name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    dirty = subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True, check=False)
    return run.stdout.strip() + (" (changed)" if dirty.stdout else "")
