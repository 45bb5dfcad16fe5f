"""What public models call that which makes queries, and what lies beside it; knows names, and shapes nothing.

What is done about it is decided in ``tempopt.attention.attach.query_rows``.
"""

from __future__ import annotations

import re

from torch import nn

# Last parts of module names, in lower case, as they are in use in public models.
QUERY_NAMES = frozenset(
    "q query queries q_proj q_lin q_linear query_proj query_projection proj_q proj_query to_q to_query "
    "wq w_q q_net fc_q linear_q query_layer q_b_proj".split()
)
FUSED_NAMES = frozenset("qkv wqkv w_qkv in_proj in_proj_qkv qkv_proj proj_qkv to_qkv c_attn attn_qkv".split())
INTERLEAVED_NAMES = frozenset({"query_key_value", "linear_qkv"})
PROJECTION_NAMES = QUERY_NAMES | FUSED_NAMES | INTERLEAVED_NAMES

# What makes queries beside the projection and has its temperature: those of tokens that all others attend
# to (Longformer), those of positions (DeBERTa), and, as parameters of the attention itself, the query's
# biases for content and for position (Transformer-XL, Conformer).
MORE_PROJECTIONS = ("query_global", "pos_query_proj")
MORE_PARAMETERS = ("pos_bias_u", "pos_bias_v", "bias_u", "bias_v")

# What comes between projection and logits, beside the projection.
_QUERY_NORMS = ("q_norm", "query_norm", "q_layernorm", "query_layernorm", "qk_norm", "norm_q")
QUERY_BIASES = ("q_bias", "query_bias")
# What the query makes beside the logits: kernels of a convolution (ConvBERT).
MADE_OF_QUERY = ("conv_kernel_layer",)

_SAYS_QUERY = re.compile(r"(^|_)(q|query|queries)(_|$)")
# Of low rank, the query is made in two steps, with a norm between them: only the second keeps a factor.
_FIRST_HALF = re.compile(r"(^|_)q(uery)?_(a|down)(_|$)|_(a|down)_q(_|$)")
# What mixes tokens without a softmax, though its projections have the names that those of attention have.
_RECURRENT = re.compile(
    r"mamba|ssm|lightning|linear_?attention|delta_?(net|attention)|short_?conv|rwkv|retention|recurrent|"
    r"rg_?lru|hgrn|gated_?linear|lstm",
    re.IGNORECASE,
)


def leaf(name: str) -> str:
    """Return the last part of a name, in lower case."""
    return name.rpartition(".")[2].lower()


def says_query(name: str) -> bool:
    """Whether the last part of a name says that the module makes queries, in one of its words."""
    return leaf(name) in QUERY_NAMES or bool(_SAYS_QUERY.search(leaf(name)))


def is_first_half(name: str) -> bool:
    """Whether it is the first of two projections of low rank that make the query together."""
    return bool(_FIRST_HALF.search(leaf(name)))


def query_norm(attention: nn.Module) -> str | None:
    """Return the name of what normalises the query after its projection (QK-norm), None without it."""
    for name in _QUERY_NORMS:
        child = attention._modules.get(name)
        if child is not None and not isinstance(child, nn.Identity):
            return name
    return None


def has_no_softmax(mixer: nn.Module) -> bool:
    """Whether it is known for a state space, a linear attention or the like, on which no temperature acts."""
    return bool(_RECURRENT.search(type(mixer).__name__)) or "A_log" in mixer._parameters
