"""Every planted head at full strength is found, no decoy is, and untrained models show nothing."""

import pytest
import torch

from analyses.calibration import (
    PLANTED,
    calibrate,
    deal,
    ideal_pattern,
    labels_on_untrained,
    untrained,
)
from models.errors import InputError


def test_the_curve_is_nothing_at_zero_and_everything_at_one() -> None:
    model = untrained(1)
    assert set(deal(model)) == set(PLANTED)
    table = calibrate([model], strengths=(0.0, 0.3, 1.0)).set_index(["detector", "strength"])
    power = table["power"].unstack()
    assert (power[1.0] == 1).all()
    assert (power[[0.0, 0.3]] == 0).all(axis=None)
    assert (table["false_labels"] == 0).all()
    assert (table["planted"] == 2).all()
    assert (table["others"] == 12).all()


def test_untrained_models_have_no_labels() -> None:
    """The command runs a hundred; ten here, with all kinds of positions."""
    table = labels_on_untrained(10)
    assert (table["labelled"] == 0).all()
    assert table["positions"].nunique() == 4
    assert table["highest"].max() < 0.2


def test_ideal_patterns_attend_where_they_are_defined() -> None:
    copies = torch.zeros(1, 6, 6, dtype=torch.bool)
    copies[0, 3, 0] = copies[0, 4, 1] = copies[0, 5, 2] = True
    expected = {
        "previous_token": [None, 0, 1, 2, 3, 4],
        "current_token": [None, 1, 2, 3, 4, 5],
        "first_token": [None, 0, 0, 0, 0, 0],
        "duplicate_token": [None, None, None, 0, 1, 2],
        "induction": [None, None, None, 1, 2, 3],
        "two_back": [None, None, 0, 1, 2, 3],
        "fixed_key": [None, None, None, 3, 3, 3],
    }
    for kind, keys in expected.items():
        rows = ideal_pattern(kind, copies)[0]
        found = [int(row.argmax()) if row.any() else None for row in rows]
        assert found == keys, kind
        assert set(rows.sum(-1).tolist()) <= {0.0, 1.0}


def test_a_strength_is_a_share() -> None:
    with pytest.raises(InputError, match=r"strengths are 0\.\.1"):
        calibrate(strengths=(1.5,))
