"""Option tables and names, free of torch.

One table per set of options; the types in configurations, the choices on the command line
and the texts of errors all derive from these. Heads are written ``layer.head``: ``4.11``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from operator import index as whole
from typing import Final, Literal, NamedTuple, get_args

from models.errors import InputError, UnknownNameError

Positions = Literal["learned", "sinusoidal", "rotary", "none"]
Normalization = Literal["layer", "rms"]
MLP = Literal["gelu", "gelu_new", "swiglu", "none"]
Objective = Literal["all", "outputs"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Engine = Literal["lens", "gpt"]
DType = Literal["float32", "bfloat16", "float16"]
Split = Literal["train", "heldout"]
ReturnType = Literal["logits", "loss", "both"]

POSITIONS: Final = get_args(Positions)
NORMALIZATIONS: Final = get_args(Normalization)
MLPS: Final = get_args(MLP)
OBJECTIVES: Final = get_args(Objective)
DEVICES: Final = get_args(Device)
ENGINES: Final = get_args(Engine)
DTYPES: Final = get_args(DType)
SPLITS: Final = get_args(Split)
RETURN_TYPES: Final = get_args(ReturnType)

Head = tuple[int, int]
HeadLike = str | tuple[int, int]


def hook_name(point: str, layer: int | None = None) -> str:
    """Full name of a hook point.

    >>> hook_name("attn.hook_z", 3)
    'blocks.3.attn.hook_z'
    >>> hook_name("hook_embed")
    'hook_embed'
    """
    return point if layer is None else f"blocks.{layer}.{point}"


_ATTENTION_POINTS = ("q", "k", "v", "z", "rot_q", "rot_k", "pattern", "attn_scores", "result")
_MLP_POINTS = ("pre", "post", "mid", "pre_linear")
_POINT_ALIASES = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_mid": "mid",
    "mlp_post": "post",
}
_PART_ALIASES = {
    "a": "attn",
    "attention": "attn",
    "m": "mlp",
    "b": "",
    "block": "",
    "blocks": "",
}


def act_name(name: str, layer: int | None = None, part: str | None = None) -> str:
    """Full hook name of a shorthand, as in TransformerLens's ``get_act_name``.

    >>> act_name("pattern", 0), act_name("q3"), act_name("scale", 1, "ln2"), act_name("embed")
    ('blocks.0.attn.hook_pattern', 'blocks.3.attn.hook_q', 'blocks.1.ln2.hook_scale', 'hook_embed')
    """
    if layer is None and part is None and ("." in name or name.startswith("hook_")):
        return name
    if match := re.fullmatch(r"([a-z_]+?)(\d+)(.*)", name):
        name, layer, part = match[1], int(match[2]), match[3]
    name = _POINT_ALIASES.get(name, name)
    part = _PART_ALIASES.get(part or "", part)
    if name in _ATTENTION_POINTS:
        part = "attn"
    elif name in _MLP_POINTS:
        part = "mlp"
    elif name in ("scale", "normalized") and layer is None:
        part = "ln_final"
    prefix = "" if layer is None else f"blocks.{layer}."
    return f"{prefix}{part + '.' if part else ''}hook_{name}"


def head_name(layer: int, head: int) -> str:
    """``layer.head``.

    >>> head_name(4, 11)
    '4.11'
    """
    return f"{layer}.{head}"


def parse_head(head: HeadLike, *, n_layers: int, n_heads: int) -> Head:
    """Read a head given as ``"1.2"`` or ``(1, 2)`` and check that it exists.

    Raises:
        UnknownNameError: not of that form, or outside the model. Negative numbers are refused.

    >>> parse_head("1.2", n_layers=2, n_heads=4)
    (1, 2)
    """
    try:
        parts = re.fullmatch(r"(-?\d+)\.(-?\d+)", head) if isinstance(head, str) else None
        layer, index = (int(part) for part in (parts.groups() if parts else map(_index, head)))
    except (TypeError, ValueError):
        raise UnknownNameError(
            f"a head is written layer.head, as in 1.2, but got {head!r}"
        ) from None
    if not (0 <= layer < n_layers and 0 <= index < n_heads):
        raise UnknownNameError(
            f"head {head_name(layer, index)} does not exist: "
            f"layers are 0..{n_layers - 1} and heads 0..{n_heads - 1}"
        )
    return layer, index


def _index(part: object) -> int:
    """A whole number, of any integer type."""
    return whole(part)  # type: ignore[arg-type]


def parse_heads(heads: Iterable[HeadLike], *, n_layers: int, n_heads: int) -> list[Head]:
    """Read several heads; duplicates are refused because they would count twice.

    >>> parse_heads(["0.1", (1, 0)], n_layers=2, n_heads=2)
    [(0, 1), (1, 0)]
    """
    if isinstance(heads, str):
        raise InputError(f'heads must be a list, as in ["{heads}"], but got the string {heads!r}')
    parsed = [parse_head(head, n_layers=n_layers, n_heads=n_heads) for head in heads]
    if len(set(parsed)) != len(parsed):
        raise InputError(f"each head may be named once, but got {[head_name(*h) for h in parsed]}")
    return parsed


_LAYER_PART = re.compile(r"(attn|mlp)\.(\d+)|(\d+)\.\*")


class Part(NamedTuple):
    """What can be taken away: a head, or what a layer's attention or MLP adds as a whole."""

    layer: int
    kind: str
    head: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}" if self.head is None else f"{self.layer}.{self.head}"


def parse_parts(parts: Iterable[HeadLike | Part], *, n_layers: int, n_heads: int) -> list[Part]:
    """Read heads (``4.11``, all of a layer ``4.*``) and outputs of layers (``attn.4``, ``mlp.4``).

    Raises:
        UnknownNameError: outside the model, or not of these forms.

    >>> [str(part) for part in parse_parts(["1.*", "mlp.0"], n_layers=2, n_heads=2)]
    ['1.0', '1.1', 'mlp.0']
    """
    if isinstance(parts, str):
        raise InputError(f'heads must be a list, as in ["{parts}"], but got the string {parts!r}')
    if not isinstance(parts, Iterable):
        raise InputError(f'heads must be a list, as in ["1.2"], but got {parts!r}')
    found: list[Part] = []
    for given in parts:
        given = str(given) if isinstance(given, Part) else given
        match = _LAYER_PART.fullmatch(given) if isinstance(given, str) else None
        if match is None:
            at, head = parse_head(given, n_layers=n_layers, n_heads=n_heads)
            found.append(Part(at, "head", head))
            continue
        layer = int(match[2] or match[3])
        if layer >= n_layers:
            raise UnknownNameError(f"{given} does not exist: layers are 0..{n_layers - 1}")
        if match[1]:
            found.append(Part(layer, match[1]))
        else:
            found += [Part(layer, "head", head) for head in range(n_heads)]
    if len(set(found)) != len(found):
        raise InputError(f"each part may be named once, but got {' '.join(map(str, found))}")
    return found


def closest(name: str, options: Iterable[str], *, n: int = 3) -> list[str]:
    """The options that look most like ``name``, best first.

    >>> closest("anti_diagnal", ["entropy", "anti_diagonal"])
    ['anti_diagonal']
    """
    return difflib.get_close_matches(name, list(options), n=n, cutoff=0.5)


def unknown(kind: str, name: object, options: Sequence[str]) -> UnknownNameError:
    """The error for a name that is not among ``options``: what was got and what there is."""
    near = closest(str(name), options)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(options)}"
    return UnknownNameError(f"no {kind} named {name!r}; {hint}")


def choose(kind: str, value: str, options: Sequence[str]) -> str:
    """``value`` if it is one of ``options``, otherwise the error that lists them.

    >>> choose("device", "cpu", DEVICES)
    'cpu'
    """
    if value not in options:
        raise InputError(f"{kind} must be one of {', '.join(options)}, but got {value!r}")
    return value
