"""All that analyses use of a model, the same for every engine.

`hooked` attaches hooks, `capture` keeps activations, `weights` lists the matrices and `shape`
reads the configuration. They accept our GPT and a TransformerLens ``TransformerBridge`` as they
stand, wrap neither and leave both as they were. Names are resolved before anything runs; what
is captured is a copy; nothing stays attached; lengths are checked against the context.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from models.errors import InputError, LengthError, VocabularyError
from models.hooks import HookFunction, HookPoint, attached, call_hook, check_hook, unknown_hook

TokensLike = Tensor | Sequence[Sequence[int]]
Hooks = Iterable[tuple[str, HookFunction]]


@runtime_checkable
class HookedModel(Protocol):
    """A model that can be measured: our `models.gpt.GPT`, or a ``TransformerBridge``."""

    @property
    def cfg(self) -> Any:
        """Configuration with at least ``n_layers, n_heads, d_model, d_vocab, n_ctx``."""
        ...

    @property
    def hook_dict(self) -> Any:
        """Hook points by name."""
        ...

    def __call__(self, tokens: Any, /, **kwargs: Any) -> Any:
        """Run the model on token ids."""
        ...

    def modules(self) -> Iterator[torch.nn.Module]:
        """The model's modules, itself included."""
        ...


@dataclass(frozen=True)
class Shape:
    """A model's sizes, with what an engine leaves out filled in."""

    n_layers: int
    n_heads: int
    n_key_value_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    n_ctx: int
    window: int | None
    device: torch.device

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Every ``(layer, head)``."""
        return [(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads)]


class Captured(NamedTuple):
    """What `capture` returns."""

    logits: Tensor | None
    activations: dict[str, Tensor]


class Padded(NamedTuple):
    """Token ids padded on the right, and how many of each row are real."""

    tokens: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, " batch"]

    @property
    def real(self) -> Tensor:
        """Which positions are real, bool ``[batch, pos]``."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return positions < self.lengths[:, None]


def shape(model: HookedModel) -> Shape:
    """Read a model's configuration.

    Raises:
        InputError: ``model`` is not a hooked model, or its layers differ in what they see.
    """
    cfg = getattr(model, "cfg", None)
    if cfg is None or not hasattr(model, "hook_dict"):
        raise InputError(
            "a hooked model (a GPT of this toolkit or a TransformerBridge) is needed, "
            f"but got {type(model).__name__}"
        )
    d_head = getattr(cfg, "d_head", None) or cfg.d_model // cfg.n_heads
    return Shape(
        n_layers=cfg.n_layers,
        n_heads=cfg.n_heads,
        n_key_value_heads=getattr(cfg, "n_key_value_heads", None) or cfg.n_heads,
        d_model=cfg.d_model,
        d_head=d_head,
        d_mlp=getattr(cfg, "d_mlp", None) or 0,
        d_vocab=cfg.d_vocab,
        n_ctx=cfg.n_ctx,
        window=_window(model),
        device=torch.device(getattr(cfg, "device", None) or "cpu"),
    )


def _window(model: HookedModel) -> int | None:
    """How many keys a query sees at most; of a bridge, from the configuration it came with."""
    if hasattr(model.cfg, "window"):
        window: int | None = model.cfg.window
        return window
    config: Any = getattr(getattr(model, "original_model", None), "config", None)
    width = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    local = {kind in ("sliding_attention", "local") for kind in kinds or ["sliding_attention"]}
    if width is None or local == {False} or getattr(config, "use_sliding_window", True) is False:
        return None
    if len(local) == 2 and width < model.cfg.n_ctx:
        raise InputError(
            f"some layers of this {type(config).model_type} model see all keys and some the last "
            f"{width}, so their heads have no common chance level: such models are not measured"
        )
    return int(width) if local == {True} and width < model.cfg.n_ctx else None


def pad(model: HookedModel, tokens: TokensLike, lengths: Tensor | None = None) -> Padded:
    """Token ids as one tensor on the model's device, checked; shorter rows padded on the right.

    Args:
        tokens: ``[batch, pos]`` or a list of lists of ids.
        lengths: how many ids of each row are real, when ``tokens`` is padded already.

    Raises:
        InputError: empty, or not ids.
        LengthError: longer than the context.
        VocabularyError: an id outside the vocabulary.
    """
    sizes = shape(model)
    if not isinstance(tokens, Tensor):
        tokens, lengths = _pad_rows(tokens)
    if tokens.ndim != 2 or not tokens.numel():
        raise InputError(f"tokens must be [batch, pos], but got shape {tuple(tokens.shape)}")
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise InputError(f"tokens must be integer ids, but got {tokens.dtype}")
    if (n_pos := tokens.shape[1]) > sizes.n_ctx:
        raise LengthError(
            f"the model's context is {sizes.n_ctx} tokens, but got {n_pos}: shorten them"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= sizes.d_vocab:
        raise VocabularyError(
            f"ids must be 0..{sizes.d_vocab - 1}, but got {low if low < 0 else high}"
        )
    if lengths is None:
        lengths = torch.full((len(tokens),), tokens.shape[1])
    elif len(lengths) != len(tokens) or not 1 <= int(lengths.min()) <= int(lengths.max()) <= n_pos:
        raise LengthError(
            f"lengths must be 1..{n_pos} for each of {len(tokens)} rows, but got {lengths.tolist()}"
        )
    return Padded(tokens.long().to(sizes.device), lengths.to(sizes.device))


def _pad_rows(tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    try:
        rows = [torch.as_tensor(row) for row in tokens]
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"tokens must be lists of ids, but got {reprlib.repr(tokens)}") from None
    if not rows or any(row.ndim != 1 or not len(row) for row in rows):
        raise InputError("tokens must be one or more non-empty lists of ids")
    if any(row.is_floating_point() for row in rows):
        raise InputError(f"tokens must be integer ids, but got {reprlib.repr(tokens)}")
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


@contextmanager
def hooked(model: HookedModel, hooks: Hooks) -> Iterator[None]:
    """Attach ``(name, function)`` pairs for the length of a ``with`` block.

    A function gets ``hook=`` an object whose ``name`` is the name it was attached by. Scopes
    nest; each removes what it attached and nothing else, whatever ends it.

    Raises:
        UnknownNameError: a name that the model does not have; nothing has been attached then.
    """
    hooks = list(hooks)
    points = _points(model, [name for name, _ in hooks])
    pairs = [(points[name], check_hook(function)) for name, function in hooks]
    if all(isinstance(point, HookPoint) for point, _ in pairs):
        with attached(pairs):
            yield
        return
    wrapped = [
        (point, _renamed(function, _Named(name, point)))
        for (point, function), (name, _) in zip(pairs, hooks, strict=True)
    ]
    try:
        for point, function in wrapped:
            point.add_hook(function)
        yield
    finally:
        for point, function in wrapped:
            _remove(point, function)


def capture(
    model: HookedModel,
    tokens: TokensLike,
    names: Iterable[str] = (),
    *,
    logits: bool = False,
    grad: bool = False,
    hooks: Hooks = (),
) -> Captured:
    """Run the model once, in evaluation mode, and keep the named activations.

    The forward pass stops after the last layer that is needed unless logits are asked for.

    Args:
        model: a hooked model.
        tokens: ids ``[batch, pos]`` or a list of lists, padded on the right here.
        names: hook points to keep.
        logits: whether to return the logits ``[batch, pos, d_vocab]`` too.
        grad: keep the graph, so that ``torch.autograd.grad`` of what is captured works.
        hooks: further hooks for this run, attached before the capture reads.

    Returns:
        The logits or ``None``, and a dict of copies by name.
    """
    ids = pad(model, tokens).tokens
    names = list(dict.fromkeys(names))
    _points(model, names)
    kept: dict[str, Tensor] = {}

    def keep(activation: Tensor, *, hook: Any) -> Tensor | None:
        if grad:
            if not activation.requires_grad:  # the weights are frozen: the graph starts here
                activation = activation.detach().clone().requires_grad_()
            kept[hook.name] = activation
            return activation.clone()
        kept[hook.name] = activation.detach().clone()
        return None

    stop = None if logits else _layer_after(names)
    only = {} if stop is None else {"stop_at_layer": stop}
    reading: list[tuple[str, HookFunction]] = [(name, keep) for name in names]
    with hooked(model, [*hooks, *reading]), evaluating(model), torch.set_grad_enabled(grad):
        out = model(ids, return_type="logits", **only)
    if silent := [name for name in names if name not in kept]:
        raise InputError(f"these hook points did not fire in this model: {', '.join(silent)}")
    return Captured(out if logits else None, kept)


@contextmanager
def evaluating(model: HookedModel) -> Iterator[None]:
    """Evaluation mode for a while; afterwards every module has the mode it had.

    A bridge runs parts of the model it was made from that are not among its own modules.
    """
    original: Any = getattr(model, "original_model", None)
    parts = chain(model.modules(), () if original is None else original.modules())
    training = [module for module in dict.fromkeys(parts) if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def weights(model: HookedModel) -> dict[str, Tensor | None]:
    """The matrices by name, ``None`` where the model has none; to read, not to edit.

    ``W_Q, W_K, W_V``: ``[layer, head, d_model, d_head]`` (key-value heads for K and V);
    ``W_O``: ``[layer, head, d_head, d_model]``; ``W_in, W_gate``: ``[layer, d_model, d_mlp]``;
    ``W_out``: ``[layer, d_mlp, d_model]``; ``W_E``: ``[d_vocab, d_model]``;
    ``W_pos``: ``[n_ctx, d_model]``; ``W_U``: ``[d_model, d_vocab]``.
    """
    return {name: _weight(model, name) for name in WEIGHT_NAMES}


WEIGHT_NAMES = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out", "W_E", "W_pos", "W_U")


def _weight(model: HookedModel, name: str) -> Tensor | None:
    try:
        value = getattr(model, name)
    except (AttributeError, KeyError, ValueError):  # a bridge raises any of these for "none"
        return None
    return value.detach() if isinstance(value, Tensor) else None


def _layer_after(names: Sequence[str]) -> int | None:
    """Where a run that only has to fire ``names`` may stop; ``None`` for the end."""
    early = ("hook_embed", "hook_pos_embed")
    if not names or not all(name.startswith(("blocks.", *early)) for name in names):
        return None
    return max(-1 if name in early else int(name.split(".")[1]) for name in names) + 1


def _points(model: HookedModel, names: Sequence[str]) -> dict[str, Any]:
    """The hook points of the names."""
    known: Mapping[str, Any] = model.hook_dict
    for name in names:
        if name not in known:
            raise unknown_hook(name, known)
    return {name: known[name] for name in names}


@dataclass(frozen=True)
class _Named:
    """A hook point under the canonical name it was asked for by."""

    name: str
    point: Any

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.point, attribute)

    def layer(self) -> int:
        return int(self.name.split(".")[1])


def _renamed(function: HookFunction, named: _Named) -> Callable[..., Tensor | None]:
    """The function for a point of TransformerLens, with what our own points guarantee.

    It is told the name that it was attached by, and may edit in place: what autograd has saved,
    what is an expanded view, and what a norm goes on with only when it is returned.
    """
    in_norm = named.name.endswith(("hook_scale", "hook_normalized"))

    def run(activation: Tensor, hook: Any) -> Tensor | None:
        delicate = in_norm or activation.requires_grad or 0 in activation.stride()
        given = activation.clone() if delicate else activation
        result = call_hook(function, given, named)
        if result is given and (given is activation or torch.equal(given, activation)):
            return None
        if named.name.endswith("hook_resid_mid"):
            # a bridge gives what is returned here to the MLP only, and not to the residual stream
            activation.copy_(result)
            return None
        return result

    return run


def _remove(point: Any, function: Callable[..., Any]) -> None:
    """Remove one function: TransformerLens's point keeps a torch handle and a record of it."""
    for handle in [handle for handle in point.fwd_hooks if handle.user_hook is function]:
        handle.hook.remove()
        point.fwd_hooks[:] = [other for other in point.fwd_hooks if other is not handle]
