// What Python asks of views: see view_meta.h.
#include "tape/csrc/bind.h"

#include "tape/csrc/view_meta.h"

#include <torch/csrc/Exceptions.h>

namespace gradc {

void bind_tape(pybind11::module_& module) {
  module.def("as_view_of", torch::wrap_pybind_function(as_view_of), "(base, tensor) -> a view; see view_meta.h");
  module.def("forget_view_function", torch::wrap_pybind_function(forget_view_function), "(view) -> None; see view_meta.h");
  module.def("is_view_outdated", torch::wrap_pybind_function(is_view_outdated), "(view) -> bool; see view_meta.h");
  module.def("outdate_view", torch::wrap_pybind_function(outdate_view), "(view) -> None; see view_meta.h");
}

} // namespace gradc
