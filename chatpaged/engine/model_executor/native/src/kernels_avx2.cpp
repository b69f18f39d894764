#define CP_NAMESPACE cp_avx2
#define CP_NAME "AVX2"
#define CP_TABLE kernels_avx2
#include "kernels.inl"
