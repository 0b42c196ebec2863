#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the fixtures of tests/oracle, or measure how far they can be trusted.

    make_fixtures.py                 train every case in float64 and write <case>.json beside this file
    make_fixtures.py --check         compare logits, loss and gradients with transformers' LlamaForCausalLM
    make_fixtures.py --float32       train in float32 too: the differences that rounding alone makes
    make_fixtures.py --bfloat16      likewise in float32 with matrix products in bfloat16 (torch.autocast)
    make_fixtures.py --tensor-cores  likewise with sums of products in 8 bits as the tensor cores of a Hopper GPU make them
    make_fixtures.py ... CASE...     only these cases
"""

import argparse
import functools
import json
import math
import pathlib

import numpy as np
import torch

import fp8
import groups
import llama
import lora
from cases import CASES
from deterministic import TokenStream, parameter, uneven, unit

HERE = pathlib.Path(__file__).resolve().parent
ORDERS = 7  # of the samples in a batch, the stream's own among them
ALL_BUT_ADAPTERS = r"^(?!.*\.lora_)"


def initial_parameters(case, dtype):
    shapes = llama.parameter_shapes(case["config"])
    if "lora" in case:
        shapes |= lora.adapter_shapes(case["config"], case["lora"], shapes)
    values = {name: parameter(name, shape) for name, shape in shapes.items()}
    if case.get("uneven_blocks"):
        values = {name: uneven(v) for name, v in values.items()}
    return {name: torch.tensor(v, dtype=dtype).requires_grad_() for name, v in values.items()}


def token_stream(case):
    """As long as the training needs and no longer: the last label of the last step is the last token."""
    tokens = case["training"]["steps"] * case["global_batch"] * case["seq_len"] + 1
    return TokenStream(tokens, case["config"]["vocab_size"], case["seq_len"], case["documents"], case["loss_mask"])


def batch_of_step(case, stream, step, order=0):
    """Tensors of the global batch of a step, counted from 1; order 0 is the stream's, others are shuffled."""
    samples = case["global_batch"]
    arrays = stream.batch((step - 1) * samples, samples)
    permutation = np.random.default_rng(order).permutation(samples) if order else np.arange(samples)
    return {name: torch.from_numpy(array[permutation]) for name, array in arrays.items()}


def learning_rate(training, step):
    lr, min_lr, warmup = training["lr"], training["min_lr"], training["warmup_steps"]
    if step <= warmup:
        return lr * step / warmup
    progress = (step - warmup) / (training["steps"] - warmup)
    return min_lr + (lr - min_lr) * (1 + math.cos(math.pi * progress)) / 2


def summary(tensor):
    """What a fixture keeps of a tensor. A permutation or a sign changes the product with the probe, not the norm."""
    flat = tensor.detach().double().flatten()
    probe = torch.from_numpy(unit("probe", flat.numel())).double()
    return {"norm": flat.norm().item(), "dot": (flat @ probe).item(), "first": flat[:4].tolist()}


def global_norm(gradients):
    return math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))


def forward_parameters(case, parameters):
    """What forward reads: with mixed precision rounded leaves of their own, whose gradients are for the unrounded ones."""
    if "param_dtype" not in case:
        return parameters
    dtype = getattr(torch, case["param_dtype"])
    return {name: p.detach().to(dtype).to(p.dtype).requires_grad_(p.requires_grad) for name, p in parameters.items()}


def micro_batches(case, batch):
    """The whole batch, or as many sequences at a time as have the scales of their products in common."""
    sequences = case.get("micro_batch", case["global_batch"])
    parts = zip(*[array.split(sequences) for array in batch.values()])
    return [dict(zip(batch, arrays)) for arrays in parts]


def fp8_recipe(case, order=0, tensor_cores=False):
    if "product_dtype" not in case:
        return None
    recipe = fp8.Fp8Blocks if case.get("fp8_scales") == "block" else fp8.Fp8
    return recipe(getattr(torch, case["fp8_gradient_dtype"]), order, tensor_cores)


def train(case, dtype, order=0, recipe=None):
    """Results of a case: the first batch in detail, a line for each step, the last parameters."""
    parameters = initial_parameters(case, dtype)
    rules = case.get("rules", {}) | ({"frozen": ALL_BUT_ADAPTERS} if "lora" in case else {})
    groups.freeze(parameters, rules)
    optimizer = groups.adamw(parameters, case["training"], rules)
    stream = token_stream(case)
    multiply = fp8.products(recipe) if recipe else llama.products
    result = {
        "stream": {
            "tokens": len(stream.tokens),
            "first": stream.tokens[:8].tolist(),
            "documents": len(stream.document_starts),
            "document_starts": stream.document_starts[:8],
        },
        "initial": {"parameters": {name: summary(p) for name, p in parameters.items()}},
        "steps": [],
    }
    for step in range(1, case["training"]["steps"] + 1):
        batch = batch_of_step(case, stream, step, order)
        used = forward_parameters(case, parameters)
        optimizer.zero_grad()
        valid = int(batch["valid"].sum())
        losses = []
        for part in micro_batches(case, batch):
            if "lora" in case:
                multiply = lora.products(case["lora"], used)
            logits = llama.forward(case["config"], used, part, multiply)
            loss = llama.loss(logits, part, valid)
            loss.backward()
            losses.append(loss.item())
            if len(losses) == 1:
                of_sample_0 = summary(logits[0])
        for name, p in parameters.items():
            p.grad = used[name].grad
        gradients = {name: p.grad for name, p in parameters.items() if p.requires_grad}
        line = {
            "step": step,
            "loss": sum(losses),
            "grad_norm": global_norm(gradients.values()),
            "lr": learning_rate(case["training"], step),
            "valid_tokens": valid,
        }
        result["steps"].append(line)
        if step == 1:
            result["initial"] |= {name: line[name] for name in ("loss", "valid_tokens", "grad_norm")}
            result["initial"]["logits"] = {"sample": 0, "norm": of_sample_0["norm"], "dot": of_sample_0["dot"]}
            result["initial"]["gradients"] = {name: summary(g) for name, g in gradients.items()}

        coefficient = min(1.0, case["max_grad_norm"] / (line["grad_norm"] + 1e-6))
        for gradient in gradients.values():
            gradient.mul_(coefficient)
        for group in optimizer.param_groups:
            group["lr"] = line["lr"] * group["lr_factor"]
        optimizer.step()
    result["final"] = {name: summary(p) for name, p in parameters.items()}
    return result


def to_json(value, indent=""):
    """JSON with one line for each object that holds no other object: short, and readable in a diff."""
    inner = indent + " "
    if isinstance(value, dict) and any(isinstance(v, dict) or is_table(v) for v in value.values()):
        lines = [f"{inner}{json.dumps(k)}: {to_json(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + indent + "}"
    if is_table(value):
        return "[\n" + ",\n".join(inner + json.dumps(row) for row in value) + "\n" + indent + "]"
    return json.dumps(value, allow_nan=False)  # floats as repr: the shortest text that reads back as the same double


def is_table(value):
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def train_in_8_bits(case):
    """And what it counted, and the losses that it must not be mistaken for."""
    recipe = fp8_recipe(case)
    result = train(case, torch.float64, recipe=recipe)
    counted = {"casts": recipe.casts, "saturated": recipe.saturated, "zero_scales": recipe.zero_scales}
    others = {"bfloat16": train(case, torch.float64, recipe=fp8.Bfloat16()), "float32": train(case, torch.float32)}
    losses = {name: [line["loss"] for line in other["steps"]] for name, other in others.items()}
    return result | {"fp8": counted, "other_losses": losses}


def write_fixture(name, case):
    result = train_in_8_bits(case) if "product_dtype" in case else train(case, torch.float64)
    path = HERE / f"{name}.json"
    path.write_text(to_json({"case": name} | case | result) + "\n")
    clipped = sum(line["grad_norm"] > case["max_grad_norm"] for line in result["steps"])
    first, last = result["steps"][0], result["steps"][-1]
    norms = [line["grad_norm"] for line in result["steps"]]
    print(f"{path.name}: {path.stat().st_size} bytes, loss {first['loss']:.4f} -> {last['loss']:.4f}, "
          f"gradient norms {min(norms):.3f} .. {max(norms):.3f}, clipped in {clipped} steps of {len(norms)}")


def compare_with_float64(products, name, case, tensor_cores=False):
    """Float32 against float64, the worst of several orders of the samples; matrix products in bfloat16 if asked for.

    Those in 8 bits are moved within float32 rounding in every run but the first.
    """
    wide = train(case, torch.float64, recipe=fp8_recipe(case))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=products == torch.bfloat16):
        narrow = [train(case, torch.float32, order, fp8_recipe(case, order, tensor_cores)) for order in range(ORDERS)]

    def of_steps(quantity):
        return max(abs(a[quantity] - b[quantity]) / abs(a[quantity])
                   for run in narrow for a, b in zip(wide["steps"], run["steps"]))

    def of_tensors(a, runs):
        """Largest errors over the tensors: of the norm and of the probe relative to the norm, of an element absolute."""
        norm = max(abs(a[t]["norm"] - b[t]["norm"]) / a[t]["norm"] for b in runs for t in a)
        dot = max(abs(a[t]["dot"] - b[t]["dot"]) / a[t]["norm"] for b in runs for t in a)
        first = max(np.abs(np.subtract(a[t]["first"], b[t]["first"])).max() for b in runs for t in a)
        return f"norm {norm:.1e} dot {dot:.1e} first {first:.1e}"

    initial = of_tensors(wide["initial"]["gradients"], [run["initial"]["gradients"] for run in narrow])
    final = of_tensors(wide["final"], [run["final"] for run in narrow])
    print(f"{name:19s} loss {of_steps('loss'):.1e} grad_norm {of_steps('grad_norm'):.1e}"
          f" | initial gradients {initial} | final parameters {final}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--float32", action="store_true")
    mode.add_argument("--bfloat16", action="store_true")
    mode.add_argument("--tensor-cores", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")

    if arguments.check:
        from check_transformers import check as act  # the other modes do without transformers
    elif arguments.tensor_cores:
        act = functools.partial(compare_with_float64, torch.float32, tensor_cores=True)
    elif arguments.float32 or arguments.bfloat16:
        act = functools.partial(compare_with_float64, torch.bfloat16 if arguments.bfloat16 else torch.float32)
    else:
        act = write_fixture
    torch.set_num_threads(1)  # the order of sums, and so the last digit, then does not depend on the machine's cores
    for name in arguments.cases or CASES:
        if arguments.bfloat16 and "product_dtype" in CASES[name]:
            continue
        if arguments.check and "lora" in CASES[name]:
            continue  # check_peft.py
        act(name, CASES[name])


if __name__ == "__main__":
    main()
