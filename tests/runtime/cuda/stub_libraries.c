/* libcuda and cuBLAS that compute nothing: each call leaves its arguments as 64-bit words, by the types of cuda.h and
   cublas_api.h. Copies are made, since memory is the host's. */
#include <stdint.h>
#include <string.h>

static int64_t words[64];
static int count;
static char text[64];

int recorded(int64_t *target) {
  memcpy(target, words, sizeof words);
  int found = count;
  count = 0;
  return found;
}

const char *recorded_text(void) { return text; }

static void put(int64_t word) { words[count++] = word; }

int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)(0x7000000000 + device);
  return 0;
}
int cuCtxSetCurrent(void *context) {
  put((int64_t)context);
  return 0;
}
int cuModuleLoadData(void **module, const void *image) {
  *module = (void *)0x7100000000;
  strncpy(text, image, 4);
  return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (module != (void *)0x7100000000) return 500;
  *function = (void *)0x7200000000;
  strncpy(text, name, sizeof text - 1);
  return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  put((int64_t)function);
  put(gx), put(gy), put(gz), put(bx), put(by), put(bz), put(shared);
  put((int64_t)stream);
  put((int64_t)extra);
  for (int i = 0; i < 5; i++) put(*(int64_t *)parameters[i]);
  return gx == 13 ? 700 : 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t size, void *stream) {
  memcpy((void *)target, source, size);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t size, void *stream) {
  memcpy(target, (void *)source, size);
  return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t size, void *stream) {
  memcpy((void *)target, (void *)source, size);
  return 0;
}
int cuMemsetD8Async(uint64_t target, unsigned char byte, size_t size, void *stream) {
  memset((void *)target, byte, size);
  return 0;
}
int cuStreamSynchronize(void *stream) { return (int64_t)stream >> 1 == 0x7300000000 >> 1 ? 0 : 700; }
int cuGetErrorName(int error, const char **name) {
  *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : 0;
  return 0;
}

int cublasCreate_v2(void **handle) {
  *handle = (void *)0x7400000000;
  return 0;
}
int cublasSetStream_v2(void *handle, void *stream) {
  put(1), put((int64_t)stream);
  return 0;
}
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t size) {
  put(2), put(workspace != 0), put(size);
  return 0;
}
int cublasSetMathMode(void *handle, int mode) {
  put(3), put(mode);
  return 0;
}
const char *cublasGetStatusName(int status) { return status == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : "other"; }

static double scalar(const void *value, int compute) {
  return compute == 70 ? *(const double *)value : *(const float *)value;
}
int cublasGemmStridedBatchedEx_64(void *handle, int ta, int tb, int64_t m, int64_t n, int64_t k, const void *alpha,
                                  const void *a, int at, int64_t lda, long long sa, const void *b, int bt, int64_t ldb,
                                  long long sb, const void *beta, void *c, int ct, int64_t ldc, long long sc,
                                  int64_t batch, int compute, int algorithm) {
  put((int64_t)handle), put(ta), put(tb), put(m), put(n), put(k), put(scalar(alpha, compute));
  put((int64_t)a), put(at), put(lda), put(sa), put((int64_t)b), put(bt), put(ldb), put(sb), put(scalar(beta, compute));
  put((int64_t)c), put(ct), put(ldc), put(sc), put(batch), put(compute), put(algorithm);
  return 0;
}
int cublasGemmEx_64(void *handle, int ta, int tb, int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
                    int at, int64_t lda, const void *b, int bt, int64_t ldb, const void *beta, void *c, int ct,
                    int64_t ldc, int compute, int algorithm) {
  put((int64_t)handle), put(ta), put(tb), put(m), put(n), put(k), put(scalar(alpha, compute));
  put((int64_t)a), put(at), put(lda), put((int64_t)b), put(bt), put(ldb), put(scalar(beta, compute));
  put((int64_t)c), put(ct), put(ldc), put(compute), put(algorithm);
  return ldc < m ? 7 : 0;
}
