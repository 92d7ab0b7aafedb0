"""The same sequences again and again, with other outputs for some heads.

A head's output ``z`` is replaced where it enters the output projection; everything downstream
is recomputed, norm scales included.

On our GPT a run starts at the first replaced layer, after its attention, from the clean residual
stream and the clean ``z``; the last block and the logits are computed at the positions that are
read; and several replacements go through together, as one larger batch. That is exact (the same
arithmetic on the same numbers) and is left for whole runs where anybody watches the model. Other
engines run whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.inputs import read_columns
from analyses.metrics import METRICS, per_sequence
from models.gpt import GPT
from models.interface import HookedModel, capture, evaluating, hooked, shape
from models.names import hook_name
from models.tasks import Batch, common_rows

Edits = Mapping[int, tuple[list[int], Tensor]]
"""By layer: heads, and their new ``z``, ``[sequence, pos, head, d_head]`` or broadcastable."""

CHUNK = 256  # sequences per forward pass
CHUNK_ON_DEVICE = 4096  # where a pass of few sequences leaves an accelerator idle
CELLS = 2**26  # numbers in the widest activation


def chunk_size(model: HookedModel, n_pos: int) -> int:
    """How many sequences go through the model at a time."""
    sizes = shape(model)
    widest = n_pos * max(sizes.d_vocab, 2 * sizes.n_layers * sizes.d_model)
    most = CHUNK if sizes.device.type == "cpu" else CHUNK_ON_DEVICE
    return max(1, min(most, CELLS // widest))


def output_logits(
    model: HookedModel, tokens: Tensor, rows: slice | None
) -> Float[Tensor, "sequence pos d_vocab"]:
    """Logits at a range of positions; on our GPT nothing is computed that they do not need."""
    with evaluating(model), torch.no_grad():
        if rows is None or not isinstance(model, GPT):
            return model(tokens, return_type="logits")[:, rows or slice(None)]  # type: ignore[no-any-return]
        return model(tokens[:, : rows.stop], rows=rows)  # type: ignore[no-any-return]


class Runner:
    """Some sequences, run with edits.

    Args:
        model: a hooked model.
        batch: one chunk of sequences.
        together: how many edits go through the model at a time.
    """

    def __init__(self, model: HookedModel, batch: Batch, *, together: int = 1) -> None:
        self.model, self.together = model, together
        self.rows = common_rows(batch.outputs)
        self.read = batch if self.rows is None else read_columns(batch, self.rows)
        self.tokens = batch.tokens if self.rows is None else batch.tokens[:, : self.rows.stop]
        self.clean: dict[str, Tensor] = {}
        if isinstance(model, GPT) and not any(p.watched for p in model.hook_dict.values()):
            names = [
                hook_name(point, layer)
                for layer in range(len(model.blocks))
                for point in ("hook_resid_pre", "attn.hook_z")
            ]
            self.clean = capture(model, self.tokens, names).activations

    def scores(self, edits: Iterable[Edits]) -> Float[Tensor, "edit sequence metric"]:
        """`analyses.metrics.METRICS` of every sequence, for each edit; none changes nothing."""
        found = []
        for _, starting_together in groupby(edits, key=lambda edit: min(edit, default=-1)):
            while some := list(islice(starting_together, self.together)):
                found += [per_sequence(logits, self.read) for logits in self.logits(some)]
        nothing = torch.empty(0, len(self.tokens), len(METRICS), dtype=torch.float64)
        return torch.stack(found) if found else nothing

    def logits(self, edits: Sequence[Edits]) -> Float[Tensor, "edit sequence pos d_vocab"]:
        """The logits that are read, for each edit. Several at once must start at one layer."""
        if not edits[0]:
            return output_logits(self.model, self.tokens, self.rows)[None]
        with evaluating(self.model), torch.no_grad():
            flat = self._from_layer(edits) if self.clean else self._whole(edits)
        return flat.view(len(edits), len(self.tokens), *flat.shape[1:])

    def _from_layer(self, edits: Sequence[Edits]) -> Tensor:
        model: Any = self.model
        first, last = min(edits[0]), len(model.blocks) - 1
        x = self._copies(self.clean[hook_name("hook_resid_pre", first)], len(edits))
        z = self._copies(self.clean[hook_name("attn.hook_z", first)], len(edits))
        for layer in range(first, last + 1):
            block, keep = model.blocks[layer], self.rows if layer == last else None
            if layer > first:
                z = block.attn.mix(*block.attn.queries_keys_values(block.ln1(x), keep))
            elif keep is not None:
                z = z[:, keep]
            z = _replaced(z, layer, edits, keep)
            x = block.finish(x if keep is None else x[:, keep], block.attn.project(z))
        return model.logits(x)  # type: ignore[no-any-return]

    def _whole(self, edits: Sequence[Edits]) -> Tensor:
        def replace(layer: int, z: Tensor, *, hook: Any) -> Tensor:
            return _replaced(z, layer, edits, None)

        layers = sorted({layer for edit in edits for layer in edit})
        hooks = [(hook_name("attn.hook_z", layer), partial(replace, layer)) for layer in layers]
        with hooked(self.model, hooks):
            return output_logits(self.model, self._copies(self.tokens, len(edits)), self.rows)

    @staticmethod
    def _copies(x: Tensor, n: int) -> Tensor:
        return x if n == 1 else x.expand(n, *x.shape).flatten(0, 1)


def _replaced(z: Tensor, layer: int, edits: Sequence[Edits], rows: slice | None) -> Tensor:
    """A copy of ``z`` ``[edit * sequence, pos, head, d_head]`` with every edit made in its part."""
    if not any(layer in edit for edit in edits):
        return z
    z = z.clone()
    for part, edit in zip(z.chunk(len(edits)), edits, strict=True):
        if layer in edit:
            heads, value = edit[layer]
            positions = rows or slice(part.shape[1])
            value = value if value.shape[1] == 1 else value[:, positions]
            part[:, :, heads] = value.to(part.dtype).to(part.device)
    return z
