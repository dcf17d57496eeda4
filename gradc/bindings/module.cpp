// gradc._C: what is native in gradc. Refuses to load under another version of torch than it was compiled for.
#include "capture/csrc/bind.h"
#include "csrc/ambient.h"
#include "executor/csrc/bind.h"
#include "executor/csrc/bind_choice.h"
#include "frontend/csrc/bind.h"
#include "nodes/csrc/bind.h"
#include "optim/csrc/bind.h"
#include "region/csrc/bind.h"
#include "replay/csrc/bind.h"
#include "tape/csrc/bind.h"
#include "walk/csrc/bind.h"

#include <torch/version.h>

namespace py = pybind11;

namespace {

// Before anything of torch is called or read. gradc/native.py says what to do.
void check_version() {
  const auto version = py::module_::import("torch").attr("__version__").attr("split")("+").cast<std::vector<std::string>>().at(0);
  if (version != TORCH_VERSION) {
    const auto error = py::module_::import("gradc.errors").attr("VersionError");
    const std::string message = "gradc's extension was compiled for torch " TORCH_VERSION ", but torch " + version +
        " is imported.";
    PyErr_SetString(error.ptr(), message.c_str());
    throw py::error_already_set();
  }
}

} // namespace

PYBIND11_MODULE(_C, module) {
  check_version();
  module.attr("torch_version") = TORCH_VERSION;
  gradc::bind_ambient(module);
  gradc::bind_executor(module);
  gradc::bind_choice(module);
  gradc::bind_tape(module);
  gradc::bind_nodes(module);
  gradc::bind_region(module);
  gradc::bind_walk(module);
  gradc::bind_capture(module);
  gradc::bind_replay(module);
  gradc::bind_guards(module);
  gradc::bind_object_guards(module);
  gradc::bind_callbacks(module);
  gradc::bind_eager_entry(module);
  gradc::bind_entering(module);
  gradc::bind_leaves(module);
  gradc::bind_definition_guards(module);
  gradc::bind_optim(module);
}
