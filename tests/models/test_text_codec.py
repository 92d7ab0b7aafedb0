"""Text to ids and back: one rule for BOS, pieces that join to the prompt byte for byte."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InputError
from models.gpt import GPT
from models.load import load
from models.text_codec import TextCodec, codec_of
from models.vocabulary import Vocabulary

END = "<|endoftext|>"
ROBOT, KANJI, ACCENT = "\U0001f916", "\u65e5\u672c\u8a9e", "Se\u00e1n"
REAL = Path(__file__).parents[3] / "shared" / "data" / "gpt2-tokenizer"


def byte_level(*, adds_bos: bool = False) -> Any:
    """A byte-level tokenizer with a few merges, made on the spot."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w")]
    pieces = [*letters, *("".join(merge) for merge in merges)]
    ids = {piece: i for i, piece in enumerate(pieces)} | {END: len(pieces)}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{END} $A", special_tokens=[(END, ids[END])]
        )
    kind: Any = PreTrainedTokenizerFast
    return kind(tokenizer_object=tokenizer, bos_token=END, eos_token=END)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "adds_bos"])
def codec(request: pytest.FixtureRequest) -> TextCodec:
    return TextCodec(byte_level(adds_bos=request.param))


@pytest.fixture(scope="module")
def gpt2_codec() -> TextCodec:
    """GPT-2's own tokenizer, where its files are."""
    from transformers import GPT2TokenizerFast

    if not REAL.is_dir():
        pytest.skip(f"GPT-2's tokenizer files are not in {REAL.name}")
    kind: Any = GPT2TokenizerFast
    files = {"vocab": str(REAL / "vocab.json"), "merges": str(REAL / "merges.txt")}
    return TextCodec(kind(**files))


def joined(codec: TextCodec, ids: list[int]) -> bytes:
    return b"".join(p if isinstance(p, bytes) else p.encode() for p in codec.labels(ids))


def test_bos_is_added_once_and_only_when_asked(codec: TextCodec) -> None:
    plain = codec.encode("hello world", bos=False)
    assert codec.bos not in plain
    assert codec.encode("hello world", bos=True) == [codec.bos, *plain]
    own = [codec.bos, *plain] if codec.encode("a")[0] == codec.bos else plain
    assert codec.encode("hello world") == own, "by default what the tokenizer does"


def test_a_special_token_written_out_is_that_token(codec: TextCodec) -> None:
    plain = codec.encode(f"{END}hello", bos=False)
    assert plain == [codec.bos, *codec.encode("hello", bos=False)], "it is the text's own"
    assert codec.encode(f"{END}hello", bos=True) == plain, "exactly one stands first"


def test_an_empty_prompt_is_an_error_but_for_bos() -> None:
    codec = TextCodec(byte_level())
    for bos in (None, False):
        with pytest.raises(InputError, match="the prompt is empty"):
            codec.encode("", bos=bos)
    assert codec.encode("", bos=True) == [codec.bos]
    assert len(codec.encode(" ")) == len(codec.encode("\n")) == 1


def test_a_tokenizer_without_bos_says_so() -> None:
    tokenizer = byte_level()
    tokenizer.bos_token = None
    with pytest.raises(InputError, match="no BOS token"):
        TextCodec(tokenizer).encode("a", bos=True)


def test_parts_of_a_character_are_bytes(codec: TextCodec) -> None:
    labels = codec.labels(codec.encode(f"hello {ROBOT}", bos=False))
    assert labels[:2] == ["hello", " "]
    assert labels[2:] == [b"\xf0", b"\x9f", b"\xa4", b"\x96"], "distinct, and no replacement sign"


@given(st.text(min_size=1))
def test_pieces_join_to_the_prompt_byte_for_byte(text: str) -> None:
    codec = TextCodec(CODEC.tokenizer)
    ids = codec.encode(text)
    assert joined(codec, ids) == text.encode()
    assert codec.decode(ids) == text


CODEC = TextCodec(byte_level())


@pytest.mark.parametrize("text", [f"{END}hello", f"a{END}{END} b", ROBOT, KANJI, ACCENT, " \t\n"])
def test_awkward_pieces_join_too(codec: TextCodec, text: str) -> None:
    assert joined(codec, codec.encode(text, bos=False)) == text.encode()


def test_pieces_of_a_sentencepiece_tokenizer_join_without_its_dummy_space() -> None:
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    pieces = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(ids, [("▁", "a")], byte_fallback=True, unk_token="<s>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.ByteFallback()
    kind: Any = PreTrainedTokenizerFast
    codec = TextCodec(kind(tokenizer_object=tokenizer, bos_token="<s>"))
    for text in ("ab a", " a b", f"a {ROBOT}b"):
        ids = codec.encode(text)
        assert joined(codec, ids) == text.encode()
        assert joined(codec, codec.encode(text, bos=True)) == b"<s>" + text.encode()


def test_gpt2_gives_the_published_ids(gpt2_codec: TextCodec) -> None:
    assert gpt2_codec.encode("Hello world") == [15496, 995]
    assert gpt2_codec.encode("Hello world", bos=True) == [50256, 15496, 995]
    assert gpt2_codec.encode(f"{END}Hello", bos=False) == [50256, 15496]
    assert gpt2_codec.encode(f"{END}Hello", bos=True) == [50256, 15496]
    assert gpt2_codec.encode(" ") == [220]
    assert gpt2_codec.encode("", bos=True) == [50256]
    assert len(gpt2_codec.encode(" a" * 1100)) == 1100


def test_gpt2_labels_parts_of_characters(gpt2_codec: TextCodec) -> None:
    assert gpt2_codec.encode(ROBOT) == [8582, 97, 244]
    assert gpt2_codec.labels([8582, 97, 244]) == [b"\xf0\x9f", b"\xa4", b"\x96"]
    assert gpt2_codec.encode(KANJI) == [33768, 98, 17312, 105, 45739, 252]
    for text in (ROBOT, KANJI, ACCENT, f"{END}x"):
        assert joined(gpt2_codec, gpt2_codec.encode(text)) == text.encode()


@pytest.mark.parametrize("adds_bos", [False, True])
def test_both_engines_give_the_ids_of_the_model_s_own_tokenizer(
    adds_bos: bool, tmp_path: Path
) -> None:
    """A bridge makes the tokenizer that it is given add BOS."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_level(adds_bos=adds_bos)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"vocab_size": len(tokenizer), "n_embd": 15, "n_head": 3, "n_layer": 1}
    end = tokenizer.bos_token_id
    with torch.random.fork_rng(devices=[]):
        config = GPT2Config(**sizes, bos_token_id=end, eos_token_id=end)
        GPT2LMHeadModel(config).save_pretrained(tmp_path)
    for engine in ("gpt", "lens"):
        codec = codec_of(load(tmp_path, engine=engine))
        for bos in (None, True, False):
            assert codec.encode("hello", bos=bos) == TextCodec(tokenizer).encode("hello", bos=bos)


@pytest.mark.parametrize("kind", ["adds none", "adds BOS itself", "is told to add BOS"])
def test_a_bridge_of_the_user_gives_the_ids_that_the_loaded_model_gives(
    kind: str, tmp_path: Path
) -> None:
    """TransformerLens makes a bridge's tokenizer add BOS; the model's own may not."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    made = byte_level(adds_bos=kind == "adds BOS itself")
    made.save_pretrained(tmp_path)
    told = {"add_bos_token": True} if kind == "is told to add BOS" else {}
    own: Any = AutoTokenizer.from_pretrained(tmp_path, **told)
    own.save_pretrained(tmp_path)
    end = own.bos_token_id
    sizes = {"vocab_size": len(own), "n_embd": 15, "n_head": 3, "n_layer": 1}
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=end, eos_token_id=end))
    model.save_pretrained(tmp_path)
    expected = own.encode("hello")
    assert (expected[0] == end) == (kind != "adds none")
    bridge = TransformerBridge.boot_transformers("gpt2", hf_model=model, tokenizer=own)
    theirs = bridge.tokenizer.encode("hello")
    for _ in range(2):
        found = codec_of(bridge)
        assert found.encode("hello") == expected == codec_of(load(tmp_path)).encode("hello")
        assert found.encode("hello", bos=True) == [end, *found.encode("hello", bos=False)]
    assert bridge.tokenizer.encode("hello") == theirs, "the user's is as it was"


def test_a_vocabulary_has_the_same_surface(trained: GPT) -> None:
    codec = codec_of(trained)
    assert isinstance(codec, Vocabulary)
    ids = codec.encode("ab|", bos=False)
    assert codec.labels(ids) == ["a", "b", "|"]
    assert codec.bos is None
    with pytest.raises(InputError, match="no beginning-of-sequence token"):
        codec.encode("ab", bos=True)


def test_our_gpt_speaks_through_a_tokenizer(gpt2_twin: GPT) -> None:
    codec = TextCodec(byte_level())
    try:
        gpt2_twin.vocabulary = codec
        assert codec_of(gpt2_twin) is codec
        ids = gpt2_twin.to_tokens("hello", prepend_bos=True)
        assert torch.equal(ids, torch.tensor([codec.encode("hello", bos=True)]))
        assert gpt2_twin.to_string(ids) == [f"{END}hello"]
    finally:
        gpt2_twin.vocabulary = None


def test_a_model_without_a_tokenizer_says_which_files_are_missing(gpt2_twin: GPT) -> None:
    with pytest.raises(InputError, match=r"put tokenizer\.json, or vocab\.json and merges\.txt"):
        codec_of(gpt2_twin)
