"""Hook points: named places in a model where a function may read or replace an activation.

A hook is ``fn(activation, hook=point) -> Tensor | None``; ``None`` leaves the activation as it
is. There is one way to attach one, for the length of a ``with`` block: no permanent hooks, no
levels, no aliases and no backward hooks. An unwatched point costs one attribute read and one
truth test. Names and call convention are TransformerLens's, so hook functions written for it
run here unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from models.errors import InputError, UnknownNameError
from models.names import act_name, closest


@runtime_checkable
class HookFunction(Protocol):
    """What may be attached to a hook point."""

    def __call__(self, activation: Tensor, /, *, hook: Any) -> Tensor | None:
        """Read ``activation``, change it in place, or return its replacement."""
        ...


NameFilter = str | Callable[[str], bool]


class HookPoint:
    """The identity function, with a name and a list of functions to run on what passes."""

    __slots__ = ("_attached", "ctx", "name")

    def __init__(self) -> None:
        self.name = ""
        self.ctx: dict[str, Any] = {}
        self._attached: list[Attachment] = []

    def __call__(self, activation: Tensor) -> Tensor:
        """Pass ``activation`` through the attached functions, in the order of attaching."""
        if self._attached:
            if activation.requires_grad:
                # a function may edit in place what autograd has saved or gives as a view
                activation = activation.clone()
            for attachment in tuple(self._attached):
                activation = call_hook(attachment.function, activation, self)
        return activation

    @property
    def watched(self) -> bool:
        """Whether any function is attached."""
        return bool(self._attached)

    def layer(self) -> int:
        """The layer in ``blocks.{layer}...``."""
        return int(self.name.split(".")[1])

    def __repr__(self) -> str:
        return f"HookPoint({self.name!r}, {len(self._attached)} attached)"


class Attachment:
    """One attachment of a function: the same function may be attached twice."""

    __slots__ = ("function",)

    def __init__(self, function: HookFunction) -> None:
        self.function = function


@contextmanager
def attached(pairs: Iterable[tuple[HookPoint, HookFunction]]) -> Iterator[None]:
    """Attach functions to points for the length of a ``with`` block, whatever ends it.

    Attaching begins when all pairs are known to be good; each attachment is undone by identity,
    so that scopes nest.
    """
    todo = [(point, Attachment(check_hook(function))) for point, function in pairs]
    try:
        for point, attachment in todo:
            point._attached.append(attachment)
        yield
    finally:
        for point, attachment in todo:
            point._attached = [other for other in point._attached if other is not attachment]


def check_hook(function: HookFunction) -> HookFunction:
    """The function, if it can be called."""
    if not callable(function):
        raise InputError(f"a hook is a function (activation, hook=...), but got {function!r}")
    return function


def call_hook(function: HookFunction, activation: Tensor, hook: Any) -> Tensor:
    """Run one hook and check that a replacement has the shape of what it replaces."""
    replacement: object = function(activation, hook=hook)
    if replacement is None:
        return activation
    if not isinstance(replacement, Tensor) or replacement.shape != activation.shape:
        got = tuple(replacement.shape) if isinstance(replacement, Tensor) else repr(replacement)
        raise InputError(
            f"a hook at {hook.name} must return None or a tensor of shape "
            f"{tuple(activation.shape)}, but returned {got}"
        )
    return replacement


class ActivationCache(dict[str, Tensor]):
    """Activations by hook name; also by shorthand: ``cache["pattern", 0]``, ``cache["q0"]``."""

    def __missing__(self, key: object) -> Tensor:
        parts = key if isinstance(key, tuple) else (key,)
        name = act_name(*parts)
        if name not in self:
            raise KeyError(f"{key!r} is not in the cache; it holds {', '.join(self)}")
        return self[name]


class HookedModule(nn.Module):
    """A module whose hook points are listed by name and can be hooked for a while.

    A subclass calls `name_hook_points` once its points are in place. Only points that fire
    in a full forward pass may exist.
    """

    hook_dict: dict[str, HookPoint]

    def name_hook_points(self) -> None:
        """Find every `HookPoint` held by a submodule and give it its dotted path as name."""
        self.hook_dict = {}
        for path, module in self.named_modules():
            for attribute, value in vars(module).items():
                if isinstance(value, HookPoint):
                    value.name = f"{path}.{attribute}" if path else attribute
                    self.hook_dict[value.name] = value

    def hook_points(self, name: NameFilter) -> list[HookPoint]:
        """The point called ``name``, or every point whose name the function accepts.

        Raises:
            UnknownNameError: no such point; the closest names are listed.
        """
        if callable(name):
            return [point for key, point in self.hook_dict.items() if name(key)]
        if name not in self.hook_dict:
            raise unknown_hook(name, self.hook_dict)
        return [self.hook_dict[name]]

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Iterable[tuple[NameFilter, HookFunction]] = (),
        bwd_hooks: Sequence[Any] = (),
    ) -> Iterator[HookedModule]:
        """Attach ``(name or filter, function)`` pairs for the length of a ``with`` block.

        All names are resolved before anything is attached, and what this block attached (and
        nothing else) is detached at its end, whatever ends it.
        """
        if bwd_hooks:
            raise InputError(
                "backward hooks are not supported; capture activations with grad=True "
                "and take torch.autograd.grad of them"
            )
        pairs = [(point, fn) for name, fn in fwd_hooks for point in self.hook_points(name)]
        with attached(pairs):
            yield self

    def run_with_hooks(
        self,
        *args: Any,
        fwd_hooks: Iterable[tuple[NameFilter, HookFunction]] = (),
        bwd_hooks: Sequence[Any] = (),
        **kwargs: Any,
    ) -> Any:
        """One forward pass with hooks attached."""
        with self.hooks(fwd_hooks, bwd_hooks):
            return self(*args, **kwargs)

    def run_with_cache(
        self,
        *args: Any,
        names_filter: NameFilter | Sequence[str] | None = None,
        remove_batch_dim: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ActivationCache]:
        """One forward pass that keeps copies of the named activations (default: all).

        Returns:
            The output, and the activations, detached. ``remove_batch_dim`` drops a batch of 1.
        """
        if names_filter is None:
            names: list[NameFilter] = list(self.hook_dict)
        elif isinstance(names_filter, str) or callable(names_filter):
            names = [names_filter]
        else:
            names = list(names_filter)
        points = [point for name in names for point in self.hook_points(name)]
        cache = ActivationCache()

        def keep(activation: Tensor, *, hook: HookPoint) -> None:
            if remove_batch_dim and len(activation) != 1:
                raise InputError(f"remove_batch_dim needs a batch of 1, but got {len(activation)}")
            value = activation[0] if remove_batch_dim else activation
            cache[hook.name] = value.detach().clone()

        with attached((point, keep) for point in points):
            return self(*args, **kwargs), cache


def unknown_hook(name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a hook name that is not there, with the closest ones that are."""
    known = list(known)
    near = closest(str(name), known)
    hint = f"did you mean {', '.join(near)}?" if near else f"the first names are {known[:5]}"
    return UnknownNameError(f"no hook point named {name!r} in this model; {hint}")
