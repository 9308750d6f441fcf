"""What `touchstone train` is measured against: the same training step in PyTorch, compiled, with flash
attention and fused AdamW, bf16 products from f32 weights (autocast).

  python3 bench/probes/train_rate.py [layers width heads kv_heads ffn vocabulary rows length steps]

Defaults are the shape of SmolLM2-135M with a vocabulary of 65. With the environment variable WAIT, the
timed steps begin when that file exists, so that compilation can be over before the GPU is free.
"""
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

DEFAULTS = (30, 576, 9, 3, 1536, 65, 16, 2048, 40)
GIVEN = tuple(int(v) for v in sys.argv[1:])
LAYERS, WIDTH, HEADS, KV_HEADS, FFN, VOCABULARY, ROWS, LENGTH, STEPS = GIVEN + DEFAULTS[len(GIVEN):]
HEAD = WIDTH // HEADS


def rotated(x, cosine, sine):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD, bias=False)
        self.output = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x, cosine, sine):
        rows, length, _ = x.shape
        heads = self.qkv(self.norms[0](x)).view(rows, length, HEADS + 2 * KV_HEADS, HEAD).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        q, k = rotated(q, cosine, sine).type_as(v), rotated(k, cosine, sine).type_as(v)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(rows, length, HEADS * HEAD))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        angle = torch.outer(torch.arange(LENGTH), 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    torch.manual_seed(1)
    model = Decoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    print("train_rate: warm", flush=True)
    while "WAIT" in os.environ and not os.path.exists(os.environ["WAIT"]):
        time.sleep(0.05)
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    median = sorted(times)[STEPS // 2]
    parameters = sum(p.numel() for p in model.parameters())
    print(f"PyTorch {torch.__version__}: {parameters / 1e6:.1f} M parameters, {ROWS} x {LENGTH} tokens, "
          f"{median * 1e3:.2f} ms a step, {ROWS * LENGTH / median:.0f} tokens/s")


main()
