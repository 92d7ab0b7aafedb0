"""``python -m probe``."""

import subprocess
import sys


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "probe", "heads", "--nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("probe: ")
