# SPDX-License-Identifier: Apache-2.0
"""Products in 8 bits, written out: what `fsdp.product_dtype = fp8` is to compute.

An operand is rounded to bfloat16, multiplied by a power of two with which its largest magnitude just stays within the
format, clamped and cast. Either the operand has one scale (`Fp8`), or each of its blocks and tiles has (`Fp8Blocks`).
The products are of the cast operands, in the dtype of the rest.
"""

import math

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}  # 1.75 * 2^8, 1.75 * 2^15
LARGEST_SCALE_EXPONENT = 60
BLOCK = 128


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


def cast_rows(b, dtype):
    """What the casts of b [groups, elements] stand for, each group with a scale of its own."""
    amax = b.abs().where(b.isfinite(), 0).amax(dim=1)
    scales = torch.tensor([2.0 ** scale_exponent(a, dtype) for a in amax.tolist()])[:, None]
    return clamped_cast(b * scales, dtype).float() / scales


def cast_whole(b, dtype):
    return cast_rows(b.reshape(1, -1), dtype).view(b.shape)


def cast_tiles(b, dtype):
    """Tiles of 1 x 128."""
    return cast_rows(b.reshape(-1, BLOCK), dtype).view(b.shape)


def cast_blocks(b, dtype):
    """Blocks of 128 x 128."""
    rows, columns = b.shape
    blocks = b.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK).transpose(1, 2)
    return cast_rows(blocks.reshape(-1, BLOCK * BLOCK), dtype).view(blocks.shape).transpose(1, 2).reshape(b.shape)


def hopper_product(a, b):
    """a b as the tensor cores of a Hopper GPU sum: 32 products and the sum so far, each cut to 14 bits of the largest of them
    (DeepSeek-V3, arXiv 2412.19437, 3.3.2)."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for begin in range(0, a.shape[1], 32):
        terms = a[:, None, begin:begin + 32].double() * b.T[None, :, begin:begin + 32].double()
        terms = torch.cat([total[..., None], terms], dim=-1)
        largest = terms.abs().amax(dim=-1, keepdim=True)
        unit = torch.exp2(torch.floor(torch.log2(largest.clamp(min=1e-300))) - 13)
        total = (torch.trunc(terms / unit) * unit).sum(dim=-1)
    return total.to(a.dtype)


class Fp8:
    """The recipe with one scale for each operand, and what it counts."""

    cast_weight = staticmethod(cast_whole)
    cast_along_rows = staticmethod(cast_whole)

    def __init__(self, gradient_dtype, order=0, tensor_cores=False):
        self.gradient_dtype = gradient_dtype
        self.tensor_cores = tensor_cores
        self.casts = self.saturated = self.zero_scales = 0
        self.random = torch.Generator().manual_seed(order) if order else None

    def prepare(self, x):
        b = to_bfloat16(self.noise(x, x.abs())).float()
        self.casts += 1
        self.saturated += int(b.isinf().sum())
        self.zero_scales += int(not b[b.isfinite()].any())
        return b

    def cast(self, x, dtype):
        """Twice: for a product that sums over the columns of x, and for one that sums over its rows."""
        b = self.prepare(x)
        along_rows, along_columns = self.cast_along_rows(b, dtype), self.cast_along_rows(b.T, dtype).T
        return along_rows.to(x.dtype), along_columns.contiguous().to(x.dtype)

    def noise(self, x, size):
        """Like other kernels' last bits: x in another place within its own float32 rounding or within that of `size`."""
        if self.random is None:
            return x
        return x + 2**-23 * size * (2 * torch.rand(x.shape, generator=self.random, dtype=x.dtype) - 1)

    def weight(self, w):
        return self.cast_weight(self.prepare(w), torch.float8_e4m3fn).to(w.dtype)

    def activation(self, x):
        return self.cast(x, torch.float8_e4m3fn)

    def gradient(self, dy):
        return self.cast(dy, self.gradient_dtype)

    def multiply(self, a, b):
        y = hopper_product(a, b) if self.tensor_cores else a @ b
        return self.noise(y, y.square().mean(dim=-1, keepdim=True).sqrt())


class Fp8Blocks(Fp8):
    """The recipe with a scale for each block of a weight and for each tile of an activation or of a gradient."""

    cast_weight = staticmethod(cast_blocks)
    cast_along_rows = staticmethod(cast_tiles)


class Bfloat16:
    """To compare with: operands only rounded to bfloat16."""

    def weight(self, w):
        return to_bfloat16(w)

    def activation(self, x):
        b = to_bfloat16(x)
        return b, b

    gradient = activation

    def multiply(self, a, b):
        return a @ b


class Product(torch.autograd.Function):
    """x [rows, in], weight [out, in]: x weight^T [rows, out]."""

    @staticmethod
    def forward(context, x, weight, recipe):
        (x_along_rows, x_along_columns), w = recipe.activation(x), recipe.weight(weight)
        context.save_for_backward(x_along_columns, w)
        context.recipe = recipe
        return recipe.multiply(x_along_rows, w.T)

    @staticmethod
    def backward(context, dy):
        x_along_columns, w = context.saved_tensors
        recipe = context.recipe
        dy_along_rows, dy_along_columns = recipe.gradient(dy)
        return recipe.multiply(dy_along_rows, w), recipe.multiply(dy_along_columns.T, x_along_columns), None


def products(recipe):
    """For llama.forward(): q, k and v are one product, gate and up are one, each of one weight."""

    def multiply(x, weights):
        y = Product.apply(x.flatten(0, -2), torch.cat(weights), recipe)
        return y.view(*x.shape[:-1], -1).split([len(weight) for weight in weights], dim=-1)

    return multiply
