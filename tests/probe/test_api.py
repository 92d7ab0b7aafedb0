"""The public names of ``import probe``."""

from __future__ import annotations

import pytest

import probe


def test_every_public_name_is_there_and_documented() -> None:
    for name in probe.__all__:
        value = getattr(probe, name)
        assert value.__doc__, name
    assert set(probe.__all__) <= set(dir(probe))


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="head_tabel"):
        _ = probe.head_tabel  # type: ignore[attr-defined]


def test_load_returns_a_model_it_is_given(trained: probe.GPT) -> None:
    assert probe.load(trained) is trained


def test_load_refuses_what_is_no_model() -> None:
    with pytest.raises(probe.ProbeError, match="hooked model"):
        probe.load(3)
