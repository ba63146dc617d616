/* A CUDA driver in host memory, for tests of emmy.runtime without a GPU: device pointers are malloc'ed, and "launching"
   vector_add(a, b, out, length) adds on the CPU; mapped_add is the same with a tensor map in place of a. It checks what a real driver would: contexts, handles, sizes. Any PTX that
   contains "reject me" fails to compile. PTX of version 99 is too new.
   There are FAKE_CUDA_DEVICES devices (1); the handles of contexts, modules and functions of device N end in N. Stream 99 is
   being captured. Devices hold FAKE_CUDA_CLUSTERS clusters (66); -1 and -2 are errors: the size, any other. Calls are logged to the
   file named by FAKE_CUDA_LOG. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
enum { OK = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200, INVALID_PTX = 218, UNSUPPORTED_PTX = 222, INVALID_CONTEXT = 201, NOT_FOUND = 500, INVALID_CLUSTER_SIZE = 912, SYMBOL_MISSING = 500, CAPTURE_UNSUPPORTED = 900 };
enum { CAPTURED = 99 };
static _Thread_local uintptr_t current;
static char module_kind[32];
static int shared_limit;

static void note(const char *text) {
  const char *path = getenv("FAKE_CUDA_LOG");
  if (!path) return;
  FILE *file = fopen(path, "a");
  fprintf(file, "%s\n", text);
  fclose(file);
}

Status cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
Status cuDriverGetVersion(int *version) { return *version = 13000, OK; }
static int devices(void) { return getenv("FAKE_CUDA_DEVICES") ? atoi(getenv("FAKE_CUDA_DEVICES")) : 1; }
static int entered(void) { return current >= 0x1000 && current < 0x1000 + devices(); }
Status cuDeviceGetCount(int *count) { return *count = devices(), OK; }
Status cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal < devices() ? OK : INVALID_VALUE; }
Status cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "Fake %d", device), OK; }
Status cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : -1;
  return OK;
}
Status cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)(0x1000ul + device), OK; }
Status cuCtxGetCurrent(void **context) { return *context = (void *)current, OK; }
Status cuCtxSetCurrent(void *context) { return current = (uintptr_t)context, OK; }
Status cuGetErrorName(Status status, const char **name) { return *name = "CUDA_ERROR_FAKE", OK; }
Status cuGetErrorString(Status status, const char **text) { return *text = "a fake failure", OK; }

Status cuModuleLoadData(void **module, const void *image) {
  if (!entered()) return INVALID_CONTEXT;
  if (!strcmp(image, "\x7f" "ELF of the future")) return INVALID_IMAGE;
  strcpy(module_kind, memcmp(image, "\x7f" "ELF", 4) ? "ptx" : "cubin");
  note(module_kind);
  return *module = (void *)(0x1000 + current), OK;
}
Status cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
  if (strstr(image, ".version 99")) return UNSUPPORTED_PTX;
  if (strstr(image, "reject me")) {
    for (unsigned i = 0; i < count; i++)
      if (options[i] == 5) strcpy(values[i], "line 7: what is this");
    return INVALID_PTX;
  }
  return cuModuleLoadData(module, image);
}
Status cuModuleUnload(void *module) { return (uintptr_t)module >> 12 == 2 ? OK : INVALID_VALUE; }
Status cuModuleGetFunction(void **function, void *module, const char *name) {
  if ((uintptr_t)module >> 12 != 2) return NOT_FOUND;
  if (!strcmp(name, "mapped_add")) return *function = (char *)module + 0x2000, OK;
  return strcmp(name, "vector_add") ? NOT_FOUND : (*function = (char *)module + 0x1000, OK);
}
Status cuFuncSetAttribute(void *function, int attribute, int value) {
  if ((uintptr_t)function >> 12 != 3 && (uintptr_t)function >> 12 != 4 || attribute != 8 || value > 232448) return INVALID_VALUE;
  return shared_limit = value, OK;
}
Status cuMemAlloc_v2(uint64_t *pointer, size_t size) {
  void *memory = NULL;
  if (!size || posix_memalign(&memory, 256, size)) return INVALID_VALUE;
  return *pointer = (uint64_t)memory, OK;
}
Status cuMemFree_v2(uint64_t pointer) { return free((void *)pointer), OK; }
Status cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) { return memset((void *)to, value, size), OK; }
Status cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) { return memcpy((void *)to, from, size), OK; }
Status cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) { return memcpy(to, (void *)from, size), OK; }
Status cuStreamSynchronize(void *stream) { return (uintptr_t)stream == CAPTURED ? CAPTURE_UNSUPPORTED : OK; }
Status cuStreamIsCapturing(void *stream, int *state) { return *state = (uintptr_t)stream == CAPTURED, OK; }
Status cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) { return *(int *)value = 0, OK; }

static int list(char *to, const char *name, const void *values, int width, int count) {
  int length = sprintf(to, " %s", name);
  for (int i = 0; i < count; i++)
    length += sprintf(to + length, "%c%lu", i ? ',' : ' ', width == 8 ? ((uint64_t *)values)[i] : ((uint32_t *)values)[i]);
  return length;
}

/* The "map" is the tensor's address, and its second half stays zero. */
Status cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                              const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                              int swizzle, int promotion, int fill) {
  char line[512];
  int length = sprintf(line, "encode type %d", type);
  length += list(line + length, "dims", dims, 8, rank);
  length += list(line + length, "strides", strides, 8, rank - 1);
  length += list(line + length, "box", box, 4, rank);
  length += list(line + length, "steps", steps, 4, rank);
  sprintf(line + length, " interleave %d swizzle %d promotion %d fill %d", interleave, swizzle, promotion, fill);
  note(line);
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || rank < 1 || rank > 5) return INVALID_VALUE;
  for (uint32_t i = 0; i < rank; i++)
    if (!dims[i] || !box[i] || box[i] > 256 || (i && strides[i - 1] % 16)) return INVALID_VALUE;
  memset(map, 0, 128);
  return *(void **)map = address, OK;
}

/* CUlaunchConfig: seven words, stream, attributes, their number; an attribute of 72 bytes begins with its kind (4: cluster). */
Status cuOccupancyMaxActiveClusters(int *held, void *function, const uint32_t *config) {
  const uint32_t *attribute = *(const uint32_t **)(config + 10);
  char line[128];
  if (!entered() || (uintptr_t)function < 0x2000 || config[12] != 1 || attribute[0] != 4) return INVALID_VALUE;
  const uint32_t *cluster = attribute + 2;
  snprintf(line, sizeof line, "ask clusters %u,%u,%u of %u,%u,%u %u", cluster[0], cluster[1], cluster[2], config[3], config[4], config[5], config[6]);
  note(line);
  *held = getenv("FAKE_CUDA_CLUSTERS") ? atoi(getenv("FAKE_CUDA_CLUSTERS")) : 66;
  return *held >= 0 ? OK : *held == -1 ? INVALID_CLUSTER_SIZE : INVALID_VALUE;
}

Status cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void *stream, void **params, void **extra) {
  char line[128];
  snprintf(line, sizeof line, "launch %u,%u,%u %u,%u,%u %u stream %lu", gx, gy, gz, bx, by, bz, shared, (uintptr_t)stream);
  note(line);
  int mapped = (uintptr_t)function == 0x3000 + current;
  if (!entered() || !mapped && (uintptr_t)function != 0x2000 + current || extra || !gx || shared > 49152 && (int)shared > shared_limit)
    return INVALID_VALUE;
  /* A parameter's value begins where params points: the address, or the map, whose first word the fake made the address. */
  float *a = *(float **)params[0], *b = *(float **)params[1], *out = *(float **)params[2];
  uint32_t length = *(uint32_t *)params[3];
  for (uint32_t i = 0; i < gx * bx && i < length; i++) out[i] = a[i] + b[i];
  return OK;
}

Status cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
  char second[128];
  snprintf(second, sizeof second, "%s_v2", name);
  *function = strcmp(name, "cuGetProcAddress") ? dlsym(RTLD_DEFAULT, second) : (void *)cuGetProcAddress_v2;
  if (!*function) *function = dlsym(RTLD_DEFAULT, name);
  if (found) *found = *function ? 0 : 1;
  return *function ? OK : SYMBOL_MISSING;
}
