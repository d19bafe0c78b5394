// The words of CUDA that shim.h has, each used once: test_emulator.py knows the answers.
#ifndef BN_ON_CPU
#define BN_SHARED(T, name, count) __shared__ T name[count]
#define BN_DYN_SHARED(T, name)                                \
  extern __shared__ __align__(16) unsigned char bn_dynamic[]; \
  T* name = reinterpret_cast<T*>(bn_dynamic)
#endif

struct Pair {
  int a;
  double b;
};

__global__ void shuffles(int* out, int width) {  // for each lane, what each kind of shuffle gives
  const int lane = threadIdx.x;
  out[lane] = __shfl_sync(~0u, lane, 9, width);
  out[32 + lane] = __shfl_up_sync(~0u, lane, 3, width);
  out[64 + lane] = __shfl_down_sync(~0u, lane, 3, width);
  out[96 + lane] = __shfl_xor_sync(~0u, lane, 12, width);
}

__global__ void votes(unsigned* out) {
  const int t = threadIdx.x;
  const unsigned odd = __ballot_sync(~0u, t & 1), all = __all_sync(~0u, t < 32), any = __any_sync(~0u, t == 40);
  const int multiples = __syncthreads_count(t % 5 == 0);
  const int none = __syncthreads_or(t > 99), most = __syncthreads_and(t < 63);
  if (t % 32 == 0) {
    out += t / 32 * 6;
    out[0] = odd, out[1] = all, out[2] = any, out[3] = multiples, out[4] = none, out[5] = most;
  }
}

__global__ void arguments(double* out, Pair pair, float f, unsigned char c, const int* null) {
  out[0] = pair.a, out[1] = pair.b, out[2] = f, out[3] = c, out[4] = null == nullptr;
}

__global__ void atomics(unsigned* x) {
  atomicAdd(x, 1), atomicMax(x + 1, threadIdx.x), atomicInc(x + 2, 9), atomicOr(x + 3, 1u << threadIdx.x);
}

__global__ void indices(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

__global__ void mark(long long* out, int n) {
  if (blockIdx.x == 3000000000u / 2) out[0] = (long long)blockIdx.x * n;
}

__global__ void deep(int* out, int n) {
  volatile char frame[100000];
  for (int i = 0; i < n; ++i) frame[i] = 1;
  out[0] = frame[n - 1];
}

__global__ void first_values(float* out) {
  BN_SHARED(float, poison, 40);
  BN_DYN_SHARED(double, more);
  out[0] = poison[threadIdx.x] + (float)more[threadIdx.x];
}

__global__ void vector_of_numbers(float4* out) {  // an array of numbers need not be where a vector can be
  BN_SHARED(float, numbers, 8);
  numbers[threadIdx.x] = 1;
  __syncthreads();
  out[0] = *reinterpret_cast<float4*>(numbers);
}
