from dataclasses import replace

import pytest

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Module
from arachne.core.families import family_named
from arachne.cost.cluster_files import load_cluster
from arachne.cost.encoder_costs import Encoders, published_encoders
from arachne.cost.encoder_work import encoder_work
from arachne.cost.model import CostModel
from arachne.cost.training_state import HOST_BYTES_PER_S, TrainingState

WAN = family_named("wan")
COSTS = CostModel(model=WAN.presets["wan-1.3b"], cluster=load_cluster("h100x16"), element_bytes=2)
ENCODERS = Encoders(video=WAN.video_encoder, texts=WAN.text_encoders, element_bytes=2)
BUCKET = Bucket.parse("832x480x81")
DEVICE = COSTS.cluster.device


def encoding(module: Module, num_clips: int = 1) -> Cascade:
    return Cascade(module=module, slots=tuple(range(num_clips)), bucket=BUCKET, num_tokens=32760)


def gpus(degree: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + degree))


def test_autoencoding_takes_its_flops_at_half_the_rate():
    work = encoder_work(encoding("vae"), WAN.video_encoder, WAN.text_encoders, 2)

    expected_s = DEVICE.launch_s + work.flops / DEVICE.matmul_flops_per_s / 0.5
    assert COSTS.launch_s(encoding("vae"), gpus(1)) == pytest.approx(expected_s)
    assert COSTS.communicate_s(encoding("vae"), gpus(1)) == 0.0


def test_text_runs_at_the_rate_of_its_rows():
    work = encoder_work(encoding("text", 3), WAN.video_encoder, WAN.text_encoders, 2)
    rows = 3 * WAN.text_encoders[0].num_tokens
    slowdown = (rows + DEVICE.half_rate_tokens) / rows

    expected_s = DEVICE.launch_s + work.flops * slowdown / DEVICE.matmul_flops_per_s
    assert COSTS.launch_s(encoding("text", 3), gpus(1)) == pytest.approx(expected_s)


def test_an_encoder_is_as_slow_as_its_gpu():
    speeds = (0.5, *[1.0] * 15)
    mixed = replace(COSTS, cluster=replace(COSTS.cluster, speeds=speeds))

    for module in ("vae", "text"):
        fast_s = COSTS.launch_s(encoding(module), (0,))
        assert mixed.launch_s(encoding(module), (0,)) == 2 * fast_s
        assert mixed.launch_s(encoding(module), (1,)) == fast_s


def test_encoders_run_on_one_gpu_unless_tiles_are_allowed():
    tiled = replace(COSTS, encoders=replace(ENCODERS, max_video_degree=16, tile_side=256))
    whole = replace(COSTS, encoders=replace(ENCODERS, max_video_degree=16))

    assert COSTS.fits(encoding("vae"), gpus(1))
    assert not COSTS.fits(encoding("vae"), gpus(2))
    assert tiled.fits(encoding("vae"), gpus(8))
    assert not tiled.fits(encoding("vae"), gpus(16))  # there are 4 × 3 tiles
    assert not whole.fits(encoding("vae"), gpus(2))
    assert COSTS.fits(encoding("text"), gpus(1))
    assert not tiled.fits(encoding("text"), gpus(2))


@pytest.mark.parametrize(("degree", "most_tiles"), [(2, 6), (4, 3), (8, 2)])
def test_gpus_that_share_a_clip_encode_whole_tiles(degree, most_tiles):
    tiled = replace(COSTS, encoders=replace(ENCODERS, max_video_degree=16, tile_side=256))
    whole_s = tiled.launch_s(encoding("vae"), gpus(1)) - DEVICE.launch_s
    part_s = tiled.launch_s(encoding("vae"), gpus(degree)) - DEVICE.launch_s

    assert part_s / whole_s == pytest.approx(most_tiles / 12)
    one, several = (tiled.memory(encoding("vae"), gpus(p)).workspace for p in (1, degree))
    assert one == several, "that of one tile"


def test_an_encoder_needs_room_beside_what_stays_for_training():
    work = encoder_work(encoding("vae"), WAN.video_encoder, WAN.text_encoders, 2)
    use = COSTS.memory(encoding("vae"), gpus(1))

    assert (use.encoders, use.workspace) == (work.parameter_bytes, work.working_bytes)
    training = COSTS.memory(
        Cascade(module="dit", slots=(0,), bucket=BUCKET, num_tokens=32760), gpus(1)
    )
    assert use.weights + use.gradients + use.optimizer == training.resident
    little = replace(DEVICE, memory_bytes=use.total - 1.0)
    assert not replace(COSTS, cluster=replace(COSTS.cluster, device=little)).fits(
        encoding("vae"), gpus(1)
    )


def test_encoders_that_stay_are_not_counted_twice():
    stay = replace(COSTS, state=TrainingState(frozen_encoder_bytes=2e10, reserve_share=0.5))
    use = stay.memory(encoding("text"), gpus(1))

    assert use.encoders == 2e10
    assert use.reserve == 0.5 * use.workspace


def test_encoders_on_the_host_are_fetched_for_each_launch():
    stay = replace(COSTS, encoders=ENCODERS)
    fetched = replace(COSTS, encoders=replace(ENCODERS, are_on_host=True))
    for module in ("vae", "text"):
        work = encoder_work(encoding(module), WAN.video_encoder, WAN.text_encoders, 2)
        more_s = fetched.launch_s(encoding(module), gpus(1)) - stay.launch_s(
            encoding(module), gpus(1)
        )
        assert more_s == pytest.approx(work.parameter_bytes / HOST_BYTES_PER_S)
    text_s = fetched.launch_s(encoding("text"), gpus(1)) - stay.launch_s(encoding("text"), gpus(1))
    assert text_s == pytest.approx(2 * WAN.text_encoders[0].num_parameters / 25e9)


def test_a_result_is_handed_to_those_who_did_not_make_it():
    vae, text = encoding("vae", 2), encoding("text", 2)
    link = COSTS.cluster.intra_node

    assert COSTS.handoff_s(vae, (3,), (3,)) == 0.0
    assert COSTS.handoff_s(vae, (0, 1, 2, 3), (1, 2)) == 0.0
    latent_bytes = 2 * 32760 * 64 * 4
    state_bytes = 2 * 512 * 4096 * 4
    assert COSTS.handoff_s(vae, (3,), (0, 1)) == pytest.approx(
        link.latency_s + latent_bytes / link.bandwidth_bytes_per_s
    )
    assert COSTS.handoff_s(text, (3,), (3, 4)) == pytest.approx(
        link.latency_s + state_bytes / link.bandwidth_bytes_per_s
    )


def test_senders_share_a_result_out_and_the_slowest_link_counts():
    vae = encoding("vae")
    network = COSTS.cluster.inter_node

    assert COSTS.handoff_s(vae, (0, 1), (8,)) == pytest.approx(
        network.latency_s + 32760 * 64 * 4 / 2 / network.bandwidth_bytes_per_s
    )


def test_stacked_captions_carry_their_pooled_states_too():
    hunyuan = family_named("hunyuan_video").presets["hunyuanvideo-13b"]
    costs = replace(COSTS, model=hunyuan)
    link = costs.cluster.intra_node

    state_bytes = (256 * 4096 + 768) * 4
    assert costs.handoff_s(encoding("text"), (0,), (1,)) == pytest.approx(
        link.latency_s + state_bytes / link.bandwidth_bytes_per_s
    )


def test_tiles_on_one_gpu_bound_memory_and_cost_their_overlap():
    whole = ENCODERS.work("vae", BUCKET, 2, 1)
    tiled = replace(ENCODERS, tile_side=256).work("vae", BUCKET, 2, 1)
    one = ENCODERS.work("vae", Bucket.parse("256x256x81"), 2, 1)

    # 832 = 256 + 3·192 pixels across, and 480 = 256 + 192 + a rest of 32 down: 4 × 3 tiles.
    assert tiled.flops == pytest.approx(12 * one.flops)
    assert tiled.working_bytes == one.working_bytes < whole.working_bytes
    assert tiled.parameter_bytes == whole.parameter_bytes
    small = Bucket.parse("128x96x81")
    assert replace(ENCODERS, tile_side=256).work("vae", small, 1, 1) == ENCODERS.work(
        "vae", small, 1, 1
    )


def test_an_autoencoder_that_attends_across_frames_runs_in_tiles():
    hunyuan = family_named("hunyuan_video")
    assert published_encoders(hunyuan.presets["hunyuanvideo-13b"], 2).tile_side == 256
    assert published_encoders(WAN.presets["wan-1.3b"], 2).tile_side is None
