"""What a language model predicts next, where its last token looks, and whether that matters.

The chapter's claims as measurements: the last token of "The capital of France is" attends to
"France" and "capital"; a factual prompt gives a peaked next-token distribution, an open one
spreads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from analyses.edges import cut_edges_every_head
from analyses.metrics import Metric, Rows, last_positions
from analyses.prompts import CAPITALS, PROMPTS, Capital, Prompt
from analyses.readout import Readout
from models.errors import InputError
from models.interface import HookedModel, capture, evaluating, pad, shape, weights
from models.names import hook_name
from models.tasks import Batch
from models.text_codec import codec_of

COVER = 0.9


def prediction(
    model: HookedModel,
    tokens: Sequence[Prompt] | None = None,
    *,
    bos: bool | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """How peaked the next-token distribution is after each prompt.

    Args:
        model: a hooked model with a tokenizer.
        tokens: the prompts; default the set that ships.
        bos: see `models.text_codec.TextCodec.encode`.
        seed: not used; nothing here is random.

    Returns:
        One row per prompt: ``prompt``, ``kind``, ``top`` (the likeliest token),
        ``top_probability``, ``entropy`` (nats), ``tokens_90`` (fewest tokens that cover 90%),
        ``n_tokens`` and ``ids`` (as they were fed).
    """
    codec = codec_of(model)
    rows = []
    for prompt in PROMPTS if tokens is None else tokens:
        ids = codec.encode(prompt.text, bos=bos)
        p = next_token_probabilities(model, [ids])[0]
        ordered = p.sort(descending=True).values.cumsum(0)
        top = int(p.argmax())
        rows.append(
            {
                "prompt": prompt.text,
                "kind": prompt.kind,
                "top": codec.decode([top]),
                "top_probability": float(p[top]),
                "entropy": float(torch.special.entr(p).sum()),
                "tokens_90": int((ordered < COVER).sum()) + 1,
                "n_tokens": len(ids),
                "ids": " ".join(map(str, ids)),
            }
        )
    table = pd.DataFrame(rows)
    table.attrs["units"] = {"entropy": "nats", "top_probability": "probability"}
    return table


def compare_kinds(table: pd.DataFrame) -> pd.DataFrame:
    """Are factual prompts more peaked than open ones? An exact permutation test over prompts.

    Every way to call as many of the prompts factual is tried. The prompts are exchangeable when
    their kind says nothing about how peaked they are, which is what is tested.

    Args:
        table: from `prediction`, with prompts of both kinds.

    Returns:
        One row per measure (``top_probability``, ``entropy`` in nats, ``tokens_90``):
        ``factual``, ``open`` (means), ``difference``, ``p`` (two-sided), ``n_factual``,
        ``n_open``.
    """
    kinds = {kind: table[table["kind"] == kind] for kind in ("factual", "open")}
    if any(rows.empty for rows in kinds.values()):
        raise InputError("a comparison needs factual and open prompts")
    rows = []
    for measure in ("top_probability", "entropy", "tokens_90"):
        values = [kinds[kind][measure].to_numpy(dtype=float) for kind in kinds]
        result = stats.permutation_test(
            values,
            lambda a, b, axis: a.mean(axis) - b.mean(axis),
            vectorized=True,
            n_resamples=np.inf,
            batch=20_000,
        )
        factual, open_ = (v.mean() for v in values)
        rows.append(
            (measure, factual, open_, factual - open_, float(result.pvalue), *map(len, values))
        )
    columns = ["measure", "factual", "open", "difference", "p", "n_factual", "n_open"]
    return pd.DataFrame(rows, columns=columns)


def last_token_attention(model: HookedModel, text: str, *, bos: bool | None = None) -> pd.DataFrame:
    """Where the last token of a prompt looks, head by head.

    Args:
        model: a hooked model with a tokenizer.
        text: the prompt.
        bos: see `models.text_codec.TextCodec.encode`.

    Returns:
        One row per head and key: ``layer``, ``head``, ``key`` (position), ``token`` (its text),
        ``attention``, ``without_first`` (renormalised without key 0; NaN at key 0),
        ``value_weighted`` (the norm of ``A_ij v_j W_O``, normalised), ``chance`` (uniform
        attention on all keys: 1 / keys), ``chance_without_first`` (on all but key 0:
        1 / (keys - 1); NaN at key 0); all shares, 0..1.
    """
    codec = codec_of(model)
    ids = codec.encode(text, bos=bos)
    pattern, valued = prompt_patterns(model, ids)
    rows, valued = pattern[:, :, -1].double(), valued[:, :, -1].double()
    rest = rows.clone()
    rest[..., 0] = torch.nan
    rest = rest / rest.nansum(-1, keepdim=True)
    layer, head, key = np.indices(tuple(rows.shape)).reshape(3, -1)
    others = 1 / (len(ids) - 1) if len(ids) > 1 else np.nan
    tokens = codec.labels(ids)
    table = pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "key": key,
            "token": [str(tokens[k]) for k in key],
            "attention": rows.flatten().numpy(),
            "without_first": rest.flatten().numpy(),
            "value_weighted": valued.flatten().numpy(),
            "chance": 1 / len(ids),
            "chance_without_first": np.where(key > 0, others, np.nan),
        }
    )
    table.attrs["units"] = {"attention": "share, 0..1"}
    return table


def prompt_patterns(
    model: HookedModel, ids: Sequence[int]
) -> tuple[Float[Tensor, "layer head query key"], Float[Tensor, "layer head query key"]]:
    """All patterns of one prompt, and the same weighted by what the values write.

    The value-weighted pattern is the norm of ``A_ij v_j W_O``, normalised per row: it exposes
    keys that are looked at but carry nothing.
    """
    sizes = shape(model)
    names = [
        hook_name(f"attn.hook_{point}", layer)
        for layer in range(sizes.n_layers)
        for point in ("pattern", "v")
    ]
    kept = capture(model, [list(ids)], names).activations
    W_O = weights(model)["W_O"]
    assert W_O is not None  # every model with attention has one
    patterns, valued = [], []
    for layer in range(sizes.n_layers):
        pattern = kept[hook_name("attn.hook_pattern", layer)][0].float()
        v = kept[hook_name("attn.hook_v", layer)][0].float()
        v = v.repeat_interleave(sizes.n_heads // sizes.n_key_value_heads, dim=1)
        written = torch.einsum("khd,hdm->hkm", v, W_O[layer].float()).norm(dim=-1)
        mass = pattern * written[:, None]
        patterns.append(pattern.cpu())
        valued.append((mass / mass.sum(-1, keepdim=True)).cpu())
    return torch.stack(patterns), torch.stack(valued)


def next_token_probabilities(
    model: HookedModel, prompts: Sequence[Sequence[int]]
) -> Float[Tensor, "prompt d_vocab"]:
    """The distribution after each prompt, float64 on the CPU."""
    rows = []
    for ids in prompts:
        tokens = pad(model, [list(ids)]).tokens
        with evaluating(model), torch.no_grad():
            logits = model(tokens, return_type="logits")[0, -1]
        rows.append(logits.double().softmax(-1).cpu())
    return torch.stack(rows)


def swap_countries(
    model: HookedModel, capitals: Sequence[Capital] = CAPITALS, *, bos: bool | None = None
) -> pd.DataFrame:
    """Swap the country: does the answer follow?

    Returns:
        One row per country: ``country``, ``answer`` (its capital), ``answer_probability``,
        ``rank`` of the answer's first token (1 is the top), ``top`` and ``top_probability``,
        ``follows`` (the answer beats every other capital of the set), ``ids`` (as they were
        fed).

    Raises:
        InputError: two capitals begin with the same token.
    """
    codec = codec_of(model)
    answers = _first_tokens(codec, capitals)
    rows = []
    for i, capital in enumerate(capitals):
        ids = codec.encode(capital.text, bos=bos)
        p = next_token_probabilities(model, [ids])[0]
        top = int(p.argmax())
        rows.append(
            {
                "country": capital.country,
                "answer": capital.capital,
                "answer_probability": float(p[answers[i]]),
                "rank": int((p > p[answers[i]]).sum()) + 1,
                "top": codec.decode([top]),
                "top_probability": float(p[top]),
                "follows": bool(p[answers].argmax() == i),
                "ids": " ".join(map(str, ids)),
            }
        )
    return pd.DataFrame(rows)


def cut_country(
    model: HookedModel, capitals: Sequence[Capital] = CAPITALS, *, bos: bool | None = None
) -> pd.DataFrame:
    """Through which heads does the answer follow the country?

    Each head alone loses the attention of the last token on the country's tokens; the rest of
    its row is renormalised. The measure is the logit of the country's own capital above the mean
    of the other capitals of the set.

    Returns:
        One row per head: ``layer``, ``head``, ``attention`` (mean on the country's tokens, share
        0..1), ``clean`` (the measure, logits), ``change``, ``smallest``, ``largest`` (over the
        countries), ``n`` countries.
    """
    codec = codec_of(model)
    prompts = [_country_tokens(codec, capital, bos) for capital in capitals]
    edges = [[(-1, key) for key in range(p.country.start, p.country.stop)] for p in prompts]
    table = cut_edges_every_head(
        model,
        [p.ids for p in prompts],
        edges=edges,
        metric=_OwnCapital(_first_tokens(codec, capitals)),
        per_prompt=True,
    )
    heads = table.groupby(["layer", "head"], sort=False)
    found = heads[["attention", "clean", "change"]].mean()
    found["smallest"], found["largest"] = heads["change"].min(), heads["change"].max()
    found["n"] = heads.size()
    found = found.reset_index()
    found.attrs["units"] = {"change": "logits", "attention": "share, 0..1"}
    return found


@dataclass(frozen=True)
class _OwnCapital(Metric):
    """The logit of each prompt's own capital above the mean of the others'."""

    answers: Sequence[int]
    name = "own_capital"
    unit = "logits"

    def positions(self, batch: Batch) -> Tensor:
        return last_positions(batch)

    def values(self, read: Readout, rows: Rows) -> Tensor:
        ids = torch.tensor(self.answers, device=rows.sequence.device)
        logits = read.at(ids.expand(len(rows.sequence), -1)).double()
        own = logits.gather(1, rows.sequence[:, None])[:, 0]  # prompt i asks for capital i
        others = (logits.sum(1) - own) / (len(ids) - 1)
        difference: Tensor = own - others
        return difference


def _first_tokens(codec: Any, capitals: Sequence[Capital]) -> list[int]:
    """The first token of each capital; they must tell the capitals apart."""
    answers = [codec.encode(capital.capital, bos=False)[0] for capital in capitals]
    if len(set(answers)) < len(answers):
        raise InputError(
            "this tokenizer begins two capitals with the same token: answers cannot be told apart"
        )
    return answers


class _CountryTokens(NamedTuple):
    ids: list[int]
    country: slice


def _country_tokens(codec: Any, capital: Capital, bos: bool | None) -> _CountryTokens:
    """The prompt's ids, and where the country stands in them."""
    ids = codec.encode(capital.text, bos=bos)
    before, _, _ = capital.text.partition(f" {capital.country}")
    start = len(codec.encode(before, bos=bos))
    stop = len(codec.encode(f"{before} {capital.country}", bos=bos))
    if codec.decode(ids[start:stop]).strip() != capital.country:
        raise InputError(f"this tokenizer does not keep {capital.country!r} in tokens of its own")
    return _CountryTokens(ids, slice(start, stop))
