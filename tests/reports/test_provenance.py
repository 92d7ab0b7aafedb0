"""Provenance says how to run it again, and reads versions without imports."""

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from reports.provenance import provenance


def test_provenance_is_strict_json_with_everything_needed_to_repeat() -> None:
    made = provenance(
        command=["probe", "reversal"],
        configuration={"length": np.int64(16)},
        seeds=range(3),
        timings={"training": np.float32(1.5)},
        paths={"out": Path("out")},
        date=datetime(2030, 1, 2, tzinfo=UTC),
    )
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["seeds"] == [0, 1, 2]
    assert made["configuration"] == {"length": 16}
    assert made["timings"] == {"training": 1.5}
    assert made["date"] == "2030-01-02T00:00:00+00:00"
    assert made["versions"]["python"] == platform.python_version()
    assert made["versions"]["numpy"] == metadata.version("numpy")


def test_versions_are_read_without_importing_torch() -> None:
    code = (
        "import sys; from reports.provenance import versions; found = versions();"
        "import reports; reports.report_folder; assert found['torch'];"
        "assert not {'torch', 'transformer_lens', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
