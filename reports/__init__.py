"""Tables, figures and pages: from DataFrames to files a person can read.

Names are imported when first used, so that ``import reports`` is cheap.
`reports.provenance` stays a module: ``from reports.provenance import provenance``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.assembly import write_report
    from reports.curves import (
        confidence_by_training,
        cumulative_curves,
        temperature_curves,
        training_curves,
    )
    from reports.figures import FigureFiles, save_figure
    from reports.folder import GENERATOR, check_target, is_report, report_folder, safe_name
    from reports.grid import map_grid_size
    from reports.heads import ablation_dots, head_map, offset_profile, score_against_entropy
    from reports.maps import attention_maps
    from reports.page import (
        Criterion,
        Figure,
        Page,
        Section,
        Sentence,
        Table,
        render_page,
    )
    from reports.style import house_style, new_figure
    from reports.tables import html_table, jsonable, records, write_csv
    from reports.text import printable, visible

_HOMES = {
    "assembly": ("write_report",),
    "curves": (
        "confidence_by_training",
        "cumulative_curves",
        "temperature_curves",
        "training_curves",
    ),
    "figures": ("FigureFiles", "save_figure"),
    "folder": ("GENERATOR", "check_target", "is_report", "report_folder", "safe_name"),
    "grid": ("map_grid_size",),
    "heads": ("ablation_dots", "head_map", "offset_profile", "score_against_entropy"),
    "maps": ("attention_maps",),
    "page": ("Criterion", "Figure", "Page", "Section", "Sentence", "Table", "render_page"),
    "style": ("house_style", "new_figure"),
    "tables": ("html_table", "jsonable", "records", "write_csv"),
    "text": ("printable", "visible"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "GENERATOR",
    "Criterion",
    "Figure",
    "FigureFiles",
    "Page",
    "Section",
    "Sentence",
    "Table",
    "ablation_dots",
    "attention_maps",
    "check_target",
    "confidence_by_training",
    "cumulative_curves",
    "head_map",
    "house_style",
    "html_table",
    "is_report",
    "jsonable",
    "map_grid_size",
    "new_figure",
    "offset_profile",
    "printable",
    "records",
    "render_page",
    "report_folder",
    "safe_name",
    "save_figure",
    "score_against_entropy",
    "temperature_curves",
    "training_curves",
    "visible",
    "write_csv",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reports' has no attribute {name!r}")
    return getattr(import_module(f"reports.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
