"""Studies of examples that are there already, on models that others trained."""

import pytest
import torch
from foreign import made

from workbench import Batch, Donor, Edges, Heads, Study, cut, patch, run, run_study, summary, wrap
from workbench.examples import Examples
from workbench.metrics import loss

N, LENGTH = 7, 6
TOKENS = torch.randint(4, 31, (N, LENGTH), generator=torch.Generator().manual_seed(3))
AT = torch.arange(LENGTH).expand(N, LENGTH)
ROLES = {"last": AT == LENGTH - 1, "first": AT == 0}
LABELS = torch.where(AT == LENGTH - 1, TOKENS.roll(1, 1), -100)
BATCH = Batch(TOKENS, LABELS, roles=ROLES)
OTHER = Batch(TOKENS.flip(0), LABELS, roles=ROLES)
CUT = cut(Edges(layer=1, head=0, dest="last", source="first"))


def study(**changes):
    return Study(**{"conditions": {"clean": [], "cut": [CUT]}, "n": N, "data_seed": 0, "metrics": ("loss",), **changes})


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_study_of_wrapped_models_has_the_values_of_run(family):
    models = [wrap(made(family, seed=seed)) for seed in (0, 1)]
    frame, _ = run_study(study(), Examples("texts", BATCH), {family: models}, progress=False)
    assert list(frame.model_seed.unique()) == [0, 1]
    for seed, model in enumerate(models):
        out = run(model, BATCH, [CUT], positions="read")
        rows = frame[(frame.model_seed == seed) & (frame.condition == "cut")]
        assert torch.equal(torch.tensor(rows.loss.to_numpy()), loss(out.logits, out.batch).float())
    assert summary(frame).run.eq(2 * N).all()


def test_the_same_model_twice_is_not_two_models():
    model = wrap(made("gpt2"))
    with pytest.raises(ValueError, match="same weights"):
        run_study(study(), Examples("texts", BATCH), {"gpt2": [model, model]}, progress=False)


def test_counterfactuals_are_donors():
    edit = patch(Heads(layer=0, pos="last", part="z"), donor="other", align="role")
    asked = study(conditions={"clean": [], "patched": [edit]}, donors={"other": Donor(corrupt_seed=0)})
    model = wrap(made("gpt2"))
    frame, _ = run_study(asked, Examples("texts", BATCH, OTHER), {"gpt2": [model]}, progress=False)
    out = run(model, BATCH, [edit], donors={"other": OTHER}, positions="read")
    assert torch.equal(torch.tensor(frame[frame.condition == "patched"].loss.to_numpy()), loss(out.logits, out.batch))


def test_without_counterfactuals_or_with_some_of_the_examples_a_corrupted_donor_is_refused():
    with pytest.raises(ValueError, match="no counterfactuals"):
        Examples("texts", BATCH).corrupt(BATCH, 0)
    with pytest.raises(ValueError, match="all 7 examples"):
        Examples("texts", BATCH, OTHER).corrupt(BATCH.select(slice(0, 3)), 0)


def test_a_draw_has_no_example_twice_and_follows_its_seed():
    marked = Examples("marked", Batch(torch.arange(N)[:, None], torch.zeros(N, 1, dtype=torch.long)))
    drawn = [marked.sample(4, seed).tokens.flatten().tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 4
    assert marked.sample(N, 5).tokens.flatten().tolist() == list(range(N))
    with pytest.raises(ValueError, match="8 examples asked for"):
        marked.sample(N + 1, 0)
