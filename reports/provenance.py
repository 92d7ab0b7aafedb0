"""Where a report comes from: command, configuration, seeds, versions.

Date, timings and paths differ between equal runs, so they stand in
``report.json`` and nowhere else. Versions come from package metadata:
nothing is imported to learn them.
"""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from reports.tables import jsonable

PACKAGES = (
    "transformer-probe",
    "torch",
    "transformer-lens",
    "numpy",
    "pandas",
    "matplotlib",
)


def provenance(
    *,
    command: str | Sequence[str],
    configuration: Any,
    seeds: Sequence[int],
    timings: Mapping[str, float],
    paths: Mapping[str, Any] | None = None,
    date: datetime | None = None,
) -> dict[str, Any]:
    """Return what is needed to run a study again, ready for JSON.

    Args:
        command: The command line, whole or in parts.
        configuration: A mapping or dataclass.
        seeds: Every seed used.
        timings: Stage to seconds.
        paths: Name to path, of what was read and written.
        date: When; now, in UTC, unless given.
    """
    moment = date if date is not None else datetime.now(UTC)
    content = {
        "command": command,
        "configuration": configuration,
        "seeds": list(seeds),
        "versions": versions(),
        "platform": {"system": platform.system(), "architecture": platform.machine()},
        "date": moment.isoformat(timespec="seconds"),
        "timings": timings,
        "paths": paths or {},
    }
    return {name: jsonable(value) for name, value in content.items()}


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages results depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
