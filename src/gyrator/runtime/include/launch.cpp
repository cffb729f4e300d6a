// Calls of kernels from Python: `bind` makes a builtin function of a kernel's address.
//
// The builtin takes the kernel's arguments and the number of threads as ints and runs the kernel without the
// interpreter's lock. A status other than 0 is handed to a Python function, which raises.
// Python's stable interface is declared here, so that no Python headers are needed; one build serves 3.11 and later.
// It is linked as kernels are, without the C++ library: `new` would not be found.
#include <stdint.h>
#include <stdlib.h>

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
__attribute__((visibility("default"))) PyObject* gyrator_launcher(void);
}

struct Bound { void* kernel; int64_t count; PyObject* on_error; };

static const char kBound[] = "gyrator.kernel";
static const int kFastCall = 0x80;  // METH_FASTCALL
static const int64_t kMost = 1024;  // arguments of a kernel

static bool unpack(PyObject* const* args, int64_t count, int64_t* into) {
  for (int64_t i = 0; i < count; ++i) {
    into[i] = PyLong_AsLongLong(args[i]);
    if (into[i] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

// A kernel is int32_t(pointers..., int64_t sizes..., int32_t threads). In the conventions of x86-64 an int64_t is passed
// where a pointer would be, an int32_t is the low half of one, and a callee does not notice further arguments; behind
// the six in registers a struct lies in memory as its members would. So a kernel is called with the next larger of four
// numbers of arguments.
template <int64_t N> struct Rest { int64_t numbers[N]; };
template <int64_t N> using Kernel = int32_t(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, Rest<N - 6>);

// Whether the arguments are ints; then the kernel has run, with that status.
template <int64_t N>
static bool run(void* kernel, PyObject* const* args, int64_t count, int64_t* status) {
  int64_t numbers[N] = {};
  if (!unpack(args, count, numbers)) return false;
  PyThreadState* state = PyEval_SaveThread();
  const int64_t* n = numbers;
  *status = ((Kernel<N>*)kernel)(n[0], n[1], n[2], n[3], n[4], n[5], *(const Rest<N - 6>*)(n + 6));
  PyEval_RestoreThread(state);
  return true;
}

static PyObject* launch(PyObject* self, PyObject* const* args, int64_t count) {
  Bound* bound = (Bound*)PyCapsule_GetPointer(self, kBound);
  if (bound == nullptr) return nullptr;
  if (count != bound->count + 1) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes its pointers, its sizes and the number of threads");
    return nullptr;
  }
  int64_t status;
  const auto run_it = count <= 8 ? run<8> : count <= 24 ? run<24> : count <= 64 ? run<64> : run<kMost>;
  if (!run_it(bound->kernel, args, count, &status)) return nullptr;
  PyObject* result = PyLong_FromLongLong(status);
  if (status == 0 || result == nullptr) return result;
  PyObject* raised = PyObject_CallFunctionObjArgs(bound->on_error, result, nullptr);
  Py_DecRef(result);
  return raised;
}

static void release(PyObject* capsule) {
  Bound* bound = (Bound*)PyCapsule_GetPointer(capsule, kBound);
  Py_DecRef(bound->on_error);
  free(bound);
}

static PyMethodDef kLaunch = {"launch", (void*)launch, kFastCall, "launch(*pointers, *sizes, threads) -> 0"};

// bind(address of the kernel, number of its pointers and sizes, function called with a status other than 0)
static PyObject* bind(PyObject*, PyObject* const* args, int64_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "bind(address, count, on_error)");
    return nullptr;
  }
  int64_t numbers[2];
  if (!unpack(args, 2, numbers)) return nullptr;
  if (numbers[1] < 0 || numbers[1] >= kMost) {
    PyErr_SetString(PyExc_TypeError, "too many arguments for a launch");
    return nullptr;
  }
  Bound* bound = (Bound*)malloc(sizeof(Bound));
  *bound = {(void*)numbers[0], numbers[1], args[2]};
  Py_IncRef(args[2]);
  PyObject* capsule = PyCapsule_New(bound, kBound, release);
  if (capsule == nullptr) return nullptr;
  PyObject* function = PyCMethod_New(&kLaunch, capsule, nullptr, nullptr);
  Py_DecRef(capsule);
  return function;
}

static PyMethodDef kBind = {"bind", (void*)bind, kFastCall, "bind(address, count, on_error) -> launch"};

// The builtin function `bind`; call it through ctypes.PyDLL.
PyObject* gyrator_launcher(void) { return PyCMethod_New(&kBind, nullptr, nullptr, nullptr); }
