"""From effects to words: mean and resample must agree, and zero decides nothing."""

import math

import pytest

from analyses.criteria import CRITERIA
from analyses.verdicts import verdict

NEEDS, CAN_GO = CRITERIA["needs"].threshold, CRITERIA["can_go"].threshold


@pytest.mark.parametrize(
    ("mean", "resample", "word"),
    [
        (-1.0, -NEEDS, "needs"),
        (0.01, -CAN_GO, "can go"),
        (-NEEDS + 0.01, -CAN_GO - 0.01, "weakens"),
        (-NEEDS, 0.0, "depends on the ablation"),
        (-NEEDS, -NEEDS + 0.01, "depends on the ablation"),
        (math.nan, -1.0, "undefined"),
    ],
)
def test_both_ablations_must_say_so(mean: float, resample: float, word: str) -> None:
    for zero in (-1.0, 0.0, math.nan):
        assert verdict({"zero": zero, "mean": mean, "resample": resample}, clean=1.0) == word


def test_zero_alone_decides_nothing() -> None:
    assert verdict({"zero": -1.0}, clean=1.0) == "undefined"


@pytest.mark.parametrize("clean", [0.0, 0.49, math.nan])
def test_a_model_that_fails_has_nothing_to_lose(clean: float) -> None:
    assert verdict({"mean": 0.0, "resample": 0.0}, clean=clean) == "undefined"
