#define CP_NAMESPACE cp_neon
#define CP_NAME "NEON"
#define CP_TABLE kernels_neon
#include "kernels.inl"
