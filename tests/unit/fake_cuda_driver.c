/* A CUDA driver in host memory, for tests of emmy.runtime without a GPU: device pointers are malloc'ed, and "launching"
   vector_add(a, b, out, length) adds on the CPU. It checks what a real driver would: contexts, handles, sizes. Any PTX that
   contains "reject me" fails to compile. Calls are logged to the file named by FAKE_CUDA_LOG. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
enum { OK = 0, INVALID_VALUE = 1, INVALID_PTX = 218, INVALID_CONTEXT = 201, NOT_FOUND = 500, SYMBOL_MISSING = 500 };
static void *const CONTEXT = (void *)0x1000;
static _Thread_local void *current;
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
Status cuDeviceGetCount(int *count) { return *count = 1, OK; }
Status cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal ? INVALID_VALUE : OK; }
Status cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "Fake %d", device), OK; }
Status cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return OK;
}
Status cuDevicePrimaryCtxRetain(void **context, int device) { return *context = CONTEXT, OK; }
Status cuCtxGetCurrent(void **context) { return *context = current, OK; }
Status cuCtxSetCurrent(void *context) { return current = context, OK; }
Status cuGetErrorName(Status status, const char **name) { return *name = "CUDA_ERROR_FAKE", OK; }
Status cuGetErrorString(Status status, const char **text) { return *text = "a fake failure", OK; }

Status cuModuleLoadData(void **module, const void *image) {
  if (current != CONTEXT) return INVALID_CONTEXT;
  strcpy(module_kind, memcmp(image, "\x7f" "ELF", 4) ? "ptx" : "cubin");
  note(module_kind);
  return *module = (void *)0x2000, OK;
}
Status cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
  if (strstr(image, "reject me")) {
    for (unsigned i = 0; i < count; i++)
      if (options[i] == 5) strcpy(values[i], "line 7: what is this");
    return INVALID_PTX;
  }
  return cuModuleLoadData(module, image);
}
Status cuModuleUnload(void *module) { return module == (void *)0x2000 ? OK : INVALID_VALUE; }
Status cuModuleGetFunction(void **function, void *module, const char *name) {
  if (module != (void *)0x2000 || strcmp(name, "vector_add")) return NOT_FOUND;
  return *function = (void *)0x3000, OK;
}
Status cuFuncSetAttribute(void *function, int attribute, int value) {
  if (function != (void *)0x3000 || attribute != 8 || value > 232448) return INVALID_VALUE;
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
Status cuStreamSynchronize(void *stream) { return OK; }
Status cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) { return *(int *)value = 0, OK; }

Status cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void *stream, void **params, void **extra) {
  char line[128];
  snprintf(line, sizeof line, "launch %u,%u,%u %u,%u,%u %u stream %lu", gx, gy, gz, bx, by, bz, shared, (uintptr_t)stream);
  note(line);
  if (current != CONTEXT || function != (void *)0x3000 || extra || !gx || shared > 49152 && (int)shared > shared_limit)
    return INVALID_VALUE;
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
