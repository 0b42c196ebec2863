#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the cases that have adapters with PEFT's LoRA around transformers' LlamaForCausalLM, in float64.

    check_peft.py            logits, loss and gradients of the first batch, then ten steps of training, against lora.py
"""

import sys

import peft
import torch
import transformers
from transformers.models.llama import modeling_llama

import groups
import llama
import lora
from cases import CASES
from check_transformers import float32_only_in
from make_fixtures import (ALL_BUT_ADAPTERS, batch_of_step, forward_parameters, global_norm, initial_parameters, learning_rate,
                           token_stream)

PREFIX = "base_model.model."


def peft_model(case, parameters):
    """With the initial values of the case."""
    config = transformers.LlamaConfig(**case["config"], attn_implementation="eager", use_cache=False)
    base = modeling_llama.LlamaForCausalLM(config).to(torch.float64)
    given = case["lora"]
    model = peft.get_peft_model(base, peft.LoraConfig(
        r=given["rank"], lora_alpha=given["alpha"], use_rslora=given["scaling"] == "rslora", lora_dropout=0.0,
        target_modules=lora.modules(case["config"], given), task_type="CAUSAL_LM"), autocast_adapter_dtype=False)
    names = {}
    with torch.no_grad():
        for theirs, tensor in model.named_parameters():
            ours = theirs.removeprefix(PREFIX).replace(".base_layer.", ".").replace(".default.", ".")
            tensor.copy_(parameters[ours])
            names[ours] = tensor
    assert {n for n, t in names.items() if t.requires_grad} == {n for n in parameters if ".lora_" in n}
    return model, names


def loss_of(model, case, batch):
    labels = batch["labels"].masked_fill(~batch["valid"], -100)
    output = model(input_ids=batch["inputs"], position_ids=batch["position"], labels=labels, shift_labels=labels)
    return output.logits, output.loss


def check(name, case):
    rules = {"frozen": ALL_BUT_ADAPTERS}
    ours = initial_parameters(case, torch.float64)
    groups.freeze(ours, rules)
    stream, worst = token_stream(case), {}

    def compare(what, a, b):
        worst[what] = max(worst.get(what, 0), ((a - b).abs().max() / a.abs().max()).item())

    with float32_only_in(frozenset()) as loss_in_dtype:
        model, theirs = peft_model(case, ours)
        model.base_model.model.loss_function = loss_in_dtype(model.base_model.model.loss_function)
        optimizers = [groups.adamw(p, case["training"], {}) for p in (ours, theirs)]
        for step in range(1, case["training"]["steps"] + 1):
            batch = batch_of_step(case, stream, step)
            used = forward_parameters(case, ours)
            logits = llama.forward(case["config"], used, batch, lora.products(case["lora"], used))
            loss = llama.loss(logits, batch)
            their_logits, their_loss = loss_of(model, case, batch)
            for parameters, optimizer, value in ((ours, optimizers[0], loss), (theirs, optimizers[1], their_loss)):
                optimizer.zero_grad()
                value.backward()
                trained = [p.grad for p in parameters.values() if p.requires_grad]
                coefficient = min(1.0, case["max_grad_norm"] / (global_norm(trained) + 1e-6))
            compare("logits", logits, their_logits)
            compare("loss", loss, their_loss)
            for tensor in ours:
                if ours[tensor].requires_grad:
                    compare("gradients", ours[tensor].grad, theirs[tensor].grad)
            for parameters, optimizer in ((ours, optimizers[0]), (theirs, optimizers[1])):
                for p in parameters.values():
                    if p.requires_grad:
                        p.grad.mul_(coefficient)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(case["training"], step)
                optimizer.step()
        for tensor in ours:
            compare("adapters after ten steps" if ours[tensor].requires_grad else "base", ours[tensor], theirs[tensor])
    print(f"{name} (peft {peft.__version__}, transformers {transformers.__version__}), largest relative differences: "
          + ", ".join(f"{what} {value:.1e}" for what, value in worst.items()))
    return max(worst.values()) < 1e-10


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if all([check(name, case) for name, case in CASES.items() if "lora" in case]) else 1)
