"""The benchmark of one GPU, on the CPU: its model is of Wan's size, its fit finds the truth."""

from dataclasses import replace

import gpu_measure
import gpu_step
import pytest
import torch
from gpu_fit import fitted
from gpu_measure import Case, training_flops
from plain_wan import PlainWan, Share, WanSize, made_inputs

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.launch_mode import LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.cost.cluster_files import load_cluster
from arachne.cost.model import CostModel
from arachne.cost.model_counts import model_counts
from arachne.cost.rank_work import rank_work

SIZE = WanSize()
SHAPE = ModelShape(
    family="wan",
    num_layers=30,
    num_heads=12,
    head_size=128,
    ffn_size=8960,
    latent_channels=16,
    text_size=4096,
    text_tokens=512,
)


def test_the_plain_model_has_as_many_parameters_as_wan():
    with torch.device("meta"):
        module = PlainWan(SIZE)
    assert sum(p.numel() for p in module.parameters()) == model_counts(SHAPE).parameters


@pytest.mark.parametrize("degree", [1, 2, 6, 8])  # 8 leaves two of twelve heads to some ranks
def test_a_share_of_a_launch_costs_what_the_cost_model_counts(degree):
    case = Case(part="share", num_tokens=7200, num_clips=2, share=Share(degree=degree))
    counted = training_flops(SIZE, case)
    work = rank_work(SHAPE, 7200, 2, degree)
    # Only the text's keys and values differ: the model counts them whole, as they are.
    assert counted == pytest.approx(work.matmul_flops + work.attention_flops, rel=1e-9)


def test_recomputed_blocks_give_the_same_gradient():
    torch.manual_seed(0)
    size = gpu_step.SMALL.size
    module = PlainWan(size).double()
    inputs = made_inputs(size, 12, 2, torch.device("cpu"), torch.float64)
    gradients: list[torch.Tensor] = []
    for level in (0, size.num_layers):
        module.zero_grad()
        module(*inputs, Share(recompute_layers=level)).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert float(gradients[0].norm()) > 0.0
    assert torch.equal(*gradients)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at it while it traces
def test_every_part_runs_on_the_cpu_and_what_it_cannot_do_has_a_reason(monkeypatch, capsys):
    monkeypatch.setattr(gpu_measure, "COMPILER", "eager")
    setting = replace(gpu_step.SMALL, lengths=(8, 12, 24, 36))
    found = gpu_step.run(setting, torch.device("cpu"))
    parts = {row["part"] for row in found["rows"] if "seconds" in row}
    assert parts == {"length", "share", "recompute", "stack", "kernel", "compiled", "mixed"}
    skipped = [row for row in found["rows"] if "skipped" in row]
    assert {(row["kernel"]) for row in skipped} == {"cudnn"}
    assert all(row["tokens_per_s"] > 0.0 for row in found["rows"] if "seconds" in row)
    assert found["ceiling"]["matmul_flops_per_s"] > 0.0
    assert capsys.readouterr().out.count("\n") == len(found["rows"])
    assert gpu_step.with_fit(found)["fit"]["predicted_shapes"] > 5


def test_when_the_time_is_over_no_case_begins_and_each_says_so():
    bench = gpu_measure.opened(gpu_step.SMALL.size, torch.device("cpu"), torch.float32, 0.0)
    rows = list(gpu_measure.measured(bench, gpu_step.cases_of(gpu_step.SMALL)))
    assert {row["skipped"] for row in rows} == {"the time that was given is over"}


def made_rows(*, slower: float = 1.0):
    """What a GPU would measure that is just as `clusters/h200.toml` says, but for a factor."""
    costs = CostModel(model=SHAPE, cluster=load_cluster("h200x16"), element_bytes=2)
    for case in gpu_step.cases_of(gpu_step.WAN):
        if case.is_compiled or case.kernel != "auto":
            continue
        cascade = Cascade(
            module="dit",
            slots=tuple(range(case.num_clips)),
            bucket=Bucket(width=16, height=16, frames=1),
            num_tokens=case.num_tokens,
        )
        mode = LaunchMode(recompute_layers=case.share.recompute_layers)
        ranks = tuple(range(case.share.degree))
        compute_s, _ = costs.seconds_in(mode, cascade, ranks)
        yield gpu_measure.row_of(case) | {"seconds": slower * compute_s}


def test_a_gpu_that_is_as_the_cost_model_says_is_predicted_and_a_slower_one_is_found():
    def fit(slower: float):
        size = {name: getattr(SIZE, name) for name in WanSize.__dataclass_fields__}
        return fitted({"size": size, "device": "x", "rows": list(made_rows(slower=slower))})

    as_said, slower = fit(1.0), fit(1.25)
    assert as_said["seconds_error_p95"] < 0.01
    assert slower["seconds_error_p95"] < 0.01
    ratio = as_said["matmul_flops_per_s"] / slower["matmul_flops_per_s"]
    assert ratio == pytest.approx(1.25, rel=0.02)


def test_mixed_launches_fit_by_what_was_measured():
    rows = [
        {"part": "recompute", "recompute_layers": level, "num_tokens": 100, "added_bytes": added}
        for level, added in ((0, 1000), (30, 100))
    ]
    cases = gpu_step.mixed_cases(gpu_step.WAN, rows, free_bytes=50_000.0)
    assert len(cases) == gpu_step.NUM_MIXED
    for case in cases:
        per_token = 10.0 if case.share.recompute_layers == 0 else 1.0
        assert per_token * case.num_tokens * case.num_clips <= 50_000.0
    assert {case.share.recompute_layers for case in cases} == {0, 30}
