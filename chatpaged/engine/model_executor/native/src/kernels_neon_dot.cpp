#define CP_NAMESPACE cp_neon_dot
#define CP_NAME "NEON-dot"
#define CP_TABLE kernels_neon_dot
#include "kernels.inl"
