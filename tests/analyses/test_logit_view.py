"""The logit-level view: every column recomputed in float64, and transformers' filters."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analyses import logit_view as module
from analyses.logit_view import SUMMED, logit_view
from models.errors import InputError, LengthError
from models.gpt import GPT
from models.interface import capture

IDS = [3, 1, 4, 1, 5]


def row_of(model: Any, at: int) -> Any:
    logits = capture(model, [IDS], logits=True).logits
    assert logits is not None
    return logits[0, at].double()


@pytest.mark.parametrize("at", [0, 2, 4, -1, -5])
@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 7}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.6}, {"top_k": 99}]
)
def test_every_column_is_what_transformers_makes_of_the_logits(
    gpt2_twin: GPT, at: int, filters: dict[str, Any]
) -> None:
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    table = logit_view(gpt2_twin, [IDS], position=at, temperature=1.7, top=23, **filters)
    logits = row_of(gpt2_twin, at)[table["id"].tolist()]
    scaled = logits / 1.7
    np.testing.assert_allclose(table["logit"], logits, atol=1e-5)  # measured: 2e-6
    np.testing.assert_allclose(table["scaled"], scaled, atol=1e-5)
    np.testing.assert_allclose(table["before"], scaled.softmax(-1), atol=1e-6)  # measured: 8e-8
    k, p = filters.get("top_k"), filters.get("top_p")
    after_k = scaled if k is None else TopKLogitsWarper(k)(None, scaled[None])[0]
    np.testing.assert_allclose(table["after_top_k"], after_k.softmax(-1), atol=1e-6)
    after_p = after_k if p is None else TopPLogitsWarper(p)(None, after_k[None])[0]
    np.testing.assert_allclose(table["after_top_p"], after_p.softmax(-1), atol=1e-6)
    cut = np.where(after_k.isinf(), "top_k", np.where(after_p.isinf(), "top_p", ""))
    assert table["cut_by"].tolist() == cut.tolist()
    assert (table["kept"] == (table["cut_by"] == "")).all()
    assert table["rank"].tolist() == list(range(1, 24))
    assert (np.diff(table["logit"]) <= 0).all()


@settings(deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30), min_size=2, max_size=12),
    temperature=st.sampled_from([0.0, 1e-40, 1e-8, 0.5, 1.0, 2.0, 1e6]),
    top_k=st.none() | st.integers(1, 15),
    top_p=st.none() | st.floats(1e-8, 1),
    top=st.integers(1, 15),
)
def test_rows_and_rest_have_probability_one_and_are_never_empty(
    gpt2_twin: GPT,
    logits: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    top: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "next_logits", lambda model, ids: torch.tensor(logits))
        how: Any = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        table = logit_view(gpt2_twin, [IDS], top=top, **how)
        whole = logit_view(gpt2_twin, [IDS], top=len(logits), **how)
    rest = table.attrs["rest"]
    assert len(table) + rest["n"] == len(logits)
    assert table["kept"].sum() + rest["n_kept"] == whole["kept"].sum()
    for name in SUMMED:
        assert table[name].sum() + rest[name] == pytest.approx(1, abs=1e-12)
    assert bool(table["kept"][0])
    assert table["cut_by"][0] == ""
    if top_k is not None:
        assert whole["kept"].sum() <= top_k


@pytest.mark.parametrize(
    ("how", "kept", "cut"),
    [
        ({"top_p": 0.74}, [2 / 3, 1 / 3, 0, 0], ["", "", "top_p", "top_p"]),
        ({"top_p": 0.76}, [4 / 7, 2 / 7, 1 / 7, 0], ["", "", "", "top_p"]),
        ({"top_p": 1.0}, [0.5, 0.25, 0.125, 0.125], [""] * 4),
        ({"top_p": 1e-8}, [1, 0, 0, 0], ["", "top_p", "top_p", "top_p"]),
        ({"top_p": 0.75}, [2 / 3, 1 / 3, 0, 0], ["", "", "top_p", "top_p"]),
        ({"top_k": 10**6}, [0.5, 0.25, 0.125, 0.125], [""] * 4),
        ({"top_k": 3, "top_p": 0.5}, [1, 0, 0, 0], ["", "top_p", "top_p", "top_k"]),
        ({"top_k": 1, "top_p": 0.8}, [1, 0, 0, 0], ["", "top_k", "top_k", "top_k"]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0], ["", "", "top_k", "top_k"]),
    ],
)
def test_the_edges_of_the_filters(
    gpt2_twin: GPT,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    kept: list[float],
    cut: list[str],
) -> None:
    """AH-10: probabilities 1/2, 1/4, 1/8, 1/8; of equal ones the smaller id comes first."""
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    monkeypatch.setattr(module, "next_logits", lambda model, ids: logits)
    table = logit_view(gpt2_twin, [IDS], **how)
    assert table["id"].tolist() == [0, 1, 2, 3]
    assert table["after_top_p"].tolist() == pytest.approx(kept)
    assert table["cut_by"].tolist() == cut
    if how == {"top_k": 3, "top_p": 0.5}:
        assert table["after_top_k"].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7, 0])


def test_temperature_zero_keeps_the_argmax_alone(gpt2_twin: GPT) -> None:
    """AH-09: no division by zero; the scaled logit is undefined."""
    table = logit_view(gpt2_twin, [IDS], temperature=0.0, top=5, top_k=3)
    assert table["scaled"].isna().all()
    assert table["before"].tolist() == table["after_top_p"].tolist() == [1, 0, 0, 0, 0]
    assert table["kept"].tolist() == [True, False, False, False, False]
    assert table["cut_by"].tolist() == ["", *["temperature"] * 4]
    assert table.attrs["rest"]["n_kept"] == 0


def test_either_engine_shows_the_mini_model(mini: Any) -> None:
    """AH-09: p(token 0) after A at temperature 2; twice divided it would be another number."""
    table = logit_view(mini, [[3, 1, 4, 1, 5, 9, 2, 6]], temperature=2.0, top=1)
    assert table["id"][0] == 0
    assert table["before"][0] == pytest.approx(0.328967, abs=1e-5)


def test_a_later_token_does_not_show(gpt2_twin: GPT) -> None:
    first = logit_view(gpt2_twin, [IDS], position=1)
    second = logit_view(gpt2_twin, [[3, 1]], position=-1)
    assert first["id"].tolist() == second["id"].tolist()
    np.testing.assert_allclose(first["logit"], second["logit"], atol=1e-6)
    assert (first.attrs["position"], first.attrs["ids"]) == (1, "3 1 4 1 5")


def test_tokens_are_text_where_there_is_a_tokenizer(gpt2_twin: GPT, gpt2_bridge: Any) -> None:
    ours, theirs = logit_view(gpt2_twin, [IDS], top=4), logit_view(gpt2_bridge, [IDS], top=4)
    assert ours["token"].tolist() == [str(i) for i in ours["id"]]
    assert theirs["id"].tolist() == ours["id"].tolist()
    names = ["<end>" if i == 22 else chr(ord("a") + i) for i in ours["id"]]
    assert theirs["token"].tolist() == names
    typed = logit_view(gpt2_bridge, "f", top=4)
    fed = [[int(i) for i in typed.attrs["ids"].split()]]
    assert fed[0][-1] == 5
    pd.testing.assert_frame_equal(typed, logit_view(gpt2_bridge, fed, top=4))


def test_tokens_of_a_byte_level_vocabulary_stay_apart(smollm2_gpt: GPT) -> None:
    """AH-14: part of a character is shown by its bytes."""
    table = logit_view(smollm2_gpt, "The capital of France is", top=49152)
    assert table["token"][0] == " Paris"
    assert table.attrs["rest"]["n"] == 0
    assert table["token"].nunique() == 49152, "no two are shown alike"
    assert table["token"].str.startswith("\\x").any()


@pytest.mark.parametrize(
    ("tokens", "how", "message"),
    [
        ([IDS, IDS], {}, "one prompt are looked at, but got 2"),
        ([IDS], {"position": 5}, "must be 0..4 here, or -5..-1 from the end, but got 5"),
        ([IDS], {"position": -6}, "but got -6"),
        ([IDS], {"top": 0}, "top must be at least 1"),
        ([IDS], {"temperature": -1.0}, "temperature must be"),
        ([IDS], {"top_p": 1.5}, "top_p must be"),
        ([IDS], {"top_k": 0}, "top_k must be"),
        ([[]], {}, "non-empty"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(
    gpt2_twin: GPT, tokens: Any, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        logit_view(gpt2_twin, tokens, **how)


def test_a_prompt_longer_than_the_context_is_refused(gpt2_twin: GPT) -> None:
    """AH-13: both numbers are named, also where the position would fit."""
    assert len(logit_view(gpt2_twin, [[1] * 17], top=3)) == 3
    with pytest.raises(LengthError, match="context is 17 tokens, but got 18"):
        logit_view(gpt2_twin, [[1] * 18], position=2)
