"""What the pages of the reversal study draw with: its tables, and figures with captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from models import tasks
from models.names import head_name
from probe.studies.sentences import Finding
from reports.figures import save_figure
from reports.grid import map_grid_size
from reports.maps import attention_maps
from reports.page import Figure
from reports.style import new_figure


@dataclass(frozen=True)
class Study:
    """Everything the page shows."""

    length: int
    seeds: int
    tables: Mapping[str, pd.DataFrame]
    patterns: Mapping[tuple[str, int], Any]
    findings: Sequence[Finding]


class Drawer:
    """Makes figures with captions that name the model, the inputs and how many."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder, self.tables = study, folder, study.tables

    def figure(self, figure: Any, name: str, caption: str, alt: str) -> Figure:
        """Save a figure, and give it its caption."""
        return Figure(save_figure(figure, self.folder, name, alt=alt), caption, alt)

    def maps(self, kind: str, seeds: Sequence[int], name: str, caption: str) -> Figure:
        """Mean patterns of all heads; several seeds give one row each."""
        patterns = [self.study.patterns[kind, seed] for seed in seeds]
        n_layers, n_heads, n, _ = patterns[0].shape
        stacked = np.concatenate([p.reshape(-1, n, n) for p in patterns])
        titles = [f"head {head_name(i, j)}" for i in range(n_layers) for j in range(n_heads)]
        several = len(seeds) > 1
        columns = n_layers * n_heads if several else n_heads
        labels = tasks.create("reversal", length=self.study.length).layout()
        k = self.study.length
        figure = new_figure(
            *map_grid_size(len(stacked), columns=columns, labels=labels, row_labels=several)
        )
        attention_maps(
            figure,
            stacked,
            titles=titles * len(seeds),
            row_labels=[f"seed {seed}" for seed in seeds] if several else None,
            query_labels=labels,
            key_labels=labels,
            marks=None if several else [(k + j, k - 1 - j) for j in range(k)],
            columns=columns,
        )
        return self.figure(figure, name, caption, f"attention maps of all heads, {kind}")
