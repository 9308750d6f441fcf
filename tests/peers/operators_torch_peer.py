#!/usr/bin/env python3
"""The operators of the C API against PyTorch in float64, gradients by autograd, on random problems.

    operators_torch_peer.py [--problems N] [--seed S]

Inputs are rounded to the dtype first, so that what is compared is the operator alone. An error is
relative to the largest magnitude of the tensor, or to `smallest`, that of the terms it is a difference
of; beside the worst one stands that of PyTorch's own operator in the same dtype on the same inputs,
where there is one.
"""
import argparse
import collections
import math
import random

import torch
import torch.nn.functional as F

from c_library import Cache, Library

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
FLOATS = list(TOLERANCE)
GATES = {1: F.silu, 2: F.gelu, 3: lambda x: F.gelu(x, approximate="tanh")}
FORMATS = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "ternary_g128", "tq1_0", "tq2_0"]
ACTIVATIONS = {0: F.silu, 1: F.gelu, 2: lambda x: F.gelu(x, approximate="tanh"), 3: lambda x: F.relu(x)**2}


class Problem:
    """Random sizes and tensors of one dtype; results are collected by `compare`."""

    def __init__(self, library, seed, worst):
        self.library, self.worst, self.random = library, worst, random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = self.random.choice(FLOATS)

    def size(self, limit):
        """Log-uniform, so that 1 and other small sizes are as frequent as large ones."""
        return int(math.exp(self.random.uniform(0, math.log(limit + 1))))

    def shape(self, limit, *last):
        return [self.size(limit)] * self.random.randint(0, 1) + [self.size(limit), *last]

    def maybe(self, tensor):
        return tensor if self.random.random() < .5 else None

    def normal(self, *shape, dtype=None, scale=1.0):
        """In memory of its own, or as rows of a wider tensor."""
        dtype, pad = dtype or self.dtype, self.random.choice([0, 0, 3])
        wide = (torch.randn(*shape[:-1], shape[-1] + pad, dtype=torch.float64) * scale).to(dtype)
        return wide[..., :shape[-1]] if len(shape) > 1 else wide[:shape[-1]]

    def wide(self):
        """The dtype of sums and statistics."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def empty(self, *shape, dtype=None):
        return torch.full(shape, math.nan, dtype=dtype or self.dtype)

    def call(self, operator, arguments=None, **values):
        self.library.call(operator, arguments, **values)

    def compare(self, operator, ours, exact, theirs=None, tolerance=None, smallest=1e-30):
        scale = max(exact.abs().max().item(), smallest) if exact.numel() else 1.0
        error = lambda x: (x.double() - exact).abs().max().item() / scale if exact.numel() else 0.0
        limit, mine = tolerance or TOLERANCE[ours.dtype], error(ours)
        if not mine <= limit:
            raise AssertionError(f"{operator}, {ours.dtype} {list(exact.shape)}: error {mine:.3g} > {limit:.3g}")
        record = self.worst[operator, ours.dtype]
        record[0], record[1] = max(record[0], mine), record[1] + 1
        if theirs is not None:
            record[2] = max(record[2], error(theirs))


def exact(tensor, gradient=True):
    return None if tensor is None else tensor.detach().double().requires_grad_(gradient)


def layer_norm(p):
    columns = p.size(700)
    shape, eps = p.shape(40, columns), p.random.choice([0.0, 1e-5, 1e-2]) if columns > 1 else 1e-5
    x, weight, bias = p.normal(*shape), p.maybe(p.normal(columns)), p.maybe(p.normal(columns))
    residual, dy = p.maybe(p.normal(*shape)), p.normal(*shape)
    y, mean, rstd = p.empty(*shape), p.empty(*shape[:-1], dtype=p.wide()), p.empty(*shape[:-1], dtype=p.wide())
    total = p.empty(*shape) if residual is not None else None
    p.call("layer_norm", x=x, residual=residual, weight=weight, bias=bias, y=y, sum=total, mean=mean, rstd=rstd,
           eps=eps)
    given = x if total is None else total
    if total is not None:
        p.compare("layer_norm sum", total, x.double() + residual.double())
    ex, ew, eb = exact(given), exact(weight), exact(bias)
    reference = F.layer_norm(ex, [columns], ew, eb, eps)
    p.compare("layer_norm", y, reference.detach(), F.layer_norm(given, [columns], weight, bias, eps), smallest=1)
    reference.backward(dy.double())
    p.compare("layer_norm mean", mean, ex.detach().mean(-1), smallest=1)
    mean = ex.detach().mean(-1).to(p.wide())
    rstd = (ex.detach().var(-1, unbiased=False) + eps).rsqrt().to(p.wide())
    dx, dweight, dbias = p.empty(*shape), p.empty(columns, dtype=p.wide()), p.empty(columns, dtype=p.wide())
    p.call("layer_norm_backward", dy=dy, x=given, mean=mean, rstd=rstd, weight=weight, dx=dx,
           dweight=dweight if weight is not None else None, dbias=dbias if bias is not None else None)
    # A row of one or two columns is normalized to constants: these gradients are differences of equal numbers.
    if columns > 8:
        p.compare("layer_norm_backward dx", dx, ex.grad)
        if weight is not None:
            p.compare("layer_norm_backward dweight", dweight, ew.grad)
    if bias is not None:
        p.compare("layer_norm_backward dbias", dbias, eb.grad, smallest=1)


def rms_norm(p):
    columns = p.size(700)
    shape, eps, offset = p.shape(40, columns), p.random.choice([0.0, 1e-6, 1e-2]), p.random.choice([0.0, 1.0])
    x, weight, dy = p.normal(*shape), p.maybe(p.normal(columns)), p.normal(*shape)
    y, rstd, dx = p.empty(*shape), p.empty(*shape[:-1], dtype=p.wide()), p.empty(*shape)
    dweight = p.empty(columns, dtype=p.wide()) if weight is not None else None
    p.call("rms_norm", x=x, weight=weight, y=y, rstd=rstd, eps=eps, weight_offset=offset if weight is not None else 0.0)
    ex, ew = exact(x), exact(weight)
    reference = F.rms_norm(ex, [columns], None if ew is None else ew + offset, eps)
    plain = offset == 0 or weight is None
    p.compare("rms_norm", y, reference.detach(), F.rms_norm(x, [columns], weight, eps) if plain else None)
    reference.backward(dy.double())
    p.call("rms_norm_backward", dy=dy, x=x, rstd=rstd, weight=weight, dx=dx, dweight=dweight,
           weight_offset=offset if weight is not None else 0.0)
    if columns > 8:
        p.compare("rms_norm_backward dx", dx, ex.grad)
    if weight is not None:
        p.compare("rms_norm_backward dweight", dweight, ew.grad, smallest=1)


def linear(p):
    inner, outer, gate = p.size(400), p.size(200), p.random.choice([0, 0, 1, 2, 3])
    outer, cap = outer * 2 if gate else outer, p.random.choice([0.0, 0.0, 3.0])
    shape, half = p.shape(40, inner), outer // 2 if gate else outer
    x, weight, bias = p.normal(*shape), p.normal(outer, inner, scale=inner**-.5), p.maybe(p.normal(outer))
    residual, y = p.maybe(p.normal(*shape[:-1], half)), p.empty(*shape[:-1], half)
    p.call("linear", x=x, weight=weight, bias=bias, residual=residual, y=y, soft_cap=cap, gate=gate)
    v = F.linear(x.double(), weight.double(), exact(bias, False))
    v = cap * torch.tanh(v / cap) if cap else v
    v = GATES[gate](v[..., :half]) * v[..., half:] if gate else v
    plain = not gate and not cap and residual is None
    p.compare("linear, plain" if plain else "linear", y, v if residual is None else v + residual.double(),
              F.linear(x, weight, bias) if plain else None)
    ex, ew, eb = exact(x), exact(weight), exact(p.normal(outer))
    dy, dx = p.normal(*shape[:-1], outer), p.empty(*shape)
    dweight, dbias = p.empty(outer, inner, dtype=p.wide()), p.empty(outer, dtype=p.wide())
    F.linear(ex, ew, eb).backward(dy.double())
    p.call("linear_backward", dy=dy, x=x, weight=weight, dx=dx, dweight=dweight, dbias=dbias)
    p.compare("linear_backward dx", dx, ex.grad, smallest=1)
    p.compare("linear_backward dweight", dweight, ew.grad, smallest=1)
    p.compare("linear_backward dbias", dbias, eb.grad, smallest=1)


def activation(p):
    kind, shape = p.random.randrange(4), p.shape(40, p.size(300))
    x, up, dy = p.normal(*shape, scale=3), p.normal(*shape), p.normal(*shape)
    ex, eu, y, dx, dup = exact(x), exact(up), p.empty(*shape), p.empty(*shape), p.empty(*shape)
    p.call("activation", x=x, y=y, kind=kind)
    reference = ACTIVATIONS[kind](ex)
    p.compare("activation", y, reference.detach(), ACTIVATIONS[kind](x), smallest=1)
    reference.backward(dy.double())
    p.call("activation_backward", "activation", dy=dy, x=x, dx=dx, kind=kind)
    p.compare("activation_backward", dx, ex.grad, smallest=1)
    p.call("gate", "activation", x=x, up=up, y=y, kind=kind)
    ex.grad, reference = None, ACTIVATIONS[kind](ex) * eu
    p.compare("gate", y, reference.detach(), ACTIVATIONS[kind](x) * up, smallest=1)
    reference.backward(dy.double())
    p.call("gate_backward", "activation", dy=dy, x=x, up=up, dx=dx, dup=dup, kind=kind)
    p.compare("gate_backward dx", dx, ex.grad, smallest=1)
    p.compare("gate_backward dup", dup, eu.grad, smallest=1)


def cross_entropy(p):
    width, vocabulary, rows = p.size(150), p.size(1500), p.size(60)
    smoothing, z, cap = p.random.choice([0.0, .1]), p.random.choice([0.0, 1e-3]), p.random.choice([0.0, 5.0])
    x, weight = p.normal(rows, width), p.normal(vocabulary, width)
    targets = torch.randint(vocabulary, (rows,), dtype=p.random.choice([torch.int32, torch.int64]))
    ignored = torch.rand(rows) < p.random.choice([0.0, .3])
    targets[ignored] = -100
    loss, mean = p.empty(rows, dtype=p.wide()), p.empty(1, dtype=p.wide())
    options = dict(label_smoothing=smoothing, z_loss=z, soft_cap=cap)
    p.call("cross_entropy", x=x, weight=weight, targets=targets, loss=loss, mean_loss=mean, **options)
    ex, ew = exact(x), exact(weight)
    logits = F.linear(ex, ew)
    logits = cap * torch.tanh(logits / cap) if cap else logits
    reference = F.cross_entropy(logits, targets.long(), ignore_index=-100, label_smoothing=smoothing, reduction="none")
    reference = reference + torch.where(ignored, 0.0, z * logits.logsumexp(-1)**2)
    p.compare("cross_entropy", loss, reference.detach(), smallest=1)
    if ignored.all():
        return
    p.compare("cross_entropy mean", mean[0], reference.detach().sum() / (~ignored).sum(), smallest=1)
    (reference.sum() / (~ignored).sum()).backward()
    dx, dweight = p.empty(rows, width), p.empty(vocabulary, width, dtype=p.wide())
    p.call("cross_entropy_backward", x=x, weight=weight, targets=targets, dx=dx, dweight=dweight, **options)
    p.compare("cross_entropy_backward dx", dx, ex.grad, smallest=1 / rows)
    p.compare("cross_entropy_backward dweight", dweight, ew.grad, smallest=1 / rows)


def embedding(p):
    width, vocabulary, scale = p.size(300), p.size(500), p.random.choice([1.0, 7.5])
    shape = p.shape(50)
    tokens = torch.randint(vocabulary, shape, dtype=p.random.choice([torch.int32, torch.int64]))
    weight, y = p.normal(vocabulary, width), p.empty(*shape, width)
    p.call("embedding", tokens=tokens, weight=weight, y=y, scale=scale)
    ew = exact(weight)
    reference = F.embedding(tokens.long(), ew) * scale
    p.compare("embedding", y, reference.detach(), F.embedding(tokens.long(), weight) * scale)
    dy, dweight = p.normal(*shape, width), p.empty(vocabulary, width, dtype=p.wide())
    reference.backward(dy.double())
    p.call("embedding_backward", tokens=tokens, dy=dy, dweight=dweight, scale=scale)
    p.compare("embedding_backward", dweight, ew.grad, smallest=1)


def rope(p):
    tokens, heads, width = p.size(50), p.size(8), 2 * p.size(80)
    pairs, adjacent = p.random.randint(1, width // 2), p.random.randrange(2)
    x, dy = p.normal(tokens, heads, width), p.normal(tokens, heads, width)
    positions = torch.randint(p.random.choice([10, 4096, 10**6]), (tokens,))
    frequencies = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    y, dx, ex = p.empty(*x.shape), p.empty(*x.shape), exact(x)
    options = dict(positions=positions, frequencies=frequencies, adjacent=adjacent)
    p.call("rope", x=x, y=y, **options)
    angle = positions[:, None, None].double() * frequencies
    turned = ex[..., :2 * pairs].unflatten(-1, (pairs, 2) if adjacent else (2, pairs))
    a, b = turned.unbind(-1 if adjacent else -2)
    turned = torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1 if adjacent else -2)
    reference = torch.cat([turned.flatten(-2), ex[..., 2 * pairs:]], -1)
    p.compare("rope", y, reference.detach())
    reference.backward(dy.double())
    p.call("rope_backward", "rope", x=dy, y=dx, **options)
    p.compare("rope_backward", dx, ex.grad)


def softmax_topk(p):
    p.dtype = p.random.choice(FLOATS[1:])
    vocabulary, shape = p.size(5000), p.shape(20)
    k, scale = p.size(vocabulary), p.random.choice([1.0, .5, 3.0])
    logits, bias = p.normal(*shape, vocabulary, scale=4), p.maybe(p.normal(vocabulary, dtype=torch.float32))
    temperature = p.maybe(torch.rand(shape) + .1)
    wide = torch.float32
    probabilities, logs = p.empty(*shape, k, dtype=wide), p.empty(*shape, k, dtype=wide)
    indices, lse = torch.full([*shape, k], -7, dtype=torch.int64), p.empty(*shape, dtype=wide)
    p.call("softmax_topk", logits=logits, bias=bias, temperature=temperature, probabilities=probabilities,
           indices=indices, log_probabilities=logs, log_sum_exp=lse, temperature_scale=scale)
    v = (logits.float() if bias is None else logits.float() + bias).double()
    order = torch.sort(v, dim=-1, descending=True, stable=True).indices[..., :k]
    assert torch.equal(indices, order), "softmax_topk: tokens differ"
    t = scale if temperature is None else scale * temperature.double()[..., None]
    log_softmax = (v / t).log_softmax(-1).gather(-1, order)
    p.compare("softmax_topk probabilities", probabilities, log_softmax.exp())
    p.compare("softmax_topk log_probabilities", logs, log_softmax, smallest=1)
    p.compare("softmax_topk log_sum_exp", lse, (v / t).logsumexp(-1), smallest=1)


def sample(p):
    p.dtype = p.random.choice(FLOATS[1:])
    rows, vocabulary = p.size(20), p.size(3000)
    logits = p.normal(rows, vocabulary, scale=3)
    history = torch.randint(-1, vocabulary, (rows, p.size(30)), dtype=torch.int32)
    repetition, frequency, presence = torch.rand(rows) + .5, torch.rand(rows) - .5, torch.rand(rows) - .5
    temperature = torch.where(torch.rand(rows) < .4, 0.0, torch.rand(rows) + .2)
    top_k = torch.randint(0, vocabulary + 2, (rows,), dtype=torch.int32)
    token, log_probability = torch.full((rows,), -7, dtype=torch.int64), p.empty(rows, dtype=torch.float32)
    p.call("sample", logits=logits, history=history, repetition_penalty=repetition, frequency_penalty=frequency,
           presence_penalty=presence, temperature=temperature, top_k=top_k, seed=torch.randint(2**40, (rows,)),
           position=torch.randint(2**20, (rows,)), token=token, log_probability=log_probability)
    v = logits.float()
    for row in range(rows):
        seen = history[row][history[row] >= 0].long()
        counts = torch.bincount(seen, minlength=vocabulary).float()
        hit = counts > 0
        penalized = torch.where(v[row] > 0, v[row] / repetition[row], v[row] * repetition[row])
        penalized = penalized - counts * frequency[row] - presence[row]
        v[row] = torch.where(hit, penalized, v[row])
    order = torch.sort(v, dim=-1, descending=True, stable=True).indices
    for row in range(rows):
        kept = order[row][:int(top_k[row]) or vocabulary] if temperature[row] > 0 else order[row][:1]
        assert token[row] in kept, f"sample: token {token[row]} is not among the {len(kept)} kept"
    t = torch.where(temperature == 0, 1.0, temperature.double())[:, None]
    expected = (v.double() / t).log_softmax(-1).gather(-1, token[:, None])[:, 0]
    p.compare("sample log_probability", log_probability, expected, smallest=1)


def attention(p):
    batch, queries, keys, kv_heads, group = p.size(3), p.size(150), p.size(200), p.size(3), p.size(4)
    heads, width, v_width = kv_heads * group, p.size(100), p.size(100)
    head_major = p.random.random() < .5

    def tensor(length, count, last, make=p.normal):
        value = make(batch, count, length, last) if head_major else make(batch, length, count, last)
        return value.transpose(1, 2) if head_major else value

    q, k, v = tensor(queries, heads, width), tensor(keys, kv_heads, width), tensor(keys, kv_heads, v_width)
    doutput, output = tensor(queries, heads, v_width), tensor(queries, heads, v_width, p.empty)
    lse = p.empty(batch, queries, heads, dtype=p.wide())
    causal, cap = p.random.random() < .5, p.random.choice([0.0, 0.0, 4.0])
    window = p.random.choice([0, 0, p.size(keys)])
    sinks = p.random.randint(0, 3) if window else 0
    bias = p.maybe(torch.randn(p.random.choice([1, batch]), p.random.choice([1, heads]), queries, keys, dtype=p.wide()))
    slopes, sink_logits = p.maybe(torch.rand(heads, dtype=p.wide())), p.maybe(torch.randn(heads, dtype=p.wide()))
    options = dict(causal=int(causal), soft_cap=cap, window=window, sinks=sinks)
    options |= {name: value for name, value in dict(bias=bias, alibi_slopes=slopes, sink_logits=sink_logits).items()
                if value is not None}
    p.call("attention", q=q, k=k, v=v, output=output, log_sum_exp=lse, options=options)

    eq, ek, ev, eb, es = exact(q), exact(k), exact(v), exact(bias), exact(sink_logits)
    scores = torch.einsum("bihd,bthd->bhit", eq, ek.repeat_interleave(group, 2)) / math.sqrt(width)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    position, t = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * (position - t).abs()
    scores = scores if eb is None else scores + eb
    attended = (t <= position) if causal else torch.ones(queries, keys, dtype=torch.bool)
    if window:
        attended = attended & ((t > position - window) | (t < sinks)) & (causal | (t < position + window))
    scores = scores.masked_fill(~attended, -math.inf)
    column = torch.full((1, heads, 1, 1), -math.inf, dtype=torch.float64) if es is None else es[None, :, None, None]
    scores = torch.cat([scores, column.expand(batch, heads, queries, 1)], -1)
    lively = scores.detach().amax(-1, keepdim=True) > -math.inf
    shifted = torch.where(lively, scores, 0.0)
    weights = torch.where(lively, shifted.softmax(-1), 0.0)[..., :-1]
    reference = torch.einsum("bhit,bthd->bihd", weights, ev.repeat_interleave(group, 2))
    plain = not (cap or window or causal or bias is not None or slopes is not None or sink_logits is not None)
    theirs = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True)
    p.compare("attention, plain" if plain else "attention", output, reference.detach(),
              theirs.transpose(1, 2) if plain else None)
    exact_lse = torch.where(lively[..., 0], shifted.logsumexp(-1), -math.inf).transpose(1, 2).detach()
    finite = exact_lse > -math.inf
    assert torch.equal(lse[~finite], exact_lse[~finite].to(lse.dtype)), "attention: log_sum_exp of masked rows"
    p.compare("attention log_sum_exp", lse[finite], exact_lse[finite], smallest=1)
    reference.backward(doutput.double())
    dq, dk, dv = (tensor(length, count, last, p.empty) for length, count, last in
                  ((queries, heads, width), (keys, kv_heads, width), (keys, kv_heads, v_width)))
    dbias = None if bias is None else torch.full_like(bias, math.nan)
    dsinks = None if sink_logits is None else torch.full_like(sink_logits, math.nan)
    p.call("attention_backward", doutput=doutput, q=q, k=k, v=v, output=reference.detach().to(p.dtype),
           log_sum_exp=exact_lse.to(p.wide()), dq=dq, dk=dk, dv=dv, dbias=dbias, dsink_logits=dsinks, options=options)
    # The rounded output enters every gradient of the scores.
    loose = {torch.bfloat16: 2**-5, torch.float16: 2**-8}.get(p.dtype)
    gradients = [("dv", dv, ev), ("dq", dq, eq), ("dk", dk, ek), ("dbias", dbias, eb), ("dsink_logits", dsinks, es)]
    for name, ours, leaf in gradients:
        # With at most one key to attend to, weights do not depend on scores.
        if ours is not None and (name == "dv" or keys > 4):
            p.compare(f"attention_backward {name}", ours, leaf.grad, tolerance=loose, smallest=math.sqrt(v_width))


def weight_formats(p):
    """linear and embedding from bytes, held against what they decode to."""
    p.dtype = p.random.choice(FLOATS[1:])
    format, inner, outer = p.random.choice(FORMATS), 256 * p.size(3), p.size(60)
    coded, weight = p.library.decoded(format, torch.randn(outer, inner) / math.sqrt(inner))
    shape = p.shape(20, inner)
    x, y = p.normal(*shape), p.empty(*shape[:-1], outer)
    p.call("linear", x=x, weight=coded, weight_format=format, y=y)
    p.compare("linear, block formats", y, F.linear(x.double(), weight.double()))
    tokens = torch.randint(outer, shape[:-1])
    rows = p.empty(*shape)
    p.call("embedding", tokens=tokens, weight=coded, weight_format=format, y=rows)
    p.compare("embedding, block formats", rows, F.embedding(tokens, weight.double()))


def ternary_project(p):
    rows, columns, group = p.size(30), p.size(600), p.random.choice([32, 64, 128, 256])
    weight = torch.randn(rows, columns, dtype=p.random.choice([torch.float32, torch.float64]))
    weight = weight * 10**p.random.uniform(-3, 3)
    values, codes = torch.full_like(weight, math.nan), torch.full(weight.shape, 7, dtype=torch.int8)
    scales = p.empty(rows, -(-columns // group), dtype=torch.float32)
    p.call("ternary_project", weight=weight, values=values, codes=codes, scales=scales.flatten(), grouping=2,
           group_size=group)
    for first in range(0, columns, group):
        part = weight[:, first:first + group].double()
        mean = part.abs().mean(-1, keepdim=True)
        # By NumPy: PyTorch rounds to float32 on the way to float16.
        rounded = torch.from_numpy(mean.numpy().astype("float16")).float()
        assert torch.equal(scales[:, first // group, None], rounded), "ternary_project: scales differ"
        # Codes are of the mean before it is rounded; a tie goes to 0.
        expected = torch.where(2 * part.abs() > mean, part.sign(), 0)
        assert torch.equal(codes[:, first:first + group].double(), expected), "ternary_project: codes differ"
    p.compare("ternary_project", values, codes.double() * scales.double().repeat_interleave(group, 1)[:, :columns])


def cached_attention(p):
    p.dtype = p.random.choice(FLOATS[1:])
    stored = p.dtype if p.random.random() < .7 else torch.float32
    batch, kv_heads, group, width = p.size(4), p.size(3), p.size(4), 8 * p.size(16)
    heads, page, window = kv_heads * group, p.random.choice([1, 8, 16, 64]), p.random.choice([0, 0, 0, p.size(60)])
    sinks, cap = p.random.randint(0, 4) if window else 0, p.random.choice([0.0, 0.0, 4.0])
    chunks = [p.size(p.random.choice([1, 40, 300])) for _ in range(p.size(4))]
    form = dict(dtype=FLOATS.index(stored))
    cache = Cache(p.library, dict(layers=1, kv_heads=kv_heads, k_dim=width, v_dim=width, k=form, v=form,
                                  page_tokens=page, window=window, sinks=sinks),
                  batch * (sum(chunks) // page + 2 * len(chunks) + 2), batch)
    sink_logits = p.maybe(torch.randn(heads))
    k = torch.empty(batch, 0, kv_heads, width, dtype=p.dtype)
    v = torch.empty_like(k)
    for tokens in chunks:
        q, new_k, new_v = (p.normal(batch * tokens, count, width) for count in (heads, kv_heads, kv_heads))
        k = torch.cat([k, new_k.unflatten(0, (batch, tokens))], 1)
        v = torch.cat([v, new_v.unflatten(0, (batch, tokens))], 1)
        cache.append(tokens, k=new_k.contiguous(), v=new_v.contiguous(),
                     rows=torch.arange(batch, dtype=torch.int32).repeat_interleave(tokens),
                     positions=torch.arange(k.shape[1] - tokens, k.shape[1]).repeat(batch))
        output, lse = p.empty(*q.shape), p.empty(batch * tokens, heads, dtype=torch.float32)
        p.call("cached_attention", q=q, cache=cache.view.value, output=output, log_sum_exp=lse, soft_cap=cap,
               query_offsets=torch.arange(batch + 1) * tokens, sink_logits=sink_logits)
        scores = torch.einsum("bihd,bthd->bhit", q.double().unflatten(0, (batch, tokens)),
                              k.double().repeat_interleave(group, 2)) / math.sqrt(width)
        scores = cap * torch.tanh(scores / cap) if cap else scores
        length = k.shape[1]
        position, t = torch.arange(length - tokens, length)[:, None], torch.arange(length)
        attended = (t <= position) & ((t > position - window) | (t < sinks) if window else True)
        scores = scores.masked_fill(~attended, -math.inf)
        column = torch.full((heads,), -math.inf) if sink_logits is None else sink_logits
        scores = torch.cat([scores, column.double()[:, None, None].expand(batch, heads, tokens, 1)], -1)
        exact_output = torch.einsum("bhit,bthd->bihd", scores.softmax(-1)[..., :-1],
                                    v.double().repeat_interleave(group, 2))
        p.compare("cached_attention", output, exact_output.flatten(0, 1))
        p.compare("cached_attention log_sum_exp", lse, scores.logsumexp(-1).transpose(1, 2).flatten(0, 1), smallest=1)
    cache.close()


OPERATORS = [layer_norm, rms_norm, linear, activation, cross_entropy, embedding, rope, softmax_topk, sample, attention,
             weight_formats, ternary_project, cached_attention]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=1000, help="of each operator")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    worst, libraries = collections.defaultdict(lambda: [0.0, 0, 0.0]), [Library(1), Library(2)]
    for operator in OPERATORS:
        for index in range(arguments.problems):
            seed = arguments.seed * 1000003 + index
            try:
                operator(Problem(libraries[index % 2], seed, worst))
            except Exception as problem:
                raise SystemExit(f"FAILED {operator.__name__}, seed {seed}: {problem}") from problem
    names = list(dict.fromkeys(name for name, _ in worst))
    print(f"{'largest error':32}" + "".join(f"{str(dtype)[6:]:>20}" for dtype in FLOATS) + "   ours (PyTorch's)")
    for name in names:
        cells = (worst.get((name, dtype)) for dtype in FLOATS)
        text = (f"{c[0]:.1e}" + (f" ({c[2]:.1e})" if c[2] else "") if c else "-" for c in cells)
        print(f"{name:32}" + "".join(f"{cell:>20}" for cell in text))
    print(f"{len(names)} results of {len(OPERATORS) * arguments.problems} random problems equal PyTorch's in float64")


if __name__ == "__main__":
    main()
