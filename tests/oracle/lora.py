# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters beside the products of llama.py: y = x W^T + scale (x A^T) B^T."""

import math
import re

ALL = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
       "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def modules(config, lora):
    """The linear maps that have an adapter, in the order of the model."""
    names = [f"model.layers.{layer}.{name}" for layer in range(config["num_hidden_layers"]) for name in ALL]
    return [name for name in names if re.search(lora["targets"], name)]


def adapter_shapes(config, lora, shapes):
    """Name and shape of A [rank, in] and B [out, rank] of each."""
    result = {}
    for module in modules(config, lora):
        out, into = shapes[module + ".weight"]
        result[module + ".lora_A.weight"] = (lora["rank"], into)
        result[module + ".lora_B.weight"] = (out, lora["rank"])
    return result


def scale(lora):
    return lora["alpha"] / (math.sqrt(lora["rank"]) if lora["scaling"] == "rslora" else lora["rank"])


def products(lora, parameters):
    """For llama.forward(), which gives matrices and not their names."""
    names = {id(tensor): name.removesuffix(".weight") for name, tensor in parameters.items()}

    def multiply(x, weights):
        def one(weight):
            y = x @ weight.T
            module = names[id(weight)]
            if module + ".lora_A.weight" not in parameters:
                return y
            a, b = (parameters[f"{module}.lora_{part}.weight"] for part in "AB")
            return y + scale(lora) * ((x @ a.T) @ b.T)
        return [one(weight) for weight in weights]
    return multiply
