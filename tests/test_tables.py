"""Tables as text."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.page_tables import Table, number, text
from workbench.tables import p_value, percent, table_files, to_csv, to_html, to_latex, to_markdown

FORMATS = [to_markdown, to_csv, to_latex, to_html]
TABLE = pd.DataFrame({"label": pd.Categorical(["0.10", "cut L1H0 last←answer"]), "share": [2 / 3, np.nan], "n": [3, 4]})


def test_markdown_is_a_github_table_with_numbers_to_the_right():
    assert to_markdown(TABLE).splitlines() == [
        "| label | share | n |",
        "| --- | ---: | ---: |",
        "| 0.10 | 0.666667 | 3 |",
        "| cut L1H0 last←answer |  | 4 |",
    ]


def test_csv_ends_every_line_in_a_line_feed():
    assert to_csv(TABLE) == "label,share,n\n0.10,0.666667,3\ncut L1H0 last←answer,,4\n"


def test_latex_is_a_booktabs_tabular():
    assert to_latex(TABLE).splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"label & share & n \\",
        r"\midrule",
        r"0.10 & 0.666667 & 3 \\",
        r"cut L1H0 last$\leftarrow$answer &  & 4 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_a_label_that_looks_like_a_number_stays_as_it_is(form):
    text = form(pd.DataFrame({"margin": ["0.10", "1e3", "007"]}))
    assert all(label in text for label in ("0.10", "1e3", "007"))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (1.0, "1"),
        (-0.0, "0"),
        (1e-7, "1e-07"),
        (123456789.0, "1.23457e+08"),
        (np.float32(0.1), "0.1"),
    ],
)
def test_floats_have_six_significant_digits(form, value, text):
    assert form(pd.DataFrame({"x": [value]})) == form(pd.DataFrame({"x": [text]})).replace(
        "| --- |", "| ---: |"
    ).replace("{l}", "{r}").replace("<th>", '<th class="number">').replace("<td>", '<td class="number">')


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_missing_values_are_empty_cells(form, missing):
    text = form(pd.DataFrame({"a": ["x"], "b": [missing], "c": ["y"]}))
    assert not any(word in text for word in ("None", "nan", "NaN", "NA"))


def test_whole_numbers_stay_whole_beside_missing_ones():
    assert to_csv(pd.DataFrame({"n": pd.array([4000, None], dtype="Int64")})) == 'n\n4000\n""\n'


def test_markdown_escapes_what_would_be_markup():
    text = to_markdown(pd.DataFrame({"n_models": ["a|b", "back\\slash", "*bold* `code`", "two\nlines", "100%"]}))
    assert text.splitlines()[0] == r"| n\_models |"
    assert text.splitlines()[2:] == [
        r"| a\|b |",
        r"| back\\slash |",
        r"| \*bold\* \`code\` |",
        "| two<br>lines |",
        "| 100% |",
    ]


def test_latex_escapes_what_would_be_a_command():
    text = to_latex(pd.DataFrame({"n_models": ["50% & \\more", "a|b~c^d", "{#$}"]}))
    assert r"n\_models \\" in text
    assert r"50\% \& \textbackslash{}more \\" in text
    assert r"a\textbar{}b\textasciitilde{}c\textasciicircum{}d \\" in text
    assert r"\{\#\$\} \\" in text


def test_html_is_a_page_with_the_table_and_numbers_to_the_right():
    page = to_html(TABLE, title="Shares")
    assert "<caption>Shares</caption>" in page and "<title>Shares</title>" in page
    assert '<tr><th>label</th><th class="number">share</th><th class="number">n</th></tr>' in page
    assert '<tr><td>0.10</td><td class="number">0.666667</td><td class="number">3</td></tr>' in page
    assert '<tr><td>cut L1H0 last←answer</td><td class="number"></td><td class="number">4</td></tr>' in page


def test_html_escapes_what_would_be_markup_and_needs_no_other_file():
    page = to_html(pd.DataFrame({"<b>": ["<script>alert(1)</script>", "a & b", "two\nlines"]}), title="<i>")
    assert "<script>" not in page and "<b>" not in page and "<i>" not in page
    assert "<td>a &amp; b</td>" in page and "<td>two<br>lines</td>" in page
    assert "http" not in page and "src=" not in page


@pytest.mark.parametrize(
    ("form", "aligned"), [(to_markdown, "| --- | ---: |"), (to_latex, "{lr}"), (to_html, '<td class="number">87%</td>')]
)
def test_words_that_are_numbers_can_be_aligned_right(form, aligned):
    frame = pd.DataFrame({"condition": ["clean"], "mean": ["87%"]})
    assert aligned in form(frame, ["mean"]) and aligned not in form(frame)


def test_a_table_goes_out_in_four_formats_raw_in_the_one_that_is_computed_with():
    frame = pd.DataFrame({"mean": [0.875]})
    files = table_files("means", frame, printed=pd.DataFrame({"mean": ["87.5%"]}), right=["mean"], title="Means")
    assert files["means.csv"] == "mean\n0.875\n"
    assert files["means.md"] == "| mean |\n| ---: |\n| 87.5% |"
    assert r"87.5\%" in files["means.tex"] and "{r}" in files["means.tex"] and r"\toprule" in files["means.tex"]
    assert "87.5%" in files["means.html"] and "<caption>Means</caption>" in files["means.html"]


words = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12)


@given(st.lists(words, min_size=1, max_size=5))
def test_csv_reads_back_as_it_was_written(labels):
    text = to_csv(pd.DataFrame({"label": labels, "n": range(len(labels))}))
    assert [row[0] for row in csv.reader(io.StringIO(text, newline=""))] == ["label", *labels]


@given(st.lists(words, min_size=1, max_size=5))
def test_no_label_breaks_a_markdown_row(labels):
    lines = to_markdown(pd.DataFrame({"label": labels})).split("\n")
    assert len(lines) == len(labels) + 2
    assert all(line.replace("\\\\", "").replace("\\|", "").count("|") == 2 for line in lines)


@pytest.mark.parametrize("form", FORMATS)
def test_the_index_is_never_printed(form):
    one = pd.DataFrame({"x": [1, 2]}, index=["left", "right"])
    assert form(one) == form(one.reset_index(drop=True))


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1, "100%"),
        (0, "0%"),
        (0.356, "35.6%"),
        (0.125, "12.5%"),
        (0.34375, "34.4%"),
        (-0.87, "-87.0%"),
        (float("nan"), ""),
    ],
)
def test_percent(share, text):
    assert percent(share) == text


@given(st.floats(1e-6, 1 - 1e-6))
def test_percent_never_rounds_to_all_or_nothing(share):
    assert 0 < float(percent(share).removesuffix("%")) < 100
    assert float(percent(share).removesuffix("%")) == pytest.approx(100 * share, abs=0.05)


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (0.0496, "0.0496"),
        (0.04999, "0.04999"),
        (0.05, "0.05"),
        (0.0504, "0.05"),
        (0.044, "0.044"),
        (0.0, "below 1e-300"),
    ],
)
def test_a_p_is_printed_on_its_own_side_of_5_percent(p, said):
    assert p_value(p) == said


@given(st.floats(1e-300, 1))
def test_no_p_is_printed_on_the_other_side_of_5_percent(p):
    assert (float(p_value(p)) < 0.05) == (p < 0.05)
    assert float(p_value(p)) == pytest.approx(p, rel=0.05)


def test_whole_numbers_of_a_pages_table_stay_whole_beside_missing_ones_and_shares_stay_shares():
    columns = (text("model", ["a", "b"]), number("declared", [1234567, None]), number("mean", [0.25, None]))
    files = Table("counts", columns).files("counts")
    assert files["counts.csv"] == "model,declared,mean\na,1234567,0.25\nb,,\n"
    assert "| a | 1234567 | 0.25 |" in files["counts.md"]


def test_a_pages_table_of_no_rows_has_its_columns():
    assert Table("counts", (text("model", []), number("declared", []))).files("c")["c.csv"] == "model,declared\n"
