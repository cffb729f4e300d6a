// Calls of kernels from Python: `bind` makes a builtin function of a kernel's address.
//
// The builtin takes the kernel's arguments and the number of threads as ints and runs the kernel without the
// interpreter's lock. A status other than 0 is handed to a Python function, which raises.
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
__attribute__((visibility("default"))) PyObject* gyrator_launcher(void);
}

struct Bound { void* kernel; int64_t count; PyObject* on_error; };

static const char kBound[] = "gyrator.kernel";
static const int kFastCall = 0x80;  // METH_FASTCALL
static const int64_t kMost = 64;    // arguments of a kernel

// A kernel is int32_t(pointers..., int64_t sizes..., int32_t threads). In the Linux conventions of x86-64 and AArch64
// an int64_t is passed where a pointer would be, an int32_t is the low half of one, and a callee does not notice
// further arguments. So a kernel is called with the next larger of three numbers of arguments.
template <int64_t... I> struct Numbers {
  static int64_t call(void* kernel, const int64_t* n) {
    return ((int32_t (*)(decltype((void)I, int64_t())...))kernel)(n[I]...);
  }
};
template <int64_t N, int64_t... I> struct UpTo : UpTo<N - 1, N - 1, I...> {};
template <int64_t... I> struct UpTo<0, I...> : Numbers<I...> {};

static int64_t call(void* kernel, const int64_t* n, int64_t count) {
  if (count <= 8) return UpTo<8>::call(kernel, n);
  return count <= 24 ? UpTo<24>::call(kernel, n) : UpTo<kMost>::call(kernel, n);
}

static bool unpack(PyObject* const* args, int64_t count, int64_t* into) {
  for (int64_t i = 0; i < count; ++i) {
    into[i] = PyLong_AsLongLong(args[i]);
    if (into[i] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

static PyObject* launch(PyObject* self, PyObject* const* args, int64_t count) {
  Bound* bound = (Bound*)PyCapsule_GetPointer(self, kBound);
  if (bound == nullptr) return nullptr;
  if (count != bound->count + 1) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes its pointers, its sizes and the number of threads");
    return nullptr;
  }
  int64_t numbers[kMost] = {};
  if (!unpack(args, count, numbers)) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  const int64_t status = call(bound->kernel, numbers, count);
  PyEval_RestoreThread(state);
  PyObject* result = PyLong_FromLongLong(status);
  if (status == 0 || result == nullptr) return result;
  PyObject* raised = PyObject_CallFunctionObjArgs(bound->on_error, result, nullptr);
  Py_DecRef(result);
  return raised;
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
  if (!unpack(args, 2, numbers)) return nullptr;
  if (numbers[1] < 0 || numbers[1] >= kMost) {
    PyErr_SetString(PyExc_TypeError, "too many arguments for a launch");
    return nullptr;
  }
  Py_IncRef(args[2]);
  Bound* bound = new Bound{(void*)numbers[0], numbers[1], args[2]};
  PyObject* capsule = PyCapsule_New(bound, kBound, release);
  if (capsule == nullptr) return nullptr;
  PyObject* function = PyCMethod_New(&kLaunch, capsule, nullptr, nullptr);
  Py_DecRef(capsule);
  return function;
}

static PyMethodDef kBind = {"bind", (void*)bind, kFastCall, "bind(address, count, on_error) -> launch"};

// The builtin function `bind`; call it through ctypes.PyDLL.
PyObject* gyrator_launcher(void) { return PyCMethod_New(&kBind, nullptr, nullptr, nullptr); }
