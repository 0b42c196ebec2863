# SPDX-License-Identifier: Apache-2.0
"""The cases: tiny models of awkward sizes which differ in one idea each.

Some sizes are as they are because of AdamW, which divides a gradient by its own magnitude: an element whose true gradient
is near zero moves by a full step in a direction that rounding decides, and the float32 trajectory leaves the float64 one.
Among neighbouring sizes, ones were taken where `make_fixtures.py --float32` shows no such element.
"""

TRAINING = {
    "steps": 10,
    "lr": 3e-3,
    "min_lr": 3e-4,
    "schedule": "cosine",
    "warmup_steps": 3,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
}


def case(seq_len, global_batch, max_grad_norm=1.0, documents=False, loss_mask=False, param_dtype="float32", rules=None,
         fp8=None, training=None, lora=None, **config):
    common = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }
    return {
        "config": common | config,
        "seq_len": seq_len,
        "global_batch": global_batch,
        "training": TRAINING | (training or {}),
        "max_grad_norm": max_grad_norm,
        "documents": documents,
        "loss_mask": loss_mask,
        **({"param_dtype": param_dtype} if param_dtype != "float32" else {}),
        **({"rules": rules} if rules else {}),
        **({"lora": lora} if lora else {}),
        **(fp8 or {}),
    }


def family(prefix, model_type):
    return {"architectures": [f"{prefix}ForCausalLM"], "model_type": model_type}


def fp8(gradient_dtype):
    """One sequence in a micro-batch, so that the casts are the same for any number of ranks that divides the batch."""
    return {"product_dtype": "fp8", "fp8_gradient_dtype": gradient_dtype, "micro_batch": 1}


def fp8_blocks(gradient_dtype, float32_steps, **more):
    """128 tokens, a tile of a column, are whole sequences, so the casts depend on no other sequence of a micro-batch."""
    more = {"fp8_scales": "block", "float32_steps": float32_steps, "micro_batch": 2} | more
    return fp8(gradient_dtype) | more


CASES = {
    "mha_untied": case(
        seq_len=24, global_batch=4,
        vocab_size=331, hidden_size=80, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=5, num_key_value_heads=5,
    ),
    "gqa_tied": case(
        seq_len=17, global_batch=8,
        vocab_size=257, hidden_size=96, intermediate_size=168, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-6,
    ),
    # Wavelengths are 6.3, 14.3, 32.4, 73.5, ... tokens. With 48 tokens of original context the first is kept
    # (< 48/4), the next two are blended, the rest are slowed (> 48/1).
    "gqa_llama3rope": case(
        seq_len=24, global_batch=4,
        vocab_size=193, hidden_size=128, intermediate_size=200, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rope_theta=500000.0, max_position_embeddings=384,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 48,
        },
    ),
    # 4 heads of 24 make attention 96 wide in a model that is 72 wide.
    "head_dim_given": case(
        seq_len=33, global_batch=4,
        vocab_size=223, hidden_size=72, intermediate_size=136, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24,
    ),
    # 24 samples: 1, 2, 3, 4 and 8 ranks divide them, and each rank has another number of valid labels.
    "documents": case(
        seq_len=17, global_batch=24, documents=True, loss_mask=True,
        vocab_size=173, hidden_size=64, intermediate_size=144, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    ),
    "one_layer_one_head": case(
        seq_len=7, global_batch=24,
        vocab_size=61, hidden_size=16, intermediate_size=40, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    ),
    # Also the loss mask without documents, three layers, and clipping that is active in some steps and not in others.
    "mqa": case(
        seq_len=33, global_batch=8, loss_mask=True, max_grad_norm=1.45,
        vocab_size=127, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=1,
    ),
    # Mixed precision: every forward reads the parameters rounded to bfloat16, AdamW updates the unrounded ones. A parameter
    # that stands between two bfloat16 numbers may fall to either side of them; where none does was searched as above.
    "bf16_params": case(
        seq_len=17, global_batch=24, max_grad_norm=0.5, documents=True, loss_mask=True, param_dtype="bfloat16",
        vocab_size=67, hidden_size=24, intermediate_size=56, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1,
    ),
    # Parameter groups. Nothing up to layer 0 needs a gradient, so the backward pass can end in layer 1. There q and k are
    # frozen beside v, with which they are one matrix; in layer 2 some parameters of every kind are.
    "groups_frozen": case(
        seq_len=17, global_batch=8, max_grad_norm=1.45,
        rules={
            "frozen": r"embed_tokens|layers\.0\.|layers\.1\.self_attn\.[qk]_proj|layers\.2\.(mlp\.down_proj|.*norm)",
            "lr_factors": r"lm_head=0.25",
            "weight_decays": r"layers\.1\.mlp=0.02",
        },
        vocab_size=149, hidden_size=72, intermediate_size=104, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2,
    ),
    # Other families: biases of q, k and v; norms of q and k, with heads whose size is their own; windows. Softmax does not
    # see what all keys have in common, and pairs of a key's bias that RoPE hardly turns are that: their gradient is nearly
    # zero, so the base of RoPE is small.
    "qwen2": case(
        seq_len=9, global_batch=8,
        **family("Qwen2", "qwen2"), rope_theta=2.0, tie_word_embeddings=True, rms_norm_eps=1e-6,
        vocab_size=151, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2,
    ),
    "qwen3": case(
        seq_len=17, global_batch=8,
        **family("Qwen3", "qwen3"), head_dim=16, rms_norm_eps=1e-6,
        vocab_size=163, hidden_size=40, intermediate_size=72, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    ),
    "mistral": case(
        seq_len=17, global_batch=8, documents=True,
        **family("Mistral", "mistral"), sliding_window=None,
        vocab_size=139, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    ),
    "mistral_window": case(
        seq_len=33, global_batch=4,
        **family("Mistral", "mistral"), sliding_window=6,
        vocab_size=139, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    ),
    # Adapters of all linear maps of a block, in float32 and beside a base that is read in bfloat16; and of some maps of some
    # layers, with the other scaling. B is not zero as it is where a run begins: then A would have no gradient.
    "lora_all": case(
        seq_len=17, global_batch=8, lora={"rank": 4, "alpha": 6, "scaling": "standard", "targets": "proj"},
        vocab_size=149, hidden_size=72, intermediate_size=104, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2,
    ),
    "lora_some": case(
        seq_len=24, global_batch=4, max_grad_norm=0.16,
        lora={"rank": 3, "alpha": 2, "scaling": "rslora", "targets": r"layers\.1\.(self_attn\.[qo]|mlp\.(up|down))_proj"},
        vocab_size=131, hidden_size=64, intermediate_size=88, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True,
    ),
    # Products in 8 bits (fp8.py). A number that stands between two of a format may fall to either side of them, after
    # which nothing is the same; where none does was searched as above, with `--float32`.
    "fp8_untied": case(
        seq_len=16, global_batch=2, documents=True, loss_mask=True, fp8=fp8("float8_e5m2"),
        vocab_size=323, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, rope_theta=500000.0,
    ),
    "fp8_tied": case(
        seq_len=16, global_batch=2, documents=True, fp8=fp8("float8_e4m3fn"),
        vocab_size=191, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_theta=2000.0,
    ),
    "fp8_mistral": case(
        seq_len=16, global_batch=2, documents=True, loss_mask=True, fp8=fp8("float8_e5m2") | {"float32_steps": 9},
        **family("Mistral", "mistral"), sliding_window=5,
        vocab_size=193, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, rope_theta=500000.0,
    ),
    # With scales of blocks, sizes are multiples of 128, and so many numbers are cast that in float32 some always fall to the
    # other side: in `fp8_blocks` none does in the first step, in `fp8_blocks_e4m3` only float64 is exact. There a tile of a
    # column is of two sequences, and the blocks of a weight have different scales.
    "fp8_blocks": case(
        seq_len=128, global_batch=2, documents=True, loss_mask=True, fp8=fp8_blocks("float8_e5m2", float32_steps=1),
        training={"steps": 3, "warmup_steps": 2},
        vocab_size=351, hidden_size=128, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, rope_theta=500000.0, max_position_embeddings=128,
    ),
    "fp8_blocks_e4m3": case(
        seq_len=64, global_batch=8, documents=True, fp8=fp8_blocks("float8_e4m3fn", float32_steps=0, uneven_blocks=True),
        training={"steps": 3, "warmup_steps": 2},
        vocab_size=191, hidden_size=256, intermediate_size=128, num_hidden_layers=2, head_dim=64,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-6,
    ),
}
