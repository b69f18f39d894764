#define CP_NAMESPACE cp_avx512
#define CP_NAME "AVX-512"
#define CP_TABLE kernels_avx512
#include "kernels.inl"
