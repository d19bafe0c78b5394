// Two kernels that need more than registers: what nvrtc.py has to report.
extern "C" __global__ void local(float* x, int n) {
  float a[100];
  for (int i = 0; i < 100; ++i) a[i] = x[i];
  __shared__ float s[64];
  s[threadIdx.x] = a[n];
  __syncthreads();
  x[0] = s[n];
}

extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x) {  // 32 registers, and 96 values to keep
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) a[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = a[95 - i] * a[(i * 7) % 96];
}
