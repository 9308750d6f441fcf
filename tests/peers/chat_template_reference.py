"""jinja2 with the settings of Hugging Face transformers, and Touchstone's C API beside it.

Shared by chat_template_peer.py and chat_template_golden.py. What transformers sets is written here
again from its documentation, because the package itself would bring gigabytes along.
"""
import ctypes
import datetime
import functools
import json
import os
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOW = datetime.datetime(2026, 7, 4, 9, 5, 3)
NOW_SECONDS = int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp())


class Generation(jinja2.ext.Extension):
    """The tag around what a model is trained to say. Its text is what stands between."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def make_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


ENVIRONMENT = make_environment()
# What Touchstone is given as arguments of their own; everything else goes into `variables`.
ARGUMENTS = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")


@functools.lru_cache(maxsize=4)
def compiled(source):
    """Compiling takes most of the time, and a template is rendered for many conversations."""
    return ENVIRONMENT.from_string(source)


def reference(source, context):
    """(text, None) or (None, the exception)."""
    variables = {"tools": None, "documents": None, "add_generation_prompt": False, "messages": None}
    variables.update(context)
    try:
        return compiled(source).render(**variables), None
    except Exception as error:  # noqa: BLE001: whatever it raises, Touchstone has to raise, too
        return None, f"{type(error).__name__}: {error}"


class _Args(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("messages", ctypes.c_char_p),
                ("tools", ctypes.c_char_p), ("documents", ctypes.c_char_p),
                ("variables", ctypes.c_char_p), ("bos_token", ctypes.c_char_p),
                ("eos_token", ctypes.c_char_p), ("add_generation_prompt", ctypes.c_int32),
                ("has_now", ctypes.c_int32), ("now", ctypes.c_int64)]


_TEXT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_char), ctypes.c_int64)


class Touchstone:
    """The C API of build/release/libtouchstone.so, or of the file TOUCHSTONE_LIBRARY."""

    def __init__(self):
        path = os.environ.get("TOUCHSTONE_LIBRARY", ROOT / "build/release/libtouchstone.so")
        self.library = ctypes.CDLL(str(path))
        self.library.ts_last_error.restype = ctypes.c_char_p
        self.library.ts_chat_template_destroy.argtypes = [ctypes.c_void_p]
        self.library.ts_chat_template_create.argtypes = [
            ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)]
        self.library.ts_chat_template_render.argtypes = [
            ctypes.c_void_p, ctypes.POINTER(_Args), _TEXT, ctypes.c_void_p]

    def error(self):
        return self.library.ts_last_error().decode(errors="replace")

    def parse(self, source):
        """(handle, None) or (None, message)."""
        handle = ctypes.c_void_p()
        text = source.encode()
        if self.library.ts_chat_template_create(text, len(text), ctypes.byref(handle)) != 0:
            return None, self.error()
        return handle, None

    def destroy(self, handle):
        self.library.ts_chat_template_destroy(handle)

    def render(self, handle, context):
        """(text, None) or (None, message)."""
        given = {name: context.get(name) for name in ARGUMENTS}
        others = {name: value for name, value in context.items() if name not in ARGUMENTS}
        args = _Args(ctypes.sizeof(_Args))
        for name in ("messages", "tools", "documents"):
            setattr(args, name, json.dumps(given[name]).encode())
        args.variables = json.dumps(others).encode()
        for name in ("bos_token", "eos_token"):
            setattr(args, name, None if given[name] is None else given[name].encode())
        args.add_generation_prompt = 1 if given["add_generation_prompt"] else 0
        args.has_now = 1
        args.now = NOW_SECONDS
        parts = []
        receive = _TEXT(lambda _, text, size: parts.append(ctypes.string_at(text, size)))
        if self.library.ts_chat_template_render(handle, ctypes.byref(args), receive, None) != 0:
            return None, self.error()
        return parts[0].decode(), None
