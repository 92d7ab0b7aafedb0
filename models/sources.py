"""Where a published model's files are: a folder, a GGUF file, or a name on the hub.

A name is looked up in the local cache first, and no connection is attempted when its files are
there. Nothing is ever unpickled, and no code that comes with a model is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from models.errors import CheckpointError, InputError

PATIENCE = 2.5  # seconds to wait for the hub
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_ALIASES = "tools/model_registry/data/model_aliases.json"
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]


@dataclass(frozen=True)
class Source:
    """A published model on disk.

    Args:
        name: as the user wrote it.
        folder: that holds its files.
        gguf: the file's name, for a GGUF file.
    """

    name: str
    folder: Path
    gguf: str | None = None

    @property
    def path(self) -> Path:
        """The folder, or the GGUF file."""
        return self.folder / self.gguf if self.gguf else self.folder

    @property
    def config(self) -> dict[str, Any]:
        """``config.json``.

        Raises:
            CheckpointError: not there, or not a JSON object.
        """
        return read_json(self.folder / CONFIG)

    @property
    def weights(self) -> list[Path]:
        """The files that hold the weights."""
        if (self.folder / WEIGHTS).is_file():
            return [self.folder / WEIGHTS]
        return [self.folder / shard for shard in _shards(self.folder)]


def find_source(name: str) -> Source:
    """The files of a folder, a GGUF file or a hub name, complete and of a kind that can be used.

    Raises:
        CheckpointError: a folder that is not there or lacks files, or a name that is neither
            cached nor reachable.
        InputError: a model that is not a causal language model.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return Source(name, path.parent, path.name)
    source = Source(name, path if path.is_dir() else _from_hub(name))
    if (source.folder / CONFIG).is_file():
        refuse_others(source.config, name)
    check_files(source.folder)
    return source


def check_files(folder: Path) -> None:
    """A `transformers` folder holds a configuration and safetensors; say which are missing."""
    if missing := _missing(folder):
        pickles = sorted(p.name for p in folder.glob("*.bin"))
        hint = f" ({pickles[0]} is a pickle, which is never opened)" if pickles else ""
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}{hint}")


def refuse_others(config: Mapping[str, Any], name: str) -> None:
    """Only language models whose tokens look back alone are read."""
    from transformers.models.auto import modeling_auto as known
    from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

    kind = config.get("model_type", "")
    described = f"{name} is a model of type {kind!r}"
    if (
        config.get("is_encoder_decoder")
        or kind in known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    ):
        raise InputError(f"{described}, an encoder and a decoder: only causal models are read")
    if kind in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder"):
        raise InputError(
            f"{described}, an encoder whose tokens also look ahead: only causal models are read"
        )
    if kind in CONFIG_MAPPING_NAMES and kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise InputError(
            f"{described}, which is no causal language model of text: only these are read"
        )


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(f"{path} is missing or not JSON") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold a JSON object, but holds a {type(found).__name__}")
    return found


def _missing(folder: Path) -> list[str]:
    missing = [] if (folder / CONFIG).is_file() else [CONFIG]
    if (folder / WEIGHTS).is_file():
        return missing
    if not (folder / INDEX).is_file():
        return [*missing, WEIGHTS]
    return missing + [shard for shard in _shards(folder) if not (folder / shard).is_file()]


def _shards(folder: Path) -> list[str]:
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise CheckpointError(f"{folder / INDEX} is damaged: it has no weight_map")
    return sorted({Path(name).name for name in names.values()})


def _from_hub(name: str) -> Path:
    """The folder in the hub's cache; what is not there is fetched.

    Raises:
        CheckpointError: not the name of a model, or not to be had.
    """
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    spellings = _spellings(name)
    for repository in spellings:
        try:
            found = snapshot_download(repository, local_files_only=True, allow_patterns=_FILES)
        except LocalEntryNotFoundError:
            continue
        except HFValidationError:
            raise CheckpointError(f"no such folder: {name}") from None
        if not _missing(Path(found)):
            return Path(found)
    try:
        repository = spellings[0]
        _in_time(partial(HfApi().model_info, repository, timeout=PATIENCE))
        config = hf_hub_download(repository, CONFIG, etag_timeout=PATIENCE)
        refuse_others(read_json(Path(config)), name)
        return Path(snapshot_download(repository, allow_patterns=_FILES, etag_timeout=PATIENCE))
    except InputError:
        raise
    except Exception as error:  # whatever the hub's client raises: it is not there for us
        raise CheckpointError(
            f"no such folder: {name}; and no model of that name is in the cache or to be had from "
            f"the hub ({type(error).__name__}): give a folder with {CONFIG} and {WEIGHTS}"
        ) from None


def _in_time(ask: Callable[[], object]) -> None:
    """Give up on the hub after `PATIENCE`: looking up its address has no time limit of its own."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            ask()
        except Exception as error:
            failed.append(error)

    asking = Thread(target=run, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    if asking.is_alive():
        raise TimeoutError
    if failed:
        raise failed[0]


def _spellings(name: str) -> list[str]:
    """The names that a model may have on the hub; an alias, which has no slash, is spelled out.

    The aliases are in a file of TransformerLens, whose import alone would take seconds.
    """
    if "/" in name:
        return [name]
    package = find_spec("transformer_lens")
    path = Path((package and package.origin) or "").parent / _ALIASES
    known = read_json(path)["aliases"].items() if path.is_file() else []
    official = next((full for full, names in known if name.lower() in map(str.lower, names)), name)
    spellings = [official, f"openai-community/{official}"] if "/" not in official else [official]
    return list(dict.fromkeys([*spellings, name]))
