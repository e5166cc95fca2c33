// Which build of the kernels runs on this processor.
#pragma once

#include "kernels.hpp"

namespace encke {

const Kernels& kernels();

}  // namespace encke
