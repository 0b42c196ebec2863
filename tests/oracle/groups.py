# SPDX-License-Identifier: Apache-2.0
"""Which parameters torch trains how: the rules of `optimizer.frozen`, `.lr_factors` and `.weight_decays`."""

import re

import torch


def first_match(rules, name, otherwise):
    """The number of the first entry EXPRESSION=NUMBER whose expression is found in the name."""
    for entry in rules.split():
        expression, number = entry.rsplit("=", 1)
        if re.search(expression, name):
            return float(number)
    return otherwise


def freeze(parameters, rules):
    for name, p in parameters.items():
        p.requires_grad_(not rules.get("frozen") or not re.search(rules["frozen"], name))


def adamw(parameters, training, rules):
    """One group for each pair of weight decay and learning-rate factor; tensors of one dimension do not decay."""
    groups = {}
    for name, p in parameters.items():
        if p.requires_grad:
            decay = first_match(rules.get("weight_decays", ""), name, training["weight_decay"] if p.ndim >= 2 else 0.0)
            factor = first_match(rules.get("lr_factors", ""), name, 1.0)
            groups.setdefault((decay, factor), []).append(p)
    return torch.optim.AdamW(
        [{"params": members, "weight_decay": decay, "lr_factor": factor} for (decay, factor), members in groups.items()],
        lr=training["lr"], betas=(training["beta1"], training["beta2"]), eps=training["eps"])
