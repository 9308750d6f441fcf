"""What cross_entropy is measured against, with PyTorch: the products of cuBLAS, a loss in chunks of tokens
as Liger's fused linear cross entropy has it (written anew from its scheme), and the plain way.

  python3 bench/probes/head_loss.py [tokens width vocabulary]
"""
import sys

import torch
import triton
import triton.language as tl

TOKENS, WIDTH, VOCABULARY = (int(v) for v in sys.argv[1:4]) if len(sys.argv) == 4 else (4096, 4096, 128256)


def milliseconds(function, rounds=3):
    function()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[rounds // 2]


def peak_mib(function):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


@triton.jit
def loss_in_place(logits, stride, targets, losses, columns, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    chosen = tl.load(logits + target).to(tl.float32)
    largest = float("-inf")
    total = 0.0
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        most = tl.maximum(largest, tl.max(value))
        total = total * tl.exp(largest - most) + tl.sum(tl.exp(value - most))
        largest = most
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        gradient = (tl.exp(value - largest) / total - (at == target).to(tl.float32)) * scale
        tl.store(logits + at, gradient.to(tl.bfloat16), mask=at < columns)
    tl.store(losses + row, largest + tl.log(total) - chosen)


def chunked(x, weight, targets):
    """Chunks of next_power_of_2(tokens / ceil(V / E)) tokens; logits become gradients in place."""
    parts = -(-VOCABULARY // WIDTH)
    rows = 1 << ((-(-TOKENS // parts)) - 1).bit_length()
    losses = torch.empty(TOKENS, device="cuda", dtype=torch.float32)
    dx = torch.empty_like(x)
    dweight = torch.zeros_like(weight)
    for first in range(0, TOKENS, rows):
        chunk = slice(first, first + rows)
        logits = x[chunk] @ weight.t()
        loss_in_place[(logits.shape[0],)](logits, logits.stride(0), targets[chunk], losses[chunk], VOCABULARY,
                                          1.0 / TOKENS, BLOCK=32768, num_warps=32)
        dx[chunk] = logits @ weight
        torch.addmm(dweight, logits.t(), x[chunk], out=dweight)
    return losses.mean(), dx, dweight


def main():
    torch.manual_seed(1)
    x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16) * 3
    weight = torch.randn(VOCABULARY, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
    targets = torch.arange(TOKENS, device="cuda") * 7919 % VOCABULARY

    dl = torch.empty(TOKENS, VOCABULARY, device="cuda", dtype=torch.bfloat16)
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    logits_ms = milliseconds(lambda: torch.matmul(x, weight.t(), out=dl))
    dl.normal_(0, 1e-3)
    dx_ms = milliseconds(lambda: torch.matmul(dl, weight, out=dx))
    dweight_ms = milliseconds(lambda: torch.matmul(dl.t(), x, out=dweight))
    print(f"cuBLAS: logits {logits_ms:.2f} ms, dx {dx_ms:.2f}, dW {dweight_ms:.2f}; "
          f"sum {logits_ms + dx_ms + dweight_ms:.2f}")
    del dl, dx, dweight
    gradients = (x.numel() + weight.numel()) * 2 / 2**20
    step = lambda: chunked(x, weight, targets)
    print(f"chunks of tokens: {milliseconds(step):.2f} ms, {peak_mib(step) - gradients:.0f} MiB beside dx and dW")
    x.requires_grad_()
    weight.requires_grad_()
    for wide in (False, True):
        def step():
            x.grad = weight.grad = None
            logits = torch.nn.functional.linear(x, weight)
            torch.nn.functional.cross_entropy(logits.float() if wide else logits, targets).backward()

        print(f"PyTorch, logits in {'f32' if wide else 'bf16'}: {milliseconds(step):.2f} ms, "
              f"{peak_mib(step) - gradients:.0f} MiB beside dx and dW")


main()
