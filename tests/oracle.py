"""A slow, obvious reference: own models with interventions, one example, one head, one position at a time, in float64.

Written from DESIGN.md's words ("What the operations mean") and from the papers' formulas, with nothing from workbench
but the values it is handed and two random draws (the numbers by which `shuffle` orders, the derangement of `resample`).
A row is a dict, source → score without the sources that cannot be seen. Sites of two-sequence models are named after
their part, as "cross.z".
"""

import cmath
import math
from dataclasses import dataclass, field

import numpy as np
import torch

from workbench.donors import derangement

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x]),
}


class Unseen(Exception):
    """A donor's weight was asked for an edge that the donor cannot see."""


class Emptied(Exception):
    """A row lost its last visible source, and the intervention says empty="raise"."""


def logits(model, batch, interventions=(), donors=None, references=None):
    """Logits [batch pos d_vocab] in float64, with a list of interventions in force (custom functions excepted).

    references: the donors as a mean uses them, whole, where `donors` holds only the batch's examples.
    """
    whole = {("whole", name): donor for name, donor in (references or donors or {}).items()}
    donors = {None: batch, **(donors or {}), **whole}
    runs = {name: [forward(model, one, i)[1] for i in range(len(one))] for name, one in donors.items()}
    out = []
    for i in range(len(batch)):
        row_edits = [one for one in interventions if one.where.type == "edges"]
        rules = [rule(model, one, batch, donors, runs, i) for one in interventions if one.where.type != "edges"]
        out.append(forward(model, batch, i, rules, row_edits, donors, runs)[0])
    return np.array(out)


# The model -----------------------------------------------------------------------------------------------------------


@dataclass
class Example:
    """One example on its way through a model, and all values seen by (site, layer, head, pos)."""

    w: dict
    batch: object
    i: int
    rules: tuple = ()
    row_edits: tuple = ()
    donors: dict | None = None
    runs: dict | None = None
    seen: dict = field(default_factory=dict)

    def at(self, site, layer, head, pos, value):
        for change in self.rules:
            value = change(site, layer, head, pos, value)
        self.seen[site, layer, head, pos] = value
        return value

    def norm(self, x, name):
        """Ba et al. 2016, equation 4."""
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * self.w[f"{name}.w"] + self.w[f"{name}.b"]


def forward(model, batch, i, rules=(), row_edits=(), donors=None, runs=None):
    """One example: its logits [pos d_vocab], and all values by (site, layer, head, pos), rows as ("pattern", ...)."""
    w = {name: value.double().numpy() for name, value in model.state_dict().items()}
    one, c = Example(w, batch, i, tuple(rules), tuple(row_edits), donors, runs), model.config
    if hasattr(c, "encoder"):
        known = stack(one, c.encoder, "encoder.", batch.context)
        x = stack(one, c.decoder, "decoder.", batch, known)
    else:
        x = stack(one, c, "", batch)
    return np.array([vector @ w["unembed.W_U"] + w["unembed.b_U"] for vector in x]), one.seen


def stack(one, c, part, words, known=None):
    """The vectors of a stack's last layer; known: an encoder's, which a decoder reads."""
    w, valid = one.w, words.valid[one.i].tolist()
    x = entering(w, c, part, words, one.i)
    for layer in range(c.n_layers):
        block = f"{part}blocks.{layer}"
        x = [one.at(f"{part}resid_pre", layer, None, p, x[p]) for p in range(len(x))]
        read = [one.norm(vector, f"{block}.ln1") if c.norm == "pre" else vector for vector in x]
        rows = {p: sees(c.mask(layer), valid, p) for p in range(len(x))}
        x = attention(one, c, part, layer, block, x, read, read, rows, places(valid))
        if known is not None:
            x = crossing(one, c, layer, x, known, valid)
        if not c.attn_only:
            x = [mlp(one, c, part, layer, block, p, x[p]) for p in range(len(x))]
        x = [one.at(f"{part}resid_post", layer, None, p, x[p]) for p in range(len(x))]
        if c.norm == "post" and not c.attn_only:
            x = [one.norm(vector, f"{block}.ln2") for vector in x]
    return [one.norm(vector, f"{part}ln_final") for vector in x] if c.norm == "pre" else x


def crossing(one, c, layer, x, known, valid):
    """Cross-attention: every valid position reads every valid vector of the encoder (Vaswani et al. 2017, 3.2.3)."""
    block, there = f"cross.blocks.{layer}", one.batch.context.valid[one.i].tolist()
    read = [one.norm(vector, f"{block}.ln1") if c.norm == "pre" else vector for vector in x]
    rows = {p: {s for s in range(len(there)) if there[s] and valid[p]} for p in range(len(x))}
    return attention(one, c, "cross.", layer, block, x, read, known, rows, None)


def attention(one, c, part, layer, block, x, read, sources, rows, at):
    """The stream after attention and, post-norm, its LayerNorm. rows: dest → the sources it sees; at: the places, or
    None where destinations and sources are of two sequences."""
    w, a, group = one.w, f"{block}.attn.", c.n_heads // c.n_kv_heads

    def projected(name, heads, vectors):
        out = {}
        for h in range(heads):
            for p, vector in enumerate(vectors):
                value = vector @ w[f"{a}W_{name.upper()}"][h] + w[f"{a}b_{name.upper()}"][h]
                value = turned(value, at[p]) if c.positions == "rotary" and at and name in "qk" else value
                out[h, p] = one.at(part + name, layer, h, p, value)
        return out

    q = projected("q", c.n_heads, read)
    k, v = projected("k", c.n_kv_heads, sources), projected("v", c.n_kv_heads, sources)
    out = []
    for p in range(len(x)):
        attn_out, empty = np.zeros(c.d_model), True
        for h in range(c.n_heads):
            scores = {s: q[h, p] @ k[h // group, s] / math.sqrt(c.d_head) for s in rows[p]}
            if c.positions == "relative" and at:
                by_offset = dict(zip(range(1 - c.n_ctx, c.n_ctx), w[f"{a}W_rel"][h], strict=True))
                scores = {s: score + by_offset[at[p] - at[s]] for s, score in scores.items()}
            scores, weights = attend(one, scores, part, layer, h, p, c.n_heads)
            one.seen[f"{part}pattern", layer, h, p] = weights
            z = sum((weights[s] * v[h // group, s] for s in weights), np.zeros(c.d_head))
            z = one.at(f"{part}z", layer, h, p, z)
            attn_out = attn_out + one.at(f"{part}result", layer, h, p, z @ w[f"{a}W_O"][h])
            empty = empty and not scores
        attn_out = one.at(f"{part}attn_out", layer, None, p, attn_out + (0.0 if empty else w[f"{a}b_O"]))
        mid = one.at(f"{part}resid_mid", layer, None, p, x[p] + attn_out)
        out.append(one.norm(mid, f"{block}.ln1") if c.norm == "post" else mid)
    return out


def mlp(one, c, part, layer, block, p, x):
    w, into = one.w, one.norm(x, f"{block}.ln2") if c.norm == "pre" else x
    hidden = ACTIVATIONS[c.act_fn](into @ w[f"{block}.mlp.W_in"] + w[f"{block}.mlp.b_in"])
    return x + one.at(f"{part}mlp_out", layer, None, p, hidden @ w[f"{block}.mlp.W_out"] + w[f"{block}.mlp.b_out"])


# What enters, and what is seen ---------------------------------------------------------------------------------------


def entering(w, c, part, words, i):
    """Token vectors, or a class token and mapped patches (Dosovitskiy et al. 2021, equation 1), with their places."""
    x = [w[f"{part}embed.W_E"][token].copy() for token in words.tokens[i].tolist()]
    if c.d_patch:
        patches = words.inputs["patches"][i].double().numpy()
        x = [x[0], *(patch @ w[f"{part}embed.W_patch"] + w[f"{part}embed.b_patch"] for patch in patches)]
    at = places(words.valid[i].tolist())
    if c.positions == "learned":
        return [x[p] + w[f"{part}pos_embed.W_pos"][at[p]] for p in range(len(x))]
    if c.positions == "sinusoidal":
        return [x[p] + np.array([sinusoid(at[p], n, c.d_model) for n in range(c.d_model)]) for p in range(len(x))]
    return x


def sinusoid(place, n, width):
    """Number n of a place's vector (Vaswani et al. 2017, section 3.5)."""
    turn = place / 10000 ** (2 * (n // 2) / width)
    return math.sin(turn) if n % 2 == 0 else math.cos(turn)


def turned(x, place):
    """Pairs of numbers as complex ones, each times e^(i·place·θ) (Su et al. 2021, equations 12 and 15)."""
    pairs = [complex(x[n], x[n + 1]) for n in range(0, len(x), 2)]
    thetas = [10000 ** (-2 * n / len(x)) for n in range(len(pairs))]
    pairs = [pair * cmath.exp(1j * place * theta) for pair, theta in zip(pairs, thetas, strict=True)]
    return np.array([number for pair in pairs for number in (pair.real, pair.imag)])


def places(valid):
    """Where each position stands among the valid ones, counted from 0."""
    return [max(sum(valid[: p + 1]) - 1, 0) for p in range(len(valid))]


def sees(mask, valid, dest):
    """The sources that a row may read by its layer's mask (windows, dilation and global attention: Beltagy et al. 2020,
    section 3.1); padding reads nothing and is not read."""
    at = places(valid)
    return {s for s in range(len(valid)) if valid[s] and valid[dest] and may_read(mask, at[dest], at[s])}


def may_read(mask, dest, source):
    if mask.causal and source > dest:
        return False
    if mask.window is None and mask.block is None:
        return True
    if dest < mask.n_global or source < mask.n_global:
        return True
    steps = range(1 - mask.window, mask.window) if mask.window is not None else ()
    if dest - source in [step * mask.dilation for step in steps]:
        return True
    return mask.block is not None and dest // mask.block == source // mask.block


def sides(batch, part):
    """The batches whose positions are destinations and sources in a part of a model."""
    return {"encoder": (batch.context, batch.context), "cross": (batch, batch.context)}.get(part, (batch, batch))


def seen_by(model, batch, i, where, dest):
    """The sources that a row of a location's layer sees."""
    readers, sources = sides(batch, where.in_model)
    if where.in_model == "cross":
        return {s for s, on in enumerate(sources.valid[i].tolist()) if on and readers.valid[i, dest]}
    config = getattr(model.config, where.in_model) if where.in_model else model.config
    return sees(config.mask(where.layer), readers.valid[i].tolist(), dest)


# Rows ----------------------------------------------------------------------------------------------------------------


def attend(one, scores, part, layer, head, dest, n_heads):
    """The row's scores after the edits before the softmax, and its weights {source: weight} after those behind it."""
    mask, after = set(scores), ("zero", "freeze", "patch")
    mine = [edit for edit in one.row_edits if edit.where.in_model == part.rstrip(".") and edit.where.layer == layer]
    mine = [edit for edit in mine if edit.where.head in (None, head)]
    for edit in mine:
        if edit.what.op not in after:
            scores = on_scores(edit, scores, mask, one.batch, one.i, head, dest, n_heads)
    top = max(scores.values(), default=0.0)
    total = sum(math.exp(score - top) for score in scores.values())
    weights = {s: math.exp(scores[s] - top) / total if s in scores else 0.0 for s in mask}
    for edit in mine:
        for s in sorted(chosen(edit.where, one.batch, one.i, dest) & mask) if edit.what.op in after else ():
            weights[s] = 0.0 if edit.what.op == "zero" else donated(edit, one, part, head, dest, s)
    return scores, weights


def related(where, batch):
    """The relations, or in cross-attention the alignments, by name."""
    return batch.alignments if where.in_model == "cross" else sides(batch, where.in_model)[0].relations


def chosen(where, batch, i, dest):
    """The sources that a location names in a row; with no source named, all of them."""
    readers, sources = sides(batch, where.in_model)
    if not readers.role(where.dest)[i, dest]:
        return set()
    edges = related(where, batch)
    named = edges[where.source][i, dest] if where.source in edges else sources.role(where.source)[i]
    return {s for s, on in enumerate(named.tolist()) if on}


def nothing_to_do(model, one, batch, i):
    """Whether an intervention on edges names no edge that this example can see."""
    n = sides(batch, one.where.in_model)[0].tokens.shape[1]
    return not any(chosen(one.where, batch, i, dest) & seen_by(model, batch, i, one.where, dest) for dest in range(n))


def on_scores(edit, scores, mask, batch, i, head, dest, n_heads):
    where, what, named = edit.where, edit.what, chosen(edit.where, batch, i, dest)
    readers, sources = sides(batch, where.in_model)
    acts = bool(named) if where.source in related(where, batch) else bool(readers.role(where.dest)[i, dest])
    if not acts:
        return scores
    if what.op == "scale":
        return {s: score + math.log(what.by) if s in named else score for s, score in scores.items()}
    if what.op == "shuffle":
        shape = (len(batch), readers.tokens.shape[1], n_heads, sources.tokens.shape[1])
        drawn = torch.rand(*shape, generator=torch.Generator().manual_seed(what.seed))[i, dest, head]
        order = sorted(scores, key=lambda s: float(drawn[s]))
        return {s: scores[taken] for s, taken in zip(sorted(scores), order, strict=True)}
    out = {
        "cut": lambda: {s: score for s, score in scores.items() if s not in named},
        "keep_only": lambda: {s: score for s, score in scores.items() if s in named},
        "uniform": lambda: {s: 0.0 for s in scores if s in named},
    }[what.op]()
    if scores and not out:
        if what.empty == "raise":
            raise Emptied
        return {dest: 0.0} if what.empty == "self" else {}
    return out


def donated(edit, one, part, head, dest, source):
    site, where = f"{part}pattern", edit.where
    if edit.what.op == "freeze":
        return one.runs[None][one.i][site, where.layer, head, dest][source]
    donor, i = one.donors[edit.what.donor], one.i
    if edit.what.align == "role":
        (readers, sources), (theirs, their_sources) = sides(one.batch, where.in_model), sides(donor, where.in_model)
        dest = partner(readers.role(where.dest)[i], theirs.role(where.dest)[i], dest)
        source = partner(sources.role(where.source)[i], their_sources.role(where.source)[i], source)
    weights = one.runs[edit.what.donor][i][site, where.layer, head, dest]
    if source not in weights:
        raise Unseen
    return weights[source]


def partner(mask, donor_mask, pos):
    """The k-th position of the role in the donor, for the k-th in the example."""
    rank = [p for p, on in enumerate(mask.tolist()) if on].index(pos)
    return [p for p, on in enumerate(donor_mask.tolist()) if on][rank]


# Vectors -------------------------------------------------------------------------------------------------------------


def site_of(where):
    return f"{where.in_model}.{where.part}" if where.in_model else where.part


def counted(where, batch):
    """The batch whose positions a location of vectors counts: the context's in the encoder and for its keys, values."""
    return sides(batch, where.in_model)[1 if where.part in ("k", "v") else 0]


def rule(model, one, batch, donors, runs, i):
    """What an intervention on vectors makes of a value at (site, layer, head, pos) of example i."""
    where, what = one.where, one.what
    if what.op == "path":
        return path_rule(model, one, batch, donors, runs, i)

    def role(words):
        return counted(where, words).role(where.pos)

    def change(site, layer, head, pos, value):
        named = getattr(where, "head", None)
        if (site, layer) != (site_of(where), where.layer) or named not in (None, head) or not role(batch)[i, pos]:
            return value
        if what.op in ("zero", "scale"):
            return value * (what.by if what.op == "scale" else 0.0)
        if what.op == "freeze":
            return runs[None][i][site, layer, head, pos]
        donor = donors[what.donor]
        if what.op == "mean":
            pairs = role(donors["whole", what.donor]).nonzero().tolist()
            return sum(runs["whole", what.donor][j][site, layer, head, p] for j, p in pairs) / len(pairs)
        j = int(derangement(len(batch), what.seed)[i]) if what.op == "resample" else i
        if what.op == "resample" or what.align == "role":
            pos = partner(role(batch)[i], role(donor)[j], pos)
        given = runs[what.donor][j][site, layer, head, pos]
        return value + given if what.op == "add" else given

    return change


def path_rule(model, one, batch, donors, runs, i):
    """The receiver reads what it would read with the sender changed and, in between, every other z and MLP held."""
    sender, receiver, clean = one.where, one.what.receiver, runs[None][i]
    direct = rule(model, one.model_copy(update={"what": one.what.change}), batch, donors, runs, i)

    def hold(site, layer, head, pos, value):
        between = site == "z" and sender.layer < layer < receiver.layer
        between = between or (site == "mlp_out" and sender.layer <= layer < receiver.layer)
        return clean[site, layer, head, pos] if between else value

    changed = forward(model, batch, i, [direct, hold])[1]

    def change(site, layer, head, pos, value):
        here = (site, layer) == (receiver.part, receiver.layer) and receiver.head in (None, head)
        return changed[site, layer, head, pos] if here and batch.role(receiver.pos)[i, pos] else value

    return change
