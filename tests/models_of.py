"""Models in double precision whose every size differs, and what flows through them."""

import torch

from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer


def config_of(**changes):
    return ModelConfig(**{"d_vocab": 11, "n_ctx": 8, "d_model": 6, "n_layers": 2, "n_heads": 2, **changes})


def model_of(seed=0, **changes):
    """A model in double precision whose norms' scales and biases differ from 1 and 0."""
    model = Transformer(config_of(**changes), seed=seed).double().eval()
    generator = torch.Generator().manual_seed(100 + seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".w", ".b")):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def tokens_of(n=3, length=8, d_vocab=11, seed=0):
    return torch.randint(d_vocab, (n, length), generator=torch.Generator().manual_seed(seed))


def close(one, other, tolerance=1e-10):
    """Equal within 1e-10 of the largest value."""
    one, other = one.detach(), other.detach()
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * other.abs().max())


def stream(model, tokens, **kwargs):
    return model.run_with_cache(tokens, **kwargs)[1]
