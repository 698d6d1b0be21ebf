// SPDX-License-Identifier: Apache-2.0
// As little of torch as shows its C++ ABI, so that it compiles in seconds.
#include <Python.h>
#include <c10/util/Exception.h>

int launch_on_gpu(int value);

namespace {

PyObject* greet(PyObject*, PyObject* argument) {
  const char* name = PyUnicode_AsUTF8(argument);
  if (!name) return nullptr;
  try {
    TORCH_CHECK(*name, "want a name, got ", std::string(name).size(), " letters");
    return PyUnicode_FromString(&launch_on_gpu ? name : "");
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
    return nullptr;
  }
}

PyMethodDef methods[] = {{"greet", greet, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "flash_attn_2_cuda", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_flash_attn_2_cuda() { return PyModule_Create(&definition); }
