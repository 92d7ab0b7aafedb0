"""The folder of a report: written beside its place, moved there when complete.

A report is seen whole or not at all. An exception of any kind, an interrupt
included, leaves the target as it was. ``--force`` replaces only a folder that
holds a report of ours, recognised by the marker in its ``report.json``.
"""

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from models.errors import InputError, OutputExistsError

GENERATOR = "transformer-probe report"
_STEM_LENGTH = 60
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(?<!\.)", re.ASCII)


@contextmanager
def report_folder(target: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside the target; move it there when the block ends.

    Args:
        target: Where the report goes: missing (parents are made), or an empty
            folder, or with ``force`` a folder that holds a report of ours.
        force: Replace such a report. The old one goes once the new one stands.

    Raises:
        OutputExistsError: If something else is there, before anything is
            written. If it appeared meanwhile, the complete report is kept
            beside it, in a folder that the message names.
        InputError: If no folder can be made there.
    """
    place = Path(target).resolve()
    check_target(place, force=force)
    made = _make_parents(place)
    try:
        temporary = _make_beside(place)
        try:
            yield temporary
            _move(temporary, place, force=force)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except BaseException:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        raise


def check_target(target: str | Path, *, force: bool = False) -> None:
    """Raise unless a report may be written at the target; see `report_folder`."""
    place = Path(target).resolve()
    if place in (Path.cwd(), *Path.cwd().parents):
        raise InputError(
            f"a report needs a folder of its own, got {place}, "
            "which holds the current folder; name another one"
        )
    if place.is_mount():
        raise InputError(f"a report cannot replace the mount point {place}; name a folder in it")
    if not place.exists() or _is_empty_folder(place) or (force and is_report(place)):
        return
    raise OutputExistsError(_refusal(place))


def is_report(folder: str | Path) -> bool:
    """Return whether a folder holds a report that this toolkit wrote."""
    try:
        content = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("generator") == GENERATOR


def safe_name(model_name: str) -> str:
    """Return one path component that stands for a model name, whatever it is.

    Letters, digits, dots, ``_`` and ``-`` are kept. Where anything had to be
    replaced, ``~`` and a hash of the full name follow; no kept name holds a
    ``~``, so two names never meet in one component.

    >>> safe_name("my.gpt2-v1.5")
    'my.gpt2-v1.5'
    >>> safe_name("someorg/my.gpt2-v1.5")
    'someorg-my.gpt2-v1.5~76cb98dc1e'
    """
    if _SAFE.fullmatch(model_name) and not _RESERVED.fullmatch(model_name):
        return model_name
    digest = hashlib.sha256(model_name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", model_name)[-_STEM_LENGTH:].strip(".-")
    if not stem or _RESERVED.fullmatch(stem):
        stem = f"model-{stem}".rstrip("-")
    return f"{stem}~{digest}"


def _refusal(place: Path) -> str:
    must = "the output must be a new or empty folder"
    if is_report(place):
        return f"{must}, but {place} holds a report; choose another, or replace it with --force"
    kind = "is not empty and holds no report of ours" if place.is_dir() else "is a file"
    return f"{must}, but {place} {kind}; choose another (--force replaces only a report of ours)"


def _is_empty_folder(place: Path) -> bool:
    return place.is_dir() and not any(place.iterdir())


def _make_parents(place: Path) -> list[Path]:
    """Make the missing parents; return those made, innermost first."""
    missing = [parent for parent in place.parents if not parent.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(place, error) from error
    return missing


def _make_beside(place: Path) -> Path:
    temporary = place.parent / f".report-{uuid.uuid4().hex}.tmp"
    try:
        temporary.mkdir()
    except OSError as error:
        raise _unwritable(place, error) from error
    return temporary


def _unwritable(place: Path, error: OSError) -> InputError:
    return InputError(
        f"the report needs a folder that can be written, but {place.parent} gives "
        f"'{error.strerror}'; choose another output folder"
    )


def _move(temporary: Path, place: Path, *, force: bool) -> None:
    """Put the complete report in its place; an old one goes last."""
    try:
        check_target(place, force=force)
    except OutputExistsError as error:
        kept = place.with_name(f"{place.name}-{uuid.uuid4().hex[:8]}")
        temporary.rename(kept)
        raise OutputExistsError(f"{error}. The new report is complete in {kept}") from None
    old = temporary.with_suffix(".old")
    if place.exists():
        place.rename(old)
    try:
        temporary.rename(place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
    shutil.rmtree(old, ignore_errors=True)
