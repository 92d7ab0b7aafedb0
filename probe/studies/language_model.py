"""The study of a language model: detection with evidence, and the chapter's claims on prompts.

Works on any hooked model with a tokenizer, in either engine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.detection import detect_heads
from analyses.entropy import entropy
from analyses.prediction import (
    compare_kinds,
    cut_country,
    last_token_attention,
    prediction,
    prompt_patterns,
    swap_countries,
)
from analyses.prompts import CAPITALS, PROMPTS, read_prompts
from analyses.random_tokens import repeated_tokens
from models.errors import InputError
from models.interface import shape
from models.load import load
from models.text_codec import codec_of
from probe.studies.language_findings import findings
from probe.studies.language_page import Shown, build_page
from probe.studies.literature import compare_with_literature
from probe.studies.sentences import Finding
from reports.assembly import write_report
from reports.folder import report_folder
from reports.provenance import provenance

SEQUENCES = 64
BLOCK = 25


def report(
    model: Any,
    out: str | Path,
    *,
    engine: str = "lens",
    device: str = "cpu",
    prompts: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
    stage: Callable[[str], None] = lambda text: None,
) -> tuple[Path, list[Finding]]:
    """Study a language model and write its report.

    Args:
        model: see `models.load.load`.
        out: the report's folder.
        engine, device: see `models.load.load`.
        prompts: a file of prompts, one a line, whose predictions are added to the table.
        seed: of random tokens and intervals.
        force: replace a report of ours that is there.
        stage: called with what is being done.

    Returns:
        The folder, and what was found.

    Raises:
        InputError: a model without a tokenizer, or a prompts file that cannot be read.
        OutputExistsError: the folder is there and may not be replaced; nothing was run.
    """
    given = [] if prompts is None else read_prompts(prompts)
    with report_folder(out, force=force) as folder:
        begin = time.perf_counter()
        stage("loading the model")
        loaded = load(model, engine=engine, device=device)
        name = str(model) if isinstance(model, str | Path) else type(model).__name__
        tables = measure(loaded, given, seed=seed, stage=stage)
        tables |= {"literature": compare_with_literature(loaded, name, tables["detection"])}
        tables = {key: table for key, table in tables.items() if not table.empty}
        sentences = findings(tables)
        stage("drawing figures and writing the page")
        ids = codec_of(loaded).encode(CAPITALS[0].text)
        shown = Shown(
            name=name,
            engine=engine,
            quantization=getattr(loaded, "quantization", None),
            tables=tables,
            labels=codec_of(loaded).labels(ids),
            patterns=prompt_patterns(loaded, ids)[0].numpy(),
            findings=sentences,
            n_sequences=SEQUENCES,
            block=BLOCK,
        )
        page = build_page(shown, folder)
        record = provenance(
            command=sys.argv,
            configuration={"model": name, "engine": engine, "device": device},
            seeds=[seed],
            timings={"seconds": time.perf_counter() - begin},
        )
        write_report(folder, page, tables=tables, provenance=record)
    return Path(out), sentences


def measure(
    model: Any, given: Sequence[Any], *, seed: int, stage: Callable[[str], None]
) -> dict[str, pd.DataFrame]:
    """Every table of the study."""
    stage("scoring every head on repeated random tokens")
    tables = {"detection": detect_heads(model, n=SEQUENCES, block=BLOCK, seed=seed)}
    stage("measuring entropies")
    tokens = repeated_tokens(model, n=16, block=BLOCK, seed=seed)
    tables["entropy"] = entropy(model, tokens, seed=seed)
    stage("predicting after prompts")
    tables["prompts"] = prediction(model, [*PROMPTS, *given])
    tables["kinds"] = compare_kinds(tables["prompts"])
    stage("looking where the last token looks")
    tables["last_token"] = _last_token(model)
    stage("swapping the country and cutting each head's attention on it")
    with suppress(InputError):  # a tokenizer that splits these names; the page says so
        tables["capitals"] = swap_countries(model)
        tables["cut"] = cut_country(model)
    return tables


def _last_token(model: Any) -> pd.DataFrame:
    """The last token of the first capital's prompt, as fed by default and with BOS."""
    codec, text = codec_of(model), CAPITALS[0].text
    usual = codec.encode(text)
    ways: dict[str, bool | None] = {"as the tokenizer gives it": None}
    if codec.bos is not None and usual[0] != codec.bos and len(usual) < shape(model).n_ctx:
        ways["with BOS"] = True
    tables = [
        last_token_attention(model, text, bos=bos).assign(input=way) for way, bos in ways.items()
    ]
    return pd.concat(tables, ignore_index=True)
