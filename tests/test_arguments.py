"""What `run` and its kin are handed and hand on."""

import pytest
import torch

from workbench.arguments import check_finite, is_finite

LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("values", [[0.0, -1.0], [LARGEST, LARGEST], [LARGEST, -LARGEST, LARGEST], []], ids=str)
def test_numbers_are_finite_though_their_sum_may_not_be(values):
    assert is_finite(torch.tensor(values))
    check_finite(torch.tensor(values))


@pytest.mark.parametrize(
    "values", [[0.0, torch.nan], [torch.inf, 1.0], [torch.inf, -torch.inf], [LARGEST, LARGEST, -torch.inf]], ids=str
)
def test_one_number_that_is_not_finite_is_found_and_its_example_named(values):
    assert not is_finite(torch.tensor(values))
    with pytest.raises(ValueError, match=r"logits are not finite in 1 of 2 examples \(1\)"):
        check_finite(torch.stack([torch.ones(len(values)), torch.tensor(values)]))
