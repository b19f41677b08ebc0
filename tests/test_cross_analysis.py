"""Cross-attention on `translate`: the words asked for, what alignment means, the verdicts, and the committed report."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import cross, cross_claims
from analyses.cross_claims import Seen
from analyses.cross_weights import agreement
from analyses.cross_words import Asked
from tasks.sentences import ADJECTIVES, NOUNS, VERBS
from tasks.translate import Translate
from workbench.interventions import Intervention
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "cross"
STEMS = {**NOUNS, **{f"{noun}s": stem for noun, stem in NOUNS.items()}, **ADJECTIVES, **VERBS}
GENDERS = {word: "oa"[index % 2] for index, noun in enumerate(NOUNS) for word in (noun, f"{noun}s")}
CASES = [(word, order) for word in cross.WORDS for order in cross.ORDERS]


def only(mask):
    (place,) = mask.nonzero().flatten().tolist()
    return place


def told(batch, row):
    """The words that the roles of one example name, and the word that is asked for."""
    source = batch.context
    named = {
        name: source.words(row)[only(source.roles[name][row])] for name in ("translated", "rival", "agreed", "other")
    }
    asked = only(batch.labels[row] != -100)
    assert asked == only(batch.roles["asked"][row])
    return named, batch.word(int(batch.labels[row, asked]))


# The words asked for


@pytest.mark.parametrize(("word", "order"), CASES)
def test_the_word_asked_for_translates_the_source_word_named_so(word, order):
    batch = Asked(word=word, order=order).sample(60, seed=0)
    for row in range(60):
        named, said = told(batch, row)
        assert said.startswith(STEMS[named["translated"]])


@pytest.mark.parametrize("order", cross.ORDERS)
def test_adjectives_end_and_verbs_count_as_the_noun_named_agreed(order):
    batches = {word: Asked(word=word, order=order).sample(60, seed=1) for word in ("adjective", "verb")}
    for row in range(60):
        named, said = told(batches["adjective"], row)
        assert said[-1] == GENDERS[named["agreed"]]
        named, said = told(batches["verb"], row)
        assert said.endswith("ent") == named["agreed"].endswith("s")


@pytest.mark.parametrize(("word", "order"), CASES)
def test_a_control_is_another_word_of_the_class_and_the_verbs_is_the_object(word, order):
    batch = Asked(word=word, order=order).sample(60, seed=2)
    for row in range(60):
        named, _ = told(batch, row)
        assert named["rival"] != named["translated"] or word == "adjective"  # both nouns may have one adjective
        assert (named["rival"] in ADJECTIVES) == (word == "adjective")
        assert named["agreed"] != named["other"] and {named["agreed"], named["other"]} <= set(GENDERS)
    roles = batch.context.roles
    assert not (roles["translated"] & roles["rival"]).any()
    assert torch.equal(roles["but_agreed"] ^ roles["agreed"], batch.context.valid)
    assert word != "verb" or torch.equal(roles["rival"], roles["object"])


@pytest.mark.parametrize("word", ["noun", "adjective"])
def test_either_phrase_is_asked_for_about_equally_often(word):
    roles = Asked(word=word).sample(2000, seed=3).context.roles
    share = (roles["agreed"] & roles["object"]).any(1).double().mean()
    assert abs(float(share) - 0.5) < 4 * 0.5 / 2000**0.5


def test_the_verb_after_nouns_reads_both_nouns_from_earlier_positions():
    batch = Asked(word="verb").sample(60, seed=4)
    for row in range(60):
        named, _ = told(batch, row)
        asked = only(batch.roles["asked"][row])
        for name, noun in (("spoken", "agreed"), ("unspoken", "other")):
            place = only(batch.roles[name][row])
            assert place < asked and batch.words(row)[place].startswith(STEMS[named[noun]])
            later = batch.roles[f"after_{name}"][row].nonzero().flatten().tolist()
            assert later == list(range(place + 1, asked + 1))


@pytest.mark.parametrize("word", cross.WORDS)
def test_before_nouns_no_noun_agreed_with_is_spoken(word):
    assert word == "noun" or not Asked(word=word, order="nouns last").sample(60, seed=5).roles["spoken"].any()


def test_there_is_no_counterfactual():
    task = Asked(word="verb")
    with pytest.raises(NotImplementedError, match="take those of `translate`"):
        task.corrupt(task.sample(2, seed=0), seed=0)


# What alignment means


def on(batch, name):
    """A pattern with all weight on an alignment, and on source 0 in rows without one."""
    pattern = batch.alignments[name].double()
    pattern[..., 0] += pattern.sum(-1) == 0
    return pattern


def test_all_weight_on_the_words_translated_has_no_error():
    batch = Translate().sample(50, seed=0)
    found = agreement(on(batch, "aligned"), batch)
    assert (found["translated"], found["agreed"], found["error"]) == (1.0, 0.0, 0.0)


def test_weight_on_the_nouns_agreed_with_is_possible_but_not_sure():
    batch = Translate(adjectives="always").sample(50, seed=0)
    found = agreement(on(batch, "agrees"), batch)
    # Of five words two adjectives and the verb agree; the nouns' rows point to an article. 1 − (0 + 3) / (5 + 5).
    assert found["translated"] == 0 and found["agreed"] == 1
    assert found["error"] == pytest.approx(0.7)


def test_padding_is_never_the_largest_and_an_even_guess_counts_real_words():
    batch = Translate(adjectives="never").sample(50, seed=0)
    assert agreement(torch.zeros(50, 4, 5), batch)["even"] == pytest.approx(1 / 5)
    some = Translate().sample(200, seed=0)
    assert agreement(torch.zeros(200, 6, 7), some)["translated"] == 0, "of equal weights the first, an article"


# The study and its verdicts


@pytest.mark.parametrize(("word", "order"), CASES)
def test_every_cut_has_a_control(word, order):
    study = cross.study(word, order, 10)
    pairs = {"translated": "rival", "agreed": "other"}
    for label, edits in study.conditions.items():
        where, _, name = label.partition(": ")
        assert all(isinstance(one, Intervention) for one in edits)
        if name in pairs:
            assert len(study.conditions[f"{where}: {pairs[name]}"]) == len(edits)
    assert ("target: agreed" in study.conditions) == (word == "verb" and order == "nouns first")


def made(lost, seeds=3, n=2000):
    """A results frame, weights and alignments with accuracy 1 − lost(order, word, condition)."""
    cells, weights, aligned = [], [], []
    for order in cross.ORDERS:
        for seed in range(seeds):
            for word in cross.WORDS:
                for label in cross.study(word, order, 1).conditions:
                    share = lost(order, word, label)
                    right = np.arange(n) >= round(share * n) + (seed if share else 0)  # trained models differ
                    cells.append(pd.DataFrame({
                        "model": order, "model_seed": seed, "condition": f"{word} · {label}", "example": np.arange(n),
                        "skipped": None, "accuracy": right.astype(float),
                    }))  # fmt: skip
                weights += [
                    {"order": order, "model_seed": seed, "word": word, "layer": layer, "head": head, "source": source,
                     "weight": 0.9 + seed / 1000 if (layer, head) == (1, 0) else 0.02, "best": (layer, head) == (1, 0)}
                    for layer in range(2) for head in range(2) for source in ("translated", "rival", "agreed")
                ]  # fmt: skip
            for layer, head in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"), ("mean of all", "mean of all")]:
                good = 0.9 + seed / 1000 if (layer, head) == ("1", "0") else 0.2
                aligned.append({"order": order, "model_seed": seed, "layer": layer, "head": head, "translated": good,
                                "agreed": 0.1, "error": 1 - good, "even": 0.16})  # fmt: skip
    frame = pd.concat(cells, ignore_index=True).astype(dict.fromkeys(("model", "condition", "skipped"), "category"))
    return Seen(frame, pd.DataFrame(weights), pd.DataFrame(aligned))


def ideal(order, word, label):
    """What the claims expect: the word translated is read in one head; agreement, before nouns, from everywhere."""
    where, _, name = label.partition(": ")
    if name == "translated":
        return 0.9 if where in ("cross", "L1H0") else 0.0
    if name == "agreed":
        hidden = order == "nouns last" or (word == "verb" and where == "all")
        return 0.5 if hidden else 0.0
    return 0.0


def outcomes(seen):
    return cross_claims.verdicts(seen).set_index("id")["verdict"]


def test_every_claim_is_supported_where_everything_is_as_it_says():
    assert set(outcomes(made(ideal))) == {"supported"}


@pytest.mark.parametrize(
    ("changed", "id"),
    [
        (("nouns last", "noun", "cross: translated"), "mattered-noun-last"),
        (("nouns first", "verb", "cross: translated"), "mattered-verb-first"),
        (("nouns last", "verb", "cross: agreed"), "agreement-verb-last"),
        (("nouns last", "adjective", "encoder: agreed"), "encoder-adjective-last"),
        (("nouns last", "adjective", "all: agreed"), "all-adjective-last"),
    ],
)
def test_a_cut_that_loses_nothing_supports_no_claim_about_it(changed, id):
    found = outcomes(made(lambda *place: 0.0 if place == changed else ideal(*place)))
    assert found[id] == "not supported" and set(found.drop(id)) == {"supported"}


def test_a_cut_that_loses_as_much_as_its_control_supports_no_claim_about_it():
    same = made(lambda order, word, label: 0.9 if label == "cross: rival" else ideal(order, word, label))
    assert set(outcomes(same).filter(like="mattered")) == {"not supported"}


def test_corners_count_heads_whose_weight_and_effect_part():
    table = cross_claims.corners(
        pd.DataFrame({"order": "nouns last", "word": "noun", "head": range(4), "weight": [0.9, 0.9, 0.05, 0.05],
                      "effect": [0.0, 0.5, 0.5, 0.0]})
    )  # fmt: skip
    assert table.iloc[0, 2:].tolist() == [4, 2, 1, 2, 1]


def test_routes_are_the_losses_that_the_other_noun_does_not_cost():
    table = cross_claims.routes(made(ideal)).set_index(["order", "word", "model_seed"])
    verb = table.loc[("nouns first", "verb", 0)]
    assert verb[["cut in cross", "in the target", "everywhere"]].tolist() == [0.0, 0.0, 0.5]
    assert np.isnan(table.loc[("nouns last", "verb", 0), "in the target"])
    assert table.loc[("nouns last", "adjective", 0), "in the encoder"] == 0.5


# The quick run, and the committed report


@pytest.mark.slow
def test_a_quick_run_writes_its_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    folder = cross.main(out=tmp_path, quick=True, progress=False)
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "A quick run" in page and "workbench reproduce cross --quick --seeds 2" in page
    assert_rebuilt(folder)


def assert_rebuilt(folder):
    frame, *others = (pd.read_parquet(folder / f"{name}.parquet") for name in ("results", "weights", "alignments"))
    # Parquet does not keep categories where all is missing.
    seen = Seen(frame.astype({"skipped": "category"}), *others)
    for name, table in {"verdicts": cross_claims.verdicts(seen), **cross_claims.tables(seen)}.items():
        assert to_csv(table) == (folder / f"{name}.csv").read_text(encoding="utf-8"), name


def test_the_committed_tables_are_rebuilt_from_the_committed_results():
    assert_rebuilt(COMMITTED)


def test_the_committed_report_has_5_models_of_each_order_and_2000_sentences():
    table = pd.read_csv(COMMITTED / "cuts.csv")
    assert (table["n_models"] >= 5).all() and (table["n_examples"] >= 2000).all()
    assert (COMMITTED / "results.parquet").stat().st_size < 2e6


def test_every_committed_model_translates():
    table = pd.read_csv(COMMITTED / "cuts.csv")
    clean = table[table["condition"].str.endswith("clean")]
    assert len(clean) == 6 and (clean["seed_low"] > 0.99).all()


def test_the_committed_grid_is_seven_by_five():
    for order in ("first", "last"):
        drawn = (COMMITTED / f"grid-nouns-{order}.svg").read_text(encoding="utf-8")
        assert drawn.count("▸") == 4 * 5, "five queries in each of four heads"
        assert drawn.count(">saw<") == 4 and drawn.count(">the<") == 2 * 4
