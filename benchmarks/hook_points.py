"""What the hook points cost: a forward pass beside the same model without them.

The same model is made from our source with every call of a hook point taken out (``_without``
rewrites the syntax tree); its logits must be equal to the last bit. Then some points are watched
by a function that does nothing: ``z`` changes nothing else, patterns and scores make the layer
form them instead of using the fused kernel. Forward passes without gradients on one thread,
taken in turn; medians of processor time are compared.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import timeit
import types
from collections.abc import Callable
from typing import Any

import torch
from _common import interleaved, one_thread, print_table

import models.blocks
import models.gpt
from models.config import GPTConfig
from models.gpt import GPT
from models.hooks import HookPoint
from models.interface import hooked

SHAPES = {
    "2 layers, width 64, 1 x 32 tokens": (GPTConfig(27, 33), (1, 32), 400),
    "2 layers, width 64, 64 x 32 tokens": (GPTConfig(27, 33), (64, 32), 80),
    "4 layers, width 768, 8 x 128 tokens": (
        GPTConfig(1000, 128, n_layers=4, n_heads=12, d_model=768),
        (8, 128),
        8,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    options = parser.parse_args()
    one_thread()
    bare = without_hook_points()
    rows = []
    for name, (config, size, rounds) in SHAPES.items():
        medians = compare(bare, config, size, max(1, rounds // 10) if options.quick else rounds)
        base = medians["without hook points"]
        rows += [(name, way, 1e3 * taken, taken / base) for way, taken in medians.items()]
    print_table("A forward pass", ("model", "way", "ms", "times as long"), rows)
    x, point = torch.zeros(1), HookPoint()
    one = min(timeit.repeat(lambda: point(x), number=100_000)) / 100_000
    none = min(timeit.repeat(lambda: x, number=100_000)) / 100_000
    print(f"\n  one call of a hook point that nobody watches: {1e9 * (one - none):.0f} ns")


@torch.no_grad()
def compare(
    bare: Callable[[GPTConfig], Any], config: GPTConfig, size: tuple[int, int], rounds: int
) -> dict[str, float]:
    tokens = torch.randint(config.d_vocab, size, generator=torch.Generator().manual_seed(0))
    ours, plain = GPT(config).eval(), bare(config).eval()
    plain.load_state_dict(ours.state_dict(), assign=True)  # the very same memory
    assert torch.equal(ours(tokens), plain(tokens))
    layers = range(config.n_layers)

    def watching(point: str) -> Callable[[], object]:
        names = [f"blocks.{layer}.attn.{point}" for layer in layers]

        def forward() -> None:
            with hooked(ours, [(name, lambda activation, hook: None) for name in names]):
                ours(tokens)

        return forward

    ways = {
        "without hook points": lambda: plain(tokens),
        "nobody watches": lambda: ours(tokens),
        "every z is watched": watching("hook_z"),
        "every pattern is watched": watching("hook_pattern"),
    }
    return interleaved(ways, rounds=rounds, warmup=min(10, rounds))


def without_hook_points() -> Callable[[GPTConfig], Any]:
    """The class `GPT`, built from its source without calls of hook points."""
    blocks = _without(models.blocks)
    gpt = _without(models.gpt, Block=blocks.Block, Norm=blocks.Norm)
    return gpt.GPT  # type: ignore[no-any-return]


def _without(module: types.ModuleType, **replaced: Any) -> types.ModuleType:
    tree = _Without().visit(ast.parse(inspect.getsource(module)))
    copy = types.ModuleType(f"{module.__name__}_without_hook_points")
    sys.modules[copy.__name__] = copy  # where jaxtyping and inspect look a class's module up
    exec(compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec"), copy.__dict__)
    vars(copy).update(replaced)
    return copy


class _Without(ast.NodeTransformer):
    """``self.hook_z(z)`` becomes ``z``, and ``point.watched`` becomes ``False``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_point = name.startswith("hook_") and len(node.args) == 1 and not node.keywords
        return node.args[0] if is_point else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return ast.Constant(False) if node.attr == "watched" else node


if __name__ == "__main__":
    main()
