"""Image to video: whole runs, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.models.diffusers_module import build_transformer, load_transformer
from arachne.models.first_frame import FirstFrameEncoder
from arachne.runtime.launcher import run_ranks
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.export import ExportOptions, export
from arachne.trainer.generate import generate
from arachne.trainer.loop import train
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.run_encoders import run_video_encoder
from arachne.trainer.sample_request import SampleRequest
from arachne.trainer.settings.model import ModelSettings
from tests.models.test_first_frame import save_image_encoder
from tests.models.tiny_autoencoders import CLASS_OF_FAMILY, save_tiny_autoencoder
from tests.models.tiny_transformers import tiny_shape
from tests.trainer.first_frame_models import save_hunyuan, tiny_model
from tests.trainer.test_families_train import config_of
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # diffusers of itself

SMALL = Bucket(width=32, height=16, frames=5)


def run_of(clips: Path, folder: Path, **model) -> object:
    config = tiny_config(clips, folder, steps=3)
    config = changed(config, "model", image_to_video=True, **model)
    return with_manifest(changed(config, "validation", every=2, noises=2))


def losses_of(world, config):
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
    return [*heard.losses, *(loss for _, loss in heard.validations)]


@pytest.mark.distributed
@pytest.mark.parametrize("encode", ["before", pytest.param("online", marks=pytest.mark.slow)])
def test_a_run_has_the_same_curve_on_two_ranks_and_draws_and_exports(clips, tmp_path, encode):
    curves = {}
    for size in (1, 2):
        config = changed(run_of(clips, tmp_path / str(size)), "data", encode=encode)
        config = changed(config, "data", cache=str(tmp_path / f"cache-{size}"))
        curves[size] = run_ranks(size, losses_of, (config,))[0]
    assert len(curves[1]) >= 5
    assert curves[2] == pytest.approx(curves[1], rel=1e-9)
    if encode == "online":
        return
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    drawn = [drawn_from(config, checkpoint, tmp_path, grey) for grey in (0, 255)]
    assert drawn[0].shape == (5, 16, 32, 3)
    assert not np.array_equal(*drawn)
    files = export(config, checkpoint, tmp_path / "out", ExportOptions(to="diffusers"))
    assert files
    loaded = load_transformer(
        "wan", tmp_path / "out", dtype=torch.float32, text_tokens=config.model.num_text_tokens
    )
    assert loaded.shape.condition_channels == 4 + 48
    settings = replace(config.model, pretrained=str(tmp_path / "out"))
    assert planning_shape(settings) == loaded.shape


@pytest.mark.distributed
def test_a_kept_run_trains_on_plain_latents_and_begins_a_video_with_a_picture(clips, tmp_path):
    folder = str(save_tiny_autoencoder(CLASS_OF_FAMILY["ltx"], tmp_path / "pipeline"))
    config = config_of("ltx", clips, tmp_path / "run", folder)
    config = changed(config, "model", image_to_video=True)
    assert not isinstance(run_video_encoder(config.model), FirstFrameEncoder)
    assert np.isfinite(run_ranks(1, losses_of, (config,))[0]).all()
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    bucket = Bucket(width=64, height=32, frames=9)
    drawn = [drawn_from(config, checkpoint, tmp_path, grey, bucket) for grey in (0, 255)]
    assert drawn[0].shape == (9, 32, 64, 3)
    assert not np.array_equal(drawn[0][0], drawn[1][0])
    assert export(config, checkpoint, tmp_path / "out", ExportOptions(to="diffusers"))


@pytest.mark.distributed
def test_weights_of_token_replace_train_on_plain_latents_and_draw(clips, tmp_path):
    folder = str(save_tiny_autoencoder(CLASS_OF_FAMILY["hunyuan_video"], tmp_path / "pipeline"))
    config = config_of("hunyuan_video", clips, tmp_path / "run", folder)
    shape = save_hunyuan(config.model, tmp_path / "weights")
    model = {"pretrained": str(tmp_path / "weights"), "text_tokens": shape.text_tokens}
    with pytest.raises(ConfigError, match=r"a model of image to video; set model\.image_to_video"):
        planning_shape(replace(config.model, **model))
    config = changed(config, "model", image_to_video=True, **model)
    assert planning_shape(config.model) == shape
    assert not isinstance(run_video_encoder(config.model), FirstFrameEncoder)
    with pytest.raises(
        ConfigError, match="keeps the first frame at noise level 0, which objective"
    ):
        run_ranks(1, losses_of, (changed(config, "objective", kind="ddpm"),))
    assert np.isfinite(run_ranks(1, losses_of, (config,))[0]).all()
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    bucket = Bucket(width=32, height=16, frames=9)
    drawn = [drawn_from(config, checkpoint, tmp_path, grey, bucket) for grey in (0, 255)]
    assert drawn[0].shape == (9, 16, 32, 3)
    assert not np.array_equal(drawn[0][0], drawn[1][0])
    assert export(config, checkpoint, tmp_path / "out", ExportOptions(to="diffusers"))
    exported = changed(config, "model", pretrained=str(tmp_path / "out"))
    assert planning_shape(exported.model) == shape


def drawn_from(config, checkpoint, folder: Path, grey: int, bucket=SMALL) -> np.ndarray:
    path = folder / f"{grey}.png"
    Image.fromarray(np.full((40, 40, 3), grey, np.uint8)).save(path)
    request = SampleRequest(
        prompt="a cat",
        bucket=bucket,
        steps=2,
        guidance=2.0,
        seed=0,
        image=path,
    )
    with pytest.raises(ConfigError, match="trains image to video; name the picture"):
        generate(config, checkpoint, replace(request, image=None))
    return generate(config, checkpoint, request)


@pytest.mark.slow
def test_a_model_that_attends_to_the_image_trains(clips, tmp_path):
    folder = str(save_image_encoder(tmp_path))
    config = run_of(clips, tmp_path / "run", image_encoder=folder, text_tokens=512)
    config = changed(config, "data", cache=str(tmp_path / "cache"))
    found = run_ranks(1, losses_of, (config,))[0]
    assert np.isfinite(found).all()
    assert planning_shape(config.model).image_tokens == 5


def test_what_cannot_be_image_to_video_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"image_to_video is not built for family 'mochi'; .*wan"):
        ModelSettings(family="mochi", image_to_video=True)
    with pytest.raises(ConfigError, match="but nothing looks at images"):
        ModelSettings(family="ltx", image_to_video=True, image_encoder="clip")
    with pytest.raises(ConfigError, match="but nothing looks at images"):
        ModelSettings(family="cogvideox15", image_to_video=True, image_encoder="clip")
    with pytest.raises(ConfigError, match=r"name its folder as model\.image_encoder"):
        ModelSettings(family="hunyuan_video15", image_to_video=True)
    with pytest.raises(ConfigError, match=r"image_encoder is 'clip', but nothing looks at images"):
        ModelSettings(image_encoder="clip")
    config = tiny_config(tmp_path, tmp_path)
    kept = replace(
        config,
        data=replace(config.data, frame_buckets=(1, 9), resolution=64),
        model=replace(config.model, family="ltx", ffn_size=4 * 24, image_to_video=True),
    )
    with pytest.raises(
        ConfigError, match="keeps the first frame at noise level 0, which objective"
    ):
        changed(kept, "objective", kind="ddpm")
    sampling = {"sample_every": 1, "prompts": ("a", "b"), "sample_shape": "32x16x5"}
    with pytest.raises(ConfigError, match="names 0 pictures, and this run draws 2"):
        changed(changed(config, "model", image_to_video=True), "validation", **sampling)
    with pytest.raises(ConfigError, match="names 1 pictures, and this run draws 0"):
        changed(config, "validation", images=("a.png",), **sampling)


def test_weights_of_the_other_kind_are_refused_with_the_setting(tmp_path):
    tiny_model("wan", torch.float32).module.save_pretrained(tmp_path / "transformer")
    with pytest.raises(ConfigError, match=r"a model of image to video; set model\.image_to_video"):
        planning_shape(ModelSettings(pretrained=str(tmp_path), text_tokens=5))
    plain = build_transformer(tiny_shape("wan"), dtype=torch.float32, seed=0)
    plain.module.save_pretrained(tmp_path / "plain" / "transformer")
    with pytest.raises(ConfigError, match="a model of text to video; set"):
        planning_shape(ModelSettings(pretrained=str(tmp_path / "plain"), image_to_video=True))
    seeing = tiny_model("wan and CLIP", torch.float32)
    seeing.module.save_pretrained(tmp_path / "seeing" / "transformer")
    settings = ModelSettings(pretrained=str(tmp_path / "seeing"), image_to_video=True)
    with pytest.raises(ConfigError, match=r"attends to .*; name its folder as model\.image_enc"):
        planning_shape(settings)
