// The part of Python's C interface that the Python child uses, declared here: the interpreter that
// loads it is whichever the machine has, and building needs none. Functions only, all of them in
// every Python 3; objects are never looked into.
#pragma once

#include <cstddef>
#include <utility>

extern "C" {
struct PyObject;
extern PyObject _Py_NoneStruct;
extern PyObject _Py_TrueStruct;
extern PyObject PyTuple_Type;
extern PyObject PyList_Type;
extern PyObject PyDict_Type;
extern PyObject* PyExc_Exception;
extern PyObject* PyExc_SystemExit;
extern PyObject* PyExc_TypeError;
extern PyObject* PyExc_ValueError;

void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
PyObject* Py_CompileString(const char* text, const char* file, int start);
PyObject* PyImport_ImportModule(const char*);
PyObject* PyImport_ExecCodeModuleEx(const char* name, PyObject* code, const char* file);
PyObject* PySys_GetObject(const char*);  // borrowed

PyObject* PyObject_GetAttrString(PyObject*, const char*);
int PyObject_HasAttrString(PyObject*, const char*);
PyObject* PyObject_CallObject(PyObject* what, PyObject* arguments);
PyObject* PyObject_Str(PyObject*);
PyObject* PyObject_Type(PyObject*);
int PyObject_IsInstance(PyObject*, PyObject* type);
PyObject* PyNumber_Long(PyObject*);
PyObject* PySequence_GetItem(PyObject*, ptrdiff_t);
ptrdiff_t PySequence_Size(PyObject*);
PyObject* PyDict_Values(PyObject*);
PyObject* PyTuple_New(ptrdiff_t);
int PyTuple_SetItem(PyObject*, ptrdiff_t, PyObject* stolen);
int PyList_Append(PyObject*, PyObject*);
int PyList_SetSlice(PyObject*, ptrdiff_t, ptrdiff_t, PyObject*);
PyObject* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyFloat_FromDouble(double);
PyObject* PyUnicode_FromString(const char*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, ptrdiff_t*);
PyObject* PyMemoryView_FromMemory(char*, ptrdiff_t, int flags);

// 3.9 and later. A frame is an object, and a code too.
using TraceFunction = int (*)(PyObject* own, PyObject* frame, int what, PyObject* argument);
void PyEval_SetProfile(TraceFunction, PyObject* own);
PyObject* PyFrame_GetCode(PyObject* frame);  // a new reference

void PyErr_Clear();
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
PyObject* PyErr_Format(PyObject*, const char*, ...);
int PyErr_GivenExceptionMatches(PyObject*, PyObject*);
}

namespace touchstone::judge::child {

// A reference that is given back.
class Ref {
 public:
  explicit Ref(PyObject* owned = nullptr) : object_(owned) {}
  ~Ref() {
    if (object_ != nullptr) Py_DecRef(object_);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  static Ref borrowed(PyObject* object) {
    if (object != nullptr) Py_IncRef(object);
    return Ref(object);
  }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

}  // namespace touchstone::judge::child
