"""Figures: each function takes arrays or frames, and returns a matplotlib Figure that nothing global has touched.

No backend is chosen, no window is opened and no theme is set: a figure is drawn under settings of its own, whatever
the caller's are. Text that comes from data (tokens, conditions, names of models) is drawn as it is, never as
mathematics. `to_svg`, `to_png`, `to_pdf` and `to_html` write the same bytes for the same figure.
"""

from matplotlib.figure import Figure

from workbench.figures.contrasts import contrast_forest
from workbench.figures.curves import training_curves
from workbench.figures.doses import dose_curve
from workbench.figures.edges import dest_source_map, role_weights_map
from workbench.figures.effects import effects_by_edge, effects_by_head, values_by_dose
from workbench.figures.export import figure_files, to_html, to_pdf, to_png, to_svg
from workbench.figures.heads import effect_against_weight, layer_head_map
from workbench.figures.measured import accuracy_under_intervention, weights_by_role
from workbench.figures.panels import lines_by_panel
from workbench.figures.patterns import pattern_grid, pattern_grids
from workbench.figures.route import route

__all__ = [
    "Figure",
    "accuracy_under_intervention",
    "contrast_forest",
    "dest_source_map",
    "dose_curve",
    "effect_against_weight",
    "effects_by_edge",
    "effects_by_head",
    "figure_files",
    "layer_head_map",
    "lines_by_panel",
    "pattern_grid",
    "pattern_grids",
    "role_weights_map",
    "route",
    "to_html",
    "to_pdf",
    "to_png",
    "to_svg",
    "training_curves",
    "values_by_dose",
    "weights_by_role",
]
