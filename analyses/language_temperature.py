"""Temperature on a language model: its next-token distributions exactly, its samples measured.

After each prompt, the distribution over the full vocabulary at a temperature is known, and so are
its entropy, its likeliest token and how many tokens the filters keep. What continuations are
like has to be sampled. Temperature, top-k and top-p act as in `models.sampling`.

Cost: one pass over each prompt; ``samples`` times ``n`` tokens per prompt and temperature, all
samples of one temperature in one batch, and ``n`` greedy tokens per prompt.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.progress import track
from analyses.prompts import PROMPTS, Prompt
from analyses.reruns import output_logits
from analyses.statistics import Array, mean_interval, mean_where_defined
from analyses.temperature import TEMPERATURES, sweep_temperatures
from models.errors import InputError
from models.interface import HookedModel, TokensLike, pad, shape
from models.sampling import (
    ContextNotice,
    Filters,
    check_filters,
    context_notice,
    filter_distribution,
    stream,
)
from models.text_codec import codec_of

TOP_P = 0.9
SAMPLES, TOKENS = 8, 24
CELLS = 2**23  # numbers in the logits of one step, a batch of samples
DISTRIBUTION = ("entropy", "effective_tokens", "top_probability", "nucleus")
OF_SAMPLES = ("repetition", "log_likelihood", "agreement", "agreed_tokens")
MEASURES = (*DISTRIBUTION, *OF_SAMPLES)
UNITS = {
    "entropy": "nats",
    "effective_tokens": "tokens",
    "top_probability": "probability",
    "nucleus": "tokens",
    "repetition": "share of 3-grams",
    "log_likelihood": "nats per token",
    "agreement": "share of tokens",
    "agreed_tokens": "tokens",
}
GRAM = 3


@dataclass(frozen=True)
class Fed:
    """A prompt as it is fed.

    Args:
        text: what it says.
        kind: ``factual``, ``open`` or ``given``.
        ids: what the model gets.
    """

    text: str
    kind: str
    ids: tuple[int, ...]


Prompts = TokensLike | str | Sequence[str] | Sequence[Prompt] | Sequence[Fed] | None


def feed(model: HookedModel, tokens: Prompts = None, *, bos: bool | None = None) -> list[Fed]:
    """Prompts with their ids.

    Args:
        model: a hooked model, with a tokenizer unless ids are given.
        tokens: prompts, texts or ids; default the set that ships. Texts and ids of the user's own
            are of kind ``given``.
        bos: see `models.text_codec.TextCodec.encode`; of ids and of what is fed already nothing
            changes.

    Raises:
        InputError: no prompt, an empty one, or what is no ids.
        LengthError: a prompt longer than the context.
    """
    given: Any = PROMPTS if tokens is None else [tokens] if isinstance(tokens, str) else tokens
    if isinstance(given, Tensor):
        given = pad(model, given).tokens.tolist()
    if not len(given):
        raise InputError("temperature is looked at after prompts: give at least one")
    fed = [_fed(model, one, bos) for one in given]
    pad(model, [list(one.ids) for one in fed])
    return fed


def temperature_sweep(
    model: HookedModel,
    tokens: Prompts = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    top_k: int | None = None,
    top_p: float | None = TOP_P,
    samples: int = SAMPLES,
    n: int = TOKENS,
    seed: int = 0,
) -> pd.DataFrame:
    """What temperature makes of the next token, and of continuations, after each prompt.

    Args:
        model: a hooked model.
        tokens: prompts, see `feed`; default the set that ships, factual and open ones.
        temperatures: above 0.
        top_k, top_p: filters after the temperature, of ``nucleus`` and of the samples.
        samples: continuations of each prompt at each temperature; 0 for none.
        n: tokens of each.
        seed: of the samples. All temperatures get the same random numbers, so that they differ by
            the temperature only.

    Returns:
        One row per prompt and temperature: ``prompt`` (from 0), ``text``, ``kind``,
        ``temperature``; exact, of the next token after the prompt before any filter: ``entropy``
        (nats), ``effective_tokens`` (exp of it, 1..d_vocab), ``top_probability``; ``nucleus``
        (tokens that top-k and top-p keep); means over the samples, drawn at that temperature with
        these filters: ``repetition`` (1 - distinct / total of a continuation's 3-grams, 0..1; NaN
        for under three tokens), ``log_likelihood`` (mean per token under the model itself,
        temperature 1 and no filter, nats), ``agreement`` (share of the places where a sample has
        the token of the greedy continuation, 0..1), ``agreed_tokens`` (before the first that
        differs, 0..n); ``n_samples``; ``ids`` (as they were fed).

    Warns:
        ContextNotice: the context was full before all samples had their ``n`` tokens.

    Raises:
        InputError: a temperature that is not above 0, a bad filter, no prompt, ``samples`` below
            0 or ``n`` below 1.
        LengthError: a prompt longer than the context.
    """
    steps = sweep_temperatures(temperatures)
    check_filters(top_k=top_k, top_p=top_p)
    if samples < 0 or n < 1:
        raise InputError(f"samples must be at least 0 and n at least 1, but got {samples} and {n}")
    prompts = feed(model, tokens)
    filters: Filters = {"top_k": top_k, "top_p": top_p}
    values = {name: np.full((len(prompts), len(steps)), np.nan) for name in MEASURES}
    _distributions(model, prompts, steps, filters, values)
    if samples:
        _samples(model, prompts, steps, (samples, n, seed), filters, values)
    each = len(steps)
    table = pd.DataFrame(
        {
            "prompt": np.repeat(np.arange(len(prompts)), each),
            "text": np.repeat([one.text for one in prompts], each),
            "kind": np.repeat([one.kind for one in prompts], each),
            "temperature": np.tile(steps, len(prompts)),
            **{name: value.ravel() for name, value in values.items()},
            "n_samples": samples,
            "ids": np.repeat([" ".join(map(str, one.ids)) for one in prompts], each),
        }
    ).astype({"nucleus": int})
    table.attrs |= {"units": dict(UNITS), "top_k": top_k, "top_p": top_p, "n_tokens": n}
    return table


def by_kind(table: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Means over the prompts of a kind.

    Args:
        table: from `temperature_sweep`.
        seed: of the intervals.

    Returns:
        One row per kind, temperature and measure: ``kind``, ``temperature``, ``measure``;
        ``mean``, ``ci_low``, ``ci_high`` (95% BCa over prompts; NaN with fewer than 10, or where
        all are equal), ``smallest``, ``largest``, ``n`` prompts.
    """
    parts = []
    for kind, rows in table.groupby("kind", sort=False):
        wide = rows.pivot(index="prompt", columns="temperature", values=list(MEASURES))
        interval = mean_interval(wide.to_numpy(dtype=float), seed=seed)
        part = pd.DataFrame(
            {
                "kind": kind,
                "temperature": wide.columns.get_level_values(1).to_numpy(dtype=float),
                "measure": wide.columns.get_level_values(0),
                "mean": interval.mean,
                "ci_low": interval.low,
                "ci_high": interval.high,
                "smallest": interval.smallest,
                "largest": interval.largest,
                "n": interval.n,
            }
        )
        parts.append(part)
    found = pd.concat(parts, ignore_index=True)
    found.attrs = {
        "units": table.attrs.get("units", dict(UNITS)),
        "interval": "95% BCa over prompts: of this model on prompts of this kind",
    }
    return found


def repetition(tokens: Sequence[int]) -> float:
    """1 - distinct / total of the runs of three tokens; NaN where there is none.

    >>> repetition([1, 2, 3, 1, 2, 3]), repetition([7, 7])
    (0.25, nan)
    """
    grams = list(zip(*(tokens[i:] for i in range(GRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else float("nan")


def next_logits(model: HookedModel, ids: Sequence[int]) -> Float[Tensor, " d_vocab"]:
    """What comes after a prompt, on the CPU; nothing is computed at its other positions."""
    tokens = pad(model, [list(ids)]).tokens
    last = slice(len(ids) - 1, len(ids))
    return output_logits(model, tokens, last)[0, -1].detach().cpu()


def _fed(model: HookedModel, given: Any, bos: bool | None) -> Fed:
    if isinstance(given, Fed):
        return given
    if isinstance(given, str | Prompt):
        prompt = Prompt(given, "given") if isinstance(given, str) else given
        codec: Any = codec_of(model)
        return Fed(prompt.text, prompt.kind, tuple(codec.encode(prompt.text, bos=bos)))
    ids = tuple(pad(model, [given]).tokens[0].tolist())
    try:
        text = codec_of(model).decode(ids)
    except InputError:  # no tokenizer, and none is needed
        text = " ".join(map(str, ids))
    return Fed(text, "given", ids)


def _distributions(
    model: HookedModel,
    prompts: Sequence[Fed],
    steps: Sequence[float],
    filters: Filters,
    values: dict[str, Array],
) -> None:
    """The exact part: prompt by prompt, every temperature from one pass."""
    top_k, top_p = filters.get("top_k"), filters.get("top_p")
    for i, prompt in enumerate(prompts):
        logits = next_logits(model, prompt.ids)
        for j, t in enumerate(steps):
            found = filter_distribution(logits, temperature=t, top_k=top_k, top_p=top_p)
            entropy = float(torch.special.entr(found.before).sum())
            values["entropy"][i, j] = entropy
            values["effective_tokens"][i, j] = np.exp(entropy)
            values["top_probability"][i, j] = float(found.before.max())
            values["nucleus"][i, j] = int(found.kept.sum())


def _samples(
    model: HookedModel,
    prompts: Sequence[Fed],
    steps: Sequence[float],
    sizes: tuple[int, int, int],
    filters: Filters,
    values: dict[str, Array],
) -> None:
    """The sampled part; as many prompts at a time as fit, with all their samples."""
    samples, n, seed = sizes
    most, full = max(1, CELLS // (shape(model).d_vocab * samples)), 0
    parts = [range(i, min(i + most, len(prompts))) for i in range(0, len(prompts), most)]
    with track("sampling", len(parts) * (len(steps) + 1)) as advance:
        for part in parts:
            ids = [list(prompts[i].ids) for i in part]
            greedy, _, _ = _continue(model, ids, n, seed)
            advance(1)
            greedy = np.repeat(greedy, samples, axis=0)
            repeated = [row for row in ids for _ in range(samples)]
            for j, t in enumerate(steps):
                written, likely, ended = _continue(
                    model, repeated, n, seed, temperature=t, **filters
                )
                full += ended
                measured = _measured(written, likely, greedy)
                for name, each in zip(OF_SAMPLES, measured, strict=True):
                    per_prompt = each.reshape(len(part), samples)
                    values[name][list(part), j] = mean_where_defined(per_prompt, axis=1)
                advance(1)
    if full:
        warnings.warn(context_notice(model, full), ContextNotice, stacklevel=3)


def _continue(
    model: HookedModel, ids: Sequence[Sequence[int]], n: int, seed: int, **filters: Any
) -> tuple[Int[np.ndarray, "sequence token"], Float[np.ndarray, "sequence token"], int]:
    """Continuations (-1 past an end), how likely the model holds each token, and how many ended."""
    if not filters.get("temperature"):
        filters = {}
    steps = list(stream(model, ids, n, seed=seed, **filters))
    written = torch.stack([step.tokens for step in steps], dim=1)
    likely = torch.stack([step.model_probability for step in steps], dim=1).log()
    ended = sum(int(step.context_full.sum()) for step in steps)
    return written.numpy(), likely.masked_fill(written < 0, torch.nan).numpy(), ended


def _measured(
    written: Int[np.ndarray, "sequence token"],
    likely: Float[np.ndarray, "sequence token"],
    greedy: Int[np.ndarray, "sequence longest"],
) -> tuple[Array, ...]:
    """`OF_SAMPLES` of every continuation."""
    there = written >= 0
    same = (written == greedy[:, : written.shape[1]]) & there
    length = there.sum(1)
    return (
        np.array([repetition(row[:k].tolist()) for row, k in zip(written, length, strict=True)]),
        mean_where_defined(likely, axis=1),
        same.sum(1) / length,
        np.cumprod(same, axis=1).sum(1).astype(float),
    )
