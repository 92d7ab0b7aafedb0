"""What is in the wheel, and that both kinds of installation find our packages and no others."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("models", "analyses", "reports", "probe")

# Builds both kinds of wheel, in the way that pip calls setuptools.
BUILD = """
import sys
from setuptools.build_meta import build_editable, build_wheel
_, wheel, editable = sys.argv
build_wheel(wheel)
build_editable(editable)
"""

# Imports probe from each of the given working directories, with nothing but one installation of it
# on the path, and prints what came of it.
IMPORT = """
import importlib, json, os, site, sys
installation, checkout, packages, *folders = sys.argv[1:]
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != checkout]
site.addsitedir(installation)
sys.path.insert(0, "")
outcomes = {}
for folder in folders:
    os.chdir(folder)
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.split(".")[0] in packages.split()]:
        del sys.modules[name]
    try:
        import probe, models.errors
        outcome = [probe.__file__, models.errors.__file__]
    except ImportError as error:
        outcome = str(error)
    outcomes[os.path.basename(folder)] = outcome
outcomes["heavy"] = sorted({"torch", "transformer_lens", "pandas"} & set(sys.modules))
print(json.dumps(outcomes))
"""


def run(code: str, *arguments: object, cwd: Path) -> str:
    command = [sys.executable, "-I", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all that goes into a wheel, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("source").resolve()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def installations(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that hold what pip unpacks: of a wheel, and of an editable installation."""
    folders = {kind: tmp_path_factory.mktemp(kind).resolve() for kind in ("wheel", "editable")}
    run(BUILD, *folders.values(), cwd=source)
    for folder in folders.values():
        (wheel,) = folder.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folders


@pytest.fixture
def users(tmp_path: Path) -> dict[str, Path]:
    """Working directories: with nothing, a folder, a package, and a module named like ours."""
    folders = {kind: tmp_path / kind for kind in ("empty", "folder", "package", "module")}
    for folder in folders.values():
        folder.mkdir()
    (folders["folder"] / "models").mkdir()
    (folders["folder"] / "models" / "errors.txt").touch()
    (folders["package"] / "models").mkdir()
    (folders["package"] / "models" / "__init__.py").touch()
    (folders["module"] / "analyses.py").touch()
    return folders


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_installation_passes_over_folders_and_refuses_shadows(
    kind: str, installations: dict[str, Path], source: Path, users: dict[str, Path]
) -> None:
    names = " ".join(PACKAGES)
    output = run(IMPORT, installations[kind], ROOT, names, *users.values(), cwd=users["empty"])
    outcomes = json.loads(output)

    home = source if kind == "editable" else installations[kind]
    ours = [str(home / "probe" / "__init__.py"), str(home / "models" / "errors.py")]
    assert outcomes["empty"] == ours
    assert outcomes["folder"] == ours, "a plain folder is harmless"
    assert outcomes["heavy"] == [], "importing probe must not import these"
    for case, expected, found in (
        ("package", home / "models", users["package"] / "models"),
        ("module", home / "analyses", users["module"] / "analyses.py"),
    ):
        line = f"must come from {expected}, but Python finds {found.resolve()};"
        assert line in outcomes[case]
        assert "\n" not in outcomes[case]


def test_the_wheel_holds_every_file_of_the_packages_and_no_others(
    installations: dict[str, Path],
) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {f"{name}/py.typed" for name in PACKAGES} <= expected
    assert any(name.startswith("reports/templates/") for name in expected)

    (wheel,) = installations["wheel"].glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = {name for name in names if ".dist-info/" in name}
        (commands,) = (name for name in metadata if name.endswith("/entry_points.txt"))
        assert "probe = probe.cli:main" in archive.read(commands).decode()
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)
    assert names - metadata == expected


def test_every_package_on_disk_is_listed_and_every_listed_one_exists() -> None:
    on_disk = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.py")
    }
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(on_disk)
    assert all((ROOT / name.replace(".", "/") / "__init__.py").is_file() for name in listed)


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), "names and versions only"
    versions = {canonicalize_name(name): version for name, version in (p.split("==") for p in pins)}

    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].values()
    for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
        needed = Requirement(line)
        if needed.name != project["name"]:
            assert versions[canonicalize_name(needed.name)] in needed.specifier, line
