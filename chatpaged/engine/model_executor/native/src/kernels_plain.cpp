#define CP_NAMESPACE cp_plain
#define CP_NAME "plain"
#define CP_TABLE kernels_plain
#include "kernels.inl"
