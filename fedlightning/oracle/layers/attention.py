"""Multi-head self-attention without copies between its projections and its heads.

PyTorch puts the sequence first, cuts the joint projection of queries, keys and values by three indices and copies every
part. Backwards, each part becomes a tensor of zeros as large as all three, and these are added. Here the heads are
views of the projection, and the gradients of the three parts are stacked: a tenth to a fifth of a small network's step.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F


def self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    is_causal: bool = False,
    **others: Any,
) -> tuple[Tensor, None] | None:
    """Return what ``F.multi_head_attention_forward`` returns for one sequence's attention to itself.

    Arguments are those of that function; ``query``, ``[length, batch, embed_dim]``, must be keys and values as well,
    and whatever ``others`` ask for goes its usual way.

    Returns:
        The result ``[length, batch, embed_dim]``, and None in place of the weights. None alone where the usual way has
        to serve: other keys or values, masks but the causal one, weights that are to be returned, added keys.
    """
    is_plain = query is key is value and query.dim() == 3 and not (add_zero_attn or use_separate_proj_weight)
    wanted = not need_weights and key_padding_mask is None and is_causal == (attn_mask is not None)
    given = [each for each in (bias_k, bias_v, *others.values()) if isinstance(each, Tensor)]
    if not (is_plain and wanted) or given or query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        return None
    assert in_proj_weight is not None
    joint = F.linear(query.transpose(0, 1), in_proj_weight, in_proj_bias)  # [batch, length, 3 * embed_dim]
    q, k, v = (each.transpose(1, 2) for each in joint.unflatten(-1, (3, num_heads, -1)).unbind(2))
    dropout = dropout_p if training else 0.0
    heads = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal)
    return F.linear(heads.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1), None
