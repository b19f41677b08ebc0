"""Images with maps of their patches beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from workbench.figures.style import as_array, inches, literal, settled, styled, wrapped

SIDE = 1.25  # inches of a picture
PRINTED = 5  # most patches a side with their numbers printed
LIGHT = 0.5  # on squares lighter than this, numbers are black


@styled
def maps_beside_images(
    images: Any, maps: Mapping[str, Any], *, names: Sequence[str], title: str | None = None
) -> Figure:
    """A row an image: the image, and beside it one map of its patches after another.

    images [image row column]: from 0 (no ink) to 1. maps: what stands above a column → its numbers, 0 and above [image
    row column], a number a patch; each column has a colour scale of its own, from 0 to its largest number. names: what
    stands beside each image. Up to 5 patches a side, numbers are printed.

    Raises ValueError where the images, names and maps differ in number, a map is not of patches, or holds NaN,
    infinity or a number below 0.

    >>> figure = maps_beside_images([[[0.0, 1.0], [1.0, 0.0]]], {"weight": [[[0.1, 0.4], [0.3, 0.2]]]}, names=["x"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['image', 'weight']
    """
    shown = as_array(images)
    grids = {name: as_array(values) for name, values in maps.items()}
    _check(shown, grids, names)
    rows, columns = len(shown), 1 + len(grids)
    left = max(inches(wrapped(name, 1.2, 8), 8) for name in names)
    figure = Figure(figsize=(left + 0.3 + (SIDE + 0.1) * columns, 1.25 + (SIDE + 0.08) * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for row, name in enumerate(names):
        grid[row, 0].imshow(shown[row], cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        said = wrapped(name, 1.2, 8)
        grid[row, 0].set_ylabel(said, rotation=0, ha="right", va="center", fontsize=8, parse_math=False)
    for column, (heading, values) in enumerate(grids.items(), start=1):
        scale = Normalize(0, float(values.max()) or 1.0)
        for row in range(rows):
            cells = _map(grid[row, column], values[row], scale)
        bar = figure.colorbar(cells, ax=list(grid[:, column]), location="bottom", shrink=0.9, aspect=14, pad=0.01)
        bar.ax.tick_params(labelsize=7)
        grid[0, column].set_title(wrapped(heading, SIDE, 8), fontsize=8, parse_math=False)
    grid[0, 0].set_title("image", fontsize=8)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def _map(axes: Axes, values: np.ndarray, scale: Normalize) -> Any:
    cells = axes.imshow(values, cmap=colormaps["cividis"], norm=scale, interpolation="nearest")
    if max(values.shape) <= PRINTED:
        for (row, column), value in np.ndenumerate(values):
            light = np.dot(cells.to_rgba(value)[:3], (0.2126, 0.7152, 0.0722)) > LIGHT
            axes.text(column, row, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=6.5,
                      color="black" if light else "white")  # fmt: skip
    return cells


def _check(images: np.ndarray, maps: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
    if images.ndim != 3 or not len(images) or not maps:
        raise ValueError(
            f"images are {list(images.shape)}, maps {list(maps)}; give [image row column] and a map or more"
        )
    if len(names) != len(images):
        raise ValueError(f"{len(names)} names for {len(images)} images; give one each")
    for name, values in maps.items():
        if values.ndim != 3 or len(values) != len(images):
            raise ValueError(f"the map {name!r} is {list(values.shape)} for {len(images)} images; "
                             "give [image row column]")  # fmt: skip
        if not np.isfinite(values).all() or values.min() < 0:
            raise ValueError(f"the map {name!r} holds NaN, infinity or a number below 0; give finite numbers from 0 up")
