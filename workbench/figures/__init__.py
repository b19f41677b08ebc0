"""Figures: each function takes arrays or frames, and returns a matplotlib Figure that nothing global has touched.

No backend is chosen, no window is opened and no theme is set: a figure is drawn under settings of its own, whatever
the caller's are. Text that comes from data (tokens, conditions, names of models) is drawn as it is, never as
mathematics. `to_svg`, `to_png`, `to_pdf` and `to_html` write the same bytes for the same figure.
"""

from workbench.figures.curves import training_curves
from workbench.figures.export import to_html, to_pdf, to_png, to_svg
from workbench.figures.heads import effect_against_weight, layer_head_map
from workbench.figures.measured import accuracy_under_intervention, weights_by_role
from workbench.figures.patterns import pattern_grid, pattern_grids
from workbench.figures.route import route

__all__ = [
    "accuracy_under_intervention",
    "effect_against_weight",
    "layer_head_map",
    "pattern_grid",
    "pattern_grids",
    "route",
    "to_html",
    "to_pdf",
    "to_png",
    "to_svg",
    "training_curves",
    "weights_by_role",
]
