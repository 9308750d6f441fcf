"""PyTorch's operators, timed on behalf of `touchstone bench`.

Reads one JSON object per line from standard input and answers each with one on standard output, so
that the parent decides when this process runs and when it rests:

  {"do": "prepare", "slot": 0, "op": "layer_norm", "variant": "forward", "dtype": "bf16",
   "rows": 8192, "cols": 4096, "k": 0, "device": "cuda:0", "threads": 1, "sets": 4,
   "launches": 16, "sample_us": 2000, "compile": false}   -> {"ok": true}
  {"do": "run", "slot": 0}                                -> {"us": 12.5}
  {"do": "release", "slot": 0}                            -> {"ok": true}

A failure is answered with {"error": "..."}. The first line is sent unasked: {"torch": "2.11.0"}.
"""

import json
import os
import statistics
import sys
import time


def open_channel():
    """The answers' own file; whatever a library prints goes to standard error instead."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


class Case:
    """One problem on rotating sets of operands. Subclasses set `call`, which takes a set's number."""

    def __init__(self, torch, request):
        self.torch = torch
        self.device = torch.device(request["device"])
        self.rows = request["rows"]
        self.cols = request["cols"]
        self.count = request["sets"]
        self.dtype = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16,
                      "f16": torch.float16}[request["dtype"]]
        torch.manual_seed(1)
        # The latest outputs of each set stay alive, so that a call writes where no call has
        # written just before.
        self.kept = [None] * self.count

    def random(self, *shape):
        torch = self.torch
        return torch.randn(*shape, device=self.device, dtype=torch.float32).to(self.dtype)

    def random_sets(self):
        return [self.random(self.rows, self.cols) for _ in range(self.count)]

    def run_set(self, i):
        self.kept[i % self.count] = self.call(i % self.count)


class NormCase(Case):
    eps = 1e-5

    def __init__(self, torch, request):
        super().__init__(torch, request)
        self.gamma = self.random(self.cols)
        self.beta = self.random(self.cols)
        self.x = self.random_sets()
        backward = request["variant"] == "backward"
        self.dy = self.random_sets() if backward else []
        layer = request["op"] == "layer_norm"
        if backward:
            self.call = self.backward_call(layer, request["compile"])
        else:
            self.call = self.forward_call(layer, request["compile"])

    def forward_call(self, layer, compiled):
        torch = self.torch
        gamma, beta, shape, eps = self.gamma, self.beta, [self.cols], self.eps
        if compiled:
            function = self.compiled_forward(layer)
            return lambda i: function(self.x[i], gamma, beta)
        if layer:
            return lambda i: torch.ops.aten.native_layer_norm(self.x[i], shape, gamma, beta, eps)
        return lambda i: torch.nn.functional.rms_norm(self.x[i], shape, gamma, eps)

    def backward_call(self, layer, compiled):
        aten = self.torch.ops.aten
        shape, eps = [self.cols], self.eps
        if layer and not compiled:
            saved = [aten.native_layer_norm(x, shape, self.gamma, self.beta, eps)[1:]
                     for x in self.x]
            return lambda i: aten.native_layer_norm_backward(
                self.dy[i], self.x[i], shape, *saved[i], self.gamma, self.beta,
                [True, True, True])
        if not layer and not compiled and self.fused_rms_norm():
            saved = [aten._fused_rms_norm(x, shape, self.gamma, eps)[1] for x in self.x]
            return lambda i: aten._fused_rms_norm_backward(
                self.dy[i], self.x[i], shape, saved[i], self.gamma, [True, True])
        return self.autograd_call(layer, compiled)

    def fused_rms_norm(self):
        aten = self.torch.ops.aten
        return self.device.type == "cuda" and hasattr(aten, "_fused_rms_norm_backward")

    def compiled_forward(self, layer):
        functional = self.torch.nn.functional
        shape, eps = (self.cols,), self.eps
        if layer:
            return self.torch.compile(lambda x, g, b: functional.layer_norm(x, shape, g, b, eps))
        return self.torch.compile(lambda x, g, b: functional.rms_norm(x, shape, g, eps))

    def autograd_call(self, layer, compiled):
        torch = self.torch
        if compiled:
            # A backward that is run many times must not recycle what the forward left for it.
            torch._functorch.config.donated_buffer = False
            function = self.compiled_forward(layer)
        else:
            def function(x, gamma, _):
                return torch.nn.functional.rms_norm(x, [self.cols], gamma, self.eps)
        gamma = self.gamma.detach().requires_grad_()
        beta = self.beta.detach().requires_grad_()
        inputs = [x.detach().requires_grad_() for x in self.x]
        outputs = [function(x, gamma, beta) for x in inputs]
        wanted = [gamma, beta] if layer else [gamma]
        return lambda i: torch.autograd.grad(outputs[i], [inputs[i], *wanted], self.dy[i],
                                             retain_graph=True)


class TopkCase(Case):
    """Softmax with top-k: the whole softmax first, or only the sum of exponentials beside top-k."""

    def __init__(self, torch, request):
        super().__init__(torch, request)
        self.x = [3 * x for x in self.random_sets()]
        k = request["k"]

        def softmax(x):
            return torch.topk(torch.softmax(x, -1, dtype=torch.float32), k)

        def lse(x):
            values, indices = torch.topk(x, k)
            total = torch.logsumexp(x.float(), -1, keepdim=True)
            return torch.exp(values.float() - total), indices

        function = {"softmax": softmax, "lse": lse}[request["variant"]]
        if request["compile"]:
            function = torch.compile(function)
        self.call = lambda i: function(self.x[i])


class SampleCase(Case):
    """One token per row: with masks over the whole vocabulary, as generation loops usually have it,
    or with top-k first and everything else on the k that are left."""

    temperature = 0.8
    top_p = 0.95

    def __init__(self, torch, request):
        super().__init__(torch, request)
        self.x = [3 * x for x in self.random_sets()]
        k = request["k"]

        def masks(x):
            x = x.float() / self.temperature
            log_probabilities = torch.log_softmax(x, -1)
            x = x.masked_fill(x < torch.topk(x, k)[0][..., -1, None], -float("inf"))
            values, indices = torch.sort(x, descending=False)
            late = torch.softmax(values, -1).cumsum(-1) <= 1 - self.top_p
            late[..., -1:] = False
            x = x.masked_fill(late.scatter(-1, indices, late), -float("inf"))
            token = torch.multinomial(torch.softmax(x, -1), 1)
            return token, log_probabilities.gather(-1, token)

        def topk_first(x):
            x = x.float() / self.temperature
            values, indices = torch.topk(x, k)
            probabilities = torch.softmax(values, -1)
            late = probabilities.cumsum(-1) - probabilities >= self.top_p
            slot = torch.multinomial(probabilities.masked_fill(late, 0), 1)
            total = torch.logsumexp(x, -1, keepdim=True)
            return indices.gather(-1, slot), values.gather(-1, slot) - total

        function = {"masks": masks, "topk_first": topk_first}[request["variant"]]
        if request["compile"]:
            function = torch.compile(function)
        self.call = lambda i: function(self.x[i])


class AttentionCase(Case):
    """One query token per sequence over dense keys and values; the variant is the heads, as in
    32/8x128."""

    def __init__(self, torch, request):
        super().__init__(torch, request)
        heads, dim = request["variant"].split("x")
        query_heads, kv_heads = (int(number) for number in heads.split("/"))
        q = [self.random(self.rows, query_heads, 1, int(dim)) for _ in range(self.count)]
        k, v = ([self.random(self.rows, kv_heads, self.cols, int(dim)) for _ in range(self.count)]
                for _ in range(2))
        attention = torch.nn.functional.scaled_dot_product_attention
        self.call = lambda i: attention(q[i], k[i], v[i], enable_gqa=query_heads != kv_heads)


class DenseAttentionCase(Case):
    """Attention over dense keys and values; the variant is direction, shape, mask and backend, as in
    backward 2x16/4x8192x128 causal cudnn."""

    def __init__(self, torch, request):
        super().__init__(torch, request)
        direction, shape, mask, backend = request["variant"].split()
        batch, heads, tokens, dim = shape.split("x")
        query_heads, kv_heads = (int(number) for number in (heads + "/" + heads).split("/")[:2])
        q = self.random(int(batch), query_heads, int(tokens), int(dim))
        k, v = (self.random(int(batch), kv_heads, int(tokens), int(dim)) for _ in range(2))

        def attention(*operands):
            return torch.nn.functional.scaled_dot_product_attention(
                *operands, is_causal=mask == "causal", enable_gqa=query_heads != kv_heads)

        if backend == "any":
            forward = attention
        else:
            from torch.nn.attention import SDPBackend, sdpa_kernel
            wanted = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}

            def forward(*operands):
                with sdpa_kernel(wanted[backend]):
                    return attention(*operands)

        if direction == "forward":
            self.call = lambda i: forward(q, k, v)
            return
        for operand in (q, k, v):
            operand.requires_grad_()
        output = forward(q, k, v)
        gradient = torch.randn_like(output)
        self.call = lambda i: torch.autograd.grad(output, [q, k, v], gradient, retain_graph=True)


class VocabularyCase(Case):
    """A table or an output head of V rows, shared by all sets; the variant is direction and V, as in
    backward 128256."""

    def __init__(self, torch, request):
        super().__init__(torch, request)
        self.direction, vocabulary = request["variant"].split()
        self.weight = self.random(int(vocabulary), self.cols) / self.cols ** 0.5
        tokens = torch.arange(self.count * self.rows, device=self.device) * 7919 % int(vocabulary)
        self.tokens = tokens.view(self.count, self.rows)

    def differentiate(self, function, inputs, gradient):
        for operand in inputs:
            operand.requires_grad_()
        return self.torch.autograd.grad(function(), inputs, gradient)


class EmbeddingCase(VocabularyCase):
    def __init__(self, torch, request):
        super().__init__(torch, request)
        embedding = torch.nn.functional.embedding
        if self.direction == "forward":
            self.call = lambda i: embedding(self.tokens[i], self.weight)
            return
        gradient = self.random(self.rows, self.cols)
        self.call = lambda i: self.differentiate(lambda: embedding(self.tokens[i], self.weight),
                                                 [self.weight], gradient)


class HeadLossCase(VocabularyCase):
    """The head and the loss; backward: both directions, as a training step has them."""

    def __init__(self, torch, request):
        super().__init__(torch, request)
        self.x = [3 * x for x in self.random_sets()]

        def loss(i):
            logits = torch.nn.functional.linear(self.x[i], self.weight)
            return torch.nn.functional.cross_entropy(logits.float(), self.tokens[i])

        if self.direction == "forward":
            self.call = loss
            return
        self.call = lambda i: self.differentiate(lambda: loss(i), [self.x[i], self.weight], None)


CASES = {"layer_norm": NormCase, "rms_norm": NormCase, "softmax_topk": TopkCase,
         "sample": SampleCase, "cached_attention": AttentionCase, "attention": DenseAttentionCase,
         "embedding": EmbeddingCase, "cross_entropy": HeadLossCase}


def make_case(torch, request):
    return CASES[request["op"]](torch, request)


class CpuTimer:
    def __init__(self, torch, request):
        case = make_case(torch, request)
        self.case = case
        self.next = 0
        for i in range(case.count):
            case.run_set(i)
        start = time.perf_counter_ns()
        case.run_set(0)
        once_us = (time.perf_counter_ns() - start) / 1e3
        self.calls = max(1, min(100000, round(request["sample_us"] / max(once_us, 0.1))))
        self.steady = request["sets"] == 1

    def run(self):
        if self.steady:
            self.case.run_set(0)
        start = time.perf_counter_ns()
        for _ in range(self.calls):
            self.case.run_set(self.next)
            self.next += 1
        return (time.perf_counter_ns() - start) / 1e3 / self.calls


class CudaTimer:
    REPLAYS = 3

    def __init__(self, torch, request):
        self.torch = torch
        self.launches = request["launches"]
        self.stream = torch.cuda.Stream()
        # The case is made on the stream that is captured later: autograd runs a backward on the
        # stream of its forward.
        with torch.cuda.stream(self.stream):
            case = make_case(torch, request)
            for i in range(case.count):
                case.run_set(i)
        self.stream.synchronize()
        self.case = case
        case.kept = [None] * case.count
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            for i in range(self.launches):
                case.run_set(i)
        self.run()

    def run(self):
        torch = self.torch
        times = []
        with torch.cuda.stream(self.stream):
            self.graph.replay()
            for _ in range(self.REPLAYS):
                start = torch.cuda.Event(enable_timing=True)
                stop = torch.cuda.Event(enable_timing=True)
                start.record()
                self.graph.replay()
                stop.record()
                stop.synchronize()
                times.append(start.elapsed_time(stop) * 1e3 / self.launches)
        return statistics.median(times)


def prepare(torch, request):
    torch.set_num_threads(request["threads"])
    device = torch.device(request["device"])
    if device.type == "cuda":
        with torch.cuda.device(device):
            return CudaTimer(torch, request)
    return CpuTimer(torch, request)


def answer(torch, slots, request):
    slot = request["slot"]
    if request["do"] == "prepare":
        slots[slot] = prepare(torch, request)
        return {"ok": True}
    if request["do"] == "run":
        return {"us": slots[slot].run()}
    if request["do"] == "release":
        slots.pop(slot, None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {"ok": True}
    return {"error": "unknown request"}


def main():
    channel = open_channel()
    try:
        import torch
    except ImportError:
        print(json.dumps({"error": "not installed"}), file=channel)
        return
    print(json.dumps({"torch": torch.__version__}), file=channel)
    slots = {}
    for line in sys.stdin:
        try:
            reply = answer(torch, slots, json.loads(line))
        except Exception as error:  # noqa: BLE001, reported to the parent, which goes on
            reply = {"error": (str(error).splitlines() or [type(error).__name__])[0]}
        print(json.dumps(reply), file=channel)


main()
