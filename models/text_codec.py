"""Text to token ids and back, the same for every model that has a vocabulary.

One rule everywhere. By default a text becomes exactly the ids that the model's own tokenizer
gives. ``bos=True`` puts one BOS token in front of a text that does not begin with one,
``bos=False`` leaves out the one that a tokenizer adds by itself. A special token written out in
a text, such as ``<|endoftext|>``, is read as that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from models.errors import InputError
from models.vocabulary import Vocabulary


class TextCodec:
    """A `transformers` tokenizer, as the rest of the toolkit uses it.

    Args:
        tokenizer: a tokenizer of `transformers`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @property
    def bos(self) -> int | None:
        """The id of BOS, if the tokenizer has one."""
        token: int | None = self.tokenizer.bos_token_id
        return token

    def encode(self, text: str, *, bos: bool | None = None) -> list[int]:
        """Ids of a text.

        Args:
            text: read as it is; special tokens written out count as such.
            bos: ``None`` for what the tokenizer does by itself.

        Raises:
            InputError: no id is left (an empty prompt), or ``bos=True`` without a BOS token.
        """
        if bos and self.bos is None:
            raise InputError("this model's tokenizer has no BOS token: leave out bos")
        ids = self._ids(text, special=bos is None)
        if bos and ids[:1] != [self.bos]:
            ids = [self.bos, *ids]  # type: ignore[list-item]
        if not ids:
            raise InputError("the prompt is empty: it gives no token (with BOS it gives one)")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        text: str = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return text

    def labels(self, ids: Sequence[int]) -> list[str | bytes]:
        """The text of each token of a prompt; bytes where it is part of a character only.

        Identity: joined, they are the prompt, byte for byte.
        """
        pieces = [self._piece(int(i)) for i in ids]
        first = next((n for n, i in enumerate(ids) if int(i) not in self._added), None)
        if first is not None and self._adds_space:
            piece = pieces[first]
            pieces[first] = piece.removeprefix(" ") if isinstance(piece, str) else piece
        return pieces

    def _ids(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def _piece(self, token: int) -> str | bytes:
        piece: str = self.tokenizer.convert_ids_to_tokens(token)
        if token in self._added or piece is None:
            return piece or ""
        if self._byte_level:
            raw = b"".join(_byte(character) for character in piece)
        elif len(piece) == 6 and piece.startswith("<0x"):
            raw = bytes([int(piece[3:5], 16)])
        else:
            return piece.replace("▁", " ")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self.tokenizer.added_tokens_decoder)

    @cached_property
    def _byte_level(self) -> bool:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return "ByteLevel" in str(getattr(backend, "decoder", ""))

    @cached_property
    def _adds_space(self) -> bool:
        """Whether the tokenizer puts a space in front of a text, as SentencePiece does."""
        pieces = self.tokenizer.convert_ids_to_tokens(self._ids("a", special=False))
        return not self._byte_level and bool(pieces) and pieces[0].startswith("▁")


def codec_of(model: Any) -> TextCodec | Vocabulary:
    """What turns text into ids for a model: of our own, or a bridge.

    Raises:
        InputError: the model came without one; it says which files would hold it.
    """
    codec = getattr(model, "vocabulary", None)
    if codec is None and getattr(model, "tokenizer", None) is not None:
        codec = TextCodec(_as_published(model.tokenizer))  # a bridge of the user
    if not isinstance(codec, TextCodec | Vocabulary):
        raise InputError(
            "this model came without a tokenizer: put tokenizer.json, or vocab.json and "
            "merges.txt, or tokenizer.model into its folder, or give token ids instead of text"
        )
    return codec


def _as_published(tokenizer: Any) -> Any:
    """A bridge's tokenizer without the BOS that TransformerLens makes it add.

    TransformerLens reads a tokenizer that adds none again, from its files, with
    ``add_bos_token=True``; read once more without, it is the model's own (a Llama's adds BOS by
    itself, and then TransformerLens left it as it was). The user's stays untouched.
    """
    if not getattr(tokenizer, "init_kwargs", {}).get("add_bos_token"):
        return tokenizer
    if tokenizer not in _PUBLISHED:
        _PUBLISHED[tokenizer] = _read_again(tokenizer)
    return tokenizer if _PUBLISHED[tokenizer] is None else _PUBLISHED[tokenizer]


def _read_again(tokenizer: Any) -> Any:
    """The tokenizer in the files, ``None`` where it is the same one or not there to be read."""
    from transformers import AutoTokenizer

    options = {"gguf_file": tokenizer.init_kwargs.get("gguf_file")}
    kind: Any = AutoTokenizer
    try:
        own = kind.from_pretrained(
            tokenizer.name_or_path,
            local_files_only=True,
            trust_remote_code=False,
            **{name: value for name, value in options.items() if value},
        )
    except Exception:  # as it was given to TransformerLens, which would have failed here too
        return None
    same = own.encode("a") == tokenizer.encode("a") or len(own) != len(tokenizer)
    return None if same else own


_PUBLISHED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _byte(character: str) -> bytes:
    """The byte that byte-level tokenizers write as this character."""
    byte = _BYTES.get(character)
    return character.encode() if byte is None else bytes([byte])


_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
_BYTES = {chr(b): b for b in _SHOWN} | {chr(256 + n): b for n, b in enumerate(_HIDDEN)}
