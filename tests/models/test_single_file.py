"""One file with its authors' names is the model that diffusers' folder holds."""

import re
from dataclasses import replace

import pytest
import torch
from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES
from safetensors.torch import load_file, save_file

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.models.diffusers_module import (
    build_transformer,
    diffusers_class,
    load_single_file_transformer,
)
from arachne.models.families import transformer_named
from arachne.models.interface import FirstFrames
from arachne.models.single_file import renamed
from arachne.trainer.planning_shape import keeps_first_frame, planning_shape
from arachne.trainer.settings.model import ModelSettings
from tests.models.tiny_transformers import (
    refuse_memory,
    tiny_inputs,
    tiny_shape,
    tiny_transformer,
)

LTX_NAMES = (
    (r"^proj_in", "patchify_proj"),
    (r"^time_embed", "adaln_single"),
    (r"norm_q", "q_norm"),
    (r"norm_k", "k_norm"),
)
LTX2_NAMES = (
    (r"^audio_proj_in", "audio_patchify_proj"),
    (r"^audio_time_embed", "audio_adaln_single"),
    (r"^av_cross_attn_video_scale_shift", "av_ca_video_scale_shift_adaln_single"),
    (r"^av_cross_attn_video_a2v_gate", "av_ca_a2v_gate_adaln_single"),
    (r"^av_cross_attn_audio_scale_shift", "av_ca_audio_scale_shift_adaln_single"),
    (r"^av_cross_attn_audio_v2a_gate", "av_ca_v2a_gate_adaln_single"),
    (r"video_a2v_cross_attn_scale_shift_table", "scale_shift_table_a2v_ca_video"),
    (r"audio_a2v_cross_attn_scale_shift_table", "scale_shift_table_a2v_ca_audio"),
    *LTX_NAMES,
)
"""Of the modules in Lightricks' own code."""

NAMES = {"ltx": LTX_NAMES, "ltx2": LTX2_NAMES}


def authors_names(family, tensors):
    found = {}
    for name, values in tensors.items():
        for pattern, replacement in NAMES[family]:
            name = re.sub(pattern, replacement, name)
        found[name] = values
    return found


def saved(model, path):
    tensors = authors_names(model.family.name, model.module.state_dict())
    tensors = {f"model.diffusion_model.{name}": value for name, value in tensors.items()}
    tensors |= {"vae.encoder.weight": torch.ones(1)}
    if model.family.name == "ltx2":
        connector = "model.diffusion_model.video_embeddings_connector.learnable_registers"
        tensors |= {connector: torch.ones(1), "vocoder.weight": torch.ones(1)}
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_the_file_gives_the_same_output(tmp_path, name):
    model = tiny_transformer(name, torch.float32)
    file = saved(model, tmp_path / "model.safetensors")
    found = load_single_file_transformer(model.shape, file, dtype=torch.float32)
    assert found.shape == model.shape
    inputs = tiny_inputs(model, 2, torch.float32)
    with torch.no_grad():
        assert torch.equal(found.predict(*inputs), model.predict(*inputs))


@pytest.mark.parametrize("name", NAMES)
def test_the_names_of_the_published_model_become_those_of_diffusers(name):
    family = transformer_named(name)
    shape = next(iter(family_named(name).presets.values()))
    with torch.device("meta"):
        module = diffusers_class(family)(**family.options(shape))
    needed = {key: values.shape for key, values in module.state_dict().items()}
    published = authors_names(name, module.state_dict())
    assert not published.keys() <= needed.keys()
    found = renamed(family, published, "file")
    assert {key: values.shape for key, values in found.items()} == needed


def hunyuan_names(tensors):
    """HunyuanVideo's own names: queries, keys and values of a layer are one matrix."""
    names = (
        (r"^transformer_blocks\.(\d+)\.attn\.to_out\.0", r"double_blocks.\1.img_attn_proj"),
        (r"^transformer_blocks\.(\d+)\.attn\.to_add_out", r"double_blocks.\1.txt_attn_proj"),
        (
            r"^transformer_blocks\.(\d+)\.attn\.norm_added_([qk])",
            r"double_blocks.\1.txt_attn_\2_norm",
        ),
        (r"^transformer_blocks\.(\d+)\.attn\.norm_([qk])", r"double_blocks.\1.img_attn_\2_norm"),
        (r"^transformer_blocks\.(\d+)\.norm1\.linear", r"double_blocks.\1.img_mod.linear"),
        (r"^transformer_blocks\.(\d+)\.norm1_context\.linear", r"double_blocks.\1.txt_mod.linear"),
        (r"^transformer_blocks\.(\d+)\.ff\.", r"double_blocks.\1.img_mlp."),
        (r"^transformer_blocks\.(\d+)\.ff_context\.", r"double_blocks.\1.txt_mlp."),
        (r"^single_transformer_blocks\.(\d+)\.attn\.norm_([qk])", r"single_blocks.\1.\2_norm"),
        (r"^single_transformer_blocks\.(\d+)\.norm\.linear", r"single_blocks.\1.modulation.linear"),
        (r"^single_transformer_blocks\.(\d+)\.proj_out", r"single_blocks.\1.linear2"),
        (r"^x_embedder", "img_in"),
        (r"^time_text_embed\.timestep_embedder\.linear_1", "time_in.mlp.0"),
        (r"^time_text_embed\.timestep_embedder\.linear_2", "time_in.mlp.2"),
        (r"^time_text_embed\.guidance_embedder\.linear_1", "guidance_in.mlp.0"),
        (r"^time_text_embed\.guidance_embedder\.linear_2", "guidance_in.mlp.2"),
        (r"^time_text_embed\.text_embedder\.linear_1", "vector_in.in_layer"),
        (r"^time_text_embed\.text_embedder\.linear_2", "vector_in.out_layer"),
        (r"^norm_out\.linear", "final_layer.adaLN_modulation.1"),
        (r"^proj_out", "final_layer.linear"),
        (r"^context_embedder\.proj_in", "txt_in.input_embedder"),
        (
            r"^context_embedder\.time_text_embed\.timestep_embedder\.linear_1",
            "txt_in.t_embedder.mlp.0",
        ),
        (
            r"^context_embedder\.time_text_embed\.timestep_embedder\.linear_2",
            "txt_in.t_embedder.mlp.2",
        ),
        (r"^context_embedder\.time_text_embed\.text_embedder", "txt_in.c_embedder"),
        (
            r"^context_embedder\.token_refiner\.refiner_blocks",
            "txt_in.individual_token_refiner.blocks",
        ),
        (r"^(txt_in.*)norm_out\.linear", r"\1adaLN_modulation.1"),
        (r"^(txt_in.*)attn\.to_out\.0", r"\1self_attn_proj"),
        (r"^(txt_in.*)\.ff\.", r"\1.mlp."),
        (r"net\.0\.proj", "fc1"),
        (r"net\.2", "fc2"),
    )
    found, parts = {}, {}
    for name, values in tensors.items():
        joined = {
            r"^transformer_blocks\.(\d+)\.attn\.add_[qkv]_proj": r"double_blocks.\1.txt_attn_qkv",
            r"^transformer_blocks\.(\d+)\.attn\.to_[qkv]": r"double_blocks.\1.img_attn_qkv",
            r"^single_transformer_blocks\.(\d+)\.attn\.to_[qkv]": r"single_blocks.\1.linear1",
            r"^single_transformer_blocks\.(\d+)\.proj_mlp": r"single_blocks.\1.linear1",
            r"^context_embedder\.token_refiner\.refiner_blocks\.(\d+)\.attn\.to_[qkv]": (
                r"txt_in.individual_token_refiner.blocks.\1.self_attn_qkv"
            ),
        }
        for pattern, whole in joined.items():
            if re.match(pattern, name):
                parts.setdefault(re.sub(pattern, whole, name), []).append(values)
                break
        else:
            for pattern, replacement in names:
                name = re.sub(pattern, replacement, name)
            found[name] = values
    return found | {name: torch.cat(values) for name, values in parts.items()}


HUNYUAN = family_named("hunyuan_video").presets["hunyuanvideo-13b"]


@pytest.mark.parametrize(
    "changes", [{}, {"condition_channels": 17}, {"keeps_first_frame": True}], ids=str
)
def test_hunyuan_videos_names_become_those_of_diffusers(changes):
    family = transformer_named("hunyuan_video")
    shape = replace(HUNYUAN, **changes)
    with torch.device("meta"):
        module = diffusers_class(family)(**family.options(shape))
    needed = {key: values.shape for key, values in module.state_dict().items()}
    published = hunyuan_names(module.state_dict())
    assert "double_blocks.19.img_attn_qkv.weight" in published
    assert "single_blocks.39.linear1.weight" in published
    assert not any("transformer_blocks" in key for key in published)
    found = renamed(family, published, "file")
    assert {key: values.shape for key, values in found.items()} == needed


def hunyuan_file(path, channels):
    save_file({"img_in.proj.weight": torch.zeros(3, channels, 1, 2, 2)}, path)
    return ModelSettings(
        family="hunyuan_video", preset="hunyuanvideo-13b", pretrained=str(path), image_to_video=True
    )


def test_hunyuan_videos_file_says_by_its_channels_how_it_sees_the_first_frame(tmp_path):
    settings = hunyuan_file(tmp_path / "kept.safetensors", 16)
    assert planning_shape(settings) == replace(HUNYUAN, keeps_first_frame=True)
    assert keeps_first_frame(settings)
    assert planning_shape(replace(settings, image_to_video=False)) == HUNYUAN

    settings = hunyuan_file(tmp_path / "shown.safetensors", 33)
    assert planning_shape(settings) == replace(HUNYUAN, condition_channels=17)
    assert not keeps_first_frame(settings)
    with pytest.raises(ConfigError, match=r"is a model of image to video; set model\.image_to_vid"):
        planning_shape(replace(settings, image_to_video=False))

    settings = hunyuan_file(tmp_path / "other.safetensors", 20)
    with pytest.raises(
        ConfigError, match=r"takes 20 channels, and model\.preset 'hunyuanvideo-13b'"
    ):
        planning_shape(settings)
    save_file({"img_in.proj.weight": torch.zeros(())}, tmp_path / "flat.safetensors")
    with pytest.raises(
        ConfigError, match=r"has 'img_in\.proj\.weight' of shape \(\); needed are 5"
    ):
        planning_shape(replace(settings, pretrained=str(tmp_path / "flat.safetensors")))


def test_a_file_of_token_replace_is_the_model_that_keeps_the_first_frame(tmp_path, monkeypatch):
    shape = replace(tiny_shape("hunyuan_video"), keeps_first_frame=True)
    model = build_transformer(shape, dtype=torch.float32, seed=0)

    def back(checkpoint):  # diffusers' own knows the width of the published model alone
        return {name.replace("img_in", "x_embedder"): v for name, v in checkpoint.items()}

    monkeypatch.setitem(
        SINGLE_FILE_LOADABLE_CLASSES[model.family.class_name], "checkpoint_mapping_fn", back
    )
    tensors = model.module.state_dict()
    file = tmp_path / "model.safetensors"
    save_file({name.replace("x_embedder", "img_in"): v for name, v in tensors.items()}, file)
    found = load_single_file_transformer(shape, file, dtype=torch.float32)
    assert found.layout == model.layout
    latents, sigma, text = tiny_inputs(model, 2, torch.float32)
    first = FirstFrames(latents=latents[:, :, :1])
    with torch.no_grad():
        assert torch.equal(
            found.predict(latents, sigma, text, first), model.predict(latents, sigma, text, first)
        )


def test_a_file_is_refused_before_the_model_takes_memory(tmp_path, monkeypatch):
    settings = hunyuan_file(tmp_path / "model.safetensors", 16)
    refuse_memory(monkeypatch)
    for shape in (planning_shape(settings), HUNYUAN):
        with pytest.raises(ConfigError, match=r"lacks '.*' \(diffusers' name\), which does not"):
            load_single_file_transformer(shape, settings.pretrained, dtype=torch.float32)


def changed(tensors, name, values):
    return tensors | {next(key for key in tensors if key.endswith(name)): values}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.ones(()), r"as torch\.float32 of shape \(\); needed are floats of 16 bits or more"),
        (torch.ones(4, dtype=torch.int32), r"as torch\.int32 of shape \(4,\); needed are floats"),
    ],
)
def test_tensors_that_are_no_weights_are_refused(tmp_path, values, words):
    model = tiny_transformer("ltx", torch.float32)
    file = saved(model, tmp_path / "model.safetensors")
    save_file(changed(load_file(file), "proj_out.bias", values), file)
    with pytest.raises(ConfigError, match=words):
        load_single_file_transformer(model.shape, file, dtype=torch.float32)


def test_a_tensor_that_cannot_be_cut_is_no_hunyuan_video(tmp_path):
    for name in ("single_blocks.0.linear1.weight", "double_blocks.0.img_attn_qkv.weight"):
        file = tmp_path / "model.safetensors"
        save_file({name: torch.ones(())}, file)
        with pytest.raises(
            ConfigError, match=r"is no hunyuan_video with its authors' names: (Dim|chu)"
        ):
            load_single_file_transformer(HUNYUAN, file, dtype=torch.float32)


def test_what_does_not_fit_is_refused(tmp_path):
    model = tiny_transformer("ltx", torch.float32)
    file = saved(model, tmp_path / "model.safetensors")
    deeper = replace(model.shape, num_layers=3)
    with pytest.raises(ConfigError, match=r"lacks 'transformer_blocks\.2\..* name another model\."):
        load_single_file_transformer(deeper, file, dtype=torch.float32)
    wider = replace(model.shape, text_size=9)
    with pytest.raises(ConfigError, match=r"has 'caption_projection\.linear_1\.weight' as torch\."):
        load_single_file_transformer(wider, file, dtype=torch.float32)
    for name in ("cogvideox", "hunyuan_video15"):
        shape = tiny_transformer(name).shape
        with pytest.raises(ConfigError, match=f"reads no single files of family '{name}'; name a"):
            load_single_file_transformer(shape, file, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"is no mochi with its authors' names: 'x_embedder\.pro"):
        load_single_file_transformer(tiny_transformer("mochi").shape, file, dtype=torch.float32)
    file.write_bytes(b"\x10\0\0")
    with pytest.raises(ConfigError, match=r"cannot read .*model\.safetensors"):
        load_single_file_transformer(model.shape, file, dtype=torch.float32)


def test_a_file_in_float64_is_read_unrounded(tmp_path):
    model = tiny_transformer("ltx")
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.0 + 2.0**-40)
    file = saved(model, tmp_path / "model.safetensors")
    loaded = load_single_file_transformer(model.shape, file, dtype=torch.float64)
    for name, parameter in model.module.named_parameters():
        assert torch.equal(loaded.module.get_parameter(name), parameter), name


def test_a_run_takes_the_sizes_from_its_preset(tmp_path):
    file = saved(tiny_transformer("ltx", torch.float32), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"does not tell its sizes; name its model\.preset: ltx-"):
        planning_shape(ModelSettings(family="ltx", pretrained=str(file)))
    settings = ModelSettings(family="ltx", pretrained=str(file), preset="ltx-video-2b")
    assert planning_shape(settings) == family_named("ltx").presets["ltx-video-2b"]
    assert planning_shape(replace(settings, image_to_video=True)).keeps_first_frame
