"""Thresholds stand in one table, each with the words that are printed beside its use."""

import pytest

from analyses.criteria import CRITERIA


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_prints_its_number(name: str) -> None:
    criterion = CRITERIA[name]
    assert criterion.name == name
    assert f"{criterion.threshold:g}" in str(criterion)
    assert "{" not in str(criterion)
    assert criterion.why


def test_the_label_asks_for_what_the_documentation_says() -> None:
    assert CRITERIA["label_floor"].threshold == 0.4
    assert CRITERIA["label_ratio"].threshold == 2.0
