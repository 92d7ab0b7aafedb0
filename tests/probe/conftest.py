"""A finished reversal study and a small language model, shared by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from analyses.prompts import CAPITALS, PROMPTS
from models.load import load
from models.training import TrainingConfig
from probe.studies.reversal import ReversalStudy

SMALL = ReversalStudy(
    length=5,
    heads=2,
    width=32,
    seeds=2,
    device="cpu",
    workers=1,
    other_steps=(20,),
    training=TrainingConfig(steps=60),
)


@pytest.fixture(scope="session")
def study() -> ReversalStudy:
    """A study of seconds."""
    return SMALL


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, study: ReversalStudy) -> Path:
    """The report of `study`. Shared: leave it as you found it."""
    from probe.studies.reversal import reversal

    folder, _ = reversal(tmp_path_factory.mktemp("study") / "report", study=study)
    return folder


@pytest.fixture(scope="session")
def language_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of random weights whose byte-level tokenizer knows the words of the prompts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    texts = [prompt.text for prompt in PROMPTS]
    texts += [f"{capital.text}{capital.capital}" for capital in CAPITALS]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        min_frequency=1,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    folder = tmp_path_factory.mktemp("language") / "tiny.model-v1.5"
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=end, eos_token=end).save_pretrained(
        folder
    )
    config = GPT2Config(
        vocab_size=bpe.get_vocab_size(),
        n_positions=64,
        n_embd=15,
        n_layer=2,
        n_head=3,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["gpt", "lens"])
def language_model(language_folder: Path, request: pytest.FixtureRequest) -> Any:
    """The model in both engines."""
    return load(language_folder, engine=request.param)
