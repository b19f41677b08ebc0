"""The patches task: an image cut into squares, a class token before them; say what is shown."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from einops import rearrange
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from tasks.images import CLASSES, SIDES, Images, images
from workbench.batch import UNREAD, Batch

CLASS, PATCH = 0, 1
"""Classes of tokens."""
FASHION_PATCH = 7
"""Pixels a side of a patch of "fashion" where nothing else is said."""
MATCHED = 10
"""Of so many images with about as much ink a counterfactual is one."""


class Patches(BaseModel):
    """An image cut into non-overlapping squares, in reading order, after a class token (Dosovitskiy et al. 2021).

    The label, at the class token, is what the image shows: one of ten digits or ten pieces of clothing. All patches
    have one and the same token; what is in them are the inputs `patches` [batch patch d_patch], the pixels of each row
    by row, from 0 (no ink) to 1.

        class      the class token, position 0
        patches    all other positions
        ink        patches with more ink than the image's mean patch
        blank      patches with the least ink of the image: none at all, where it has such patches
        border     the outermost patches
        centre     patches that are not at the border

    None of these is empty unless every patch has the same ink (then `ink` is); `ink` and `blank` differ in number from
    image to image.

    source: "digits" (8 × 8 pixels, with scikit-learn) or "fashion" (28 × 28, Debian's dataset-fashion-mnist); see
        `tasks.images`.
    patch: pixels a side, 1 or 2 for digits (2 where left out), 1, 2, 4 or 7 for fashion (7): three patches a side or
        more, so that there is a centre.
    part: "train" draws with replacement. "test", other images, draws without; train on the one, study the other.

    Raises pydantic's ValidationError (a ValueError) for a patch that does not fit, `tasks.images.ImagesMissing` when
    something is drawn and the images are not installed.

    >>> task = Patches(part="test")
    >>> task.length, task.d_patch, task.vocabulary[-3:]
    (17, 4, ('9', '<class>', '<patch>'))
    >>> Patches(source="fashion", patch=4).length
    50
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "patches"
    MEANING: ClassVar[int] = 1
    ceiling: ClassVar[float | None] = None
    """No one knows how many of these images can be told apart: the best possible accuracy has no exact value."""

    source: Literal["digits", "fashion"] = "digits"
    patch: int = Field(2, ge=1)
    part: Literal["train", "test"] = "train"

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """The patch that goes with the source, where none is said."""
        if isinstance(given, dict) and given.get("source") == "fashion":
            return {"patch": FASHION_PATCH, **given}
        return given

    @model_validator(mode="after")
    def _fits(self) -> Patches:
        side = SIDES[self.source]
        if side % self.patch or side // self.patch < 3:
            fit = [str(patch) for patch in range(1, side // 3 + 1) if side % patch == 0]
            raise ValueError(
                f"patches of {self.patch} pixels a side do not cut images of {side} × {side} into three or more a "
                f"side; of {self.source} there are patches of {', '.join(fit)}"
            )
        return self

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id: what images show, then the class token and the patch."""
        return (*CLASSES[self.source], "<class>", "<patch>")

    @property
    def per_side(self) -> int:
        """Patches in a row, and in a column."""
        return SIDES[self.source] // self.patch

    @property
    def length(self) -> int:
        """Positions of an example: the class token, and one a patch."""
        return 1 + self.per_side**2

    @property
    def d_patch(self) -> int:
        """Numbers in a patch."""
        return self.patch**2

    @property
    def n_images(self) -> int:
        """Images in the part."""
        return len(self._images.pixels)

    def sample(self, n: int, seed: int) -> Batch:
        """`n` images of the part, each equally probable. Raises ValueError for more of "test" than there are."""
        if n < 1:
            raise ValueError(f"asked for {n} examples; ask for 1 or more")
        generator = torch.Generator().manual_seed(seed)
        if self.part == "train":
            return self._batch(torch.randint(self.n_images, (n,), generator=generator))
        if n > self.n_images:
            raise ValueError(
                f"asked for {n} examples, and {self.source} has {self.n_images} images for testing, each drawn once; "
                "ask for no more"
            )
        return self._batch(torch.randperm(self.n_images, generator=generator)[:n])

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """For each image another of the part that shows something else with about as much ink: one of the ten of other
        classes around its place by total ink, drawn by the seed. Roles are those of the new image."""
        self._check(batch)
        generator = torch.Generator().manual_seed(seed)
        shown, _, full = self._images
        ink, mine = shown.sum((1, 2)), (batch.inputs["patches"].double() * full).round().sum((1, 2)).long()
        step = torch.randint(MATCHED, (len(batch),), generator=generator)
        chosen = torch.zeros(len(batch), dtype=torch.long)
        for kind in range(len(CLASSES[self.source])):
            rows = batch.labels[:, 0] == kind
            others = (self._images.classes != kind).nonzero().flatten()
            others = others[ink[others].argsort(stable=True)]
            first = torch.searchsorted(ink[others], mine[rows]) - MATCHED // 2
            chosen[rows] = others[first.clamp(0, len(others) - MATCHED) + step[rows]]
        return self._batch(chosen)

    def encode(self, text: str) -> Batch:
        """One image by its number in the part, as `17`. Raises ValueError where there is none of that number."""
        if not text.strip().isdecimal() or int(text) >= self.n_images:
            raise ValueError(f"{text!r} is no image: the part {self.part!r} of {self.source} has numbers from 0 to "
                             f"{self.n_images - 1}")  # fmt: skip
        return self._batch(torch.tensor([int(text)]))

    def pixels(self, batch: Batch) -> Tensor:
        """The images of a batch put together again [batch row column], from 0 (no ink) to 1."""
        self._check(batch)
        return rearrange(batch.inputs["patches"], "batch (y x) (row column) -> batch (y row) (x column)",
                         y=self.per_side, row=self.patch)  # fmt: skip

    def guessing(self) -> dict[str, float]:
        """Exact accuracy of guessers that do not look, over the part. any: any class. majority: the part's most
        frequent class. What the best possible reader gets is not known: see `ceiling`."""
        counts = self._images.classes.bincount(minlength=len(CLASSES[self.source]))
        return {"any": 1 / len(counts), "majority": int(counts.max()) / int(counts.sum())}

    @property
    def _images(self) -> Images:
        return images(self.source, self.part)

    def _batch(self, chosen: Tensor) -> Batch:
        shown, classes, full = self._images
        cut = rearrange(shown[chosen], "batch (y row) (x column) -> batch (y x) (row column)",
                        row=self.patch, column=self.patch)  # fmt: skip
        kind, square = len(self.vocabulary) - 2, len(self.vocabulary) - 1
        tokens = torch.full((len(chosen), self.length), square)
        tokens[:, 0] = kind
        labels = torch.full_like(tokens, UNREAD)
        labels[:, 0] = classes[chosen]
        first = torch.arange(self.length) == 0
        return Batch(
            tokens,
            labels,
            roles={"class": first.expand_as(tokens), "patches": (~first).expand_as(tokens), **self._roles(cut)},
            classes=torch.where(first, CLASS, PATCH).expand_as(tokens),
            vocabulary=self.vocabulary,
            inputs={"patches": cut.float() / full},
        )

    def _roles(self, cut: Tensor) -> dict[str, Tensor]:
        """Roles of patches, from their pixels [batch patch d_patch]."""
        ink = cut.sum(2)
        place = torch.arange(self.per_side)
        edge = (place == 0) | (place == self.per_side - 1)
        border = (edge[:, None] | edge[None, :]).flatten().expand_as(ink)
        roles = {
            # In whole numbers, so that a patch with just the mean never counts by rounding.
            "ink": ink * ink.shape[1] > ink.sum(1, keepdim=True),
            "blank": ink == ink.amin(1, keepdim=True),
            "border": border,
            "centre": ~border,
        }
        return {name: torch.nn.functional.pad(mask, (1, 0)) for name, mask in roles.items()}

    def _check(self, batch: Batch) -> None:
        patches = batch.inputs.get("patches")
        shape = None if patches is None else list(patches.shape[1:])
        if batch.vocabulary != self.vocabulary or shape != [self.length - 1, self.d_patch]:
            raise ValueError(
                f"this batch is not of {self!r}, which has patches [{self.length - 1} {self.d_patch}]: it has "
                f"{'none' if shape is None else shape} and the vocabulary {' '.join(batch.vocabulary) or '(none)'}"
            )
