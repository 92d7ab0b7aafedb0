"""``probe ablate`` and ``probe sweep``: what they print, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from models.checkpoints import load_model
from probe.cli import execute

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process: status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = execute([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_a_prompt_s_next_tokens_stand_side_by_side(
    run: Run, trained_folder: Path, tmp_path: Path
) -> None:
    import probe
    from analyses.next_tokens import next_tokens

    model, csv = load_model(trained_folder), tmp_path / "out.csv"
    status, out, _ = run(
        *("ablate", trained_folder, "--head", "1.*", "--prompt", "abcde", "--top", "3"),
        *("--answer", "e", "--distractor", "a", "--csv", csv, "--position=-1"),
    )
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "abcde"
    assert lines[1].split() == ["before", "p", "p", "after", "after", "p"]
    found = next_tokens(model, "abcde", heads=["1.*"], positions=[-1], top=3)
    for line, (_, row) in zip(lines[2:5], found.iterrows(), strict=True):
        assert f"{row['clean_probability']:.3f}" in line
        assert f"{row['ablated_probability']:.3f}" in line
    metric: Any = probe.LogitDifference("e", "a")
    expected = probe.ablate(model, "abcde", heads=["1.*"], positions=[-1], metric=metric)
    written = pd.read_csv(csv)
    assert written["metric"].tolist() == ["logit_difference"]
    assert written["change"].tolist() == pytest.approx(expected["change"].tolist(), rel=1e-4)
    assert written["baseline"].tolist() == ["zero"], "a single text has no other to draw from"


def test_a_sweep_is_sorted_by_the_size_of_its_change(
    run: Run, trained_folder: Path, tmp_path: Path
) -> None:
    import probe

    csv, figure = tmp_path / "out.csv", tmp_path / "out.png"
    status, out, _ = run(
        *("sweep", trained_folder, "--metric", "loss", "--top", "3"),
        *("--csv", csv, "--figure", figure),
    )
    assert status == 0
    assert len(out.splitlines()) == 1 + 3
    expected = probe.ablate_every_head(load_model(trained_folder), metric="loss", ablation="mean")
    written = pd.read_csv(csv)
    np.testing.assert_allclose(written["change"], expected["change"], rtol=1e-4, atol=1e-6)
    sizes = expected["change"].abs().sort_values(ascending=False)
    shown = [line.split() for line in out.splitlines()[1:]]
    assert [row[0] for row in shown] == [
        f"{expected['layer'][i]}.{expected['head'][i]}" for i in sizes.index[:3]
    ]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_sweep_of_several_metrics_ranks_heads_by_the_first(
    run: Run, trained_folder: Path
) -> None:
    import probe

    status, out, _ = run("sweep", trained_folder, "--top", "3")
    assert status == 0
    shown = [line.split()[:2] for line in out.splitlines()[1:]]
    table = probe.ablate_every_head(load_model(trained_folder), ablation="mean")
    loss = table[table["metric"] == "loss"].set_index(["layer", "head"])["change"].abs()
    heads = [f"{i}.{j}" for i, j in loss.sort_values(ascending=False).index[:3]]
    metrics = list(table["metric"].unique())
    assert len(metrics) > 1
    assert [head for head, *_ in shown] == [head for head in heads for _ in metrics]
    assert all(metric in out for metric in metrics)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "MODEL"),
        ("hypothesis", "MODEL", "--heads", "0.0"),
        ("patch", "MODEL", "--clean", "abcde", "--corrupt", "fghij"),
    ],
)
def test_another_ending_of_a_figure_is_refused_before_anything_runs(
    run: Run, trained_folder: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    given = [str(trained_folder) if a == "MODEL" else a for a in arguments]
    csv = tmp_path / "out.csv"
    status, out, err = run(*given, "--csv", csv, "--figure", tmp_path / "out.pdf")
    assert (status, out) == (2, "")
    assert err == "probe: a figure is a .png or .svg file, got 'out.pdf'\n"
    assert not csv.exists()


def test_patching_a_prompt_into_itself_is_refused(run: Run, trained_folder: Path) -> None:
    status, out, err = run("patch", trained_folder, "--clean", "abcde", "--corrupt", "abcde")
    assert (status, out) == (2, "")
    assert err == "probe: --clean and --corrupt are the same, so there is nothing to patch\n"


def test_ranks_of_a_hypothesis_are_whole_numbers(run: Run, trained_folder: Path) -> None:
    status, out, _ = run("hypothesis", trained_folder, "--heads", "0.0", "--ablation", "mean")
    assert status == 0
    columns = out.splitlines()[0].replace("without all", "none").split()
    row = out.splitlines()[1].split()
    assert row[columns.index("rank")] in ("1", "2", "3", "4")


def test_prompts_may_come_from_a_file(run: Run, trained_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_bytes(b"\xef\xbb\xbfabcde\r\nfghij\r\n")
    status, out, _ = run(
        "sweep", trained_folder, "--prompt", f"@{file}", "--answer", "a", "--top", "1"
    )
    assert status == 0
    assert "log_probability" in out


def test_an_estimate_of_a_flat_loss_is_remarked_on_in_one_line(
    run: Run, trained_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyses import estimates

    monkeypatch.setattr(estimates, "SATURATED", 100)
    status, out, err = run("sweep", trained_folder, "--estimate", "gradient", "--top", "1")
    assert status == 0
    assert "recomputed" in out
    assert err.startswith("probe: the clean loss is")
    assert err.count("\n") == 1
    status, _, err = run(
        *("sweep", trained_folder, "--estimate", "integrated-gradients"),
        *("--prompt", "abcde", "--prompt", "fghij"),
    )
    assert status == 0
    assert "sizes come out small\n" in err
    assert "there are only 2" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ablate", "MODEL", "--head", "mlp.9"), ("mlp.9", "layers are 0..1")),
        (("ablate", "MODEL", "--head", "0.1", "--prompt", "ab1"), ("1",)),
        (("ablate", "MODEL", "--head", "0.1", "--prompt", ""), ("empty",)),
        (("ablate", "MODEL", "--head", "0.1", "--metric", "lss"), ("lss", "loss")),
        (("ablate", "MODEL", "--head", "0.1", "--metric", "rank"), ("rank takes answer",)),
        (("ablate", "MODEL", "--head", "0.1", "--answer", "ab"), ("'ab'", "one token")),
        (
            ("ablate", "MODEL", "--head", "0.1", "--prompt", "abc", "--position", "7"),
            ("0..2", "7"),
        ),
        (("ablate", "MODEL", "--head", "0.1", "--prompt", "@nowhere"), ("nowhere",)),
        (("sweep", "MODEL", "--ablation", "men"), ("zero, mean", "men")),
        (("sweep", "MODEL", "--figure", "nowhere/out.png"), ("nowhere",)),
        (("sweep", "MODEL", "--estimate", "gradent"), ("gradent",)),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    run: Run, trained_folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    given = [str(trained_folder) if a == "MODEL" else a for a in arguments]
    status, out, err = run(*given)
    assert status in (1, 2)
    assert out == ""
    assert err.startswith("probe: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
