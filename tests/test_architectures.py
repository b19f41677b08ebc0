"""The battery over architectures: each check holds of a right model, and finds a wrong one."""

import pandas as pd
import pytest
import torch

from analyses import architectures
from analyses.architectures_battery import CHECKS, TOLERANCE, battery
from workbench import rows
from workbench.models.attention import Attention
from workbench.models.built import build

KINDS = architectures.kinds(quick=False)
FEW = ("decoder, pre-norm", "decoder, 4 heads in 2 groups", "decoder, attention only", "encoder of patches",
       "encoder–decoder")  # fmt: skip


def examined(label, n=12):
    return build(KINDS[label].config, seed=0), KINDS[label].task.sample(n, seed=1)


def test_there_are_all_the_kinds_that_were_asked_for():
    configs = [kind.config for kind in KINDS.values()]
    single = [one for one in configs if hasattr(one, "masks")]
    assert {one.norm for one in single} == {"post", "pre", "none"}
    assert {one.positions for one in single} == {"learned", "sinusoidal", "relative", "rotary", "none"}
    masks = [mask for one in single for mask in one.masks]
    assert any(not mask.causal for mask in masks) and any(mask.window for mask in masks)
    assert any(mask.dilation > 1 for mask in masks) and any(mask.block for mask in masks)
    assert any(mask.n_global for mask in masks) and any(len(one.masks) > 1 for one in single)
    assert any(one.n_kv_heads < one.n_heads for one in single) and any(one.attn_only for one in single)
    assert any(one.d_patch for one in single) and any(hasattr(one, "encoder") for one in configs)
    assert any(kind.recipe.dropout and kind.recipe.label_smoothing for kind in KINDS.values())


@pytest.mark.parametrize("label", FEW)
def test_every_check_holds_of_a_right_model(label):
    found = battery(*examined(label))
    assert list(found) == list(CHECKS)
    assert max(found.values()) <= TOLERANCE


def test_a_softmax_that_forgets_the_mask_is_found(monkeypatch):
    def forgetting(scores):
        return torch.softmax(scores.masked_fill(scores == rows.HIDDEN, 0), -1), None

    monkeypatch.setattr(rows, "softmax_and_empty", forgetting)
    assert battery(*examined("decoder, pre-norm"))["scores recorded"] > TOLERANCE


def test_a_cut_that_does_not_renormalise_is_found(monkeypatch):
    monkeypatch.setattr(rows, "cut", lambda scores, selected: torch.where(selected, scores - 3, scores))
    assert battery(*examined("encoder–decoder"))["cut"] > TOLERANCE


def test_a_uniform_over_one_source_too_many_is_found(monkeypatch):
    def uniform(scores, selected, of):
        level = torch.zeros_like(scores).masked_fill(~(selected & rows.visible(scores)), -1.0)
        return torch.where(of[..., None], level, scores)

    monkeypatch.setattr(rows, "uniform", uniform)
    assert battery(*examined("encoder–decoder"))["uniform"] > TOLERANCE


def test_an_attention_that_hears_no_edit_is_found(monkeypatch):
    class Deaf(Attention):
        def mixed(self, pattern, v):
            return super().mixed(pattern * 0 + 1 / pattern.shape[-1], v)

    model, batch = examined("decoder, pre-norm")
    for block in model.blocks:
        block.attn.__class__ = Deaf
    found = battery(model, batch)
    assert found["cut"] == float("inf") and found["uniform"] == float("inf")


def test_the_table_counts_models_and_a_failing_one_flips_its_verdict():
    table = pd.DataFrame({"kind": ["a", "b"], "task": "lookup", "models": 5, "at ceiling": pd.array([4, 3], "Int64"),
                          **dict.fromkeys(CHECKS, 5)})  # fmt: skip
    told = architectures.verdicts(table, list(CHECKS)).set_index("id")["verdict"]
    assert told.to_dict() == {"trains: a": "supported", "trains: b": "not supported", "interventions": "supported"}
    table.loc[1, "cut"] = 4
    assert architectures.verdicts(table, list(CHECKS)).set_index("id")["verdict"]["interventions"] == "not supported"


@pytest.mark.slow
def test_a_quick_run_writes_the_table_that_its_rows_give(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "runs"))
    folder = architectures.main(out=tmp_path, quick=True, progress=False)
    table, models = pd.read_csv(folder / "table.csv"), pd.read_csv(folder / "models.csv")
    assert list(table["kind"]) == list(architectures.QUICK)
    frame = pd.read_parquet(folder / "results.parquet")
    means = frame.groupby("model", observed=True)["accuracy"].mean()
    assert means[list(table["kind"])].tolist() == pytest.approx(table["estimate"].tolist(), abs=1e-5)
    for name in CHECKS:
        assert (models.groupby("kind", sort=False)[name].apply(lambda one: (one <= TOLERANCE).sum())).tolist() == table[
            name
        ].tolist()
