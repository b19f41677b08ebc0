"""The table of sites: every row stands on a model, under TransformerLens' name, with the axes it states."""

import itertools
from typing import get_args

import pytest
import torch
from transformer_lens.utilities import get_act_name

from workbench.interventions import Heads, Stream
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer
from workbench.sites import SITES, site

N_LAYERS, N_READ = 2, 4
SIZES = {"batch": 3, "pos": 6, "head": 2, "d_head": 5, "d_model": 11, "d_mlp": 13}
LENS_NAMES = {"scores": "attn_scores", "mlp_pre": "pre", "mlp_post": "post"}


def model_of(**changes):
    config = ModelConfig(d_vocab=17, n_ctx=7, d_model=SIZES["d_model"], n_layers=N_LAYERS, n_heads=SIZES["head"],
                         d_head=SIZES["d_head"], d_mlp=SIZES["d_mlp"], **changes)  # fmt: skip
    return Transformer(config, seed=0)


def shapes(model, read=None):
    """The shape of what passes each hook of a model."""
    tokens = torch.zeros(SIZES["batch"], SIZES["pos"], dtype=torch.long)
    cache = model.run_with_cache(tokens, read=read, return_cache_object=False)[1]
    return {name: tuple(value.shape) for name, value in cache.items()}


def stated(row, n_dest):
    """The shape that a row of the table promises; `pos` counts destinations or sources, as the row says."""
    sizes = {**SIZES, "dest": n_dest, "source": SIZES["pos"]}
    sizes["pos"] = n_dest if row.positions == "dest" else SIZES["pos"]
    return tuple(sizes[axis] for axis in row.axes.split())


LAYERS = [(name, layer) for name in SITES for layer in (range(N_LAYERS) if SITES[name].layered else [None])]


def test_all_sizes_differ_so_that_no_axis_passes_for_another():
    assert len({*SIZES.values(), N_READ}) == len(SIZES) + 1


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_every_site_has_the_axes_it_states(name, layer, norm):
    assert shapes(model_of(norm=norm))[site(name).hook_name(layer)] == stated(site(name), SIZES["pos"])


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_only_destinations_of_the_last_layer_shrink_to_what_is_read(name, layer):
    read = torch.tensor([[5, 0, 3, 3]] * SIZES["batch"])
    n_dest = N_READ if layer == N_LAYERS - 1 else SIZES["pos"]
    assert shapes(model_of(), read)[site(name).hook_name(layer)] == stated(site(name), n_dest)


def test_every_hook_of_a_model_is_a_site_or_a_norm():
    for norm in ("post", "pre", "none"):
        hooks = {name for name in model_of(norm=norm).hook_dict if not name.endswith("hook_normalized")}
        assert hooks == {site(name).hook_name(layer) for name, layer in LAYERS}


def test_a_model_without_mlp_or_positions_lacks_just_these_sites():
    attention, unplaced = model_of(attn_only=True).hook_dict, model_of(positions="none").hook_dict
    for name, layer in LAYERS:
        hook = site(name).hook_name(layer)
        assert (hook in attention) == (not name.startswith("mlp"))
        assert (hook in unplaced) == (name != "pos_embed")


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_hooks_have_the_names_that_transformer_lens_gives_them(name, layer):
    assert site(name).hook_name(layer) == get_act_name(LENS_NAMES.get(name, name), layer)


def test_head_and_position_axes_stand_where_the_axes_say():
    for row in SITES.values():
        words = row.axes.split()
        assert row.head_axis == (words.index("head") if "head" in words else None)
        assert words[row.position_axis] in ("pos", "dest")
        assert row.layered == row.hook.startswith("blocks.")
    assert (site("pattern").head_axis, site("pattern").position_axis) == (1, 2)
    assert (site("z").head_axis, site("z").position_axis) == (2, 1)


def test_each_location_names_just_the_sites_that_are_its_own():
    by_location = {"edges": {"scores", "pattern"}}
    for location, kind in {"heads": Heads, "stream": Stream}.items():
        by_location[location] = set(get_args(kind.model_fields["part"].annotation))
    for location, names in by_location.items():
        assert names == {row.name for row in SITES.values() if row.location == location}
    assert not any(one & other for one, other in itertools.combinations(by_location.values(), 2))


def test_rows_are_found_by_their_own_name_and_name_different_hooks():
    assert all(row.name == name == site(name).name for name, row in SITES.items())
    assert len({row.hook for row in SITES.values()}) == len(SITES)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("patern", "pattern"), ("resid_mdi", "resid_mid"), ("attn_scores", "scores"), ("Z", "z"), ("sentence", "")],
)
def test_a_misspelt_site_is_refused_with_the_nearest_and_all_there_are(asked, meant):
    with pytest.raises(KeyError) as caught:
        site(asked)
    said = caught.value.args[0]
    assert said.startswith(f"no site {asked!r}. There are: {', '.join(SITES)}.")
    assert f"Did you mean {meant}" in said if meant else "Did you mean" not in said
