"""What a model achieves on each sequence: loss, token accuracy, exact match."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from models.tasks import Batch, correct_tokens, sequence_loss

METRICS = ("loss", "token_accuracy", "exact_match")
UNITS = {"loss": "nats per output", "token_accuracy": "share", "exact_match": "share"}


def per_sequence(
    logits: Float[Tensor, "sequence pos d_vocab"], batch: Batch
) -> Float[Tensor, "sequence metric"]:
    """`METRICS` of every sequence; NaN without outputs or where logits are NaN. On the CPU.

    Args:
        logits: any floating type; computed in float32 or better.
        batch: of the same positions.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = sequence_loss(logits, batch).cpu().double()
    right = correct_tokens(logits, batch).sum(1).cpu().double()
    outputs = batch.outputs.sum(1).cpu().double()
    values = torch.stack([loss, right / outputs, (right == outputs).double()], dim=-1)
    undefined = (outputs == 0) | loss.isnan()
    return values.masked_fill(undefined[:, None], torch.nan)
