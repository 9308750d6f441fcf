// Marks functions that CUDA kernels and ordinary code share.
#pragma once

#ifdef __CUDACC__
#define TOUCHSTONE_HOST_DEVICE __host__ __device__
#else
#define TOUCHSTONE_HOST_DEVICE
#endif
