// What orders two accesses (RIGHT), and what does not: the second is a race, and nothing else is.
#ifndef BN_ON_CPU
#define BN_SHARED(T, name, count) __shared__ T name[count]
#endif

// Each half of a warp waits for itself.
template <bool RIGHT>
__global__ void lanes(int* out, int* data, unsigned* flag) {
  BN_SHARED(int, s, 32);
  const int t = threadIdx.x;
  s[t] = t;
  if (RIGHT) __syncwarp(t < 16 ? 0xffffu : 0xffff0000u);
  if (!RIGHT) __syncwarp(1u << t);
  out[t] = s[t ^ 1];
}

// Block 0 tells block 1, each thread behind a fence of its own.
template <bool RIGHT>
__global__ void flag(int* out, int* data, unsigned* flag) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t ^ 1;
    if (RIGHT) __threadfence();
    __syncthreads();
    if (t == 0) atomicExch(flag, 1u);
  } else {
    if (t == 0)
      while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) __nanosleep(20);
    __syncthreads();
    out[t] = data[t];
  }
}

// Block 0 tells lane 0 of block 1, and that its warp.
template <bool RIGHT>
__global__ void relay(int* out, int* data, unsigned* flag) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t ^ 1;
    __syncwarp();
    if (t == 0) __threadfence(), atomicExch(flag, 1u);
  } else {
    if (t == 0) {
      while (!atomicAdd(flag, 0u)) __nanosleep(20);
      if (RIGHT) __threadfence();
    }
    __syncwarp();
    out[t] = data[t];
  }
}

// The same, and each lane of block 1 has a fence of its own.
template <bool RIGHT>
__global__ void relay_and_fence(int* out, int* data, unsigned* flag) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t ^ 1;
    __syncwarp();
    if (t == 0) __threadfence(), atomicExch(flag, 1u);
  } else {
    if (t == 0)
      while (!atomicAdd(flag, 0u)) __nanosleep(20);
    __syncwarp();
    if (RIGHT || t != 7) __threadfence();
    out[t] = data[t];
  }
}

// Neighbors are no race, the same byte is one.
template <bool RIGHT>
__global__ void bytes(signed char* out, int* data, unsigned* flag) {
  const int t = threadIdx.x;
  for (int i = 0; i < (RIGHT ? 4 : 5); ++i) out[4 * t + i] = (signed char)((4 * t + i) / 4 ^ 1);
}
