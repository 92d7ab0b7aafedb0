"""The long form of scores and its pivot."""

import numpy as np
import torch

from analyses.statistics import mean_interval
from analyses.tables import score_table, wide


def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    both = torch.rand(2, 13, 2, 3, generator=generator, dtype=torch.float64)
    both[1, 4:] = torch.nan
    return {"some": both[0], "few": both[1]}


def test_a_row_is_one_score_of_one_head() -> None:
    table = score_table(values(), {"some": 0.25, "few": 0.5}, unit="share", seed=3)
    assert len(table) == 2 * 3 * 2
    some = mean_interval(values()["some"].numpy(), seed=3)
    few = mean_interval(values()["few"].numpy(), seed=3)
    for row in table.itertuples():
        expected = some if row.score == "some" else few
        cell = (row.layer, row.head)
        got = (row.value, row.ci_low, row.ci_high, row.smallest, row.largest)
        np.testing.assert_allclose(got, [part[cell] for part in expected[:5]], rtol=0, atol=1e-12)
        assert (row.n, row.skipped) == ((13, 0) if row.score == "some" else (4, 9))
        assert row.chance == {"some": 0.25, "few": 0.5}[row.score]
    assert table.attrs["units"] == {"value": "share"}


def test_the_wide_form_has_one_row_per_head() -> None:
    table = score_table(values(), {"some": 0.25, "few": 0.5}, unit="share")
    pivoted = wide(table)
    parts = ("", "_chance", "_ci_low", "_ci_high")
    scores = [f"{score}{part}" for score in ("some", "few") for part in parts]
    assert list(pivoted.columns) == ["layer", "head", *scores]
    assert len(pivoted) == 6
    long = table.set_index(["layer", "head", "score"])
    for row in pivoted.itertuples():
        assert row.some == long.loc[(row.layer, row.head, "some"), "value"]
        assert row.few_chance == 0.5
        assert np.isnan(row.few_ci_low), "4 sequences give no interval"
