"""The demo's transformer is a real one: it learns, sees masks, and shares its embedding."""

from __future__ import annotations

import torch

from benchmarks.demo.model import SIZES, ModelConfig, Transformer, loss_of, random_batch

CPU = torch.device("cpu")
GPT = ModelConfig(causal=True, vocabulary=50, length=16, layers=2, hidden=32, heads=4)
BERT = ModelConfig(causal=False, vocabulary=50, length=16, layers=2, hidden=32, heads=4)


def model(config: ModelConfig) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config)


def test_a_decoder_does_not_look_ahead() -> None:
    gpt = model(GPT).eval()
    tokens = random_batch(GPT, 2, 0, CPU).tokens
    changed = tokens.clone()
    changed[:, 8:] = 1
    torch.testing.assert_close(gpt(tokens)[:, :8], gpt(changed)[:, :8])
    assert not torch.allclose(gpt(tokens)[:, 8:], gpt(changed)[:, 8:])


def test_an_encoder_ignores_padding() -> None:
    bert = model(BERT).eval()
    tokens = random_batch(BERT, 2, 0, CPU).tokens
    padding = torch.arange(16).expand(2, 16) < 8
    changed = tokens.clone()
    changed[:, 8:] = 1
    torch.testing.assert_close(bert(tokens, padding)[:, :8], bert(changed, padding)[:, :8])
    assert not torch.allclose(bert(tokens)[:, :8], bert(changed)[:, :8])


def test_both_learn_a_batch_by_heart() -> None:
    for config in (GPT, BERT):
        learner, batch = model(config), random_batch(config, 2, 0, CPU)
        optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2)
        first = loss_of(learner, batch).item()
        for _ in range(30):
            loss_of(learner, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loss_of(learner, batch).item() < first / 3


def test_a_batch_depends_on_its_seed_only() -> None:
    one, two, other = (random_batch(BERT, 2, seed, CPU) for seed in (1, 1, 2))
    assert torch.equal(one.tokens, two.tokens) and torch.equal(one.labels, two.labels)
    assert not torch.equal(one.tokens, other.tokens)


def test_the_base_size_is_that_of_the_well_known_models() -> None:
    base = SIZES["base"]
    assert (base.layers, base.hidden, base.heads, base.length) == (12, 768, 12, 512)
