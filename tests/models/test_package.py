import subprocess
import sys

import pytest

import models

HEAVY = {"torch", "numpy", "pandas", "transformers", "transformer_lens"}


def test_every_exported_name_is_there() -> None:
    assert set(models.__all__) <= set(dir(models))
    for name in models.__all__:
        assert getattr(models, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        models.nothing  # noqa: B018


def test_names_errors_and_shapes_come_without_torch() -> None:
    heavy = _modules_after("import models, models.errors, models.names, models.config")
    assert not heavy & HEAVY


def test_our_own_models_do_without_transformer_lens() -> None:
    heavy = _modules_after("import models.training, models.checkpoints, models.sampling")
    assert heavy & HEAVY == {"torch", "numpy"}


def _modules_after(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
