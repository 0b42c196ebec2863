# SPDX-License-Identifier: Apache-2.0
"""Products in 8 bits, written out: what `fsdp.product_dtype = fp8` is to compute.

An operand is rounded to bfloat16, multiplied by a power of two with which its largest magnitude just stays within the
format, clamped and cast; one scale for the operand. The products are of the cast operands, in the dtype of the rest.
"""

import math

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}  # 1.75 * 2^8, 1.75 * 2^15
LARGEST_SCALE_EXPONENT = 60


def clamped_cast(x, dtype):
    """float32 to one of the 8-bit dtypes; what is too large becomes the largest number, NaN stays NaN."""
    return x.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def scale_exponent(amax, dtype):
    """The largest e with amax * 2^e within the format, 60 at most; 0 for a tensor of zeros."""
    if amax == 0:
        return 0
    mantissa, exponent = math.frexp(amax)  # amax = (2 mantissa) 2^(exponent - 1), and 2 mantissa is in [1, 2)
    largest = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}[dtype]
    e = largest - (exponent - 1) - (0 if 2 * mantissa <= 1.75 else 1)
    return min(LARGEST_SCALE_EXPONENT, e)


def to_bfloat16(x):
    return x.float().bfloat16().to(x.dtype)


class Fp8:
    """The recipe, and what it counts."""

    def __init__(self, gradient_dtype, order=0):
        self.gradient_dtype = gradient_dtype
        self.casts = self.saturated = self.zero_scales = 0
        self.random = torch.Generator().manual_seed(order) if order else None

    def cast(self, x, dtype):
        b = to_bfloat16(x).float()
        finite = b.abs()[b.isfinite()]
        amax = finite.max().item() if finite.numel() else 0.0
        e = scale_exponent(amax, dtype)
        scaled = b * 2.0**e
        self.casts += 1
        self.saturated += int((scaled.abs() > LARGEST[dtype]).sum())
        self.zero_scales += int(amax == 0)
        return clamped_cast(scaled, dtype).to(x.dtype) * 2.0**-e

    def noise(self, x, size):
        """Like other kernels' last bits: x in another place within its own float32 rounding or within that of `size`."""
        if self.random is None:
            return x
        return x + 2**-23 * size * (2 * torch.rand(x.shape, generator=self.random, dtype=x.dtype) - 1)

    def operand(self, x):
        return self.cast(self.noise(x, x.abs()), torch.float8_e4m3fn)

    def gradient(self, dy):
        return self.cast(self.noise(dy, dy.abs()), self.gradient_dtype)

    def multiply(self, a, b):
        y = a @ b
        return self.noise(y, y.square().mean(dim=-1, keepdim=True).sqrt())


class Bfloat16:
    """To compare with: operands only rounded to bfloat16."""

    def operand(self, x):
        return to_bfloat16(x)

    def gradient(self, dy):
        return to_bfloat16(dy)

    def multiply(self, a, b):
        return a @ b


class Product(torch.autograd.Function):
    """x [rows, in], weight [out, in]: x weight^T [rows, out]."""

    @staticmethod
    def forward(context, x, weight, recipe):
        xq, wq = recipe.operand(x), recipe.operand(weight)
        context.save_for_backward(xq, wq)
        context.recipe = recipe
        return recipe.multiply(xq, wq.T)

    @staticmethod
    def backward(context, dy):
        xq, wq = context.saved_tensors
        recipe = context.recipe
        dyq = recipe.gradient(dy)
        return recipe.multiply(dyq, wq), recipe.multiply(dyq.T, xq), None


def products(recipe):
    """For llama.forward(): q, k and v are one product, gate and up are one, so each has one scale."""

    def multiply(x, weights):
        y = Product.apply(x.flatten(0, -2), torch.cat(weights), recipe)
        return y.view(*x.shape[:-1], -1).split([len(weight) for weight in weights], dim=-1)

    return multiply
