"""A slow, obvious reference: the decoder with interventions, one example, one head, one position at a time, in float64.

Written from DESIGN.md's words ("What the operations mean"), with nothing from workbench but the values it is handed and
two random draws (the numbers by which `shuffle` orders, the derangement of `resample`). A row is a dict, source → score
without the sources that cannot be seen.
"""

import math

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


def forward(model, batch, i, rules=(), row_edits=(), donors=None, runs=None):
    """One example: its logits [pos d_vocab], and all values by (part, layer, head, pos), rows as ("pattern", ...)."""
    w, c, seen = {name: value.double().numpy() for name, value in model.state_dict().items()}, model.config, {}
    tokens, valid, positions = batch.tokens[i].tolist(), batch.valid[i].tolist(), range(batch.tokens.shape[1])

    def at(part, layer, head, pos, value):
        for change in rules:
            value = change(part, layer, head, pos, value)
        seen[part, layer, head, pos] = value
        return value

    def norm(x, name):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"{name}.w"] + w[f"{name}.b"]

    x = [w["embed.W_E"][token].copy() for token in tokens]
    if c.positions == "learned":
        x = [x[p] + w["pos_embed.W_pos"][max(sum(valid[: p + 1]) - 1, 0)] for p in positions]
    for layer in range(c.n_layers):
        block, a = f"blocks.{layer}", f"blocks.{layer}.attn."
        x = [at("resid_pre", layer, None, p, x[p]) for p in positions]
        read = [norm(x[p], f"{block}.ln1") if c.norm == "pre" else x[p] for p in positions]
        q, k, v = (
            {(h, p): at(part, layer, h, p, read[p] @ w[f"{a}W_{part.upper()}"][h] + w[f"{a}b_{part.upper()}"][h])
             for h in range(c.n_heads) for p in positions}
            for part in "qkv"
        )  # fmt: skip
        for p in positions:
            attn_out, empty = np.zeros(c.d_model), True
            for h in range(c.n_heads):
                scores = {s: q[h, p] @ k[h, s] / math.sqrt(c.d_head) for s in range(p + 1) if valid[s] and valid[p]}
                scores, weights = attend(scores, row_edits, batch, i, layer, h, p, c.n_heads, donors, runs)
                seen["pattern", layer, h, p] = weights
                z = at("z", layer, h, p, sum((weights[s] * v[h, s] for s in weights), np.zeros(c.d_head)))
                attn_out = attn_out + at("result", layer, h, p, z @ w[f"{a}W_O"][h])
                empty = empty and not scores
            attn_out = at("attn_out", layer, None, p, attn_out + (0.0 if empty else w[f"{a}b_O"]))
            mid = at("resid_mid", layer, None, p, x[p] + attn_out)
            mid = norm(mid, f"{block}.ln1") if c.norm == "post" else mid
            if not c.attn_only:
                into = norm(mid, f"{block}.ln2") if c.norm == "pre" else mid
                hidden = ACTIVATIONS[c.act_fn](into @ w[f"{block}.mlp.W_in"] + w[f"{block}.mlp.b_in"])
                mlp_out = hidden @ w[f"{block}.mlp.W_out"] + w[f"{block}.mlp.b_out"]
                mid = mid + at("mlp_out", layer, None, p, mlp_out)
            x[p] = at("resid_post", layer, None, p, mid)
            if c.norm == "post" and not c.attn_only:
                x[p] = norm(x[p], f"{block}.ln2")
    if c.norm == "pre":
        x = [norm(x[p], "ln_final") for p in positions]
    return np.array([x[p] @ w["unembed.W_U"] + w["unembed.b_U"] for p in positions]), seen


# Rows ----------------------------------------------------------------------------------------------------------------


def attend(scores, row_edits, batch, i, layer, head, dest, n_heads, donors, runs):
    """The row's scores after the edits before the softmax, and its weights {source: weight} after those behind it."""
    mask = set(scores)
    mine = [one for one in row_edits if one.where.layer == layer and one.where.head in (None, head)]
    after = ("zero", "freeze", "patch")
    for one in mine:
        if one.what.op not in after:
            scores = on_scores(one, scores, mask, batch, i, head, dest, n_heads)
    top = max(scores.values(), default=0.0)
    total = sum(math.exp(score - top) for score in scores.values())
    weights = {s: math.exp(scores[s] - top) / total if s in scores else 0.0 for s in mask}
    for one in mine:
        for s in sorted(chosen(one.where, batch, i, dest) & mask) if one.what.op in after else ():
            weights[s] = 0.0 if one.what.op == "zero" else donated(one, batch, i, head, dest, s, donors, runs)
    return scores, weights


def chosen(where, batch, i, dest):
    """The sources that a location names in a row; with no source named, all of them."""
    if not batch.role(where.dest)[i, dest]:
        return set()
    if where.source in batch.relations:
        return {s for s, on in enumerate(batch.relations[where.source][i, dest].tolist()) if on}
    return {s for s, on in enumerate(batch.role(where.source)[i].tolist()) if on}


def nothing_to_do(one, batch, i):
    """Whether an intervention on edges names no edge that this example can see."""
    valid = batch.valid[i].tolist()
    return not any(
        valid[s] and s <= dest for dest in range(len(valid)) if valid[dest] for s in chosen(one.where, batch, i, dest)
    )


def on_scores(one, scores, mask, batch, i, head, dest, n_heads):
    where, what, named = one.where, one.what, chosen(one.where, batch, i, dest)
    acts = bool(named) if where.source in batch.relations else bool(batch.role(where.dest)[i, dest])
    if not acts:
        return scores
    if what.op == "scale":
        return {s: score + math.log(what.by) if s in named else score for s, score in scores.items()}
    if what.op == "shuffle":
        n = batch.tokens.shape[1]
        drawn = torch.rand(len(batch), n, n_heads, n, generator=torch.Generator().manual_seed(what.seed))[i, dest, head]
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


def donated(one, batch, i, head, dest, source, donors, runs):
    if one.what.op == "freeze":
        return runs[None][i]["pattern", one.where.layer, head, dest][source]
    donor = donors[one.what.donor]
    if one.what.align == "role":
        dest = partner(batch.role(one.where.dest)[i], donor.role(one.where.dest)[i], dest)
        source = partner(batch.role(one.where.source)[i], donor.role(one.where.source)[i], source)
    weights = runs[one.what.donor][i]["pattern", one.where.layer, head, dest]
    if source not in weights:
        raise Unseen
    return weights[source]


def partner(mask, donor_mask, pos):
    """The k-th position of the role in the donor, for the k-th in the example."""
    rank = [p for p, on in enumerate(mask.tolist()) if on].index(pos)
    return [p for p, on in enumerate(donor_mask.tolist()) if on][rank]


# Vectors -------------------------------------------------------------------------------------------------------------


def rule(model, one, batch, donors, runs, i):
    """What an intervention on vectors makes of a value at (part, layer, head, pos) of example i."""
    where, what = one.where, one.what
    if what.op == "path":
        return path_rule(model, one, batch, donors, runs, i)

    def change(part, layer, head, pos, value):
        named = getattr(where, "head", None)
        if (part, layer) != (where.part, where.layer) or named not in (None, head) or not batch.role(where.pos)[i, pos]:
            return value
        if what.op in ("zero", "scale"):
            return value * (what.by if what.op == "scale" else 0.0)
        if what.op == "freeze":
            return runs[None][i][part, layer, head, pos]
        donor = donors[what.donor]
        if what.op == "mean":
            pairs = donors["whole", what.donor].role(where.pos).nonzero().tolist()
            return sum(runs["whole", what.donor][j][part, layer, head, p] for j, p in pairs) / len(pairs)
        j = int(derangement(len(batch), what.seed)[i]) if what.op == "resample" else i
        if what.op == "resample" or what.align == "role":
            pos = partner(batch.role(where.pos)[i], donor.role(where.pos)[j], pos)
        given = runs[what.donor][j][part, layer, head, pos]
        return value + given if what.op == "add" else given

    return change


def path_rule(model, one, batch, donors, runs, i):
    """The receiver reads what it would read with the sender changed and, in between, every other z and MLP held."""
    sender, receiver, clean = one.where, one.what.receiver, runs[None][i]
    direct = rule(model, one.model_copy(update={"what": one.what.change}), batch, donors, runs, i)

    def hold(part, layer, head, pos, value):
        between = part == "z" and sender.layer < layer < receiver.layer
        between = between or (part == "mlp_out" and sender.layer <= layer < receiver.layer)
        return clean[part, layer, head, pos] if between else value

    changed = forward(model, batch, i, [direct, hold])[1]

    def change(part, layer, head, pos, value):
        here = (part, layer) == (receiver.part, receiver.layer) and receiver.head in (None, head)
        return changed[part, layer, head, pos] if here and batch.role(receiver.pos)[i, pos] else value

    return change
