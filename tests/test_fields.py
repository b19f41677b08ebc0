"""Values built in Python: a field that is misspelt, or given by place, is answered with those that there are."""

import pytest
from pydantic import ValidationError

from workbench import Claim, Donor, Edges, Heads, ModelConfig, Recipe, Stream, Study, top_source
from workbench.models.config import EncoderDecoderConfig, Mask

TRAINED = [ModelConfig, Mask, EncoderDecoderConfig, Recipe]


@pytest.mark.parametrize("kind", [Edges, Heads, Stream, Study, Claim, Donor, *TRAINED])
def test_a_misspelt_field_is_a_type_error_that_lists_the_fields(kind):
    with pytest.raises(TypeError, match=r"has no field 'dst'\..*(There are|Did you mean)"):
        kind(dst="last")


def test_a_field_given_by_place_is_a_type_error_that_lists_the_fields():
    with pytest.raises(TypeError, match=r"Edges takes its fields by name, as .*layer"):
        Edges(1, 0)


def test_a_value_that_does_not_fit_is_still_named():
    with pytest.raises(ValidationError, match="layer"):
        Edges(layer=-1)


def test_what_is_read_from_a_file_is_still_refused_by_its_path():
    with pytest.raises(ValidationError, match=r"(?s)conditions\.cut\.0\.where.*dst.*Extra inputs"):
        edit = {"where": {"type": "edges", "layer": 0, "dst": "x"}, "what": {"op": "cut"}}
        Study.model_validate({"conditions": {"cut": [edit]}, "n": 1, "data_seed": 0})


def test_a_value_survives_json_as_before():
    one = top_source(1, 0, "last")
    assert type(one).model_validate_json(one.model_dump_json()) == one
