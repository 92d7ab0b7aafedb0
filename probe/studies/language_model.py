"""The study of a language model: detection with evidence, and the chapter's claims on prompts.

Works on any hooked model with a tokenizer, in either engine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses import detection
from analyses.entropy import UNIT, entropy_reducers
from analyses.prediction import (
    compare_kinds,
    cut_country,
    last_token_attention,
    prediction,
    prompt_patterns,
    swap_countries,
)
from analyses.prompts import CAPITALS, PROMPTS, Prompt, read_prompts
from analyses.random_tokens import repeated_tokens
from analyses.streaming import uniform_scores
from analyses.tables import score_table
from models.errors import InputError, LengthError
from models.interface import capture, pad, shape
from models.load import load
from models.text_codec import codec_of
from probe.studies.language_effects import capital_effects, explained_heads
from probe.studies.language_findings import findings, first_input
from probe.studies.language_page import Shown, build_page
from probe.studies.literature import compare_with_literature
from probe.studies.sentences import Finding
from probe.studies.temperature_sections import language_tables
from reports.assembly import write_report
from reports.folder import report_folder
from reports.provenance import provenance

SEQUENCES = 64
BLOCK = 25
WAYS = {None: "as the tokenizer gives it", True: "with BOS", False: "without BOS"}


def report(
    model: Any,
    out: str | Path,
    *,
    engine: str = "lens",
    device: str = "cpu",
    prompts: str | Path | None = None,
    bos: bool | None = None,
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
        bos: whether prompts and random tokens begin with BOS; default as the tokenizer does.
        seed: of random tokens and intervals.
        force: replace a report of ours that is there.
        stage: called with what is being done.

    Returns:
        The folder, and what was found.

    Raises:
        InputError: a model without a tokenizer, ``bos=True`` for one without a BOS token, or
            prompts that cannot be read, cannot be tokenised or exceed the context; nothing was
            run.
        OutputExistsError: the folder is there and may not be replaced; nothing was run.
    """
    given = [] if prompts is None else read_prompts(prompts)
    with report_folder(out, force=force) as folder:
        begin = time.perf_counter()
        stage("loading the model")
        loaded = load(model, engine=engine, device=device)
        name = str(model) if isinstance(model, str | Path) else type(model).__name__
        codec = codec_of(loaded)
        check_prompts(loaded, given, bos=bos, path=prompts)
        ids = codec.encode(CAPITALS[0].text, bos=bos)
        tables = measure(loaded, given, bos=bos, seed=seed, stage=stage)
        usual = first_input(tables["detection"])
        tables |= {"literature": compare_with_literature(loaded, name, usual)}
        tables = {key: table for key, table in tables.items() if not table.empty}
        sentences = findings(tables)
        stage("drawing figures and writing the page")
        shown = Shown(
            name=name,
            engine=engine,
            quantization=getattr(loaded, "quantization", None),
            tables=tables,
            ids=ids,
            bos=codec.bos if ids[0] == codec.bos else None,
            bos_asked=bos is not None,
            labels=codec.labels(ids),
            patterns=prompt_patterns(loaded, ids)[0].numpy(),
            findings=sentences,
            n_sequences=SEQUENCES,
            block=BLOCK,
        )
        page = build_page(shown, folder)
        record = provenance(
            command=sys.argv,
            configuration={"model": name, "engine": engine, "device": device, "bos": bos},
            seeds=[seed],
            timings={"seconds": time.perf_counter() - begin},
        )
        write_report(folder, page, tables=tables, provenance=record)
    return Path(out), sentences


def measure(
    model: Any,
    given: Sequence[Any],
    *,
    bos: bool | None = None,
    seed: int,
    stage: Callable[[str], None],
) -> dict[str, pd.DataFrame]:
    """Every table of the study."""
    stage("scoring every head on repeated random tokens")
    tables = _heads(model, _ways(model, bos, length=2 * BLOCK), seed)
    stage("predicting after prompts")
    tables["prompts"] = prediction(model, [*PROMPTS, *given], bos=bos)
    tables["kinds"] = compare_kinds(tables["prompts"])
    stage("looking where the last token looks")
    tables["last_token"] = _last_token(model, bos)
    stage("swapping the country, cutting heads' attention on it, removing each head")
    tables |= _causal(model, bos, seed)
    stage("replacing labelled heads' patterns")
    usual = first_input(tables["detection"])
    tables |= {"explained": explained_heads(model, usual, bos=bos, seed=seed)}
    stage("sampling at several temperatures")
    return tables | language_tables(model, bos=bos, seed=seed)


def check_prompts(
    model: Any, given: Sequence[Prompt], *, bos: bool | None, path: str | Path | None
) -> None:
    """Refuse prompts that the model cannot be fed, before anything runs.

    Args:
        model: a hooked model with a tokenizer.
        given: the user's prompts.
        bos: as in `report`.
        path: the file of the user's prompts.

    Raises:
        InputError: the tokenizer makes nothing of a prompt.
        LengthError: a prompt is longer than the context. Both name the line of the file.
    """
    codec, n_ctx = codec_of(model), shape(model).n_ctx
    own = [*PROMPTS, *(Prompt(capital.text, "factual") for capital in CAPITALS)]
    for prompt in [*own, *given]:
        where = f"the study's prompt {prompt.text!r}"
        if prompt.kind == "given":
            where = f"line {prompt.line} of {path}"
        try:
            n = len(codec.encode(prompt.text, bos=bos))
        except InputError as error:
            raise InputError(f"{where} cannot be fed: {error}") from None
        if n > n_ctx:
            todo = "shorten it" if prompt.kind == "given" else "the study needs a longer context"
            raise LengthError(f"{where} has {n} tokens, but the model's context is {n_ctx}: {todo}")


def _ways(model: Any, bos: bool | None, *, length: int) -> list[bool | None]:
    """How inputs of so many tokens are fed: as asked for, and the other way where that fits."""
    codec = codec_of(model)
    if codec.bos is None:
        return [bos]
    other = codec.encode(CAPITALS[0].text, bos=bos)[0] != codec.bos
    return [bos, other] if length + other <= shape(model).n_ctx else [bos]


def _last_token(model: Any, bos: bool | None) -> pd.DataFrame:
    """The last token of the first capital's prompt, as the study feeds it and the other way."""
    text = CAPITALS[0].text
    ways = _ways(model, bos, length=len(codec_of(model).encode(text, bos=False)))
    tables = [last_token_attention(model, text, bos=w).assign(input=WAYS[w]) for w in ways]
    return pd.concat(tables, ignore_index=True)


def _heads(model: Any, ways: Sequence[bool | None], seed: int) -> dict[str, pd.DataFrame]:
    """Detection in every way of feeding; entropies, from the same pass, in the first."""
    batch = repeated_tokens(model, n=SEQUENCES, block=BLOCK, bos=ways[0], seed=seed)
    further = entropy_reducers(batch, shape(model).window)
    found, *others = (
        detection.measure(model, n=SEQUENCES, block=BLOCK, bos=way, seed=seed, also=also)
        for way, also in zip(ways, (further, None), strict=False)
    )
    chances = uniform_scores(model, batch, further)
    tables = [found.table, *(other.table for other in others)]
    named = [table.assign(input=WAYS[way]) for way, table in zip(ways, tables, strict=True)]
    joined = pd.concat(named, ignore_index=True)
    joined.attrs = dict(found.table.attrs)
    return {
        "detection": joined,
        "entropy": score_table(found.values, chances, unit=UNIT, seed=seed),
    }


def _causal(model: Any, bos: bool | None, seed: int) -> dict[str, pd.DataFrame]:
    """Does the answer follow the country, through which heads; or why that cannot be asked."""
    tables: dict[str, pd.DataFrame] = {}
    asked = "follows", "Whether the answer follows the country"
    try:
        capitals = swap_countries(model, bos=bos)
        tables["capitals"] = capitals.assign(ahead=_ahead(model, capitals))
        asked = "carries", "Which heads carry the country to the answer"
        tables["cut"] = cut_country(model, bos=bos)
        tables["effects"] = capital_effects(model, bos=bos, seed=seed)
    except InputError as error:
        columns = ["criterion", "question", "reason"]
        tables["untested"] = pd.DataFrame([(*asked, str(error))], columns=columns)
    return tables


def _ahead(model: Any, capitals: pd.DataFrame) -> list[float]:
    """Each country's logit of its own capital above the mean of the others', from one pass."""
    codec = codec_of(model)
    answers = [codec.encode(capital.capital, bos=False)[0] for capital in CAPITALS]
    batch = pad(model, [[int(i) for i in ids.split()] for ids in capitals["ids"]])
    logits = capture(model, batch.tokens, logits=True).logits
    assert logits is not None
    rows = torch.arange(len(answers), device=logits.device)
    read = logits[rows, batch.lengths - 1].double()[:, answers]
    own = read.diagonal()
    ahead: list[float] = (own - (read.sum(1) - own) / (len(answers) - 1)).tolist()
    return ahead
