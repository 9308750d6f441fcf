"""The operators of the C API on tensors of PyTorch, by the structs that touchstone_c.h declares."""
import ctypes
import os
import pathlib
import re

import torch

HEADER = pathlib.Path(__file__).resolve().parents[2] / "include/touchstone/touchstone_c.h"
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
             "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "const char*": ctypes.c_char_p,
             "void*": ctypes.c_void_p, "ts_tensor": Tensor, "ts_device": Device}
    text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", HEADER.read_text())
    types.update((name, ctypes.c_int32) for name in re.findall(r"typedef int32_t (\w+);", text))
    defaults = {}
    for body, name in re.findall(r"typedef struct \w+ \{([^}]*)\} (ts_\w+);", text):
        if name in types:
            continue
        fields = re.findall(r"([\w ]+\*?)\s+(\w+);", body)
        types[name] = type(name, (ctypes.Structure,), {"_fields_": [(field, types[kind.strip()])
                                                                    for kind, field in fields]})
        macro = re.search(rf"#define {name.upper()} \\\n(.*)", text)
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

    def call(self, operator, arguments=None, **values):
        """ts_<operator> with ts_<arguments>_args; None stands for an absent tensor."""
        name = f"ts_{arguments or operator}_args"
        struct = self.types[name](struct_size=ctypes.sizeof(self.types[name]))
        for field, value in self.defaults[name]:
            setattr(struct, field, dict(struct._fields_)[field](float(value) if "." in value or "e" in value
                                                                else int(value)).value)
        given = {field: value for field, value in values.items() if value is not None}
        self.check(getattr(self.c, f"ts_{operator}")(self.context, ctypes.byref(self.fill(struct, given))))
