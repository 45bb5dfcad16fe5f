"""The families of attach_families.py: how each is built, tiny, run, and brought to τ = 2 without tempopt."""

from __future__ import annotations

import importlib
import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

V, T, W, H, L = 40, 9, 32, 4, 2

SIZES = dict(
    vocab_size=V,
    hidden_size=W,
    intermediate_size=48,
    num_hidden_layers=L,
    num_attention_heads=H,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)
GROUPED = SIZES | dict(num_key_value_heads=2, head_dim=8)


@dataclass(frozen=True)
class Family:
    """One family: its name in the table, how it is made and run, and what brings a copy to temperature 2."""

    name: str
    make: Callable[[], nn.Module]
    run: Callable[[nn.Module], Tensor]
    oracle: Callable[[nn.Module], AbstractContextManager[None]]


def model_builder(
    model: str, config: str, options: dict[str, Any], eager: bool = False
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        transformers = importlib.import_module("transformers")
        model_instance: Any = getattr(transformers, model)(getattr(transformers, config)(**options))
        if eager:
            model_instance.set_attn_implementation("eager")
        return model_instance

    return make


def draw_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def ids(length: int = T) -> Tensor:
    return torch.randint(3, V, (2, length), generator=torch.Generator().manual_seed(1))


def flat(output: Any) -> Tensor:
    tensors = (
        [output]
        if isinstance(output, Tensor)
        else list(output.values() if hasattr(output, "values") else output)
    )
    return torch.cat([tensor.float().flatten() for tensor in tensors if isinstance(tensor, Tensor)])


def text(model: nn.Module) -> Tensor:
    padding = torch.ones(2, T, dtype=torch.long)
    padding[1, -3:] = 0
    model_inputs: dict[str, Any] = {"input_ids": ids(), "attention_mask": padding}
    return flat(first(model(**model_inputs)))


def plain(model: nn.Module) -> Tensor:
    return flat(first(model(input_ids=ids())))


def long_text(model: nn.Module) -> Tensor:
    return flat(first(model(input_ids=ids(64))))


def global_text(model: nn.Module) -> Tensor:
    mask = torch.zeros(2, 16, dtype=torch.long)
    mask[:, [0, 5]] = 1
    return flat(first(model(input_ids=ids(16), global_attention_mask=mask)))


def pairs(model: nn.Module) -> Tensor:
    return flat(first(model(input_ids=ids(), decoder_input_ids=ids(5))))


def global_pairs(model: nn.Module) -> Tensor:
    mask = torch.zeros(2, 16, dtype=torch.long)
    mask[:, [0, 5]] = 1
    return flat(first(model(input_ids=ids(16), decoder_input_ids=ids(5), global_attention_mask=mask)))


def image(model: nn.Module) -> Tensor:
    size = getattr(model.config, "image_size", 32)
    size = size[0] if isinstance(size, (list, tuple)) else size
    return flat(first(model(pixel_values=draw_tensor(2, 3, size, size))))


def all_outputs(model: nn.Module) -> Tensor:
    """Every output of an image tower, the pooled one too."""
    out = model(pixel_values=draw_tensor(2, 3, model.config.image_size, model.config.image_size))
    return flat([out.last_hidden_state, out.pooler_output])


def wave(model: nn.Module) -> Tensor:
    return flat(first(model(draw_tensor(2, 400))))


def features(model: nn.Module) -> Tensor:
    return flat(first(model(draw_tensor(2, 40, 16))))


def spectrogram(model: nn.Module) -> Tensor:
    return flat(first(model(input_features=draw_tensor(2, 16, 20), decoder_input_ids=ids(5))))


def first(output: Any) -> Any:
    if hasattr(output, "logits"):
        return output.logits
    return output[0]


@contextmanager
def scale(model: nn.Module) -> Iterator[None]:
    """Halve what attention modules multiply their logits by."""
    num_found = 0
    for module in model.modules():
        for name in ("scaling", "scale"):
            if isinstance(vars(module).get(name), float):
                vars(module)[name] *= 0.5
                num_found += 1
    assert num_found, "no module has a scale"
    yield


def roots(factor: float) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Multiply the square roots that the family's own code divides logits by."""

    @contextmanager
    def multiply(model: nn.Module) -> Iterator[None]:
        names = vars(sys.modules[type(model).__module__])
        longer = types.SimpleNamespace(**vars(math) | {"sqrt": lambda x: factor * math.sqrt(x)})
        original_sqrt = names.get("scaled_size_sqrt")
        scaled_sqrt = (
            {"scaled_size_sqrt": lambda *args: factor * original_sqrt(*args)} if original_sqrt else {}
        )
        with mock.patch.dict(names, {"math": longer} | scaled_sqrt):
            yield

    return multiply


root = roots(2.0)


def attribute(name: str, factor: float) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Multiply an attribute, or a buffer, of attention modules."""

    @contextmanager
    def multiply(model: nn.Module) -> Iterator[None]:
        holders = [module for module in model.modules() if hasattr(module, name)]
        assert holders, "no module has it"
        for module in holders:
            setattr(module, name, getattr(module, name) * factor)
        yield

    return multiply


def weights(*ends: str, parts: int = 1, axis: int = 0) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Halve parameters by the ends of their names, or the first of their parts."""

    @contextmanager
    def halve(model: nn.Module) -> Iterator[None]:
        num_found = 0
        for name, parameter in model.named_parameters():
            if name.endswith(ends):
                halved_axis = axis if parameter.ndim > 1 else 0
                size = parameter.shape[halved_axis] // parts
                with torch.no_grad():
                    parameter.narrow(halved_axis, 0, size).mul_(0.5)
                num_found += 1
        assert num_found, "no parameter is named so"
        yield

    return halve


def apply_all(*oracles: Any) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Apply several, of a model whose attention is of several kinds."""

    @contextmanager
    def apply(model: nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for oracle in oracles:
                stack.enter_context(oracle(model))
            yield

    return apply


def shift(name: str, by: float) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Add a number to parameters of that name, which are logarithms of scales."""

    @contextmanager
    def add(model: nn.Module) -> Iterator[None]:
        for full_name, parameter in model.named_parameters():
            if full_name.endswith(name):
                with torch.no_grad():
                    parameter.add_(by)
        yield

    return add


@contextmanager
def grouped_queries(model: nn.Module) -> Iterator[None]:
    """Halve the queries of Falcon, which lie before the key and the value of each group."""
    for name, parameter in model.named_parameters():
        if name.endswith("query_key_value.weight"):
            with torch.no_grad():
                parameter.view(2, H // 2 + 2, W // H, W)[:, :-2].mul_(0.5)
    yield


QUERY = weights("query.weight", "query.bias")
Q_PROJ = weights("q_proj.weight", "q_proj.bias")


def decoder(name: str, *, oracle: Any = scale, run: Any = text, model: str = "", **options: Any) -> Family:
    stem = name.split(" ")[0]
    make_model = model_builder(model or f"{stem}ForCausalLM", f"{stem}Config", {**GROUPED, **options})
    return Family(name, make_model, run, oracle)


def encoder(name: str, *, oracle: Any = scale, run: Any = text, **options: Any) -> Family:
    stem = name.split(" ")[0]
    return Family(name, model_builder(f"{stem}Model", f"{stem}Config", {**SIZES, **options}), run, oracle)


IMAGE = dict(
    hidden_size=W,
    intermediate_size=48,
    num_hidden_layers=L,
    num_attention_heads=H,
    image_size=16,
    patch_size=4,
)


def vision(
    name: str, *, oracle: Any = scale, run: Any = image, model: str = "", config: str = "", **options: Any
) -> Family:
    stem = name.split(" ")[0]
    all_options = {**IMAGE, **options}
    return Family(
        name, model_builder(model or f"{stem}Model", config or f"{stem}Config", all_options), run, oracle
    )


SEQ = dict(
    vocab_size=V,
    d_model=W,
    encoder_layers=L,
    decoder_layers=L,
    encoder_attention_heads=H,
    decoder_attention_heads=H,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
)
T5 = dict(
    vocab_size=V,
    d_model=W,
    d_kv=8,
    d_ff=48,
    num_layers=L,
    num_decoder_layers=L,
    num_heads=H,
    decoder_start_token_id=0,
    pad_token_id=0,
)


def pair(
    name: str, sizes: dict[str, Any], *, oracle: Any = scale, run: Any = pairs, **options: Any
) -> Family:
    stem = name.split(" ")[0]
    return Family(name, model_builder(f"{stem}Model", f"{stem}Config", {**sizes, **options}), run, oracle)


SPEECH = dict(
    hidden_size=W,
    num_hidden_layers=L,
    num_attention_heads=H,
    intermediate_size=48,
    vocab_size=V,
    conv_dim=(16, 16),
    conv_stride=(5, 2),
    conv_kernel=(10, 3),
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    num_feat_extract_layers=2,
    feat_extract_norm="layer",
)
GPT = dict(vocab_size=V, n_embd=W, n_layer=L, n_head=H, n_positions=64, bos_token_id=None, eos_token_id=None)
MOE = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
MLA = dict(
    num_key_value_heads=H,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1,
    head_dim=4,
)
SWIN = dict(image_size=16, patch_size=2, embed_dim=W, depths=[1, 1], num_heads=[2, 4], window_size=2)
MAMBA = dict(
    mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2
)


FAMILIES: list[Family] = [
    decoder("Llama"),
    decoder("Qwen2"),
    decoder("Qwen3"),
    decoder("Qwen3Moe", **MOE, decoder_sparse_step=1),
    decoder("Gemma"),
    decoder("Gemma2"),
    Family("Gemma3", model_builder("Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED), text, scale),
    decoder("Mistral"),
    decoder("Ministral3"),
    decoder("Mixtral", **MOE),
    decoder("GptOss", **MOE),
    decoder("Phi"),
    decoder("Phi qk_layernorm", qk_layernorm=True),
    decoder("Phi3"),
    decoder("Cohere", use_qk_norm=False),
    decoder("Cohere use_qk_norm", use_qk_norm=True),
    decoder("Cohere2"),
    decoder("Granite"),
    decoder("StableLm"),
    decoder("Glm4"),
    decoder("Nemotron"),
    decoder("SmolLM3"),
    decoder("Starcoder2"),
    decoder("DiffLlama"),
    decoder("Olmo2"),
    decoder("Persimmon"),
    decoder("Lfm2", layer_types=["conv", "full_attention"]),
    decoder("Doge"),
    decoder("MiniMax", layer_types=["linear_attention", "full_attention"], **MOE),
    decoder(
        "Jamba",
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=4,
        use_mamba_kernels=False,
        mamba_d_state=8,
    ),
    decoder("Bamba", attn_layer_indices=[1], **MAMBA),
    decoder("FalconH1", **MAMBA, mamba_d_ssm=64),
    decoder("DeepseekV2", **MLA, q_lora_rank=None),
    decoder("DeepseekV2 q_lora", **MLA, q_lora_rank=16),
    decoder("DeepseekV3", **MLA, q_lora_rank=16),
    decoder("GPTNeoX"),
    decoder("GPTBigCode MQA", multi_query=True, **GPT),
    decoder("GPTBigCode MHA", multi_query=False, **GPT),
    decoder("OPT", ffn_dim=48, word_embed_proj_dim=W),
    decoder("GPT2", model="GPT2LMHeadModel", **GPT),
    decoder(
        "GPT2 scale_attn_by_inverse_layer_idx",
        model="GPT2LMHeadModel",
        scale_attn_by_inverse_layer_idx=True,
        **GPT,
        oracle=weights("c_attn.weight", "c_attn.bias", parts=3, axis=1),
    ),
    decoder("XGLM", d_model=W, ffn_dim=48, num_layers=L, attention_heads=H, oracle=Q_PROJ),
    decoder("GPTJ", oracle=attribute("scale_attn", 2.0), rotary_dim=4, **GPT),
    decoder("GPTNeo", oracle=Q_PROJ, attention_types=[[["global", "local"], 1]], num_layers=L, num_heads=H),
    decoder("CodeGen", oracle=attribute("scale_attn", 2.0), rotary_dim=4, **GPT),
    decoder("Mpt", d_model=W, n_heads=H, n_layers=L, oracle=attribute("softmax_scale", 0.5)),
    decoder("Bloom", n_head=H, n_layer=L, oracle=attribute("inv_norm_factor", 0.5)),
    Family(
        "Falcon",
        model_builder(
            "FalconForCausalLM", "FalconConfig", dict(SIZES, new_decoder_architecture=True, num_kv_heads=2)
        ),
        text,
        grouped_queries,
    ),
    decoder("Mamba", run=plain, state_size=8, oracle=weights("in_proj.weight")),
    encoder("Bert"),
    encoder("Roberta"),
    encoder("Electra"),
    encoder("Albert", oracle=scale, embedding_size=16),
    Family(
        "DistilBert",
        model_builder(
            "DistilBertModel",
            "DistilBertConfig",
            dict(vocab_size=V, dim=W, hidden_dim=48, n_layers=L, n_heads=H),
        ),
        text,
        scale,
    ),
    encoder("Esm", oracle=scale, mask_token_id=4),
    encoder(
        "ModernBert", oracle=weights("Wqkv.weight", "Wqkv.bias", parts=3), cls_token_id=1, sep_token_id=2
    ),
    encoder("MPNet", oracle=root),
    encoder("RoFormer", oracle=root, embedding_size=W),
    encoder("ConvBert", oracle=root, embedding_size=W, conv_kernel_size=3, head_ratio=2),
    encoder("BigBird full", oracle=root, attention_type="original_full"),
    encoder(
        "BigBird sparse",
        oracle=root,
        attention_type="block_sparse",
        block_size=4,
        num_random_blocks=1,
        run=long_text,
    ),
    encoder(
        "DebertaV2 shared",
        oracle=root,
        relative_attention=True,
        share_att_key=True,
        pos_att_type=["c2p", "p2c"],
        norm_rel_ebd="layer_norm",
        position_buckets=8,
    ),
    encoder(
        "DebertaV2 unshared",
        oracle=root,
        relative_attention=True,
        share_att_key=False,
        pos_att_type=["c2p", "p2c"],
    ),
    encoder("Deberta", oracle=root, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    encoder("Longformer", oracle=root, attention_window=4),
    encoder("Longformer global", oracle=root, attention_window=4, run=global_text),
    encoder(
        "Nystromformer",
        oracle=roots(2 ** (1 / 3)),
        num_landmarks=3,
        segment_means_seq_len=9,
        conv_kernel_size=3,
        run=plain,
    ),
    encoder(
        "LayoutLMv3",
        oracle=QUERY,
        visual_embed=False,
        has_relative_attention_bias=True,
        has_spatial_attention_bias=True,
        coordinate_size=4,
        shape_size=8,
        max_2d_position_embeddings=64,
    ),
    Family(
        "XLNet",
        model_builder(
            "XLNetModel", "XLNetConfig", dict(vocab_size=V, d_model=W, n_layer=L, n_head=H, d_inner=48)
        ),
        plain,
        scale,
    ),
    encoder("FNet", oracle=weights("dense.weight"), run=plain),
    Family(
        "XLM",
        model_builder(
            "XLMModel",
            "XLMConfig",
            dict(vocab_size=V, emb_dim=W, n_layers=L, n_heads=H, n_langs=1, max_position_embeddings=64),
        ),
        text,
        root,
    ),
    Family(
        "Funnel",
        model_builder(
            "FunnelModel",
            "FunnelConfig",
            dict(
                vocab_size=V,
                d_model=W,
                n_head=H,
                d_head=8,
                d_inner=48,
                block_sizes=[1, 1],
                num_decoder_layers=1,
            ),
        ),
        plain,
        scale,
    ),
    pair("T5", T5),
    pair("UMT5", T5),
    pair("Bart", SEQ),
    pair("Marian", SEQ),
    pair("Pegasus", SEQ),
    pair("FSMT", dict(SEQ, langs=["a", "b"], src_vocab_size=V, tgt_vocab_size=V), oracle=Q_PROJ),
    pair(
        "ProphetNet",
        dict(
            vocab_size=V,
            hidden_size=W,
            num_encoder_layers=L,
            num_decoder_layers=L,
            num_encoder_attention_heads=H,
            num_decoder_attention_heads=H,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=64,
            ngram=2,
            pad_token_id=0,
        ),
        oracle=weights("query_proj.weight", "query_proj.bias"),
    ),
    pair(
        "LED",
        SEQ,
        oracle=apply_all(root, scale),
        attention_window=4,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    ),
    pair(
        "LED global",
        SEQ,
        oracle=apply_all(root, scale),
        attention_window=4,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
        run=global_pairs,
    ),
    pair("Whisper", SEQ, num_mel_bins=16, max_source_positions=10, max_target_positions=16, run=spectrogram),
    vision("ViT"),
    vision("DeiT"),
    vision("Beit", oracle=scale, use_relative_position_bias=True, use_mask_token=False),
    vision("Dinov2"),
    vision("Dinov2WithRegisters"),
    vision("DINOv3ViT", rope_theta=100.0),
    vision("CLIPVision"),
    vision(
        "SiglipVision",
        run=all_outputs,
        oracle=apply_all(scale, weights("in_proj_weight", "in_proj_bias", parts=3)),
    ),
    vision(
        "VitDet",
        oracle=weights("qkv.weight", "qkv.bias", parts=3),
        use_relative_position_embeddings=True,
        pretrain_image_size=16,
        run=image,
    ),
    Family("Swin", model_builder("SwinModel", "SwinConfig", SWIN), image, scale),
    Family(
        "Swinv2",
        model_builder("Swinv2Model", "Swinv2Config", SWIN),
        image,
        shift("logit_scale", -math.log(2.0)),
    ),
    vision(
        "Segformer",
        oracle=scale,
        depths=[1, 1],
        num_encoder_blocks=2,
        sr_ratios=[2, 1],
        hidden_sizes=[16, W],
        num_attention_heads=[2, 4],
        patch_sizes=[3, 3],
        strides=[2, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        image_size=32,
    ),
    vision(
        "Hiera",
        oracle=scale,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[1, 2],
        image_size=[16, 16],
        patch_size=[3, 3],
        patch_stride=[2, 2],
        patch_padding=[1, 1],
        query_stride=[2, 2],
        num_query_pool=1,
        masked_unit_size=[2, 2],
    ),
    Family(
        "ImageGPT",
        model_builder("ImageGPTModel", "ImageGPTConfig", dict(GPT)),
        plain,
        weights("c_attn.weight", "c_attn.bias", parts=3, axis=1),
    ),
    Family(
        "Perceiver",
        model_builder(
            "PerceiverModel",
            "PerceiverConfig",
            dict(
                num_latents=6,
                d_latents=W,
                d_model=16,
                num_blocks=1,
                num_self_attends_per_block=2,
                num_self_attention_heads=4,
                num_cross_attention_heads=4,
                qk_channels=W,
                v_channels=W,
            ),
        ),
        lambda model: model(inputs=draw_tensor(2, T, 16)).last_hidden_state,
        root,
    ),
    Family("Wav2Vec2", model_builder("Wav2Vec2Model", "Wav2Vec2Config", SPEECH), wave, scale),
    Family(
        "WavLM",
        model_builder("WavLMModel", "WavLMConfig", dict(SPEECH, num_buckets=8, max_bucket_distance=16)),
        wave,
        Q_PROJ,
    ),
    Family(
        "Wav2Vec2Conformer rotary",
        model_builder(
            "Wav2Vec2ConformerModel",
            "Wav2Vec2ConformerConfig",
            dict(SPEECH, position_embeddings_type="rotary", conv_depthwise_kernel_size=3),
        ),
        wave,
        scale,
    ),
    Family(
        "Wav2Vec2Conformer relative",
        model_builder(
            "Wav2Vec2ConformerModel",
            "Wav2Vec2ConformerConfig",
            dict(SPEECH, position_embeddings_type="relative", conv_depthwise_kernel_size=3),
        ),
        wave,
        scale,
    ),
    Family(
        "Wav2Vec2Bert relative_key",
        model_builder(
            "Wav2Vec2BertModel",
            "Wav2Vec2BertConfig",
            dict(
                SPEECH,
                feature_projection_input_dim=16,
                conv_depthwise_kernel_size=3,
                position_embeddings_type="relative_key",
            ),
        ),
        lambda model: flat(first(model(input_features=draw_tensor(2, 12, 16)))),
        scale,
    ),
    Family(
        "Parakeet",
        model_builder(
            "ParakeetEncoder",
            "ParakeetEncoderConfig",
            dict(
                hidden_size=W,
                num_hidden_layers=L,
                num_attention_heads=H,
                intermediate_size=48,
                num_mel_bins=16,
                subsampling_factor=4,
                subsampling_conv_channels=8,
                conv_kernel_size=3,
                max_position_embeddings=64,
            ),
        ),
        lambda model: flat(first(model(input_features=draw_tensor(2, 40, 16)))),
        scale,
    ),
]
