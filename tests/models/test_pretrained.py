"""Published models from folders: found without a network, read whole, or refused in one line."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.errors import CheckpointError, InputError, ProbeError
from models.gpt import GPT
from models.interface import capture, shape
from models.load import load
from models.text_codec import TextCodec, codec_of

A = [[3, 1, 4, 1, 5, 9, 2, 6]]
ENGINES = ("gpt", "lens")


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Connections that were attempted; each is refused."""
    attempted: list[object] = []

    def refuse(_: socket.socket, address: object) -> None:
        attempted.append(address)
        raise ConnectionRefusedError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempted


@pytest.fixture(scope="module")
def mini_folder(filled_gpt2: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("mini") / "my model v1.5"
    filled_gpt2.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(mini_folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(mini_folder, tmp_path / "model"))


def log_probs(model: Any) -> Tensor:
    logits = capture(model, A, logits=True).logits
    assert logits is not None
    return logits[0].log_softmax(-1)


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def message(action: Callable[[], object], kind: type[ProbeError]) -> str:
    with pytest.raises(kind) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- what is on disk


@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_is_read_by_any_path_without_a_connection(
    engine: str,
    mini_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    connections: list[object],
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(mini_folder.parent)
    for name in (mini_folder, f"{mini_folder}/", "my model v1.5", f"./{mini_folder.name}/"):
        model = load(name, engine=engine)
        assert not model.training
        # the known numbers of this model; measured: 4.8e-7
        expected = torch.tensor([-0.429102, -4.432888, -4.805723, -3.085256])
        torch.testing.assert_close(log_probs(model)[-1, :4], expected, atol=1e-4, rtol=0)
    assert not connections
    assert capfd.readouterr() == ("", ""), "loading prints nothing"
    assert sorted(p.name for p in mini_folder.parent.iterdir()) == [mini_folder.name]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_changed_weight_changes_the_output(engine: str, folder: Path) -> None:
    before = log_probs(load(folder, engine=engine))
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"][0, 0] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert float((log_probs(load(folder, engine=engine)) - before).abs().max()) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_ids_work_without_a_tokenizer_and_text_says_what_is_missing(
    engine: str, mini_folder: Path
) -> None:
    model = load(mini_folder, engine=engine)
    assert "tokenizer.json" in message(lambda: codec_of(model), InputError)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tokenizer_beside_the_weights_is_used(engine: str, folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate("abcdefghijk")}
    kind: Any = PreTrainedTokenizerFast
    kind(tokenizer_object=Tokenizer(WordLevel(words, unk_token="a"))).save_pretrained(folder)
    codec = codec_of(load(folder, engine=engine))
    assert isinstance(codec, TextCodec)
    assert codec.encode("d") == [3]


def test_a_model_of_the_user_is_copied_unless_told_not_to(filled_gpt2: Any) -> None:
    before = [type(module) for module in filled_gpt2.modules()]
    for engine in ENGINES:
        model = load(filled_gpt2, engine=engine)
        assert log_probs(model)[-1, 0] == pytest.approx(-0.429102, abs=1e-4)
        next(model.parameters()).data.zero_()
    assert [type(module) for module in filled_gpt2.modules()] == before
    assert float(filled_gpt2.transformer.wte.weight.detach().abs().min()) > 0
    import copy

    own = copy.deepcopy(filled_gpt2)
    bridge = load(own, copy=False)
    assert bridge.original_model is own
    assert load(bridge) is bridge
    assert "already" in message(lambda: load(bridge, engine="gpt"), InputError)


def test_weights_in_several_files_are_read(filled_gpt2: Any, tmp_path: Path) -> None:
    filled_gpt2.save_pretrained(tmp_path, max_shard_size="2KB")
    shards = sorted(tmp_path.glob("*-of-*.safetensors"))
    assert len(shards) > 1
    for engine in ENGINES:
        value = float(log_probs(load(tmp_path, engine=engine))[-1, 0])
        assert value == pytest.approx(-0.429102, abs=1e-4)
    shards[0].unlink()
    for engine in ENGINES:
        assert shards[0].name in message(lambda e=engine: load(tmp_path, engine=e), CheckpointError)


# --- what is not whole


@pytest.mark.parametrize("engine", ENGINES)
def test_missing_files_are_named(engine: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    text = message(lambda: load(folder, engine=engine), CheckpointError)
    assert "lacks model.safetensors (pytorch_model.bin is a pickle, which is never" in text
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    (folder / "config.json").unlink()
    assert "lacks config.json" in message(lambda: load(folder, engine=engine), CheckpointError)
    assert "no such folder" in message(lambda: load(folder / "nothing"), CheckpointError)


@pytest.mark.parametrize("engine", ENGINES)
def test_missing_weights_are_listed(engine: str, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in ("transformer.h.0.ln_1.bias", "transformer.h.1.mlp.c_fc.weight"):
        del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text = message(lambda: load(folder, engine=engine), CheckpointError)
    for part in ("0.ln", "1.mlp"):
        assert part in text


def test_left_over_and_misshapen_weights_are_listed(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    file = folder / "model.safetensors"
    save_file(weights | {"transformer.h.0.adapter.weight": torch.ones(2)}, file)
    text = message(lambda: load(folder, engine="gpt"), CheckpointError)
    assert "more than the model: h.0.adapter.weight" in text
    save_file(weights | {"transformer.wpe.weight": torch.ones(3, 8)}, file)
    text = message(lambda: load(folder, engine="gpt"), CheckpointError)
    assert "W_pos (3, 8) instead of (16, 8)" in text
    save_file(weights | {"transformer.wpe.weight": torch.ones(3, 8)}, file, {"format": "pt"})
    text = message(lambda: load(folder), CheckpointError)
    assert "have another shape: transformer.wpe.weight" in text


def test_causal_masks_of_old_checkpoints_are_no_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)}
    save_file(load_file(file) | masks | {"transformer.h.1.attn.masked_bias": torch.ones(1)}, file)
    assert log_probs(load(folder, engine="gpt"))[-1, 0] == pytest.approx(-0.429102, abs=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_truncated_weights_are_refused(engine: str, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    message(lambda: load(folder, engine=engine), CheckpointError)
    (folder / "config.json").write_text("{")
    assert "not JSON" in message(lambda: load(folder, engine=engine), CheckpointError)


# --- what is of another kind


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("bert", "an encoder whose tokens also look ahead"), ("t5", "an encoder and a decoder")],
)
def test_encoders_are_refused_with_the_reason(
    engine: str, kind: str, reason: str, folder: Path
) -> None:
    configure(folder, model_type=kind)
    text = message(lambda: load(folder, engine=engine), InputError)
    assert f"of type '{kind}', {reason}: only causal models are read" in text


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["vit", "clip", "clip_text_model", "wav2vec2"])
def test_models_of_something_else_than_language_are_refused_with_the_reason(
    engine: str, kind: str, folder: Path
) -> None:
    configure(folder, model_type=kind)
    text = message(lambda: load(folder, engine=engine), InputError)
    assert (
        f"of type '{kind}', which is no causal language model of text: only these are read" in text
    )


def test_an_unknown_architecture_is_refused(folder: Path) -> None:
    configure(folder, model_type="gpt5")
    assert "'gpt5': use engine lens" in message(lambda: load(folder, engine="gpt"), InputError)
    assert "gpt5" in message(lambda: load(folder), CheckpointError)


def test_half_precision_on_a_cpu_is_refused(mini_folder: Path, trained_folder: Path) -> None:
    for name in (mini_folder, trained_folder):
        for dtype in ("float16", "bfloat16"):
            text = message(lambda n=name, d=dtype: load(n, dtype=d), InputError)
            assert "use float32" in text
    assert "one of float32" in message(lambda: load(mini_folder, dtype="int8"), InputError)
    assert "one of lens, gpt" in message(lambda: load(mini_folder, engine="x"), InputError)


@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("name", ["gpt2-small", "someorg/my.gpt2-v1.5"])
def test_a_name_that_is_not_to_be_had_fails_soon(
    name: str, offline: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline == "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    text = message(lambda: load(name), CheckpointError)
    assert time.monotonic() - start < 5
    assert f"no such folder: {name}; and no model of that name" in text
    assert "give a folder with config.json and model.safetensors" in text


def test_a_hub_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Looking up an address may take a minute, whatever the client's time limit is."""
    from huggingface_hub import HfApi, constants

    def wait(*_: object, **__: object) -> None:
        time.sleep(8)

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(HfApi, "model_info", wait)
    start = time.monotonic()
    assert "(TimeoutError)" in message(lambda: load("someorg/nothing"), CheckpointError)
    assert time.monotonic() - start < 5


def test_wrong_options_are_refused_before_the_hub_is_asked(connections: list[object]) -> None:
    for options in ({"dtype": "int8"}, {"dtype": "float16"}, {"device": "tpu"}):
        message(lambda o=options: load("someorg/nothing", **o), InputError)
    assert not connections


def test_the_hub_is_asked_before_anything_slow_is_imported(tmp_path: Path) -> None:
    code = """
import sys
from models.errors import CheckpointError
from models.load import load
try:
    load("someorg/nothing")
except CheckpointError:
    print(*sys.modules)
"""
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    loaded = set(done.stdout.split())
    assert "huggingface_hub" in loaded
    assert not {"torch", "transformers", "transformer_lens", "gguf"} & loaded


@pytest.mark.parametrize("name", ["a:b", "out/a b/c", "../nothing", "~/nothing"])
def test_what_cannot_be_a_hub_name_is_a_folder_that_is_not_there(
    name: str, connections: list[object]
) -> None:
    assert f"no such folder: {name}" in message(lambda: load(name), CheckpointError)
    assert not connections


def test_a_cached_name_is_read_without_a_connection(
    mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connections: list[object]
) -> None:
    """The layout is the hub client's own: a reference to a snapshot."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--openai-community--gpt2"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    shutil.copytree(mini_folder, cached / "snapshots" / ("0" * 40))
    for engine in ENGINES:
        for name in ("gpt2", "gpt2-small", "openai-community/gpt2"):
            value = float(log_probs(load(name, engine=engine))[-1, 0])
            assert value == pytest.approx(-0.429102, abs=1e-4)
    assert not connections


# --- windows


def test_a_window_in_every_layer_is_read_from_a_bridge(
    llama: Callable[..., Any], llama_to_ours: Callable[..., GPT]
) -> None:
    model = llama("Mistral", sliding_window=5)
    bridge, ours = load(model), llama_to_ours(model, 5)
    assert shape(bridge) == shape(ours)
    assert shape(load(llama("Mistral", sliding_window=99))).window is None, "wider than the context"
    name = "blocks.1.attn.hook_pattern"
    left, right = (capture(m, A, [name]).activations[name] for m in (bridge, ours))
    torch.testing.assert_close(left, right, atol=1e-5, rtol=0)  # measured: 9.5e-7
    assert "'mistral': use engine lens" in message(lambda: load(model, engine="gpt"), InputError)


def test_layers_with_and_without_a_window_are_refused(tmp_path: Path) -> None:
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes = {"vocab_size": 23, "hidden_size": 15, "num_heads": 3, "num_layers": 2}
    config = GPTNeoConfig(
        **sizes,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        GPTNeoForCausalLM(config).save_pretrained(tmp_path)
    bridge = load(tmp_path)
    text = message(lambda: capture(bridge, A, logits=True), InputError)
    assert "gpt_neo model see all keys and some the last 4" in text
    assert "'gpt_neo': use engine lens" in message(lambda: load(tmp_path, engine="gpt"), InputError)
