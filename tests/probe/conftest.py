"""One finished reversal study, shared by the tests that look at its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.training import TrainingConfig
from probe.studies.reversal import ReversalStudy

SMALL = ReversalStudy(
    length=5,
    heads=2,
    width=32,
    seeds=2,
    device="cpu",
    workers=1,
    other_steps=(20,),
    training=TrainingConfig(steps=60),
)


@pytest.fixture(scope="session")
def study() -> ReversalStudy:
    """A study of seconds."""
    return SMALL


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, study: ReversalStudy) -> Path:
    """The report of `study`. Shared: leave it as you found it."""
    from probe.studies.reversal import reversal

    folder, _ = reversal(tmp_path_factory.mktemp("study") / "report", study=study)
    return folder
