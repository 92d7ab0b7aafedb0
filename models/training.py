"""The training recipe: AdamW, linear warm-up then cosine, clipped gradients, teacher forcing.

A run is a value, `Run`: model, optimiser, step, random states and history. `start` makes one,
`advance` takes steps, `models.checkpoints` writes and reads one, and a run that was read goes
on bit for bit on a CPU. Everything random comes from the run's own seed; the caller's random
state, thread count and gradient mode are left as they were. One thread per run always, so that
results do not depend on how many ran at once.

Under ``torchrun`` (see `process_group`) every process draws the same batches, computes its share
of each, and gradients are summed.

Sources: Loshchilov & Hutter 2019 (AdamW); the recipe is nanoGPT's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import GPTConfig
from models.errors import InputError, TrainingError
from models.gpt import GPT
from models.interface import evaluating
from models.names import DEVICES, OBJECTIVES, Objective, choose
from models.tasks import Batch, Task, common_rows, correct_tokens, exact_match, sequence_loss

EVALUATION_CHUNK = 512  # sequences per forward pass


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe.

    Args:
        objective: ``"all"`` is next-token prediction at every position, ``"outputs"`` at the
            positions that predict an output only.
        accumulation: batches whose gradients are averaged into one step.
        final_fraction: of the peak rate, at the last step.
        evaluate_every: steps between evaluations on ``evaluation_size`` held-out sequences.
    """

    steps: int = 300
    batch_size: int = 64
    learning_rate: float = 3e-3
    warmup: int = 20
    final_fraction: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    accumulation: int = 1
    objective: Objective = "all"
    init_std: float = 0.02
    evaluate_every: int = 20
    evaluation_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        choose("objective", self.objective, OBJECTIVES)
        for name in ("steps", "batch_size", "accumulation", "evaluate_every", "evaluation_size"):
            self._require(name, "at least 1", lambda value: value >= 1)
        for name in ("learning_rate", "clip", "init_std"):
            self._require(name, "above 0 and finite", lambda value: 0 < value < math.inf)
        for name in ("warmup", "weight_decay"):
            self._require(name, "at least 0 and finite", lambda value: 0 <= value < math.inf)
        for name in ("beta1", "beta2"):
            self._require(name, "at least 0 and below 1", lambda value: 0 <= value < 1)
        self._require("final_fraction", "in 0..1", lambda value: 0 <= value <= 1)

    def _require(self, name: str, rule: str, holds: Callable[[float], bool]) -> None:
        if not holds(value := getattr(self, name)):
            raise InputError(f"{name} must be {rule}, but got {value}")

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, ..., ``steps - 1``."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * cosine)


@dataclass
class Run:
    """A training run, at some step."""

    model: GPT
    task: Task
    config: TrainingConfig
    optimizer: torch.optim.AdamW
    batches: torch.Generator
    dropout_state: Tensor
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


Report = Callable[[Run], None]


def pick_device(device: str = "auto") -> torch.device:
    """The device by name; ``auto`` takes CUDA where there is one, otherwise the CPU.

    Apple's MPS is used when asked for by name. Raises `InputError` for one that is not there.
    """
    choose("device", device, DEVICES)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device, True):
        raise InputError(f"device {device} is not available on this machine; cpu always is")
    rank = os.environ.get("LOCAL_RANK")  # set by torchrun
    return torch.device(f"cuda:{rank}" if device == "cuda" and rank else device)


def start(
    task: Task,
    shape: GPTConfig | None = None,
    config: TrainingConfig | None = None,
    *,
    device: str = "auto",
) -> Run:
    """A run at step 0: an untrained model of ``shape`` and everything that training needs."""
    config = config or TrainingConfig()
    shape = shape or model_config(task)
    if shape.d_vocab != len(task.vocabulary) or shape.n_ctx < task.n_ctx:
        raise InputError(
            f"the task needs {len(task.vocabulary)} tokens and a context of {task.n_ctx}, "
            f"but the model has {shape.d_vocab} and {shape.n_ctx}"
        )
    where = pick_device(device)
    model = GPT(shape, seed=config.seed, init_std=config.init_std, vocabulary=task.vocabulary)
    model.task = task
    return make_run(model.to(where), task, config)


def make_run(
    model: GPT,
    task: Task,
    config: TrainingConfig,
    *,
    step: int = 0,
    history: Sequence[Mapping[str, float]] = (),
) -> Run:
    """A run of a model at some step, with a new optimiser and new random streams."""
    where, seed = model.W_E.device, config.seed + (step << 32)
    return Run(
        model,
        task,
        config,
        make_optimizer(model, config),
        batches=torch.Generator(where).manual_seed(seed),
        dropout_state=torch.Generator(where).manual_seed(seed).get_state(),
        step=step,
        history=[dict(row) for row in history],
    )


def model_config(task: Task, **changes: Any) -> GPTConfig:
    """The default shape for a task: two layers of four heads, width 64, an untied head."""
    return GPTConfig(**{"d_vocab": len(task.vocabulary), "n_ctx": task.n_ctx, **changes})


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True
    )


def train(
    task: Task,
    shape: GPTConfig | None = None,
    config: TrainingConfig | None = None,
    *,
    device: str = "auto",
    report: Report | None = None,
) -> Run:
    """Train a model from scratch.

    Args:
        task: what to learn, e.g. ``tasks.create("reversal", length=16)``.
        shape: of the model; default `model_config` of the task.
        config: the recipe.
        report: called after every step with the run.

    Returns:
        The finished run; ``run.model`` is in evaluation mode. ``run.history`` has one row per
        evaluation: ``step``, ``loss`` (of the last batch, nats), ``heldout_loss`` (nats),
        ``token_accuracy`` and ``exact_match`` (shares of 1).
    """
    return advance(start(task, shape, config, device=device), report=report)


def advance(run: Run, *, until: int | None = None, report: Report | None = None) -> Run:
    """Take steps until step ``until`` (default: the recipe's last)."""
    stop = run.config.steps if until is None else min(until, run.config.steps)
    heldout = run.task.heldout(run.config.evaluation_size, device=run.batches.device)
    rows = _rows(run) if run.task.fixed_layout else None
    run.model.train()
    try:
        with one_thread(), torch.enable_grad():
            while run.step < stop:
                loss, norm = _take_step(run, rows)
                if run.step % run.config.evaluate_every == 0 or run.step == run.config.steps:
                    _check_finite(run, loss, norm)
                    scores = evaluate(run.model, heldout)
                    run.history.append({"step": float(run.step), "loss": float(loss), **scores})
                if report is not None:
                    report(run)
    finally:
        run.model.eval()
    return run


def evaluate(model: GPT, batch: Batch) -> dict[str, float]:
    """Held-out loss (nats per output), token accuracy and greedy exact match (shares of 1).

    One teacher-forced pass: greedy generation is right exactly when every argmax is.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    with evaluating(model), torch.no_grad():
        for first in range(0, len(batch), EVALUATION_CHUNK):
            part = batch[first : first + EVALUATION_CHUNK]
            logits = model(part.tokens)
            right = correct_tokens(logits, part).sum(1) / part.outputs.sum(1)
            scores = (sequence_loss(logits, part), right, exact_match(logits, part))
            sums += torch.stack([score.float().cpu().double().sum() for score in scores])
    loss, accuracy, exact = (sums / len(batch)).tolist()
    return {"heldout_loss": loss, "token_accuracy": accuracy, "exact_match": exact}


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-operation thread for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def batch_loss(model: GPT, batch: Batch, objective: Objective, rows: slice | None) -> Tensor:
    """Mean cross-entropy over the positions read; logits are formed at these only."""
    if rows is not None:
        # from the first position on, rows are all there is: one product gives q, k and v
        logits = model(batch.tokens[:, : rows.stop], rows=rows if rows.start else None)
        return F.cross_entropy(logits.flatten(0, 1), batch.next_tokens[:, rows].flatten())
    read = batch.read(objective)
    residual = model(batch.tokens, stop_at_layer=len(model.blocks))
    return F.cross_entropy(model.logits(residual[read]), batch.next_tokens[read])


def _take_step(run: Run, rows: slice | None) -> tuple[Tensor, Tensor]:
    """One step of the optimiser; the loss and the norm of the gradient before clipping."""
    config, total = run.config, torch.zeros((), device=run.batches.device)
    rate = config.rate(run.step)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.zero_grad(set_to_none=True)
    for _ in range(config.accumulation):
        batch = run.task.draw(config.batch_size, generator=run.batches, split="train")
        part, share = _own_share(batch, config.objective)
        with _own_dropout(run):
            loss = batch_loss(run.model, part, config.objective, rows)
            loss = loss * (share / config.accumulation)
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    parameters = (p for group in run.optimizer.param_groups for p in group["params"])
    gradients = [p.grad for p in parameters if p.grad is not None]
    _sum_over_processes([total, *gradients])
    norm = _clip(gradients, config.clip)
    run.optimizer.step()
    run.step += 1
    return total, norm


def _clip(gradients: list[Tensor], most: float) -> Tensor:
    """Scale gradients so that their joint norm is at most ``most``; returns the norm before.

    As `torch.nn.utils.clip_grad_norm_`, which loops over the gradients on a CPU.
    """
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _check_finite(run: Run, loss: Tensor, norm: Tensor) -> None:
    if not bool(loss.isfinite() & norm.isfinite()):
        raise TrainingError(
            f"the loss or its gradient is not finite at step {run.step}: use a smaller learning "
            f"rate than {run.config.learning_rate}"
        )


def _rows(run: Run) -> slice | None:
    generator = torch.Generator(run.batches.device).manual_seed(0)
    return common_rows(run.task.draw(2, generator=generator).read(run.config.objective))


@contextmanager
def _own_dropout(run: Run) -> Iterator[None]:
    """Dropout draws from the run's own stream, not from the caller's."""
    if not run.model.config.dropout:
        yield
        return
    device = run.batches.device
    with _forked(device):
        _set_random_state(device, run.dropout_state)
        yield
        run.dropout_state = _random_state(device)


def _forked(device: torch.device) -> Any:
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    if device.type == "cuda":
        return torch.random.fork_rng(devices=[device.index or 0])
    return torch.random.fork_rng(devices=[0], device_type=device.type)


def _random_state(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _own_share(batch: Batch, objective: Objective) -> tuple[Batch, float | Tensor]:
    """This process's part of a batch, and which share of the positions read is in it."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return batch, 1.0
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if len(batch) % world:
        raise InputError(f"batch_size {len(batch)} must be a multiple of the {world} processes")
    size = len(batch) // world
    part = batch[rank * size : (rank + 1) * size]
    return part, part.read(objective).sum() / batch.read(objective).sum()


def _sum_over_processes(tensors: Sequence[Tensor]) -> None:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    torch.distributed.all_reduce(flat)
    parts = flat.split_with_sizes([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


@contextmanager
def process_group() -> Iterator[int]:
    """Join the processes that ``torchrun`` started, if it did; yields this one's rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend)
    try:
        yield torch.distributed.get_rank()
    finally:
        torch.distributed.destroy_process_group()
