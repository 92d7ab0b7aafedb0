"""Refuse to start when another package hides one of ours.

`models`, `analyses` and `reports` are common names. A package or module called so, earlier on the
import path, would be imported in place of ours and fail somewhere far away. A plain folder of that
name is harmless, since Python prefers a package anywhere on the path. The check only looks up where
each name leads: it imports nothing.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("models", "analyses", "reports")


def refuse_shadowing() -> None:
    """Check that each of our packages is the one that Python finds under its name.

    Raises:
        ImportError: one line with the path that was expected and the path that was found.
    """
    for name in PACKAGES:
        expected = (Path(__file__).parent.parent / name).resolve()
        found = _location(name)
        if found != expected:
            raise ImportError(
                f"the package {name!r} of transformer-probe must come from {expected}, but Python "
                f"finds {found or 'nothing'}; rename or move that one, or start somewhere else"
            )


def _location(name: str) -> Path | None:
    """Where importing `name` leads: the folder of a package, the file of a module."""
    if name in sys.modules:
        module = sys.modules[name]
        folders = list(getattr(module, "__path__", ()))
        origin = getattr(module, "__file__", None)
    else:
        spec = find_spec(name)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        origin = spec.origin if spec else None
    where = folders[0] if folders else origin
    return Path(where).resolve() if where else None
