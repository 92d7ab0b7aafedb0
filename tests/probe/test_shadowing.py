"""`refuse_shadowing` in this process. Installations are in tests/test_packaging.py."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from probe._shadowing import PACKAGES, refuse_shadowing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=PACKAGES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of one of our packages, as if it had not been imported yet."""
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    return str(request.param)


def assert_refused(name: str, found: Path) -> None:
    with pytest.raises(ImportError) as refusal:
        refuse_shadowing()
    message = str(refusal.value)
    assert f"{name!r} of transformer-probe must come from {ROOT / name}, " in message
    assert f"finds {found};" in message
    assert "\n" not in message


def test_our_own_packages_pass(name: str) -> None:
    refuse_shadowing()
    assert name not in sys.modules, "the check imports nothing"


def test_a_plain_folder_is_harmless(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "weights.safetensors").touch()
    monkeypatch.syspath_prepend(tmp_path)
    refuse_shadowing()


@pytest.mark.parametrize("file", ["{}/__init__.py", "{}.py"], ids=["package", "module"])
def test_a_package_or_module_earlier_on_the_path_is_refused(
    file: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / file.format(name)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert_refused(name, path.parent if path.stem == "__init__" else path)


def test_a_module_that_is_already_imported_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(name)
    module.__file__ = "/elsewhere/imported.py"
    monkeypatch.setitem(sys.modules, name, module)
    assert_refused(name, Path("/elsewhere/imported.py"))


def test_a_module_without_a_file_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert_refused(name, Path("nothing"))
