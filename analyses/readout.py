"""What a model predicts at some positions, of which only what is asked for is formed.

The logits of a language model are wide. A metric that reads the logits of a few tokens costs a
few products per position; one that needs the normaliser, the best token or a rank streams them
in blocks of the vocabulary, and never holds them all. Where the engine gave whole logits, those
are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 4096  # rows of the unembedding at a time
ROWS = 1024  # positions at a time


@dataclass(frozen=True)
class Unembedding:
    """The last matrix: ``[d_vocab, d_model]``, and the bias that some models add."""

    weight: Float[Tensor, "d_vocab d_model"]
    bias: Float[Tensor, " d_vocab"] | None = None


class Readout:
    """Logits at some rows (a row is one position of one run).

    Args:
        states: the residual stream after the final norm ``[row, d_model]``, with ``unembed``;
            or whole logits ``[row, d_vocab]`` without.
        unembed: what turns the states into logits.
        best: whether the likeliest token will be asked for, so that one pass finds it along
            with the normaliser.
    """

    def __init__(
        self,
        states: Float[Tensor, "row width"],
        unembed: Unembedding | None = None,
        *,
        best: bool = False,
    ) -> None:
        self.states, self.unembed, self.best = states, unembed, best
        self._normalizer: Tensor | None = None
        self._argmax: Tensor | None = None

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, rows: Tensor) -> Readout:
        """Some rows; what has been streamed already is kept."""
        part = Readout(self.states[rows], self.unembed, best=self.best)
        for name in ("_normalizer", "_argmax"):
            known = getattr(self, name)
            setattr(part, name, None if known is None else known[rows])
        return part

    def at(self, ids: Int[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        """The logits of some tokens at each row; no others are formed."""
        if self.unembed is None:
            return _wide(self.states).gather(1, ids)
        directions = _wide(self.unembed.weight[ids])
        logits = torch.einsum("rd,rtd->rt", _wide(self.states), directions)
        return logits if self.unembed.bias is None else logits + self.unembed.bias[ids]

    def normalizer(self) -> Float[Tensor, " row"]:
        """The logarithm of the sum of the exponentials of all logits."""
        if self._normalizer is None:
            self._stream()
        assert self._normalizer is not None
        return self._normalizer

    def log_probabilities(self, ids: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """Of one token at each row, in nats."""
        return self.at(ids[:, None])[:, 0] - self.normalizer()

    def argmax(self) -> Int[Tensor, " row"]:
        """The likeliest token at each row; of equal ones the first."""
        if self._argmax is None:
            self.best = True
            self._stream()
        assert self._argmax is not None
        return self._argmax

    def n_above(self, ids: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """How many tokens have a larger logit than the given one; NaN where any logit is NaN."""
        above = torch.zeros(len(self), dtype=torch.float64, device=self.states.device)
        for rows in self._row_blocks():
            # its logit is read from the same product as its rivals', or the last bits would differ
            logits = torch.cat([block for _, block in self._vocabulary(rows)], dim=1)
            larger = (logits > logits.gather(1, ids[rows, None])).sum(1).double()
            above[rows] = larger.masked_fill(logits.isnan().any(1), torch.nan)
        return above

    def logits(self) -> Float[Tensor, "row d_vocab"]:
        """All logits, float32 or better."""
        if self.unembed is None:
            return _wide(self.states)
        blocks = [block for _, block in self._vocabulary(slice(0, len(self)))]
        return torch.cat(blocks, dim=1)

    def _stream(self) -> None:
        total = torch.empty(len(self), dtype=torch.float64, device=self.states.device)
        argmax = torch.zeros(len(self), dtype=torch.long, device=self.states.device)
        for rows in self._row_blocks():
            total[rows], argmax[rows] = self._normalize(rows)
        self._normalizer = total
        self._argmax = argmax if self.best else None

    def _normalize(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The normaliser, and the best token if it is wanted, of some rows."""
        n, device = rows.stop - rows.start, self.states.device
        highest = torch.full((n,), -torch.inf, device=device, dtype=_wide(self.states).dtype)
        best = torch.zeros(n, dtype=torch.long, device=device)
        total = torch.zeros(n, dtype=torch.float64, device=device)
        for start, block in self._vocabulary(rows):
            peak = block.amax(1)
            if self.best:
                better = peak > highest
                found = block[better].argmax(1) + start
                best[better] = found
            new = torch.maximum(highest, peak)
            own = self.unembed is not None  # whole logits belong to the caller
            shifted = block.sub_(new[:, None]) if own else block - new[:, None]
            total = total * (highest - new).double().exp() + shifted.exp_().sum(1).double()
            highest = new
        return total.log() + highest.double(), best

    def _row_blocks(self) -> Iterator[slice]:
        for first in range(0, len(self), ROWS):
            yield slice(first, min(first + ROWS, len(self)))

    def _vocabulary(self, rows: slice) -> Iterator[tuple[int, Tensor]]:
        """The logits of some rows, a block of the vocabulary at a time, with its first id."""
        states = self.states[rows]
        if self.unembed is None:
            yield 0, _wide(states)
            return
        weight, bias = self.unembed.weight, self.unembed.bias
        for first in range(0, len(weight), BLOCK):
            some = slice(first, first + BLOCK)
            block = states @ weight[some].T
            yield first, _wide(block if bias is None else block + bias[some])


def _wide(x: Tensor) -> Tensor:
    """Float32, or float64 as it is."""
    return x if x.dtype == torch.float64 else x.float()
