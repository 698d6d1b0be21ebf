// SPDX-License-Identifier: Apache-2.0
// The module: as little of torch as shows its C++ ABI, so that it compiles in seconds.
#include <Python.h>
#include <c10/util/Exception.h>

#include "hungry.h"

#ifdef WITH_CUDA
int add_on_gpu(int a, int b);
int scale_on_gpu(int a, int b);
#endif

namespace {

PyObject* abi(PyObject*, PyObject*) { return PyLong_FromLong(_GLIBCXX_USE_CXX11_ABI); }

PyObject* greet(PyObject*, PyObject* argument) {
  const char* name = PyUnicode_AsUTF8(argument);
  if (!name) return nullptr;
  try {
    TORCH_CHECK(*name, "want a name, got ", std::string(name).size(), " letters");
    return PyUnicode_FromString(greeting({name}).c_str());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
    return nullptr;
  }
}

PyObject* has_cuda(PyObject*, PyObject*) {
#ifdef WITH_CUDA
  if (&add_on_gpu != nullptr && &scale_on_gpu != nullptr) Py_RETURN_TRUE;
#endif
  Py_RETURN_FALSE;
}

PyMethodDef methods[] = {{"abi", abi, METH_NOARGS, nullptr},
                         {"greet", greet, METH_O, nullptr},
                         {"has_cuda", has_cuda, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
