"""The operators of the C API on tensors of PyTorch, by the structs that its headers declare."""
import ctypes
import os
import pathlib
import re

import torch

HEADERS = pathlib.Path(__file__).resolve().parents[2] / "include/touchstone"
DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.int64: 4,
          torch.int32: 5, torch.int8: 6, torch.uint8: 7, torch.float8_e4m3fn: 8}


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("device", Device), ("shape", ctypes.c_int64 * 8), ("stride", ctypes.c_int64 * 8)]


def read_structs():
    """The argument structs by name, and what their macros set."""
    types = {"size_t": ctypes.c_size_t, "double": ctypes.c_double, "int64_t": ctypes.c_int64,
             "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
             "const char*": ctypes.c_char_p, "ts_tensor": Tensor, "ts_device": Device}
    types.update((f"const {name}*", ctypes.POINTER(types[name])) for name in ("int32_t", "int64_t"))
    types["const float*"] = ctypes.POINTER(ctypes.c_float)
    text = "".join((HEADERS / f"touchstone_c{part}.h").read_text() for part in ("", "_beam", "_cache", "_ternary"))
    text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", text)
    types.update((name, ctypes.c_int32) for name in re.findall(r"typedef int32_t (\w+);", text))
    defaults = {}
    for body, name in re.findall(r"typedef struct \w+ \{([^}]*)\} (ts_\w+);", text):
        if name in types:
            continue
        fields = []
        for kind, field, count in re.findall(r"([\w ]+\*?)\s+(\w+)(?:\[(\d+)\])?;", body):
            kind = types.get(kind.strip(), ctypes.c_void_p)
            fields.append((field, kind * int(count) if count else kind))
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        macro = re.search(rf"#define {name.upper()}\s[^{{]*([^}}]*)", text)
        defaults[name] = re.findall(r"\.(\w+) = (-?\d[\d.e-]*)", macro[1]) if macro else []
    return types, defaults


class Library:
    def __init__(self, threads=0):
        folder = pathlib.Path(os.environ["TOUCHSTONE_PROGRAM"]).parent
        self.c = ctypes.CDLL(str(folder / "libtouchstone.so"))
        self.c.ts_last_error.restype = ctypes.c_char_p
        self.types, self.defaults = read_structs()
        args = self.types["ts_context_args"](ctypes.sizeof(self.types["ts_context_args"]), threads=threads,
                                             workspace_bytes=64 << 20)
        self.context = ctypes.c_void_p()
        self.check(self.c.ts_context_create(ctypes.byref(args), ctypes.byref(self.context)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.c.ts_last_error().decode())

    def fill(self, struct, values):
        for field, value in values.items():
            kind = dict(struct._fields_)[field]
            if isinstance(value, torch.Tensor):
                value = Tensor(value.data_ptr(), DTYPES[value.dtype], value.dim(), Device(0, 0),
                               (ctypes.c_int64 * 8)(*value.shape), (ctypes.c_int64 * 8)(*value.stride()))
            elif isinstance(value, dict):
                value = self.fill(kind(), value)
            elif isinstance(value, str):
                value = value.encode()
            setattr(struct, field, value)
        return struct

    def arguments(self, name, **values):
        """The struct with its defaults and these values; None stands for an absent tensor."""
        struct = self.types[name](struct_size=ctypes.sizeof(self.types[name]))
        for field, value in self.defaults[name]:
            setattr(struct, field, dict(struct._fields_)[field](float(value) if "." in value or "e" in value
                                                                else int(value)).value)
        given = {field: value for field, value in values.items() if value is not None}
        return self.fill(struct, given)

    def call(self, operator, arguments=None, **values):
        """ts_<operator> with ts_<arguments>_args."""
        struct = self.arguments(f"ts_{arguments or operator}_args", **values)
        self.check(getattr(self.c, f"ts_{operator}")(self.context, ctypes.byref(struct)))

    def decoded(self, format, weight):
        """The bytes [rows, bytes of a row] of a float32 matrix in a block format, and what they decode to."""
        facts = self.types["ts_weight_format"](ctypes.sizeof(self.types["ts_weight_format"]))
        self.check(self.c.ts_weight_format_find(format.encode(), ctypes.byref(facts)))
        size = weight.numel() // facts.block_elements * facts.block_bytes
        coded = torch.zeros(weight.shape[0], size // weight.shape[0], dtype=torch.uint8)
        values = torch.empty_like(weight)
        pointer, number = lambda tensor: ctypes.c_void_p(tensor.data_ptr()), ctypes.c_int64
        self.check(self.c.ts_encode_weights(format.encode(), pointer(weight), number(weight.numel()), pointer(coded),
                                            number(size)))
        self.check(self.c.ts_decode_weights(format.encode(), pointer(coded), number(size), pointer(values),
                                            number(weight.numel())))
        return coded, values


class Cache:
    """Sequences in a KV cache of one layer, and the view of them that operators read."""

    def __init__(self, library, group, pages, sequences):
        self.library, self.c, types = library, library.c, library.types
        groups = (types["ts_layer_group"] * 1)(library.fill(types["ts_layer_group"](), group))
        counts = (ctypes.c_int64 * 1)(pages)
        args = types["ts_kv_cache_args"](ctypes.sizeof(types["ts_kv_cache_args"]), ctypes.sizeof(groups))
        args.layer_groups, args.layer_group_count, args.pool_pages = ctypes.addressof(groups), 1, counts
        self.cache, self.view = ctypes.c_void_p(), ctypes.c_void_p()
        self.sequences = (types["ts_sequence"] * sequences)()
        library.check(self.c.ts_kv_cache_create(library.context, ctypes.byref(args), ctypes.byref(self.cache)))
        library.check(self.c.ts_cache_view_create(self.cache, ctypes.byref(self.view)))
        for i in range(sequences):
            library.check(self.c.ts_kv_cache_add_sequence(self.cache, ctypes.byref(self.sequences, i * ctypes.sizeof(
                types["ts_sequence"]))))

    def append(self, tokens, **values):
        """`tokens` more of every sequence; the tensors hold them sequence by sequence."""
        count = ctypes.c_int64(len(self.sequences))
        self.library.check(self.c.ts_kv_cache_reserve(self.cache, self.sequences, count, ctypes.c_int64(tokens)))
        self.library.check(self.c.ts_cache_view_build(self.library.context, self.view, self.sequences, count))
        self.library.call("kv_append", cache=self.view.value, **values)
        self.library.check(self.c.ts_kv_cache_commit(self.cache, self.sequences, count, ctypes.c_int64(tokens)))
        self.library.check(self.c.ts_cache_view_build(self.library.context, self.view, self.sequences, count))

    def close(self):
        self.c.ts_cache_view_destroy(self.view)
        self.c.ts_kv_cache_destroy(self.cache)
