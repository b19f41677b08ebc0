"""Hooked models written by hand, right ones and faulty ones: what a hook carries is found out, never believed."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from einops import einsum
from torch import nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from workbench import (
    Batch,
    Edges,
    EmptyRow,
    Heads,
    InertIntervention,
    Unsupported,
    custom,
    cut,
    keep_only,
    probe,
    record,
    run,
    scale,
    uniform,
    wrap,
    zero,
)
from workbench.rows import HIDDEN

WIDTH, HEADS, D_HEAD, D_MLP, LENGTH = 12, 2, 5, 12, 5
"""The vocabulary is as large as the stream and the MLP are wide, so that a wrong tensor has the right shape."""

LAYERED = ("resid_pre", "q", "k", "v", "scores", "pattern", "z", "result", "attn_out", "resid_mid", "mlp_pre",
           "mlp_post", "mlp_out", "resid_post")  # fmt: skip


class Attention(nn.Module):
    def __init__(self, odd):
        super().__init__()
        self.odd = odd
        sizes = {"W_Q": (HEADS, WIDTH, D_HEAD), "W_K": (HEADS, WIDTH, D_HEAD), "W_V": (HEADS, WIDTH, D_HEAD),
                 "W_O": (HEADS, D_HEAD, WIDTH), "b_Q": (HEADS, D_HEAD), "b_K": (HEADS, D_HEAD), "b_V": (HEADS, D_HEAD),
                 "b_O": (WIDTH,)}  # fmt: skip
        for name, size in sizes.items():
            setattr(self, name, nn.Parameter(torch.zeros(size)))
        for name in ("q", "k", "v", "attn_scores", "pattern", "z", "result"):
            setattr(self, f"hook_{name}", HookPoint())

    def through(self, name, x):
        if self.odd == f"ignored {name}":
            getattr(self, f"hook_{name}")(x.clone())
            return x
        if self.odd == f"twice {name}":
            x = getattr(self, f"hook_{name}")(x)
        return getattr(self, f"hook_{name}")(x)

    def vectors(self, name, x):
        weight, bias = getattr(self, f"W_{name.upper()}"), getattr(self, f"b_{name.upper()}")
        return self.through(name, einsum(x, weight, "b pos d, head d d_head -> b pos head d_head") + bias)

    def forward(self, x):
        q, k, v = (self.vectors(name, x) for name in "qkv")
        scores = einsum(q, k, "b dest head d, b source head d -> b head dest source") / math.sqrt(D_HEAD)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        if self.odd != "bidirectional":
            hidden = float(self.odd.removeprefix("finite ")) if self.odd.startswith("finite ") else -math.inf
            scores = scores.masked_fill(future, hidden) if self.odd != "added" else scores + future * -1e4
        if self.odd == "scores carry the pattern":
            pattern = self.hook_attn_scores(scores.softmax(-1))
        else:
            pattern = self.through("attn_scores", scores).softmax(-1)
        if self.odd == "heads swapped":
            pattern = self.hook_pattern(pattern.flip(1)).flip(1)
        else:
            pattern = self.through("pattern", pattern)
        v = self.hook_z(v) if self.odd == "z before the mixing" else v
        z = einsum(pattern, v, "b head dest source, b source head d -> b dest head d")
        z = z if self.odd == "z before the mixing" else self.through("z", z)
        result = einsum(z, self.W_O, "b dest head d_head, head d_head d -> b dest head d")
        return self.through("result", result).sum(2) + self.b_O


class MLP(nn.Module):
    def __init__(self, odd):
        super().__init__()
        self.odd = odd
        sizes = {"W_in": (WIDTH, D_MLP), "W_out": (D_MLP, WIDTH), "b_in": (D_MLP,), "b_out": (WIDTH,)}
        for name, size in sizes.items():
            setattr(self, name, nn.Parameter(torch.zeros(size)))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x):
        post = self.hook_post(nn.functional.gelu(self.hook_pre(x @ self.W_in + self.b_in)))
        return post @ self.W_out + self.b_out


class Block(nn.Module):
    def __init__(self, odd):
        super().__init__()
        self.odd, self.attn = odd, Attention(odd)
        self.ln1, self.ln2, self.ln3, self.ln4 = (nn.LayerNorm(WIDTH) for _ in range(4))
        for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
            if not (name == "resid_mid" and odd == "parallel") and not (name == "mlp_out" and odd == "attn_only"):
                setattr(self, f"hook_{name}", HookPoint())
        if odd != "attn_only":
            self.mlp = MLP(odd)

    def through(self, name, x):
        if self.odd == f"ignored {name}":
            getattr(self, f"hook_{name}")(x.clone())
            return x
        if self.odd == f"twice {name}":
            x = getattr(self, f"hook_{name}")(x)
        return getattr(self, f"hook_{name}")(x)

    def forward(self, x):
        odd = self.odd
        x = self.through("resid_pre", x)
        if odd == "post-norm":
            middle = self.through("resid_mid", x + self.through("attn_out", self.attn(x)))
            x = self.ln1(middle)
            return self.ln2(self.through("resid_post", x + self.through("mlp_out", self.mlp(x))))
        if odd == "sandwich":
            middle = self.through("resid_mid", x + self.through("attn_out", self.ln3(self.attn(self.ln1(x)))))
            return self.through("resid_post", middle + self.through("mlp_out", self.ln4(self.mlp(self.ln2(middle)))))
        if odd == "sandwich, hooks before the norm":
            middle = self.through("resid_mid", x + self.ln3(self.through("attn_out", self.attn(self.ln1(x)))))
            return self.through("resid_post", middle + self.ln4(self.through("mlp_out", self.mlp(self.ln2(middle)))))
        attention = self.through("attn_out", self.attn(self.ln1(x)))
        if odd == "attn_only":
            return self.through("resid_post", self.through("resid_mid", x + attention))
        if odd in ("parallel", "parallel, unsaid"):
            middle = self.through("resid_mid", x + attention) if odd != "parallel" else x + attention
            return self.through("resid_post", middle + self.through("mlp_out", self.mlp(self.ln2(x))))
        middle = x + attention
        if odd == "resid_mid is not the sum":
            self.hook_resid_mid(x + 2 * attention)
        elif odd == "resid_mid on the way to the MLP":
            told = self.through("mlp_out", self.mlp(self.ln2(self.hook_resid_mid(middle))))
            return self.through("resid_post", middle + told)
        else:
            middle = self.through("resid_mid", middle)
        if odd == "resid_pre is normed":
            self.hook_resid_pre(self.ln1(x))
        return self.through("resid_post", middle + self.through("mlp_out", self.mlp(self.ln2(middle))))


class ByHand(HookedRootModule):
    """A causal model of two layers with learned positions, and what is odd about it."""

    def __init__(self, odd="", layers=2, **cfg):
        super().__init__()
        self.odd = odd
        self.cfg = SimpleNamespace(**{"n_layers": layers, "n_heads": HEADS, "d_vocab": WIDTH, "n_ctx": 8, **cfg})
        self.embed, self.pos, self.unembed = nn.Embedding(WIDTH, WIDTH), nn.Embedding(8, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.hook_embed, self.hook_pos_embed, self.norm = HookPoint(), HookPoint(), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(odd) for _ in range(layers))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
        self.setup()

    def forward(self, tokens):
        embed, places = self.embed(tokens), self.pos(torch.arange(tokens.shape[1])).expand(*tokens.shape, -1)
        x = self.hook_embed(embed) + self.hook_pos_embed(places)
        blocks = list(self.blocks)
        for block in blocks[::-1] if self.odd == "layers swapped" else blocks:
            x = block(x)
        return self.unembed(self.norm(x))


def batch_of(n=3, seed=0, length=LENGTH):
    tokens = torch.randint(WIDTH, (n, length), generator=torch.Generator().manual_seed(seed))
    place = torch.arange(length).expand(n, length)
    return Batch(tokens, torch.where(place == length - 1, tokens, -100), roles={
        "first": place == 0, "last": place == length - 1, "some": (place == 1) | (place == 3)})  # fmt: skip


def plain_logits(model, tokens, edit=lambda name, layer, x: x, empty=None):
    """The right model's logits, without hooks; `edit` changes each named tensor on its way."""
    x = edit("embed", None, model.embed(tokens)) + edit(
        "pos_embed", None, model.pos.weight[: tokens.shape[1]].expand(*tokens.shape, -1)
    )
    hidden = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
    for layer, block in enumerate(model.blocks):
        a = block.attn
        x = edit("resid_pre", layer, x)
        h = block.ln1(x)
        q, k, v = (edit(n, layer, torch.stack([h @ w[i] + b[i] for i in range(HEADS)], 2))
                   for n, w, b in (("q", a.W_Q, a.b_Q), ("k", a.W_K, a.b_K), ("v", a.W_V, a.b_V)))  # fmt: skip
        scores = torch.stack([q[:, :, i] @ k[:, :, i].mT for i in range(HEADS)], 1) / math.sqrt(D_HEAD)
        scores = edit("scores", layer, scores.masked_fill(hidden, HIDDEN))
        gone = (scores == HIDDEN).all(-1)
        pattern = edit(
            "pattern", layer, scores.masked_fill(gone[..., None], 0.0).softmax(-1).masked_fill(gone[..., None], 0.0)
        )
        z = edit("z", layer, torch.stack([pattern[:, i] @ v[:, :, i] for i in range(HEADS)], 2))
        result = edit("result", layer, torch.stack([z[:, :, i] @ a.W_O[i] for i in range(HEADS)], 2))
        out = result.sum(2) + torch.where(gone.all(1)[..., None], 0.0, a.b_O)
        middle = edit("resid_mid", layer, x + edit("attn_out", layer, out))
        post = edit(
            "mlp_post",
            layer,
            nn.functional.gelu(edit("mlp_pre", layer, block.ln2(middle) @ block.mlp.W_in + block.mlp.b_in)),
        )
        x = edit("resid_post", layer, middle + edit("mlp_out", layer, post @ block.mlp.W_out + block.mlp.b_out))
    return model.unembed(model.norm(x))


def near(one, other):
    return float((one - other).abs().max()) <= 5e-6 * float(other.abs().max())


@pytest.fixture(scope="module")
def right():
    return wrap(ByHand())


def keys():
    return [("embed", None), ("pos_embed", None)] + [(name, layer) for layer in (0, 1) for name in LAYERED]


def spelt(key):
    return key[0] if key[1] is None else key


def noisy(x):
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
    return torch.where(x == HIDDEN, x, x + noise)


def test_a_right_model_has_every_site_and_all_are_live(right):
    assert right.absent == {}
    assert {(one.site, one.layer) for one in probe(right)} == set(keys())
    assert {one.status for one in probe(right)} == {"live"}


@torch.no_grad()
@pytest.mark.parametrize("key", keys(), ids=str)
def test_an_edit_at_every_site_of_a_right_model_does_what_it_does_by_hand(right, key):
    batch = batch_of()

    def edit(name, layer, x):
        return noisy(x) if (name, layer) == key else x

    want = plain_logits(right.inner, batch.tokens, edit)
    assert near(run(right, batch, [custom(spelt(key), noisy)]).logits, want)
    assert not near(want, plain_logits(right.inner, batch.tokens))


@torch.no_grad()
def test_what_is_recorded_of_a_right_model_is_what_it_computes(right):
    batch, seen = batch_of(), {}
    plain_logits(right.inner, batch.tokens, lambda name, layer, x: seen.setdefault((name, layer), x))
    found = record(right, batch, [spelt(key) for key in keys()])
    for key in keys():
        got, want = found[key], seen[key]
        assert torch.equal(got == HIDDEN, want == HIDDEN), key
        assert near(got.nan_to_num(neginf=0.0), want.nan_to_num(neginf=0.0)), key
    assert found["scores", 0].isinf().sum() == 3 * HEADS * LENGTH * (LENGTH - 1) / 2


def edges(layer, head, dest=None, source=None):
    return Edges(layer=layer, head=head, dest=dest, source=source)


OPERATIONS = {
    "cut one": lambda layer, head: cut(edges(layer, head, "last", "first")),
    "cut rows": lambda layer, head: cut(edges(layer, head, "some"), empty="no-update"),
    "cut all": lambda layer, head: cut(edges(layer, head), empty="no-update"),
    "keep": lambda layer, head: keep_only(edges(layer, head, "last", "some")),
    "scale": lambda layer, head: scale(edges(layer, head, "last", "some"), by=3.0),
    "uniform": lambda layer, head: uniform(edges(layer, head, "last", "some")),
}


def by_hand(kind, batch, head, x):
    """The scores after an operation, in loops."""
    x, some, last = x.clone(), batch.roles["some"], LENGTH - 1
    for example in range(len(x)):
        for one in range(HEADS) if head is None else [head]:
            for dest in range(LENGTH):
                for source in range(dest + 1):
                    chosen = dest == last and bool(some[example, source])
                    place = (example, one, dest, source)
                    if (
                        (kind == "cut one" and dest == last and source == 0)
                        or kind == "cut all"
                        or (kind == "cut rows" and some[example, dest])
                    ):
                        x[place] = HIDDEN
                    elif kind == "scale" and chosen:
                        x[place] += math.log(3.0)
                    elif kind == "uniform" and dest == last:
                        x[place] = 0.0 if chosen else HIDDEN
                    elif kind == "keep" and dest == last and not chosen:
                        x[place] = HIDDEN
    return x


@torch.no_grad()
@pytest.mark.parametrize("head", [None, 1])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("kind", OPERATIONS)
def test_operations_on_edges_of_a_right_model_are_those_done_by_hand(right, kind, layer, head):
    batch = batch_of()

    def edit(name, one, x):
        return by_hand(kind, batch, head, x) if (name, one) == ("scores", layer) else x

    want = plain_logits(right.inner, batch.tokens, edit)
    assert near(run(right, batch, [OPERATIONS[kind](layer, head)]).logits, want)


def test_a_row_cut_whole_raises_where_nobody_said_what_becomes_of_it(right):
    with pytest.raises(EmptyRow):
        run(right, batch_of(), [cut(edges(0, 0, "last"))])


@pytest.mark.parametrize("empty", ["no-update", "self"])
def test_rows_cut_whole_never_look_at_the_future(right, empty):
    found = record(right, batch_of(), ["pattern"], [cut(edges(0, None), empty=empty), cut(edges(1, 0), empty=empty)])
    for layer in (0, 1):
        pattern = found["pattern", layer]
        assert not pattern.isnan().any() and bool((pattern.triu(1) == 0).all())
    diagonal = found["pattern", 0].diagonal(dim1=-2, dim2=-1)
    assert bool((diagonal == (1.0 if empty == "self" else 0.0)).all())


ABSENT = {
    "scores carry the pattern": {"scores": "pattern = softmax\\(scores\\) does not hold"},
    "z before the mixing": {"v": "z = pattern·v does not hold", "z": "z = pattern·v does not hold"},
    "resid_mid is not the sum": {"resid_mid": "resid_mid = resid_pre \\+ attn_out does not hold"},
    "resid_pre is normed": {"resid_pre": "fired 2 times"},
    "twice z": {"z": "fired 2 times"},
    "twice resid_post": {"resid_post": "fired 2 times"},
    "finite -1e4": {"scores": "scores are −∞ at every source that rows do not read does not hold"},
    "finite -1e5": {"scores": "scores are −∞ at every source that rows do not read does not hold"},
    "finite -100": {"scores": "scores are −∞ at every source that rows do not read does not hold"},
    "added": {"scores": "scores are −∞ at every source that rows do not read does not hold"},
    "post-norm": {"mlp_out": "resid_post = resid_mid \\+ mlp_out does not hold", "resid_post": "does not hold"},
    "sandwich, hooks before the norm": {"attn_out": "resid_mid = resid_pre \\+ attn_out does not hold"},
    "heads swapped": {"pattern": "z = pattern·v does not hold", "scores": "needs pattern"},
    "parallel, unsaid": {"resid_mid": "mlp_out do not read it"},
}  # fmt: skip


def refused(wrapped, name):
    try:
        run(wrapped, batch_of(), [custom((name, 0), noisy)])
    except (KeyError, InertIntervention) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("odd", ABSENT)
def test_a_hook_that_carries_something_else_is_left_out_with_the_reason(odd):
    wrapped = wrap(ByHand(odd))
    for name, why in ABSENT[odd].items():
        with pytest.raises(KeyError, match=why):
            record(wrapped, batch_of(), [(name, 0)])
        with pytest.raises(KeyError, match=why):
            run(wrapped, batch_of(), [custom((name, 1), noisy)])
        said = [one for one in probe(wrapped) if one.site == name]
        assert [one.status for one in said] == ["absent", "absent"]


def test_a_site_that_fires_once_only_in_one_layer_is_left_in_there():
    model = ByHand()
    model.blocks[1].attn.odd = "twice z"
    wrapped = wrap(model)
    assert wrapped.usable("z", 0) and not wrapped.usable("z", 1)
    with pytest.raises(KeyError, match="fired 2 times"):
        record(wrapped, batch_of(), ["z"])


@pytest.mark.parametrize("name", ["attn_scores", "pattern", "q", "k", "v", "z", "result"])
def test_an_edit_that_the_attention_ignores_is_refused(name):
    site = {"attn_scores": "scores"}.get(name, name)
    assert refused(wrap(ByHand(f"ignored {name}")), site)
    assert not refused(wrap(ByHand()), site)


@pytest.mark.parametrize("name", ["resid_pre", "attn_out", "mlp_out", "resid_post"])
def test_an_edit_that_the_stream_ignores_is_refused(name):
    assert refused(wrap(ByHand(f"ignored {name}")), name)


@torch.no_grad()
@pytest.mark.parametrize("odd", ["resid_mid on the way to the MLP", "ignored resid_mid"])
@pytest.mark.parametrize("layer", [0, 1])
def test_an_edit_at_a_hook_that_the_stream_goes_past_is_made_in_the_stream(layer, odd):
    """As in TransformerLens' bridges: what is changed at that hook alone would miss the stream."""
    model, batch = ByHand(odd), batch_of()
    wrapped = wrap(model)

    def edit(name, one, x):
        return noisy(x) if (name, one) == ("resid_mid", layer) else x

    assert wrapped.added_later == {0, 1}
    want = plain_logits(model, batch.tokens, edit)
    assert near(run(wrapped, batch, [custom(("resid_mid", layer), noisy)]).logits, want)
    assert torch.equal(run(wrapped, batch, [custom(("resid_mid", layer), torch.clone)]).logits, model(batch.tokens))


def test_layers_named_in_another_order_than_they_run_in_have_no_sites():
    wrapped = wrap(ByHand("layers swapped"))
    for name in ("pattern", "scores", "z", "resid_pre", "mlp_post"):
        with pytest.raises(KeyError, match=r"Its hook fires (after|before)"):
            record(wrapped, batch_of(), [(name, 0)])


@pytest.mark.parametrize(("odd", "cfg"), [("parallel", {"parallel_attn_mlp": True}), ("attn_only", {"attn_only": True}),
                                          ("sandwich", {})])  # fmt: skip
def test_other_kinds_of_blocks_keep_what_they_have(odd, cfg):
    wrapped = wrap(ByHand(odd, **cfg))
    gone = {
        "parallel": {"resid_mid"},
        "attn_only": {"mlp_pre", "mlp_post", "mlp_out"},
        "sandwich": {"mlp_post", "mlp_pre"},
    }
    assert set(wrapped.absent) == gone[odd]
    assert {one.status for one in probe(wrapped) if one.site not in gone[odd]} == {"live"}
    if odd == "parallel":
        with pytest.raises(KeyError, match="parallel"):
            record(wrapped, batch_of(), ["resid_mid"])


@pytest.mark.parametrize("odd", ["finite -1e4", "finite -1e5", "added"])
def test_a_finite_mask_makes_no_source_visible(odd):
    wrapped, batch = wrap(ByHand(odd)), batch_of()
    assert not wrapped.sees(batch, "", 0).triu(1).any()
    with pytest.raises(KeyError, match="−∞"):
        run(wrapped, batch, [cut(edges(0, None), empty="self")])


@pytest.mark.parametrize(
    ("cfg", "said"),
    [({"n_layers": 1}, "n_layers = 1, and has hooks of layers 0, 1"), ({"n_layers": 3}, "n_layers = 3"),
     ({"n_layers": None}, "no cfg.n_layers"), ({"n_heads": None}, "no cfg.n_heads"),
     ({"d_vocab": "x"}, "no cfg.d_vocab")],
)  # fmt: skip
def test_a_configuration_that_hooks_contradict_is_refused(cfg, said):
    with pytest.raises(Unsupported, match=said):
        wrap(ByHand(**cfg))


def test_a_model_without_a_configuration_is_refused():
    model = ByHand()
    del model.cfg
    with pytest.raises(Unsupported, match=r"no cfg\.n_layers"):
        wrap(model)


@pytest.mark.parametrize("n_heads", [1, 3, 4])
def test_sites_with_other_heads_than_the_configuration_says_are_left_out(n_heads):
    wrapped = wrap(ByHand(n_heads=n_heads))
    for name in ("scores", "pattern", "z", "v", "q"):
        with pytest.raises(KeyError, match=f"{n_heads} head"):
            record(wrapped, batch_of(), [(name, 0)])


def test_key_value_heads_that_are_not_there_are_left_out():
    wrapped = wrap(ByHand(n_key_value_heads=1))
    with pytest.raises(KeyError, match="1 head"):
        record(wrapped, batch_of(), [("v", 0)])


def test_a_direction_that_weights_contradict_is_not_believed():
    wrapped, batch = wrap(ByHand("bidirectional", attention_dir="causal")), batch_of()
    for name in ("scores", "pattern", "z"):
        with pytest.raises(KeyError):
            record(wrapped, batch, [(name, 0)])
    assert wrap(ByHand("bidirectional", attention_dir="bidirectional")).absent == {}


def test_a_mask_that_the_direction_does_not_tell_is_taken_from_scores_or_refused():
    wrapped, batch = wrap(ByHand(attention_dir="bidirectional")), batch_of()
    assert wrapped.absent == {} and not wrapped.sees(batch, "", 0).triu(1).any()
    untold = wrap(ByHand("finite -1e4", attention_dir="bidirectional"))
    for name in ("scores", "pattern"):
        with pytest.raises(KeyError):
            record(untold, batch, [(name, 0)])


def test_logits_without_positions_are_refused():
    model = ByHand()
    model.forward = lambda tokens: ByHand.forward(model, tokens)[:, -1]
    with pytest.raises(Unsupported, match="logits at every position"):
        wrap(model)


def test_padding_is_refused_where_the_model_cannot_be_told_of_it(right):
    batch = batch_of()
    valid = batch.valid.clone()
    valid[1, -1] = False
    with pytest.raises(ValueError, match="attention_mask"):
        run(right, Batch(batch.tokens, torch.full_like(batch.tokens, -100), valid))


def test_padding_is_refused_where_the_model_reads_it_though_told():
    class Deaf(ByHand):
        def forward(self, tokens, attention_mask=None):
            return super().forward(tokens)

    batch = batch_of()
    valid = batch.valid.clone()
    valid[1, -1] = False
    padded = Batch(batch.tokens, torch.full_like(batch.tokens, -100), valid)
    assert run(wrap(Deaf()), padded).logits.isfinite().all()
    with pytest.raises(ValueError, match="reads padding"):
        run(wrap(Deaf("bidirectional", attention_dir="bidirectional")), padded)


class Discards(HookPoint):
    def __call__(self, x):
        out = super().__call__(x)
        if not torch.equal(out, x):
            warnings.warn("The edit is discarded and does not affect the output.", UserWarning, stacklevel=1)
        return x


@pytest.mark.parametrize(("hook", "name"), [("attn.hook_z", "z"), ("attn.hook_pattern", "pattern"),
                                            ("attn.hook_v", "v"),
                                            ("hook_attn_out", "attn_out")])  # fmt: skip
def test_a_site_whose_edits_the_model_says_it_discards_is_left_out(hook, name):
    model = ByHand()
    model.blocks[0].get_submodule(hook).__class__ = Discards
    wrapped = wrap(model)
    with pytest.raises(KeyError, match="edit is discarded"):
        run(wrapped, batch_of(), [custom((name, 0), noisy)])
    assert wrapped.usable(name, 1)
    assert {one.status for one in probe(wrapped) if one.site == name} == {"absent", "live"}


def test_a_warning_that_an_edit_is_discarded_is_an_error():
    model = ByHand()
    wrapped, edit = wrap(model), [zero(Heads(layer=0, pos="last", part="z"))]
    run(wrapped, batch_of(), edit)
    model.blocks[0].attn.hook_z.__class__ = Discards
    with pytest.raises(InertIntervention, match="threw an edit away: The edit is discarded"):
        run(wrapped, batch_of(), edit)
    assert run(wrapped, batch_of()).logits.isfinite().all()
