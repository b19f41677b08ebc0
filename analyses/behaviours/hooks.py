"""H1–H10: hooks come off whatever happens, the user's stay, and what is asked for wrongly is refused in words."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from analyses.behaviours.cases import (
    EVERY_LAYER,
    answer,
    at_answer,
    batch_of,
    behaviour,
    close,
    equal,
    error_of,
    hooks_of,
    named,
    noise,
    pattern,
    rows,
    says,
)
from analyses.tools.protocol import feature, reads
from workbench import Batch, Edges


class Broken(Exception):
    """Raised by an intervention's function."""


def breaks(value: Tensor) -> Tensor:
    raise Broken("in the middle of a forward pass")


def total(logits: Tensor, batch: Batch) -> Tensor:
    return logits[:, -1].logsumexp(-1)


@behaviour(
    "H1",
    "an intervention's function raises in the middle of a forward pass",
    "the error reaches the caller; the next clean run is bit-equal to the run before",
)
def an_error_reaches_the_caller(tool: Any) -> None:
    batch = batch_of()
    before = tool.run(batch)
    for place in tool.places:
        error = error_of(partial(tool.run, batch, [tool.function(place, breaks)]), "a function that raises")
        assert isinstance(error, Broken), f"{named(tool, place)}: the caller gets {type(error).__name__}: {error}"
        equal(tool.run(batch), before, f"the clean run after an error at {named(tool, place)}")


@behaviour(
    "H2",
    "the user had added a hook of their own before the run",
    "it is still there, and still acts, after a recording and after a run",
)
def a_users_hook_stays_and_acts(tool: Any) -> None:
    batch = batch_of()
    for place in tool.places:
        tool = tool.fresh()
        clean = tool.run(batch)
        tool.add_hook(place, lambda value: value * 1.5)
        alone = tool.run(batch)
        acts = place[0] != "resid_post" or not torch.equal(alone, clean)
        assert acts, f"the user's hook at {named(tool, place)} does not act in a run"
        installed = hooks_of(tool.module)
        tool.record(batch, [place])
        tool.run(batch, [tool.function(("resid_pre", 0), noise)])
        assert hooks_of(tool.module) == installed, f"the hooks are others after a run ({named(tool, place)})"
        equal(tool.run(batch), alone, f"the run with the user's hook at {named(tool, place)}, after others")


@behaviour("H3", "two sites asked for, the second misspelt", "an error naming near sites; nothing installed")
def a_misspelt_site_is_named(tool: Any) -> None:
    (wrong, near), batch = tool.misspelt, batch_of()
    tool.run(batch)
    before = hooks_of(tool.module)
    for act in (
        lambda: tool.record(batch, [("z", 0), wrong]),
        lambda: tool.run(batch, [tool.function(("z", 0), torch.clone), tool.function(wrong, torch.clone)]),
    ):
        says(error_of(act, f"the site {wrong[0]!r}"), wrong[0], near)
        assert hooks_of(tool.module) == before, "the first site's hook remains"


@behaviour("H4", "a name filter that matches no site", "an error listing near names")
def a_filter_that_matches_nothing_is_refused(tool: Any) -> None:
    matching = feature(tool, "matching", "choice of sites by a part of their name")
    error = error_of(lambda: matching(batch_of(), "patern"), "a name filter that matches nothing")
    says(error, "patern", "pattern")


@behaviour("H5", "gradients recorded, then the context left", "no backward hook remains on any module")
def gradients_leave_no_hook(tool: Any) -> None:
    batch = batch_of()
    tool.run(batch)
    before = hooks_of(tool.module)
    places = [("embed", None), ("resid_pre", 1), ("z", 1)]
    got = tool.gradients(batch, places, total)
    assert all(bool(got[place].any()) for place in places), "a gradient is 0 everywhere"
    assert hooks_of(tool.module) == before, "a hook remains on a module"
    left = [name for name, one in tool.module.named_parameters() if one.grad is not None and bool(one.grad.any())]
    assert not left, f"gradients are left on parameters, such as {left[0]}"


@behaviour(
    "H6",
    "a site recorded, then edited in place by a later hook of the user's",
    "the recorded tensor still holds the first value",
)
def what_is_recorded_is_a_copy(tool: Any) -> None:
    batch = batch_of()
    places = sorted((place for place in tool.places if place[1] is not None), key=lambda place: place[1])
    for place in places:
        tool = tool.fresh()
        clean = tool.record(batch, [place])[place].clone()
        spoils = tool.function(place, lambda value: value.mul_(0.5))
        got = tool.record(batch, [place], [spoils], moment="before")[place]
        equal(got, clean, f"the record of {named(tool, place)} after an edit in place at the same site")
        for later in places[places.index(place) + 1 :]:
            tool.add_hook(later, lambda value: value.mul_(0.5))
        equal(tool.record(batch, [place])[place], clean, f"the record of {named(tool, place)} after later edits")


@behaviour(
    "H7",
    "two edits at one site, ×2 then +1; cut and uniform in either order",
    "2x + 1; the cut edge stays 0 and the rest is uniform, in both orders; a recorder before or after the edits",
)
def edits_act_in_order(tool: Any) -> None:
    batch = batch_of()
    for place in tool.places:
        clean = tool.record(batch, [place])[place]
        edits = [tool.function(place, lambda value: value * 2), tool.function(place, lambda value: value + 1)]
        equal(tool.record(batch, [place], edits)[place], clean * 2 + 1, f"×2 then +1 at {named(tool, place)}")
        before = tool.record(batch, [place], edits, moment="before")[place]
        equal(before, clean, f"the recorder before the edits of {named(tool, place)}")
    seen = reads(tool)[-1]
    for layer in EVERY_LAYER:
        both = [tool.cut(answer(layer)), tool.uniform(Edges(layer=layer, dest="last"))]
        for order in (both, both[::-1]):
            row = rows(pattern(tool, batch, order, layer))
            cut = at_answer(row, batch)
            assert not row[cut].any(), f"cut with uniform in layer {layer}: the cut edge is not 0"
            want = (seen / (seen.sum() - 1)).double().expand_as(row)
            close(row[~cut], want[~cut], f"cut with uniform in layer {layer}: the rest")


WRONG = {
    "one example": lambda value: value[:1],
    "another width": lambda value: value[..., :1],
    "another dtype": lambda value: value.double(),
    "fewer axes": lambda value: value[0, 0],
}


@behaviour(
    "H8",
    "an edit returns a batch of one, or another shape or dtype",
    "an error naming site, shape expected and shape got; never broadcast",
)
def another_shape_is_refused(tool: Any) -> None:
    batch = batch_of()
    for place in tool.places:
        right = tool.record(batch, [place])[place]
        for what, wrong in WRONG.items():
            where = f"{what} at {named(tool, place)}"
            edit = tool.function(place, wrong)
            error = error_of(partial(tool.run, batch, [edit]), f"an edit that returns {where}")
            says(error, tool.spelling(place), _sizes(right), _sizes(wrong(right)))


@behaviour("H9", "every site in turn made to raise", "no hook remains, at any site")
def no_site_keeps_a_hook(tool: Any) -> None:
    batch = batch_of()
    tool.run(batch)
    before = hooks_of(tool.module)
    for place in tool.places:
        error_of(partial(tool.run, batch, [tool.function(place, breaks)]), "a function that raises")
        assert hooks_of(tool.module) == before, f"a hook remains after an error at {named(tool, place)}"


@behaviour("H10", "an unknown keyword, or one that has no effect with the others", "a TypeError, never ignored")
def an_unknown_keyword_is_refused(tool: Any) -> None:
    batch = batch_of()
    for keyword in ({"interventionz": ()}, tool.idle_keyword):
        for name in keyword:
            error = error_of(partial(tool.run, batch, **keyword), f"the keyword {name!r}")
            assert isinstance(error, TypeError), f"{name!r} raises {type(error).__name__}, no TypeError: {error}"
            says(error, name)


def _sizes(value: Tensor) -> str:
    return ", ".join(map(str, value.shape))


HOOKS = (
    an_error_reaches_the_caller,
    a_users_hook_stays_and_acts,
    a_misspelt_site_is_named,
    a_filter_that_matches_nothing_is_refused,
    gradients_leave_no_hook,
    what_is_recorded_is_a_copy,
    edits_act_in_order,
    another_shape_is_refused,
    no_site_keeps_a_hook,
    an_unknown_keyword_is_refused,
)
