#define CP_NAMESPACE cp_avx2_vnni
#define CP_NAME "AVX2-VNNI"
#define CP_TABLE kernels_avx2_vnni
#include "kernels.inl"
