// What Python sees of the optimizers' updates.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_optim(pybind11::module_& module);

} // namespace gradc
