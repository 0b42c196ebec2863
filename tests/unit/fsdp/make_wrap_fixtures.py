#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes wrap_fixtures.json beside this file: which modules PyTorch FSDP's own wrap policies choose. Run by hand with
torch 2.6.0 and transformers 4.57.1; the tests only read the file.

Models are on the meta device. The recursion is torch.distributed.fsdp.wrap's, given a wrapper that only remembers its
module. `units` lists every wrapped module, and "" for the root, with the elements of the parameters that the innermost
wrapped module around them is. PyTorch counts a shared parameter once, where it is first met.
"""

import functools
import json
import pathlib

import torch
from torch import nn
from torch.distributed.fsdp import wrap
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

SHAPES = {
    "small": dict(vocab_size=101, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3,
                  num_key_value_heads=1, head_dim=8, max_position_embeddings=64),
    "1B": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
               num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072),
    "8B": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
               num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=8192),
}
SHAPES["8B, 2 layers"] = SHAPES["8B"] | {"num_hidden_layers": 2}
# One layer of `small`: q, o 576; k, v 192; gate, up, down 960; norms 24; attention 1536, MLP 2880, block 4464. Embedding
# and head 2424. The whole without its head: 2424 + 3 x 4464 + 24 = 15840.
SMALL_THRESHOLDS = [0, 1, 24, 25, 192, 193, 576, 577, 960, 961, 1000, 1536, 1537, 1584, 2424, 2425, 2880, 2881, 4464,
                    4465, 13000, 13416, 13417, 15840, 15841, 18264, 18265, 10**8]
BIG_THRESHOLDS = {"1B": [10**8, 10**9], "8B": [10**8, 2 * 10**8, 10**10], "8B, 2 layers": [5 * 10**6, 5 * 10**7]}
CLASSES = [["LlamaDecoderLayer"], ["LlamaAttention", "LlamaMLP"], ["LlamaDecoderLayer", "LlamaAttention", "LlamaMLP"],
           ["LlamaDecoderLayer", "Embedding"], ["Linear"], ["LlamaRMSNorm", "LlamaModel"]]


def llama(shape, tied):
    config = dict(SHAPES[shape], rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    return config | {"model_type": "llama", "hidden_act": "silu"}, model


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2)
        self.dense = nn.Linear(16, 32)


class Mixed(nn.Module):
    """What no Llama has: a leaf kind, a ModuleDict, parameters of the root's own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.heads = nn.ModuleDict({"left": nn.Linear(16, 40), "right": nn.Linear(16, 8)})
        self.scale = nn.Parameter(torch.empty(16))


def tree(model):
    """Modules as [name, class, parent's index], parameters as [name, shape, module's index]."""
    names = [name for name, _ in model.named_modules()]
    index = {name: i for i, name in enumerate(names)}

    def parent(name):
        return index[name.rpartition(".")[0]]

    modules = [[n, type(m).__name__, parent(n) if n else -1] for n, m in model.named_modules()]
    return {"modules": modules, "parameters": [[n, list(p.shape), parent(n)] for n, p in model.named_parameters()]}


def units_of(model, chosen):
    """`chosen`: names of the wrapped modules."""
    count = dict.fromkeys(["", *(name for name, _ in model.named_modules() if name in chosen)], 0)
    for name, parameter in model.named_parameters():
        while name not in count:
            name = name.rpartition(".")[0]
        count[name] += parameter.numel()
    return list(count.items())


def units_by_size(model, min_params):
    names = {module: name for name, module in model.named_modules()}
    chosen = set()

    def remember(module):
        chosen.add(names[module])
        return module

    policy = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=min_params)
    wrap._recursive_wrap(model, policy, remember, set(), set(), only_wrap_children=True)
    return units_of(model, chosen)


def units_by_class(model, classes):
    types = {getattr(modeling_llama, name, None) or getattr(nn, name) for name in classes}
    chosen = wrap.ModuleWrapPolicy(types)._run_policy(model, set(), {})
    return units_of(model, {name for name, module in model.named_modules() if module in chosen})


def cases():
    for shape in SHAPES:
        for tied in [False, True]:
            if shape.startswith("8B") and tied:
                continue
            config, model = llama(shape, tied)
            for n in SMALL_THRESHOLDS if shape == "small" else BIG_THRESHOLDS[shape]:
                yield {"config": config, "policy": "size", "min_params": n, "units": units_by_size(model, n)}
            for classes in CLASSES if shape == "small" else []:
                units = units_by_class(model, classes)
                yield {"config": config, "policy": "modules", "modules": classes, "units": units}
    with torch.device("meta"):
        model = Mixed()
    for n in [1, 100, 300, 600, 816, 1000, 1632, 2000, 3500, 4096]:
        yield {"tree": tree(model), "policy": "size", "min_params": n, "units": units_by_size(model, n)}


def main():
    file = pathlib.Path(__file__).resolve().with_name("wrap_fixtures.json")
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases())
    file.write_text(f'{{"torch":"{torch.__version__}","cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
