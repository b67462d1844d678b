"""Names of Wan's parameters in the published checkpoints, which ComfyUI loads.

diffusers renamed them. Source: the modules of Wan 2.1's own code (wan/modules/model.py); the test
sends the renamed weights through diffusers' own single-file loader and gets its names back.
"""

import re

_RENAMES = (
    (r"condition_embedder\.time_embedder\.linear_([12])", r"time_embedding.\1"),
    (r"condition_embedder\.text_embedder\.linear_([12])", r"text_embedding.\1"),
    (r"condition_embedder\.time_proj", r"time_projection.1"),
    (r"(blocks\.\d+)\.attn1\.", r"\1.self_attn."),
    (r"(blocks\.\d+)\.attn2\.", r"\1.cross_attn."),
    (r"(_attn)\.to_([qkv])\.", r"\1.\2."),
    (r"(_attn)\.to_out\.0\.", r"\1.o."),
    (r"(blocks\.\d+)\.ffn\.net\.0\.proj\.", r"\1.ffn.0."),
    (r"(blocks\.\d+)\.ffn\.net\.2\.", r"\1.ffn.2."),
    (r"(blocks\.\d+)\.norm2\.", r"\1.norm3."),
    (r"(blocks\.\d+)\.scale_shift_table", r"\1.modulation"),
    (r"\.add_([kv])_proj\.", r".\1_img."),
    (r"\.norm_added_k\.", r".norm_k_img."),
    (r"condition_embedder\.image_embedder\.norm1", r"img_emb.proj.0"),
    (r"condition_embedder\.image_embedder\.ff\.net\.0\.proj", r"img_emb.proj.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.2", r"img_emb.proj.3"),
    (r"condition_embedder\.image_embedder\.norm2", r"img_emb.proj.4"),
    (r"^scale_shift_table", r"head.modulation"),
    (r"^proj_out\.", r"head.head."),
)

_EMBEDDING_LAYER = {"1": "0", "2": "2"}
"""The published embedders are lists of linear, activation, linear."""


def published_name(name: str) -> str:
    """The published name of the parameter that diffusers calls `name`."""
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return re.sub(
        r"^(time|text)_embedding\.([12])\.",
        lambda match: f"{match[1]}_embedding.{_EMBEDDING_LAYER[match[2]]}.",
        name,
    )
