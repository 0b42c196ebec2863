#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch at the shapes that gpu_bench measured, as lines of JSON beside its own.

    torch_llama.py --like results.jsonl --output results.jsonl [--budget SECONDS]

For every shape of llampi's results in the file that are without recomputation and with the state in bfloat16, unless the output has
it: a plain Llama (RMSNorm, rotary embedding, grouped-query attention by scaled_dot_product_attention, SwiGLU, cross-entropy) in
bfloat16 with fused AdamW and clipping, on random tokens: with torch.compile for each block and the head, without it, and compiled
with cuDNN's attention first. Without PyTorch or a GPU, or where the memory does not suffice, the line says so.
"""
import argparse
import contextlib
import gc
import json
import os
import sys
import time

WARM_UP = 3
FEWEST, MOST = 3, 10
# Seconds that a case takes before its first timed step, at least; a case that does not fit into the budget is left out.
BEFORE = {"compiled": 45, "eager": 10, "compiled-cudnn": 45}
LOSS_CHUNKS = 8  # where the logits as a whole do not fit


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", required=True, help="results of gpu_bench")
    parser.add_argument("--output", required=True, help="file to which results are added")
    parser.add_argument("--budget", type=float, default=600, help="seconds for all")
    parser.add_argument("--seconds", type=float, default=5, help="that the timed steps of a case may take")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--modes", default=",".join(BEFORE), help="which, in which order")
    return parser.parse_args()


def shape_of(row):
    return tuple(row.get(key) for key in ("seq_len", "hidden", "layers", "sequences", "micro_batches"))


def rows_of(file):
    return [json.loads(line) for line in open(file) if line.strip()] if os.path.exists(file) else []


def cases_like(file):
    """The shapes to measure, each once, in the order of the file."""
    usual = {"system": "llampi", "checkpointing": "none", "state": "bfloat16", "attention": "auto", "documents": 1}
    cases = {}
    for row in rows_of(file):
        if "not_measured" not in row and all(row.get(key) == value for key, value in usual.items()):
            cases.setdefault(shape_of(row), row)
    return list(cases.values())


def flops_per_token(c):
    """As llampi counts: 6 per parameter of a matrix, the head included, the embedding not; attention's causal half."""
    head_dim = c["hidden"] // c["query_heads"]
    attention = c["hidden"] * (2 * c["query_heads"] + 2 * c["key_value_heads"]) * head_dim
    matrices = c["layers"] * (attention + 3 * c["hidden"] * c["feed_forward"]) + c["vocabulary"] * c["hidden"]
    return 6.0 * matrices + 6.0 * c["layers"] * c["hidden"] * c["seq_len"]


def build(torch, c, device, dtype, loss_chunks):
    """The model: forward(tokens, labels) is the sum of the token losses."""
    from torch.utils.checkpoint import checkpoint

    nn, functional = torch.nn, torch.nn.functional
    hidden, heads, kv_heads = c["hidden"], c["query_heads"], c["key_value_heads"]
    head_dim = hidden // heads

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    def rotate(x, cosines, sines):  # x [batch, heads, tokens, head_dim]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
            self.qkv = linear(hidden, (heads + 2 * kv_heads) * head_dim)
            self.output = linear(heads * head_dim, hidden)
            self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5)
            self.gate_up = linear(hidden, 2 * c["feed_forward"])
            self.down = linear(c["feed_forward"], hidden)

        def forward(self, x, cosines, sines):
            batch, tokens, _ = x.shape
            qkv = self.qkv(self.attention_norm(x)).view(batch, tokens, heads + 2 * kv_heads, head_dim).transpose(1, 2)
            q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
            q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.output(attended.transpose(1, 2).reshape(batch, tokens, heads * head_dim))
            gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(hidden, eps=1e-5)
            self.linear = linear(hidden, c["vocabulary"])

        def forward(self, x, labels):
            logits = self.linear(self.norm(x)).float()
            return functional.cross_entropy(logits, labels, reduction="sum")

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(c["vocabulary"], hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(c["layers"]))
            self.head = Head()
            angles = torch.arange(c["seq_len"], dtype=torch.float64)[:, None] * 500000.0 ** (
                -torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
            self.register_buffer("cosines", angles.cos().to(dtype))
            self.register_buffer("sines", angles.sin().to(dtype))

        def forward(self, tokens, labels):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x, self.cosines, self.sines)
            x, labels = x.flatten(0, 1), labels.flatten()
            if loss_chunks == 1:
                return self.head(x, labels)
            return sum(checkpoint(self.head, *part, use_reentrant=False)
                       for part in zip(x.chunk(loss_chunks), labels.chunk(loss_chunks)))

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Llama()
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.02)
    return model


class Training:
    def __init__(self, torch, c, device, mode, loss_chunks):
        self.torch, self.c, self.device = torch, c, device
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.model = build(torch, c, device, dtype, loss_chunks)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if self.parameters != c["parameters"] or flops_per_token(c) != c["flops_per_token"]:
            raise ValueError("this is not the model that llampi has")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
                                           fused=True)
        if mode != "eager":  # blocks are alike: one is compiled for all
            for block in self.model.blocks:
                block.compile(fullgraph=True, dynamic=False)
            self.model.head.compile(fullgraph=True, dynamic=False)

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def step(self):
        """(seconds, mean loss)"""
        torch, c = self.torch, self.c
        shape = (c["micro_batches"], 2, c["sequences"], c["seq_len"])
        batches = torch.randint(c["vocabulary"], shape, device=self.device)
        tokens = c["micro_batches"] * c["sequences"] * c["seq_len"]
        loss_sum = torch.zeros((), device=self.device)
        self.synchronize()
        begin = time.perf_counter()
        for inputs, labels in batches:
            loss = self.model(inputs, labels)
            (loss / tokens).backward()
            loss_sum += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.synchronize()
        return time.perf_counter() - begin, loss_sum.item() / tokens


def measure(torch, c, device, mode, seconds, loss_chunks):
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    training = Training(torch, c, device, mode, loss_chunks)
    warm_up = [training.step() for _ in range(WARM_UP)]
    steps = min(MOST, max(FEWEST, int(seconds / warm_up[-1][0])))
    times = sorted(training.step()[0] for _ in range(steps))
    median = times[len(times) // 2]
    rate = c["micro_batches"] * c["sequences"] * c["seq_len"] / median
    result = {
        "parameters": training.parameters,
        "flops_per_token": flops_per_token(c),
        "step_seconds": median,
        "step_seconds_min": times[0],
        "step_seconds_max": times[-1],
        "steps": len(times),
        "tokens_per_second": rate,
        "tflops": rate * flops_per_token(c) / 1e12,
        "losses": [loss for _, loss in warm_up],
        "memory_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
    }
    if loss_chunks > 1:
        result["note"] = f"loss in {loss_chunks} chunks, recomputed"
    return result


def attention_of(torch, mode):
    """The order in which scaled_dot_product_attention looks for kernels."""
    if mode != "compiled-cudnn":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                        SDPBackend.MATH], set_priority=True)


def short(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:150]}"


def measure_or_say_why(torch, c, device, mode, seconds, loss_chunks=1):
    try:
        with attention_of(torch, mode):
            return measure(torch, c, device, mode, seconds, loss_chunks)
    except torch.cuda.OutOfMemoryError:
        return {"not_measured": "out of GPU memory"}
    except Exception as error:  # whatever the compiler or a driver says: the other cases are still worth measuring
        return {"not_measured": short(error)}


def clean_up(torch, device):
    """After a case, whatever came of it."""
    gc.collect()
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()


def import_torch(device):
    """(torch, None), or (None, why there is nothing to measure with)"""
    try:
        import torch
    except Exception as error:
        return None, short(error)
    if device == "cuda" and not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} sees no GPU"
    return torch, None


def main():
    arguments = parse_arguments()
    end = time.monotonic() + arguments.budget
    cases = cases_like(arguments.like)
    done = {(row["system"].split()[-1], shape_of(row)) for row in rows_of(arguments.output) if row["system"].startswith("PyTorch")}
    if not cases:
        print("torch_llama.py: no result of llampi to compare with", file=sys.stderr)
    torch, why = import_torch(arguments.device)
    version = torch.__version__ if torch else ""
    for mode in arguments.modes.split(","):
        for c in cases:
            if (mode, shape_of(c)) in done:
                continue
            keys = ("device", "hidden", "feed_forward", "query_heads", "key_value_heads", "vocabulary", "layers", "seq_len",
                    "sequences", "micro_batches", "peak_tflops")
            row = {"system": f"PyTorch {version} {mode}".replace("  ", " "), **{key: c[key] for key in keys}}
            left = end - time.monotonic()
            if why:
                row["not_measured"] = why
            elif left < BEFORE[mode] + arguments.seconds and arguments.device == "cuda":
                row["not_measured"] = "no time left"
            else:
                result = measure_or_say_why(torch, c, arguments.device, mode, arguments.seconds)
                clean_up(torch, arguments.device)
                if result.get("not_measured") == "out of GPU memory":
                    result = measure_or_say_why(torch, c, arguments.device, mode, arguments.seconds, LOSS_CHUNKS)
                    clean_up(torch, arguments.device)
                row.update(result)
            with open(arguments.output, "a") as output:
                output.write(json.dumps(row) + "\n")
            shown = row.get("not_measured") or f"{row['tokens_per_second']:.0f} tokens/s, loss {row['losses'][0]:.3f}"
            print(f"{row['system']}, sequences of {c['seq_len']}: {shown}", flush=True)


if __name__ == "__main__":
    main()
