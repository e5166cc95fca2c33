// The table of one instruction set's kernels.
#include "kernels.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

extern const Kernels table;
const Kernels table{
    fixed_encode,   fixed_decode,  entropy_encode,  entropy_decode,  predict_encode,
    predict_decode, group_encode,  group_decode,    mask_encode,     mask_decode,
    index_encode,   index_decode,  positive_encode, positive_decode, affine_where,
    gated_count,    gated_close,   gated_open,      gated_add,       norm_backward,
    bitmap_encode,  bitmap_decode, holes_mark,      holes_sample,    holes_pattern,
    holes_put,
};

}  // namespace encke::ENCKE_ISA
