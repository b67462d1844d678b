import pytest
import torch

from arachne.trainer.sampling import euler_steps, noise_of, shifted_sigma, sigma_schedule, walk

TEXT = torch.ones(2, 3, 4, dtype=torch.float64)
NULL = torch.zeros(3, 4, dtype=torch.float64)


def _noise():
    return noise_of((2, 4, 3, 2, 2), seed=0, dtype=torch.float64)


def _sample(predict, **changes):
    settings = {"null_text_LD": NULL, "steps": 4, "shift": 3.0, "guidance": 1.0} | changes
    settings["steps"] = euler_steps(settings["steps"], settings.pop("shift"))
    return walk(predict, _noise(), TEXT, **settings)


def test_a_straight_field_leads_from_noise_to_the_clip():
    clip = torch.full((2, 4, 3, 2, 2), 0.7, dtype=torch.float64)
    noise = _noise()
    for steps in (1, 2, 7):
        found = _sample(lambda latents, sigma, text: noise - clip, steps=steps)
        torch.testing.assert_close(found, clip)


def test_the_exact_field_of_one_clip_leads_to_it():
    clip = torch.randn(2, 4, 3, 2, 2, generator=torch.Generator().manual_seed(3)).double()

    def predict(latents, sigma, text):
        # x = (1 - s) x0 + s noise, so noise - x0 = (x - x0) / s
        return (latents - clip) / sigma.view(-1, 1, 1, 1, 1)

    torch.testing.assert_close(_sample(predict, steps=5), clip)


def test_the_model_sees_the_shifted_schedule_from_noise_to_clean():
    seen = []

    def predict(latents, sigma, text):
        seen.append(sigma.tolist())
        return torch.zeros_like(latents)

    _sample(predict, steps=4, shift=3.0)
    assert seen == [[s, s] for s in pytest.approx([1.0, 0.9, 0.75, 0.5]).expected]


def test_many_steps_approach_the_exact_solution():
    """For dx/dsigma = x the solution at sigma 0 is noise / e; Euler's error falls with the step."""
    exact = _noise() * torch.exp(torch.tensor(-1.0, dtype=torch.float64))
    errors = [
        float((_sample(lambda x, sigma, text: x, steps=steps) - exact).abs().max())
        for steps in (10, 40, 160)
    ]
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 3


def _text_field(latents, sigma, text):
    return text.mean(dim=(1, 2)).view(-1, 1, 1, 1, 1).expand_as(latents).to(latents)


def test_guidance_amplifies_what_the_text_adds():
    noise = _noise()
    torch.testing.assert_close(_sample(_text_field, guidance=1.0), noise - 1.0)
    torch.testing.assert_close(_sample(_text_field, guidance=5.0), noise - 5.0)
    torch.testing.assert_close(_sample(_text_field, guidance=0.0), noise)


def test_guidance_starts_from_the_null_text():
    found = _sample(_text_field, guidance=3.0, null_text_LD=NULL + 0.5)
    torch.testing.assert_close(found, _noise() - (0.5 + 3.0 * 0.5))


def test_without_guidance_the_model_runs_on_the_batch_alone():
    sizes = []

    def predict(latents, sigma, text):
        sizes.append((len(latents), len(sigma), len(text)))
        return torch.zeros_like(latents)

    _sample(predict, steps=1, guidance=1.0)
    _sample(predict, steps=1, guidance=2.0)
    assert sizes == [(2, 2, 2), (4, 4, 4)]


def test_sampling_records_no_gradients():
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    assert not _sample(lambda x, sigma, text: weight * x).requires_grad


def test_the_schedule_runs_from_one_to_zero_and_shift_lifts_it():
    schedule = sigma_schedule(10, 5.0)
    assert len(schedule) == 11
    assert schedule[0] == 1.0
    assert schedule[-1] == 0.0
    assert list(schedule) == sorted(schedule, reverse=True)
    assert sigma_schedule(4, 1.0) == (1.0, 0.75, 0.5, 0.25, 0.0)
    assert shifted_sigma(0.5, 3.0) == pytest.approx(0.75)


def test_noise_depends_on_the_seed_alone():
    torch.manual_seed(1)
    first = noise_of((2, 3), seed=4)
    torch.manual_seed(2)
    assert torch.equal(first, noise_of((2, 3), seed=4))
    assert not torch.equal(first, noise_of((2, 3), seed=5))
    assert torch.equal(first.double(), noise_of((2, 3), seed=4, dtype=torch.float64))
