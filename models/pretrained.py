"""Pretrained models behind the common interface, in one of two engines.

``lens`` puts a `transformers` model behind TransformerLens's ``TransformerBridge``, with the
weights as published (nothing folded, nothing centred). ``gpt`` reads GPT-2 and Llama weights
into our own `models.gpt.GPT`, which is faster, and a second implementation to compare with.
"""

from __future__ import annotations

import copy as copying
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import torch

from models.errors import CheckpointError, InputError
from models.gpt import GPT
from models.published import read_into_gpt
from models.self_check import log_probabilities, refuse_difference
from models.sources import Source, refuse_others
from models.text_codec import TextCodec
from models.training import pick_device

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")


def load_pretrained(
    model: Any, *, engine: str, device: str, dtype: torch.dtype, copy: bool = True
) -> Any:
    """A published model ready to be measured; see `models.load.load`.

    Args:
        model: where the files of one are (a `models.sources.Source`), or a `transformers` model.
        engine: ``lens`` or ``gpt``.
        device: where to compute.
        dtype: of the weights.
        copy: whether a `transformers` model is copied first; TransformerLens rewrites it.
    """
    where = pick_device(device)
    with quietly():
        if isinstance(model, Source):
            if engine == "gpt":
                return _read_gpt(model).to(device=where, dtype=dtype)
            return _read_lens(model, where, dtype)
        refuse_others(model.config.to_dict(), type(model).__name__)
        if engine == "gpt":
            gpt = read_into_gpt(model.config.to_dict(), model.state_dict())
            return gpt.to(device=where, dtype=dtype)
        model = copying.deepcopy(model) if copy else model
        return to_bridge(model.to(device=where, dtype=dtype), None)


def to_bridge(model: Any, tokenizer: Any) -> Any:
    """A `transformers` model behind a bridge. The model is rewritten: give a copy.

    The bridge is given ids by us, never text, so it boots with a stand-in where a tokenizer
    would make it ask the hub. What it is given as its tokenizer it changes (it makes it add BOS),
    so the model's own stands beside it, as ``vocabulary``.

    Raises:
        InputError: TransformerLens has no bridge for it, or one that computes something else.
    """
    model.eval()
    published = log_probabilities(model)  # now: the bridge rewrites the module tree
    if not model.config.architectures:  # of a model made from a configuration
        model.config.architectures = [type(model).__name__]
    from transformer_lens.model_bridge import TransformerBridge

    try:
        with _stand_in() as tokenizer_to_boot:
            bridge = TransformerBridge.boot_transformers(
                str(model.config.name_or_path or model.config.model_type),
                hf_model=model,
                tokenizer=tokenizer_to_boot,
                dtype=model.dtype,
                device=str(model.device),
            )
    except (ValueError, KeyError, NotImplementedError) as error:
        line = str(error).split(" Available architectures")[0]
        raise InputError(
            f"TransformerLens cannot bridge a {type(model).__name__}: {line}"
        ) from None
    bridge.eval()
    refuse_difference(published, bridge, model)
    bridge.vocabulary = None if tokenizer is None else TextCodec(tokenizer)
    bridge.tokenizer = tokenizer
    return bridge


def tokenizer_of(source: Source) -> Any:
    """The tokenizer whose files lie beside the weights, or ``None`` where there is none."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    kind: Any = AutoTokenizer
    options: dict[str, Any] = {"trust_remote_code": False}
    if source.gguf:
        kind, options = PreTrainedTokenizerFast, {"gguf_file": source.gguf}
    elif not any((source.folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return kind.from_pretrained(source.folder, local_files_only=True, **options)
    except Exception as error:  # each kind of tokenizer fails in its own way
        if source.gguf:
            return None  # a GGUF file may hold weights alone
        raise _unreadable(f"the tokenizer in {source.folder}", error) from None


@contextmanager
def quietly() -> Iterator[None]:
    """No progress bars and no notices of `transformers` and TransformerLens for a while."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _read_lens(source: Source, device: torch.device, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    reader: Any = AutoModelForCausalLM
    options: dict[str, Any] = {"use_safetensors": True}
    quantization = None
    if source.gguf:
        from transformers import AutoConfig

        from models.gguf_file import read_header

        config, quantization = read_header(source.path)
        options = {"gguf_file": source.gguf}
        if config is not None:  # transformers reads some fields of these files only
            options["config"] = AutoConfig.for_model(**config)
    try:
        model, found = reader.from_pretrained(
            source.folder,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
            **options,
        )
    except Exception as error:  # transformers and its readers raise errors of many kinds
        raise _unreadable(source.name, error) from None
    if missing := sorted(found["missing_keys"]):
        raise CheckpointError(f"the weights of {source.name} lack {', '.join(missing)}")
    if wrong := sorted(str(name) for name, *_ in found["mismatched_keys"]):
        raise CheckpointError(f"weights of {source.name} have another shape: {', '.join(wrong)}")
    bridge = to_bridge(model.to(device), tokenizer_of(source))
    bridge.quantization = quantization
    return bridge


def _read_gpt(source: Source) -> GPT:
    quantization = None
    if source.gguf:
        from models.gguf_file import read_gguf

        config, weights, quantization = read_gguf(source.path)
    else:
        config, weights = source.config, _safetensors(source)
    model = read_into_gpt(config, weights)
    model.quantization = quantization
    tokenizer = tokenizer_of(source)
    model.vocabulary = None if tokenizer is None else TextCodec(tokenizer)
    return model


def _safetensors(source: Source) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, torch.Tensor] = {}
    for path in source.weights:
        try:
            weights |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or damaged: {error}") from None
    return weights


def _unreadable(what: str, error: Exception) -> CheckpointError:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CheckpointError(f"{what} cannot be read: {line}")


@contextmanager
def _stand_in() -> Iterator[Any]:
    """A tokenizer that a bridge accepts without asking for another one; it reads it again."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        empty = Tokenizer(WordLevel({"": 0}, unk_token=""))
        kind: Any = PreTrainedTokenizerFast
        kind(tokenizer_object=empty).save_pretrained(folder)
        yield AutoTokenizer.from_pretrained(folder, local_files_only=True)
