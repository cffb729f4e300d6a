// Calls of kernels from Python: `bind` makes a builtin function of a kernel's address.
//
// The builtin takes the kernel's arguments and the number of threads as ints, packs them into an array and runs the
// kernel without the interpreter's lock. A status other than 0 is handed to a Python function, which raises.
// Python's stable interface is declared here, so that no Python headers are needed; one build serves 3.11 and later.
#include <stdint.h>

extern "C" {
typedef struct _object PyObject;
typedef struct _ts PyThreadState;
struct PyMethodDef { const char* name; void* function; int flags; const char* doc; };

extern PyObject* PyExc_TypeError;
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(long long);
PyObject* PyErr_Occurred(void);
void PyErr_SetString(PyObject*, const char*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyCMethod_New(PyMethodDef*, PyObject*, PyObject*, PyObject*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
PyThreadState* PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState*);

typedef int64_t (*Kernel)(const int64_t* args, int64_t threads);
struct Bound { Kernel kernel; int64_t count; PyObject* on_error; };

static const char kBound[] = "gyrator.kernel";
static const int64_t kInline = 64;  // arguments that fit on the stack
static const int kFastCall = 0x80;  // METH_FASTCALL

static bool pack(PyObject* const* args, int64_t count, int64_t* into) {
  for (int64_t i = 0; i < count; ++i) {
    into[i] = PyLong_AsLongLong(args[i]);
    if (into[i] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

static PyObject* call_packed(Bound* bound, PyObject* const* args, int64_t* packed) {
  if (!pack(args, bound->count + 1, packed)) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  const int64_t status = bound->kernel(packed, packed[bound->count]);
  PyEval_RestoreThread(state);
  PyObject* result = PyLong_FromLongLong(status);
  if (status == 0 || result == nullptr) return result;
  PyObject* raised = PyObject_CallFunctionObjArgs(bound->on_error, result, nullptr);
  Py_DecRef(result);
  return raised;
}

static PyObject* launch(PyObject* self, PyObject* const* args, int64_t count) {
  Bound* bound = (Bound*)PyCapsule_GetPointer(self, kBound);
  if (bound == nullptr) return nullptr;
  if (count != bound->count + 1) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes its pointers, its sizes and the number of threads");
    return nullptr;
  }
  if (count <= kInline) {
    int64_t packed[kInline];
    return call_packed(bound, args, packed);
  }
  int64_t* packed = new int64_t[count];
  PyObject* result = call_packed(bound, args, packed);
  delete[] packed;
  return result;
}

static void release(PyObject* capsule) {
  Bound* bound = (Bound*)PyCapsule_GetPointer(capsule, kBound);
  Py_DecRef(bound->on_error);
  delete bound;
}

static PyMethodDef kLaunch = {"launch", (void*)launch, kFastCall, "launch(*pointers, *sizes, threads) -> 0"};

// bind(address of the kernel, number of its pointers and sizes, function called with a status other than 0)
static PyObject* bind(PyObject*, PyObject* const* args, int64_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "bind(address, count, on_error)");
    return nullptr;
  }
  int64_t numbers[2];
  if (!pack(args, 2, numbers)) return nullptr;
  Py_IncRef(args[2]);
  Bound* bound = new Bound{(Kernel)numbers[0], numbers[1], args[2]};
  PyObject* capsule = PyCapsule_New(bound, kBound, release);
  if (capsule == nullptr) return nullptr;
  PyObject* function = PyCMethod_New(&kLaunch, capsule, nullptr, nullptr);
  Py_DecRef(capsule);
  return function;
}

static PyMethodDef kBind = {"bind", (void*)bind, kFastCall, "bind(address, count, on_error) -> launch"};

// The builtin function `bind`; call it through ctypes.PyDLL.
PyObject* gyrator_launcher(void) { return PyCMethod_New(&kBind, nullptr, nullptr, nullptr); }
}
