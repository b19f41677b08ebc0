"""Path patching in every part of a model, against plain torch hooks, and the paths that do not exist."""

import pytest
import torch

from workbench import (
    Batch,
    Edges,
    EncoderDecoder,
    EncoderDecoderConfig,
    Heads,
    ModelConfig,
    Transformer,
    cut,
    path,
    run,
    zero,
)
from workbench.sites import SITES, in_part, split

SIDE = {"d_vocab": 9, "n_ctx": 8, "d_model": 8, "n_layers": 3, "n_heads": 2}
NORMS = ("post", "pre", "none")


def model_of(norm, attn_only=False):
    side = {**SIDE, "norm": norm, "attn_only": attn_only}
    config = EncoderDecoderConfig(encoder={**side, "masks": [{"causal": False}]}, decoder=side)
    return EncoderDecoder(config, seed=0).double()


def tokens(n, length, seed):
    return torch.randint(9, (n, length), generator=torch.Generator().manual_seed(seed))


def batch_of(context=True):
    drawn = tokens(5, 6, 0)
    labels = torch.full_like(drawn, -100)
    labels[:, -1] = 3
    valid = torch.ones_like(drawn, dtype=torch.bool)
    last = torch.arange(6).expand_as(drawn) == 5
    batch = Batch(drawn, labels, roles={"last": last})
    if not context:
        return batch
    read = tokens(5, 7, 1)
    valid = torch.ones_like(read, dtype=torch.bool)
    valid[0, -2:] = False
    return batch.with_context(Batch(read, torch.full_like(read, -100), valid=valid))


BATCH = batch_of()


def where(part):
    if not part:
        return {}
    return {"kind": "cross"} if part == "cross" else {"stack": part}


def heads(part, layer, vector, head=0):
    return Heads(layer=layer, head=head, part=vector, **where(part))


def point(model, part, name, layer):
    return model.hook_dict[in_part(part, SITES[name].hook_name(layer))]


def forward(model, batch, changes, keep=()):
    """Logits, and what passed some hook points, with hook points' outputs changed: point → function."""
    kept = {}
    handles = [one.register_forward_hook(lambda _m, _i, out, fn=fn: fn(out)) for one, fn in changes.items()]
    handles += [
        one.register_forward_hook(lambda _m, _i, out, one=one: kept.__setitem__(one, out.clone())) for one in keep
    ]
    with torch.no_grad():
        logits = model.logits(batch, None)
    for handle in handles:
        handle.remove()
    return logits, kept


def by_hooks(model, batch, sender, receiver, held):
    """The slow way: a pass with the sender silenced and the rest held, and one with the receiver's vectors of it."""
    points = [point(model, part, name, layer) for part, name, layer in held]
    _, clean = forward(model, batch, {}, points)

    def silenced(z):
        z = z.clone()
        z[:, :, sender[2]] = 0
        return z

    changes = {one: (lambda out, one=one: clean[one]) for one in points}
    target = point(model, receiver[0], receiver[3], receiver[1])
    _, moved = forward(model, batch, changes | {point(model, sender[0], "z", sender[1]): silenced}, [target])

    def put(value):
        value = value.clone()
        value[:, :, receiver[2]] = moved[target][:, :, receiver[2]]
        return value

    return forward(model, batch, {target: put})[0]


CASES = {
    "encoder to encoder": (
        ("encoder", 0, 1), ("encoder", 2, 0, "k"),
        [("encoder", "mlp_out", 0), ("encoder", "z", 1), ("encoder", "mlp_out", 1)],
    ),
    "encoder to cross": (
        ("encoder", 1, 0), ("cross", 1, 1, "v"),
        [("encoder", "mlp_out", 1), ("encoder", "z", 2), ("encoder", "mlp_out", 2)],
    ),
    "decoder to decoder": (
        ("decoder", 0, 0), ("decoder", 2, 1, "q"),
        [("cross", "z", 0), ("decoder", "mlp_out", 0), ("decoder", "z", 1), ("cross", "z", 1),
         ("decoder", "mlp_out", 1)],
    ),
    "decoder to cross in the same layer": (("decoder", 1, 0), ("cross", 1, 0, "q"), []),
    "cross to decoder": (
        ("cross", 0, 1), ("decoder", 2, 0, "v"),
        [("decoder", "mlp_out", 0), ("decoder", "z", 1), ("cross", "z", 1), ("decoder", "mlp_out", 1)],
    ),
    "cross to cross": (("cross", 0, 1), ("cross", 1, 0, "q"), [("decoder", "mlp_out", 0), ("decoder", "z", 1)]),
}  # fmt: skip


@pytest.mark.parametrize("attn_only", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("case", CASES)
def test_a_path_is_what_plain_hooks_make_of_it(case, norm, attn_only):
    sender, receiver, held = CASES[case]
    held = [one for one in held if not (attn_only and one[1] == "mlp_out")]
    model = model_of(norm, attn_only)
    edit = path(zero, heads(sender[0], sender[1], "z", sender[2]), heads(*(receiver[i] for i in (0, 1, 3, 2))))
    got, clean = run(model, BATCH, [edit]).logits, run(model, BATCH).logits
    want = by_hooks(model, BATCH, sender, receiver, held)
    assert (got - want).abs().max() <= 1e-10 * want.abs().max()
    assert not torch.equal(got, clean)


@pytest.mark.parametrize("norm", NORMS)
def test_a_path_in_one_stack_is_what_plain_hooks_make_of_it(norm):
    model = Transformer(ModelConfig(**SIDE, norm=norm), seed=0).double()
    batch = batch_of(context=False)
    edit = path(zero, heads("", 0, "z", 1), heads("", 2, "k", 0))
    held = [("", "mlp_out", 0), ("", "z", 1), ("", "mlp_out", 1)]
    want = by_hooks(model, batch, ("", 0, 1), ("", 2, 0, "k"), held)
    assert (run(model, batch, [edit]).logits - want).abs().max() <= 1e-10 * want.abs().max()


@pytest.mark.parametrize(
    ("sender", "receiver", "words"),
    [
        (("encoder", 0), ("decoder", 1, "q"), r"heads of encoder are read by encoder \(q k v\), cross \(k v\)"),
        (("encoder", 0), ("cross", 1, "q"), r"heads of encoder are read by encoder \(q k v\), cross \(k v\)"),
        (("decoder", 0), ("cross", 1, "k"), r"heads of decoder are read by decoder \(q k v\), cross \(q\)"),
        (("decoder", 2), ("encoder", 0, "q"), "heads of decoder are read by"),
        (("decoder", 1), ("cross", 0, "q"), "computed before the sender writes"),
        (("cross", 1), ("decoder", 1, "q"), "computed before the sender writes"),
    ],
)
def test_a_path_to_a_head_that_does_not_read_the_sender_is_refused(sender, receiver, words):
    edit = path(zero, heads(*sender, "z"), heads(*receiver))
    with pytest.raises(ValueError, match=words):
        run(model_of("post"), BATCH, [edit])


def test_a_path_beside_an_edit_that_its_receiver_reads_is_refused():
    edit = path(zero, heads("decoder", 0, "z"), heads("decoder", 2, "q"))
    upstream = cut(Edges(layer=0, kind="cross", dest="last"), empty="no-update")
    with pytest.raises(ValueError, match="Run them apart"):
        run(model_of("post"), BATCH, [edit, upstream])
    later = cut(Edges(layer=2, kind="cross", dest="last"), empty="no-update")
    assert run(model_of("post"), BATCH, [edit, later]).logits.isfinite().all()


def test_every_site_has_its_moment():
    from workbench.paths import _moment

    order = ["encoder.embed", "encoder.resid_pre", "encoder.z", "encoder.resid_mid", "encoder.mlp_out",
             "encoder.resid_post", "decoder.embed", "decoder.resid_pre", "decoder.q", "decoder.resid_mid", "cross.z",
             "cross.resid_mid", "decoder.mlp_out", "decoder.resid_post"]  # fmt: skip
    moments = [_moment((name, None if split(name)[1] == "embed" else 0)) for name in order]
    assert moments == sorted(moments) and len(set(moments)) == len(moments)
