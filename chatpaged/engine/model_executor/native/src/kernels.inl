// The table of one instruction set. The including file defines CP_NAMESPACE, CP_NAME and CP_TABLE.
#include "attention.inl"
#include "elementwise.inl"
#include "linear.inl"

const Kernels* CP_TABLE() {
    using namespace CP_NAMESPACE;
    static const Kernels table = {CP_NAME,  LANES, linear,      quantize,     rms_norm, add_scaled, scale,
                                  rotate,   write_kv,           attend_chunk, fold,     softcap,    argmax, exponentials, read_all};
    return &table;
}
