#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the folders of tests/oracle/adapters with PEFT's save_pretrained, and what PEFT makes of them.

    make_adapters.py             write the folders
    make_adapters.py --check     compute the results of the folders that are there again and compare

An adapter is read back from its folder before anything is computed. Logits and loss are those of PEFT around transformers'
LlamaForCausalLM, in float64 throughout.
"""

import argparse
import json
import pathlib
import shutil

import peft
import torch
import transformers
from transformers.models.llama import modeling_llama

from check_transformers import float32_only_in
from deterministic import parameter
from make_fixtures import summary, to_json
from make_folders import HERE as BASES, tokens_of

HERE = pathlib.Path(__file__).resolve().parent / "adapters"

ADAPTERS = {
    "all_linear": {"base": "gqa_tied_v5", "dtype": "float32",
                   "config": {"r": 3, "lora_alpha": 5, "lora_dropout": 0.1, "target_modules": "all-linear"}},
    "rslora_some": {"base": "bf16_v4", "dtype": "bfloat16",
                    "config": {"r": 4, "lora_alpha": 6, "use_rslora": True,
                               "target_modules": ["model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"]}},
}


def base_model(name, dtype):
    stored = modeling_llama.LlamaForCausalLM.from_pretrained(BASES / name)
    config = transformers.LlamaConfig.from_pretrained(BASES / name, attn_implementation="eager", use_cache=False)
    model = modeling_llama.LlamaForCausalLM(config).to(dtype)
    model.load_state_dict(stored.state_dict())
    return model


def save(name):
    case, folder = ADAPTERS[name], HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = peft.get_peft_model(base_model(case["base"], torch.float32),
                                peft.LoraConfig(task_type="CAUSAL_LM", **case["config"]))
    with torch.no_grad():
        for parameter_name, tensor in model.named_parameters():
            if ".lora_" in parameter_name:  # so large that the adapter is not lost in rounding
                tensor.copy_(3 * torch.tensor(parameter(parameter_name, tuple(tensor.shape))))
    model.to(getattr(torch, case["dtype"])).save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    text = json.loads((folder / "adapter_config.json").read_text())
    text["base_model_name_or_path"] = f"../../folders/{case['base']}"  # no path of the machine that wrote it
    if isinstance(text.get("target_modules"), list):
        text["target_modules"].sort()
    (folder / "adapter_config.json").write_text(json.dumps(text, indent=2) + "\n")


def results(name):
    """What expected.json holds."""
    case = ADAPTERS[name]
    with float32_only_in(frozenset()) as loss_in_dtype:
        base = base_model(case["base"], torch.float64)
        base.loss_function = loss_in_dtype(base.loss_function)
        model = peft.PeftModel.from_pretrained(base, HERE / name, autocast_adapter_dtype=False).to(torch.float64).eval()
        tokens = tokens_of(name, base.config.vocab_size)
        labels = tokens[:, 1:].contiguous()
        with torch.no_grad():
            output = model(input_ids=tokens[:, :-1], labels=labels, shift_labels=labels)
            plain = base_model(case["base"], torch.float64)(input_ids=tokens[:, :-1]).logits
    return {
        "base": case["base"],
        "tokens": tokens.tolist(),
        "logits": {f"sequence_{s}": summary(output.logits[s]) | {"last": output.logits[s, -1].tolist()}
                   for s in range(len(tokens))},
        "difference": ((output.logits - plain).norm() / plain.norm()).item(),
        "loss": output.loss.item(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for name in ADAPTERS:
        if not check:
            save(name)
        text = to_json({"peft": peft.__version__, "transformers": transformers.__version__} | results(name)) + "\n"
        file = HERE / name / "expected.json"
        if check:
            there, here = json.loads(file.read_text()), json.loads(text)
            assert abs(there["loss"] - here["loss"]) < 1e-12 * there["loss"], name
        else:
            file.write_text(text)
        print(f"{name}: the adapter changes the logits by {json.loads(text)['difference']:.2f} of their norm")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
