// Regions as Python objects: made from a gradc.region.native_layout.Layout, called with a list of primals.
#include "region/csrc/bind.h"

#include "csrc/keep.h"
#include "nodes/csrc/accumulate.h"
#include "csrc/convert.h"
#include "region/csrc/direct.h"
#include "nodes/csrc/segment_node.h"
#include "tape/csrc/view_meta.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <map>

namespace py = pybind11;

namespace gradc {
namespace {

using torch::autograd::variable_list;

// Calls into gradc.backward.cache.BackwardCache. Takes the GIL.
class PythonDerive : public Derive {
 public:
  explicit PythonDerive(py::object backwards)
      : backwards_(keep(std::move(backwards))) {}

  std::shared_ptr<const CompiledBackward> compile(
      size_t segment,
      const variable_list& tangents,
      const std::vector<bool>& needed,
      bool adds_up,
      const std::vector<int64_t>& owned) override {
    const py::gil_scoped_acquire gil;
    return guarded([&]() -> std::shared_ptr<const CompiledBackward> {
      const py::object found = backwards_->attr("compile_native")(segment, to_python(tangents), needed, adds_up, owned);
      if (found.is_none()) {
        return nullptr;
      }
      using Numbers = std::vector<int64_t>;
      auto [plan, saved, released, frees_hidden, views, unread] =
          found.cast<std::tuple<std::shared_ptr<Plan>, Numbers, Numbers, bool, Numbers, Numbers>>();
      return std::make_shared<CompiledBackward>(CompiledBackward{
          std::move(plan), std::move(saved), std::move(released), frees_hidden, std::move(views), std::move(unread)});
    });
  }

  variable_list grads(
      size_t segment,
      const std::vector<int64_t>& symbols,
      const variable_list& saved,
      const variable_list& tangents,
      const std::vector<bool>& needed,
      bool is_repacked,
      const std::vector<int64_t>& owned) override {
    const py::gil_scoped_acquire gil;
    return guarded([&] {
      return to_tensors(backwards_->attr("grads_native")(
          segment, symbols, to_python(saved), to_python(tangents), needed, is_repacked, owned));
    });
  }

  std::optional<variable_list> differentiate(
      size_t segment,
      Key key,
      const std::vector<int64_t>& symbols,
      const variable_list& saved,
      const variable_list& tangents,
      const std::vector<bool>& needed) override {
    const py::gil_scoped_acquire gil;
    return guarded([&]() -> std::optional<variable_list> {
      const Place place{segment, std::move(key)};
      auto found = derivatives_.find(place);
      if (found == derivatives_.end()) {
        if (derivatives_.size() >= max_derivatives) { // sizes that keep changing
          std::exchange(derivatives_, {}); // what dies here may run Python, which may come back here
        }
        auto region = keep(backwards_->attr("differentiable_native")(segment, to_python(saved), to_python(tangents), needed));
        found = derivatives_.emplace(place, std::move(region)).first;
      }
      const py::object region = *found->second;
      if (region.is_none()) {
        return std::nullopt;
      }
      py::list arguments;
      for (const auto& tangent : tangents) {
        if (tangent.defined()) {
          arguments.append(to_python(tangent));
        }
      }
      for (const auto& tensor : saved) {
        arguments.append(to_python(tensor));
      }
      for (const auto symbol : symbols) {
        arguments.append(symbol);
      }
      const py::object grads = region(*arguments);
      return grads.is_none() ? std::nullopt : std::optional(to_tensors(grads));
    });
  }

  void* backwards() const override {
    return backwards_->ptr();
  }

 private:
  using Place = std::pair<size_t, Key>;
  static constexpr size_t max_derivatives = 512;

  std::shared_ptr<py::object> backwards_;
  std::map<Place, std::shared_ptr<py::object>> derivatives_; // the GIL guards it
};

EntryLayout make_entry(const py::handle& entry) {
  EntryLayout layout;
  layout.value = entry.attr("value").cast<int64_t>();
  layout.shape = entry.attr("shape").cast<std::vector<int64_t>>();
  layout.options = at::TensorOptions()
                       .dtype(reinterpret_cast<THPDtype*>(entry.attr("dtype").ptr())->scalar_type)
                       .device(entry.attr("device").cast<at::Device>());
  return layout;
}

SegmentLayout make_segment(const py::handle& segment) {
  SegmentLayout layout;
  for (const py::handle entry : segment.attr("entries")) {
    layout.entries.push_back(make_entry(entry));
  }
  for (const py::handle exit : segment.attr("exits")) {
    const auto [primal, target, entry] = exit.cast<std::tuple<int64_t, int64_t, int64_t>>();
    layout.exits.push_back({primal, target, entry});
  }
  layout.shared = segment.attr("shared").cast<std::vector<std::vector<size_t>>>();
  layout.targets = segment.attr("targets").cast<std::vector<std::vector<size_t>>>();
  for (const py::handle saved : segment.attr("saved")) {
    const auto [is_primal, position, owner, is_kept] = saved.cast<std::tuple<bool, int64_t, int64_t, bool>>();
    layout.saved.push_back({is_primal, position, owner, is_kept});
  }
  layout.num_tangents = segment.attr("num_tangents").cast<size_t>();
  layout.has_hidden_saves = segment.attr("has_hidden_saves").cast<bool>();
  return layout;
}

std::shared_ptr<RegionLayout> make_region(const py::object& layout) {
  auto region = std::make_shared<RegionLayout>();
  region->forward = layout.attr("forward").cast<std::shared_ptr<Plan>>();
  for (const py::handle segment : layout.attr("segments")) {
    region->segments.push_back(make_segment(segment));
  }
  for (const py::handle symbol : layout.attr("symbols")) {
    const auto [kind, position, dimension] = symbol.cast<std::tuple<std::string, Index, int64_t>>();
    const auto source = kind == "size" ? SymbolSource::Kind::size
        : kind == "stride"             ? SymbolSource::Kind::stride
                                       : SymbolSource::Kind::integer;
    region->symbols.push_back({source, position, dimension});
  }
  for (const py::handle made : layout.attr("made")) {
    const auto [primal, dtype] = made.cast<std::tuple<size_t, std::optional<c10::ScalarType>>>();
    region->made.push_back({primal, dtype});
  }
  for (const py::handle made : layout.attr("live_order")) {
    const auto [kind, number, depth] = made.cast<std::tuple<std::string, size_t, size_t>>();
    using Kind = MadeNode::Kind;
    region->live_order.push_back(
        {kind == "primal" ? Kind::primal : kind == "segment" ? Kind::segment : Kind::output, number, depth});
  }
  region->is_nested = layout.attr("is_nested").cast<std::optional<bool>>();
  region->is_fine = layout.attr("is_fine").cast<bool>();
  region->forced_autocast = layout.attr("forced_autocast").cast<Key>();
  region->derive = std::make_unique<PythonDerive>(layout.attr("backwards"));
  region->backwards = std::vector<BackwardCache>(region->segments.size());
  return region;
}

std::vector<c10::IValue> to_ivalues(const py::sequence& primals) {
  std::vector<c10::IValue> values;
  values.reserve(py::len(primals));
  for (const py::handle primal : primals) {
    values.push_back(to_ivalue(primal));
  }
  return values;
}

// The values, and the nodes of the segments if there is a live order to put them in.
py::tuple call(
    const std::shared_ptr<RegionLayout>& region,
    const py::sequence& primals,
    const std::vector<int64_t>& shapes) {
  const auto [values, segments] = call_region(region, to_ivalues(primals), shapes);
  py::list results(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    results[i] = values[i].isTensor() ? to_python(values[i].toTensor()) : torch::jit::toPyObject(values[i]);
  }
  py::list nodes;
  for (size_t i = 0; i < segments.size() && !region->live_order.empty(); ++i) {
    nodes.append(py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(segments[i])));
  }
  return py::make_tuple(results, nodes);
}

// The node that an in-place op on a view made, which rebase_history hid in a CopySlices.
py::object node_in_copy_slices(const py::object& node) {
  TORCH_CHECK_TYPE(torch::autograd::THPCppFunction_Check(node.ptr()), "expected a CopySlices node");
  const auto& held = reinterpret_cast<torch::autograd::THPCppFunction*>(node.ptr())->cdata;
  const auto* slices = dynamic_cast<const torch::autograd::CopySlices*>(held.get());
  TORCH_CHECK_TYPE(slices != nullptr, "expected a CopySlices node, got ", held->name());
  return py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(slices->fn));
}

} // namespace

void bind_segments(py::module_& module) {
  module.def("as_view_of", torch::wrap_pybind_function(as_view_of), "(base, tensor) -> a view; see views.h");
  module.def("cached_cast", torch::wrap_pybind_function(cached_cast), "(leaf, dtype) -> autocast's copy of it");
  module.def(
      "has_gradient_hooks",
      [](const py::sequence& primals) { return has_gradient_hooks(to_ivalues(primals)); },
      "(primals) -> whether something runs when the gradient of one of the leaves arrives");
  module.def(
      "node_in_copy_slices",
      torch::wrap_pybind_function(node_in_copy_slices),
      "(CopySlices) -> the node of the op that wrote into a view");
  module.def("forget_view_function", torch::wrap_pybind_function(forget_view_function), "(view) -> None; see views.h");
  module.def("is_view_outdated", torch::wrap_pybind_function(is_view_outdated), "(view) -> bool; see views.h");
  module.def("show_hidden_edges", show_hidden_edges, "() -> None; see accumulate.h");
  module.def("outdate_view", torch::wrap_pybind_function(outdate_view), "(view) -> None; see views.h");
  py::class_<RegionLayout, std::shared_ptr<RegionLayout>>(
      module, "Region", "A region's forward and its live nodes: called with primals and bound shapes.")
      .def(py::init([](const py::object& layout) { return make_region(layout); }))
      .def("__call__", torch::wrap_pybind_function(call))
      .def("direct", make_direct, "(outputs, slow path) -> a builtin function from primals to a tuple.");
}

} // namespace gradc
