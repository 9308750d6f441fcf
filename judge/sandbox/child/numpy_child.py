# The Python child: the calls of the judge, made on a file of Python functions.
#
#   python3 -I -B numpy_child.py LINK.so FUNCTIONS CONTENDER.py... [ADAPTER.py]
#
# FUNCTIONS is the contract as JSON.
#
# Inputs are read-only arrays over shared memory. What a function returns is copied to the judge's
# memory inside the timed window, so that a lazy result is paid for. Contender code shares this
# process: nothing here is worth lying about.
import ctypes
import importlib.util
import json
import os
import sys

import numpy as np

MAX_BUFFERS, MAX_SCALARS, MAX_POINTERS, MAX_RANK = 24, 16, 24, 8
CALL, FETCH, RESET = 3, 4, 5
RETURNED, RAISED, INPUT_FAULT, START_FAILED = 0, 1, 4, 6
# In the order of touchstone::DType; bfloat16 travels as its bits.
DTYPES = ["f8", "f4", "u2", "f2", "i8", "i4", "i1", "u1"]


class Buffer(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint32), ("dtype", ctypes.c_uint32),
                ("file_offset", ctypes.c_uint64), ("mapped_bytes", ctypes.c_uint64),
                ("address_offset", ctypes.c_uint64), ("data_offset", ctypes.c_uint64),
                ("data_bytes", ctypes.c_uint64), ("rank", ctypes.c_uint32),
                ("echo_of", ctypes.c_uint32), ("shape", ctypes.c_int64 * MAX_RANK)]


class Order(ctypes.Structure):
    _fields_ = [("command", ctypes.c_uint32), ("function", ctypes.c_int32),
                ("state", ctypes.c_int32), ("returns", ctypes.c_uint32),
                ("scalar_count", ctypes.c_uint32), ("pointer_count", ctypes.c_uint32),
                ("buffer_count", ctypes.c_uint32), ("makes_state", ctypes.c_uint32),
                ("base", ctypes.c_uint64), ("span", ctypes.c_uint64),
                ("scalars", ctypes.c_int64 * MAX_SCALARS),
                ("scalar_is_float", ctypes.c_uint32 * MAX_SCALARS),
                ("pointers", ctypes.c_uint32 * (2 * MAX_POINTERS)),
                ("buffers", Buffer * MAX_BUFFERS)]


class Answer(ctypes.Structure):
    _fields_ = [("returned", ctypes.c_int64), ("state_bytes", ctypes.c_int64)]


def nbytes(value, depth=0):
    """Bytes of the arrays inside a state, whatever it is made of."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if depth > 4:
        return 0
    if isinstance(value, (list, tuple)):
        return sum(nbytes(v, depth + 1) for v in value)
    if isinstance(value, dict):
        return sum(nbytes(v, depth + 1) for v in value.values())
    if hasattr(value, "__dict__"):
        return nbytes(vars(value), depth + 1)
    return 0


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Child:
    def __init__(self, link, functions):
        self.link = link
        self.functions = functions
        self.states = {}
        base = link.touchstone_link_open()
        offsets = (ctypes.c_uint64 * 2)()
        link.touchstone_link_layout(offsets)
        self.order = Order.from_address(base + offsets[0])
        self.answer = Answer.from_address(base + offsets[1])

    def array(self, i, writable):
        """Buffer i of the current call, in place."""
        buffer = self.order.buffers[i]
        shape = tuple(buffer.shape[:buffer.rank])
        dtype = np.dtype(DTYPES[buffer.dtype])
        if buffer.data_bytes == 0:
            array = np.zeros(shape, dtype)
        else:
            address = self.link.touchstone_link_data(i)
            memory = (ctypes.c_char * buffer.data_bytes).from_address(address)
            array = np.frombuffer(memory, dtype).reshape(shape)
        if not writable:
            array.flags.writeable = False
        return array

    def arguments(self, function):
        """What the function is called with, and the arrays that take what it returns."""
        order, values, outputs = self.order, [], []
        scalar = buffer = 0
        for argument in function["arguments"]:
            kind = argument["kind"]
            if kind in ("i64", "f32"):
                bits = order.scalars[scalar]
                value = bits if kind == "i64" else ctypes.c_double.from_buffer(
                    ctypes.c_int64(bits)).value
                values.append(value)
                scalar += 1
            elif kind == "input":
                values.append(self.array(buffer, False))
                buffer += 1
            elif kind == "output":
                outputs.append((argument["name"], self.array(buffer, True)))
                buffer += 1
            elif kind == "state" and order.makes_state:
                pass  # it is returned, behind the outputs
            else:
                values.append(self.states.get(order.state))
        return values, outputs

    def store(self, function, result, outputs):
        """Copies what a function returned to where the judge looks."""
        returns = function["returns"]
        makes_state = self.order.makes_state and any(
            a["kind"] == "state" for a in function["arguments"])
        if returns == "handle":
            self.states[self.order.state] = result
            return 0 if result is not None else 1
        if returns == "size":
            return int(result)
        if returns == "nothing" or (not outputs and not makes_state):
            return 0 if result is None or result is True else int(result)
        count = len(outputs) + (1 if makes_state else 0)
        if count == 1:
            result = (result,)
        elif not isinstance(result, (tuple, list)) or len(result) != count:
            raise TypeError(f"expected {count} values, got {type(result).__name__}")
        for (name, array), value in zip(outputs, result):
            if value is None and name in function["may_omit"]:
                self.omitted.append(name)
                continue
            value = np.asarray(value)
            if value.shape != array.shape:
                raise ValueError(f"{name}: expected shape {array.shape}, got {value.shape}")
            np.copyto(array, value, casting="same_kind")
        if makes_state:
            self.states[self.order.state] = result[-1]
        return 0

    def call(self):
        link, order = self.link, self.order
        function = self.functions[order.function]
        values, outputs = self.arguments(function)
        target = function["target"]
        outcome, text, returned = RETURNED, "", 0
        self.omitted = []
        result = None
        link.touchstone_link_go()
        try:
            result = target(*values)
            returned = self.store(function, result, outputs)
            if self.omitted:
                text = "omitted " + ",".join(self.omitted)
        except Exception as error:  # an exception is how Python refuses
            outcome, text = RAISED, f"{type(error).__name__}: {error}"
            if isinstance(error, ValueError) and "read-only" in str(error):
                outcome = INPUT_FAULT
        self.answer.returned = returned
        link.touchstone_link_note(outcome, text.encode(errors="replace"))
        link.touchstone_link_finish()

    def run(self):
        link = self.link
        link.touchstone_link_note(RETURNED, b"")
        link.touchstone_link_acknowledge()
        while True:
            command = link.touchstone_link_wait()
            if command == CALL:
                self.call()
            elif command == RESET:
                self.states.clear()
                link.touchstone_link_reset()
                link.touchstone_link_acknowledge()
            elif command == FETCH:
                self.answer.state_bytes = nbytes(self.states.get(self.order.state))
                link.touchstone_link_acknowledge()
            else:
                os._exit(0)


def main():
    link = ctypes.CDLL(sys.argv[1])
    link.touchstone_link_open.restype = ctypes.c_void_p
    link.touchstone_link_data.restype = ctypes.c_void_p
    functions = json.loads(sys.argv[2])
    child = Child(link, functions)
    link.touchstone_link_wait()  # the judge asks whether the contender can be loaded
    try:
        # Behind everything else: a file named numpy.py in the contender's folder stays unseen.
        sys.path.append(os.path.dirname(sys.argv[3]))
        modules = [load(path, f"contender{i}") for i, path in enumerate(sys.argv[3:])]
        modules.reverse()  # an adapter first
        for function in functions:
            found = [getattr(m, function["python"]) for m in modules
                     if hasattr(m, function["python"])]
            if not found and not function["optional"]:
                raise AttributeError(f"no function {function['python']}")
            function["target"] = found[0] if found else None
    except BaseException as error:
        link.touchstone_link_note(START_FAILED, f"{type(error).__name__}: {error}".encode())
        link.touchstone_link_acknowledge()
        os._exit(1)
    child.run()


main()
