"""Small runs with hostile labels, and what a parser finds on the pages made of them."""

from html.parser import HTMLParser

import pandas as pd

from tasks.lookup import Lookup
from workbench.checkpoints import key, save
from workbench.declared import Training, config_of, definitions_of
from workbench.interventions import Edges, cut
from workbench.models.transformer import Transformer
from workbench.outcome import write_outcome
from workbench.page import write_page
from workbench.study import Study
from workbench.work import NOTES

MODEL = 'two <b> "layers" & more'
EVIL = "<script>alert(1)</script>"
MARKUP = "</svg></style>'\"|`"
CUT = cut(Edges(layer=1, dest="last", source="answer"))
TRAINING = {"kind": "training", "config": {"n_layers": 2, "n_heads": 1, "d_model": 8, "norm": "post"}, "seeds": 2}
ACCURACY = {"clean": (1, 1, 1, 0), EVIL: (0, 0, 1, 0), MARKUP: (0, 0, 0, 0), "0.10": (1, 1, 1, 1)}
"""Four examples each, the same in both model seeds."""


def study(**changed) -> Study:
    conditions = {"clean": [], **{label: [CUT] for label in (EVIL, MARKUP, "0.10")}}
    values = {"conditions": conditions, "task": {"name": "lookup"}, "models": {MODEL: TRAINING}, "n": 4}
    weights = {"match": Edges(layer=1, dest="last", source="answer")}
    return Study.model_validate({**values, "weights": weights, "data_seed": 0, **changed})


def results(accuracy=ACCURACY, model=MODEL, skipped=()) -> pd.DataFrame:
    rows = [
        {
            "model": model, "model_seed": seed, "condition": condition, "example": example,
            "skipped": "no 'answer'" if example in skipped else None,
            "accuracy": float("nan") if example in skipped else float(value),
            "match": 0.25 if condition == "clean" and example not in skipped else float("nan"),
        }
        for seed in (0, 1)
        for condition, values in accuracy.items()
        for example, value in enumerate(values)
    ]  # fmt: skip
    categories = {"condition": pd.CategoricalDtype(list(accuracy)), "model": "category"}
    dtype = pd.CategoricalDtype(pd.Index(sorted({"no 'answer'"} if skipped else set()), dtype="str"))
    return pd.DataFrame(rows).astype(categories | {"skipped": dtype})


def a_run(folder, *, declared=None, frame=None, notes=()):
    frame = results() if frame is None else frame
    return write_outcome(declared or study(), frame, pd.DataFrame(list(notes), columns=NOTES), folder)


def checkpoint(home, seed=1):
    """An untrained model where the trained one is looked for."""
    declared = Training.model_validate({**TRAINING, "seeds": [0, 1]})
    definition, model = definitions_of(declared, Lookup())[seed], Transformer(config_of(declared, Lookup()), seed=seed)
    save(home / "checkpoints" / key(definition), model, definition, [])
    return model.eval()


class Page(HTMLParser):
    """What a browser would find: tags with their attributes, all text, the text of some tags, and tables by caption."""

    def __init__(self, markup: str):
        super().__init__()
        self.markup, self.text, self.inside = markup, "", []
        self.tags: list[tuple[str, dict]] = []
        self.raw: dict[str, list[str]] = {}
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.feed(markup)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link"):
            self.inside.append(tag)
        self.raw.setdefault(tag, []).append("")
        if tag == "table":
            self.tables.append(("", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_endtag(self, tag):
        assert self.inside.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data
        for tag in {*self.inside[-1:], "pre", "caption"} & set(self.inside):
            self.raw[tag][-1] += data
        if "caption" in self.inside:
            self.tables[-1] = (self.tables[-1][0] + data, self.tables[-1][1])
        elif {"td", "th"} & set(self.inside):
            self.tables[-1][1][-1][-1] += data

    def table(self, start: str) -> list[list[str]]:
        """The rows of the table whose caption starts so, the first its headings."""
        (rows,) = [rows for caption, rows in self.tables if caption.startswith(start)]
        return rows

    def column(self, start: str, name: str) -> list[str]:
        """The cells of a column, without its heading."""
        head, *rows = self.table(start)
        return [row[head.index(name)] for row in rows]

    def having(self, name: str, value: str | None = None) -> list[dict]:
        """The attributes of every tag that has one of this name (and value)."""
        return [said for _, said in self.tags if name in said and value in (None, said[name])]


def page_of(run, **options) -> Page:
    return Page((write_page(run, **options) / "index.html").read_text(encoding="utf-8"))
