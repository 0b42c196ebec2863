# SPDX-License-Identifier: Apache-2.0
"""Llama from first principles: the slow, obvious reference. Autograd gives the gradients.

Parameters are a dict of the names and layouts of Hugging Face's LlamaForCausalLM (a projection is [out, in]). All
arithmetic is in the dtype of the parameters; the RoPE angles are in float64 always.
"""

import math

import torch


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def parameter_shapes(config):
    """Every stored parameter and its shape, in module order. Tied embeddings have no lm_head.weight."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * head_dim(config)
    keys = config["num_key_value_heads"] * head_dim(config)
    shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (queries, hidden),
            prefix + "self_attn.k_proj.weight": (keys, hidden),
            prefix + "self_attn.v_proj.weight": (keys, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, queries),
            **({prefix + "self_attn.q_proj.bias": (queries,), prefix + "self_attn.k_proj.bias": (keys,),
                prefix + "self_attn.v_proj.bias": (keys,)} if config["model_type"] == "qwen2" else {}),
            **({prefix + f"self_attn.{which}_norm.weight": (head_dim(config),) for which in "qk"}
               if config["model_type"] == "qwen3" else {}),
            prefix + "mlp.gate_proj.weight": (ffn, hidden),
            prefix + "mlp.up_proj.weight": (ffn, hidden),
            prefix + "mlp.down_proj.weight": (hidden, ffn),
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def rope_frequencies(config):
    """Radians per position of each pair of channels: list of head_dim/2 floats (Python floats are float64)."""
    size = head_dim(config)
    frequencies = [config["rope_theta"] ** (-2 * pair / size) for pair in range(size // 2)]
    scaling = config.get("rope_scaling")
    if scaling is None:
        return frequencies
    assert scaling["rope_type"] == "llama3", scaling

    # Llama 3.1 stretches the context by slowing the pairs that turn little within the original context. How often a
    # pair turns in that context decides: often - as it was; less than once or so - slowed in full; between - a blend.
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    scaled = []
    for frequency in frequencies:
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        scaled.append(kept * frequency + (1 - kept) * frequency / factor)
    return scaled


def rope(x, position, frequencies):
    """Turn x [samples, heads, tokens, head_dim] by position [samples, tokens]: channel c pairs with c + head_dim/2."""
    angle = position[:, None, :, None].double() * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rms_norm(x, weight, eps):
    return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def products(x, weights):
    """Of x with each of the weights [out, in]; forward() takes another function in its place (fp8.py)."""
    return [x @ weight.T for weight in weights]


def attention(config, p, prefix, x, batch, multiply):
    samples, tokens, _ = x.shape
    size, heads, kv_heads = head_dim(config), config["num_attention_heads"], config["num_key_value_heads"]

    def split(projection, count):
        return projection.view(samples, tokens, count, size).transpose(1, 2)

    q, k, v = multiply(x, [p[prefix + name + "_proj.weight"] for name in "qkv"])
    if config["model_type"] == "qwen2":
        q, k, v = (x + p[prefix + name + "_proj.bias"] for name, x in zip("qkv", (q, k, v)))
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    if config["model_type"] == "qwen3":
        q, k = (rms_norm(x, p[prefix + name + "_norm.weight"], config["rms_norm_eps"]) for name, x in zip("qk", (q, k)))
    frequencies = rope_frequencies(config)
    q = rope(q, batch["position"], frequencies)
    k = rope(k, batch["position"], frequencies)
    # Query head h reads key-value head h / (heads / kv_heads).
    k = k.repeat_interleave(heads // kv_heads, dim=1)
    v = v.repeat_interleave(heads // kv_heads, dim=1)

    document = batch["document"]
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril() & (document[:, :, None] == document[:, None, :])
    if config.get("sliding_window"):
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
        visible = visible & (distance < config["sliding_window"])
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(size)
    scores = scores.masked_fill(~visible[:, None], -math.inf)
    mixed = torch.softmax(scores, dim=-1) @ v
    mixed = mixed.transpose(1, 2).reshape(samples, tokens, heads * size)
    return multiply(mixed, [p[prefix + "o_proj.weight"]])[0]


def mlp(p, prefix, x, multiply):
    gate, up = multiply(x, [p[prefix + "gate_proj.weight"], p[prefix + "up_proj.weight"]])
    return multiply(gate * torch.sigmoid(gate) * up, [p[prefix + "down_proj.weight"]])[0]


def forward(config, p, batch, multiply=products):
    """Logits [samples, tokens, vocab]."""
    eps = config["rms_norm_eps"]
    x = p["model.embed_tokens.weight"][batch["inputs"]]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        normed = rms_norm(x, p[prefix + "input_layernorm.weight"], eps)
        x = x + attention(config, p, prefix + "self_attn.", normed, batch, multiply)
        normed = rms_norm(x, p[prefix + "post_attention_layernorm.weight"], eps)
        x = x + mlp(p, prefix + "mlp.", normed, multiply)
    x = rms_norm(x, p["model.norm.weight"], eps)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ p[head].T


def loss(logits, batch, valid=None):
    """Sum of the cross-entropies of the valid labels, divided by their number, or by the number of a larger batch."""
    of_label = logits.gather(-1, batch["labels"][..., None]).squeeze(-1)
    cross_entropy = torch.logsumexp(logits, dim=-1) - of_label
    return cross_entropy[batch["valid"]].sum() / (batch["valid"].sum() if valid is None else valid)
