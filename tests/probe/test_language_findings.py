"""What the study of a language model says, on tables made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from probe.studies.language_findings import findings, signed
from probe.studies.sentences import Finding

USUAL = "as the tokenizer gives it"


def detection(labelled: list[tuple[int, int, str]], *, way: str = USUAL) -> pd.DataFrame:
    """Two layers of two heads; those named are labelled."""
    rows = [
        (way, layer, head, score, 0.9 if (layer, head, score) in labelled else 0.1, 0.05)
        for layer in range(2)
        for head in range(2)
        for score in ("previous_token", "duplicate_token", "induction", "first_token")
    ]
    table = pd.DataFrame(rows, columns=["input", "layer", "head", "score", "value", "chance"])
    return table.assign(labelled=table["value"] > 0.5)


def tables(**changes: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """A whole set of tables, some of them replaced."""
    last = pd.DataFrame(
        {
            "input": USUAL,
            "key": range(5),
            "token": ["The", " capital", " of", " France", " is"],
            "without_first": [np.nan, 0.2, 0.1, 0.4, 0.3],
            "chance": 0.2,
            "chance_without_first": [np.nan, *[0.25] * 4],
        }
    )
    kinds = pd.DataFrame(
        [("entropy", 1.0, 2.0, -1.0, 0.5, 1, 1)],
        columns=["measure", "factual", "open", "difference", "p", "n_factual", "n_open"],
    )
    prompts = pd.DataFrame({"kind": ["factual", "open"], "top_probability": [0.95, 0.2]})
    made = {"detection": detection([]), "last_token": last, "prompts": prompts, "kinds": kinds}
    return made | causal(follows=8, ahead=[8.0, 9.0] * 4) | changes


def causal(*, follows: int, ahead: list[float], change: float = -3.0) -> dict[str, pd.DataFrame]:
    """Capitals of which some follow, and a head whose cut changes so much."""
    capitals = pd.DataFrame({"follows": [True] * follows + [False] * (8 - follows), "rank": 1})
    cut = pd.DataFrame({"layer": [0, 1], "head": 0, "change": [change, 0.0]})
    cut["clean"] = float(np.mean(ahead))
    return {"capitals": capitals.assign(ahead=ahead), "cut": cut}


def by_criterion(found: list[Finding]) -> dict[str, Finding]:
    return {finding.criterion: finding for finding in found}


def test_a_claim_that_cannot_be_asked_says_why() -> None:
    reason = pd.DataFrame(
        [("follows", "Whether the answer follows the country", "two capitals begin alike")],
        columns=["criterion", "question", "reason"],
    )
    given = tables(untested=reason)
    for name in ("capitals", "cut"):
        del given[name]
    given["last_token"] = given["last_token"].assign(token="a")
    found = by_criterion(findings(given))
    assert found["follows"].holds is None
    assert found["follows"].text.endswith("not testable here: two capitals begin alike.")
    assert found["attends"].holds is None
    assert found["label_floor"].holds is False
    assert found["peaked"].holds is True
    assert found["kinds_differ"].holds is False


def test_chance_of_the_sentence_is_that_of_the_table() -> None:
    """The figure held attention without the first key against 1 / keys."""
    texts = [f.text for f in findings(tables()) if f.criterion == "attends"]
    assert texts[0].endswith("attends to “France”: 0.40, 1.6 times chance (0.25).")
    assert texts[1].endswith("does not attend to “capital”: 0.20, 0.8 times chance (0.25).")


def test_no_head_is_labelled_an_induction_head_not_a_induction_head() -> None:
    texts = [finding.text for finding in findings(tables())]
    assert any(text.startswith("No head is labelled an induction head (") for text in texts)
    assert any(text.startswith("No head is labelled a previous-token head (") for text in texts)


def test_heads_that_carry_are_named() -> None:
    found = by_criterion(findings(tables()))["carries"]
    assert found.text == (
        "Of 2 heads, one head carries the country to the answer: 0.0 (-3.0) of 8.5 logits."
    )
    assert found.holds


@pytest.mark.parametrize(
    ("follows", "ahead"),
    [
        (2, [8.0, 9.0] * 4),  # the answer follows in too few prompts
        (8, [-4.0, 4.3] * 4),  # ahead on average, by less than two standard errors
        (8, [-8.0, -9.0] * 4),
        (0, [0.0] * 8),
    ],
)
def test_an_untrained_model_does_not_carry_the_country_by_two_heads_of_a_tenth_of_a_logit(
    follows: int, ahead: list[float]
) -> None:
    given = tables(**causal(follows=follows, ahead=ahead, change=-0.1))
    found = by_criterion(findings(given))
    assert "carries" not in found
    assert found["follows_enough"].holds is None
    assert f"follows it in {follows} of 8 prompts" in found["follows_enough"].text


def test_no_effect_is_printed_as_minus_zero() -> None:
    found = by_criterion(findings(tables(**causal(follows=8, ahead=[8.0, 9.0] * 4, change=-0.04))))
    assert found["carries"].text.endswith("to the answer: at most 0.0 of 8.5 logits.")
    assert [signed(x) for x in (-0.04, 0.04, -0.06, 0.26)] == ["0.0", "0.0", "-0.1", "+0.3"]


def test_labels_of_the_other_way_of_feeding_are_compared_and_not_mixed_in() -> None:
    ours = [(0, 1, "induction"), (1, 0, "previous_token")]
    other = detection([(1, 0, "previous_token"), (1, 1, "first_token")], way="with BOS")
    found = findings(tables(detection=pd.concat([detection(ours), other])))
    texts = [finding.text for finding in found if finding.criterion == "label_floor"]
    assert texts[0].startswith("1 of 4 heads are labelled previous-token heads: 1.0 (")
    assert texts[3].startswith("No head is labelled a first-token head (highest score 0.10")
    assert texts[4] == (
        "Fed with BOS instead, the same random tokens label 1 fewer induction head (0.1), "
        "1 more first-token head (1.1)."
    )
    same = findings(tables(detection=pd.concat([detection(ours), detection(ours, way="with BOS")])))
    assert "Fed with BOS instead, the same random tokens give the same labels." in [
        finding.text for finding in same
    ]
