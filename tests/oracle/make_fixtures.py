#!/usr/bin/env python3
"""Write the fixtures of tests/oracle, or measure how far they can be trusted.

    make_fixtures.py                 train every case in float64 and write <case>.json beside this file
    make_fixtures.py --check         compare logits, loss and gradients with transformers' LlamaForCausalLM
    make_fixtures.py --float32       train in float32 too: the differences that rounding alone makes
    make_fixtures.py ... CASE...     only these cases
"""

import argparse
import json
import math
import pathlib

import numpy as np
import torch

import llama
from cases import CASES
from deterministic import TokenStream, parameter, unit

HERE = pathlib.Path(__file__).resolve().parent


def initial_parameters(case, dtype):
    shapes = llama.parameter_shapes(case["config"])
    return {name: torch.tensor(parameter(name, shape), dtype=dtype).requires_grad_() for name, shape in shapes.items()}


def token_stream(case):
    """As long as the training needs and no longer: the last label of the last step is the last token."""
    tokens = case["training"]["steps"] * case["global_batch"] * case["seq_len"] + 1
    return TokenStream(tokens, case["config"]["vocab_size"], case["seq_len"], case["documents"], case["loss_mask"])


def batch_of_step(case, stream, step):
    """Tensors of the global batch of a step, counted from 1."""
    arrays = stream.batch((step - 1) * case["global_batch"], case["global_batch"])
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


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


def adamw(parameters, training):
    groups = [
        {"params": [p for p in parameters.values() if p.ndim >= 2], "weight_decay": training["weight_decay"]},
        {"params": [p for p in parameters.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (training["beta1"], training["beta2"])
    return torch.optim.AdamW(groups, lr=training["lr"], betas=betas, eps=training["eps"])


def train(case, dtype):
    """Results of a case: the first batch in detail, a line for each step, the last parameters."""
    parameters = initial_parameters(case, dtype)
    optimizer = adamw(parameters, case["training"])
    stream = token_stream(case)
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
        batch = batch_of_step(case, stream, step)
        logits = llama.forward(case["config"], parameters, batch)
        loss = llama.loss(logits, batch)
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: p.grad for name, p in parameters.items()}
        line = {
            "step": step,
            "loss": loss.item(),
            "grad_norm": global_norm(gradients.values()),
            "lr": learning_rate(case["training"], step),
            "valid_tokens": int(batch["valid"].sum()),
        }
        result["steps"].append(line)
        if step == 1:
            of_sample_0 = summary(logits[0])
            result["initial"] |= {name: line[name] for name in ("loss", "valid_tokens", "grad_norm")}
            result["initial"]["logits"] = {"sample": 0, "norm": of_sample_0["norm"], "dot": of_sample_0["dot"]}
            result["initial"]["gradients"] = {name: summary(g) for name, g in gradients.items()}

        coefficient = min(1.0, case["max_grad_norm"] / (line["grad_norm"] + 1e-6))
        for gradient in gradients.values():
            gradient.mul_(coefficient)
        for group in optimizer.param_groups:
            group["lr"] = line["lr"]
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


def write_fixture(name, case):
    result = train(case, torch.float64)
    path = HERE / f"{name}.json"
    path.write_text(to_json({"case": name} | case | result) + "\n")
    clipped = sum(line["grad_norm"] > case["max_grad_norm"] for line in result["steps"])
    first, last = result["steps"][0], result["steps"][-1]
    norms = [line["grad_norm"] for line in result["steps"]]
    print(f"{path.name}: {path.stat().st_size} bytes, loss {first['loss']:.4f} -> {last['loss']:.4f}, "
          f"gradient norms {min(norms):.3f} .. {max(norms):.3f}, clipped in {clipped} steps of {len(norms)}")


def compare_float32(name, case):
    wide, narrow = train(case, torch.float64), train(case, torch.float32)

    def of_steps(quantity):
        pairs = zip(wide["steps"], narrow["steps"])
        return max(abs(a[quantity] - b[quantity]) / abs(a[quantity]) for a, b in pairs)

    def of_tensors(a, b):
        """Largest errors over the tensors: of the norm and of the probe relative to the norm, of an element absolute."""
        norm = max(abs(a[t]["norm"] - b[t]["norm"]) / a[t]["norm"] for t in a)
        dot = max(abs(a[t]["dot"] - b[t]["dot"]) / a[t]["norm"] for t in a)
        first = max(np.abs(np.subtract(a[t]["first"], b[t]["first"])).max() for t in a)
        return f"norm {norm:.1e} dot {dot:.1e} first {first:.1e}"

    print(f"{name:19s} loss {of_steps('loss'):.1e} grad_norm {of_steps('grad_norm'):.1e}"
          f" | initial gradients {of_tensors(wide['initial']['gradients'], narrow['initial']['gradients'])}"
          f" | final parameters {of_tensors(wide['final'], narrow['final'])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--float32", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")

    if arguments.check:
        from check_transformers import check as act  # the other modes do without transformers
    else:
        act = compare_float32 if arguments.float32 else write_fixture
    torch.set_num_threads(1)  # the order of sums, and so the last digit, then does not depend on the machine's cores
    for name in arguments.cases or CASES:
        act(name, CASES[name])


if __name__ == "__main__":
    main()
