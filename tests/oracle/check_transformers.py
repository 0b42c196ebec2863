# SPDX-License-Identifier: Apache-2.0
"""Compare the reference with transformers' LlamaForCausalLM, or the class that a case names: logits, loss and every gradient of the first batch.

transformers computes parts of a float64 model in float32: the RoPE frequencies (when the model is built), the RoPE
angles and tables, RMSNorm, the softmax of its plain ("eager") attention, and the loss. That is 1e-7 of noise, in which
an error of ours could hide. So the names by which it asks for float32 are made to mean float64 while it runs; its
formulas stay its own. `narrow` lists the parts that keep float32, to see how much each one matters.
"""

import contextlib
from unittest import mock

import torch
import transformers
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

import llama
from make_fixtures import batch_of_step, forward_parameters, initial_parameters, token_stream

FAMILIES = {"llama": ("Llama", modeling_llama), "mistral": ("Mistral", modeling_mistral),
            "qwen2": ("Qwen2", modeling_qwen2), "qwen3": ("Qwen3", modeling_qwen3)}
PARTS = ("rope_frequencies", "rope_tables", "rms_norm", "softmax", "loss")


@contextlib.contextmanager
def float32_means(dtype):
    with mock.patch.multiple(torch, float32=dtype, float=dtype), \
            mock.patch.object(torch.Tensor, "float", lambda self: self.to(dtype)):
        yield


@contextlib.contextmanager
def float32_only_in(narrow, model_type="llama"):
    """While this is open, transformers computes the parts named in `narrow` in float32 and all else in float64."""
    real_float32 = torch.float32
    prefix, modeling = FAMILIES[model_type]

    def in_dtype(part, function):
        def call(*arguments, **options):
            with float32_means(real_float32 if part in narrow else torch.float64):
                return function(*arguments, **options)
        return call

    with contextlib.ExitStack() as stack:
        for owner, method, part in (
            # Of all that building a model does, only the frequencies have a say in the results.
            (getattr(modeling, prefix + "ForCausalLM"), "__init__", "rope_frequencies"),
            (getattr(modeling, prefix + "RotaryEmbedding"), "forward", "rope_tables"),
            (getattr(modeling, prefix + "RMSNorm"), "forward", "rms_norm"),
            (modeling, "eager_attention_forward", "softmax"),
        ):
            stack.enter_context(mock.patch.object(owner, method, in_dtype(part, getattr(owner, method))))
        yield lambda function: in_dtype("loss", function)


def transformers_results(case, batch, narrow):
    """Logits, loss and gradients by name."""
    model_type = case["config"]["model_type"]
    prefix, modeling = FAMILIES[model_type]
    config = getattr(transformers, prefix + "Config")(**case["config"], attn_implementation="eager", use_cache=False)
    with float32_only_in(narrow, model_type) as loss_in_dtype:
        model = getattr(modeling, prefix + "ForCausalLM")(config)
        model.to(torch.float64)  # widens frequencies that were computed in float32, too, and keeps their error
        model.loss_function = loss_in_dtype(model.loss_function)
        parameters = forward_parameters(case, initial_parameters(case, torch.float64))
        weights = {name: tensor.detach() for name, tensor in parameters.items()}
        missing, unexpected = model.load_state_dict(weights, strict=False)
        tied = ["lm_head.weight"] if case["config"]["tie_word_embeddings"] else []
        assert missing == tied and not unexpected, (missing, unexpected)

        tokens = batch["inputs"].shape[1]
        visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        visible = visible & (batch["document"][:, :, None] == batch["document"][:, None, :])
        labels = batch["labels"].masked_fill(~batch["valid"], -100)  # the index that its loss ignores
        output = model(
            input_ids=batch["inputs"],
            position_ids=batch["position"],
            # Without documents it gets no mask and must arrive at the causal one by itself.
            attention_mask=torch.where(visible[:, None], 0.0, -torch.inf).double() if case["documents"] else None,
            labels=labels,
            shift_labels=labels,  # ours are shifted already
        )
        output.loss.backward()
    return output.logits.detach(), output.loss.detach(), {n: p.grad for n, p in model.named_parameters()}


def reference_results(case, batch):
    parameters = forward_parameters(case, initial_parameters(case, torch.float64))
    logits = llama.forward(case["config"], parameters, batch)
    loss = llama.loss(logits, batch)
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad for name, p in parameters.items()}


def differences(case, batch, narrow=frozenset()):
    """Largest relative differences of logits, loss and gradients; each tensor relative to its largest element."""
    logits, loss, gradients = reference_results(case, batch)
    their_logits, their_loss, their_gradients = transformers_results(case, batch, narrow)
    assert gradients.keys() == their_gradients.keys()

    def relative(ours, theirs):
        return ((ours - theirs).abs().max() / ours.abs().max()).item()

    of_gradients = max(relative(gradients[name], their_gradients[name]) for name in gradients)
    return relative(logits, their_logits), relative(loss, their_loss), of_gradients


def check(name, case):
    batch = batch_of_step(case, token_stream(case), 1)
    print(f"{name}: largest relative difference of logits, loss, gradients (transformers {transformers.__version__})")
    measured = differences(case, batch)
    rows = {"float64 throughout": measured}
    rows |= {f"float32 in {part}": differences(case, batch, [part]) for part in PARTS}
    rows["float32 in all of these"] = differences(case, batch, PARTS)
    for label, row in rows.items():
        print("  {:28s} {:.1e}  {:.1e}  {:.1e}".format(label, *row))
    # Sums of a few hundred terms in float64 differ by about 1e-15 for each operation they pass through.
    if max(measured) > 1e-12:
        raise SystemExit(f"{name}: the reference and transformers disagree")
