#include "region/csrc/region_spec.h"

#include "csrc/spec.h"
#include "executor/csrc/bind.h"
#include "nodes/csrc/python_derive.h"

#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>

namespace py = pybind11;

namespace gradc {
namespace {

EntryLayout make_entry(const py::handle& entry) {
  const Spec spec("Entry", entry);
  EntryLayout layout;
  layout.value = spec.get<int64_t>("value");
  layout.shape = spec.get<std::vector<int64_t>>("shape");
  layout.options = at::TensorOptions().dtype(spec.get<c10::ScalarType>("dtype")).device(spec.get<at::Device>("device"));
  spec.refuse_others();
  return layout;
}

SegmentLayout make_segment(const py::handle& segment) {
  const Spec spec("NativeSegment", segment);
  SegmentLayout layout;
  for (const py::handle entry : spec["entries"]) {
    layout.entries.push_back(make_entry(entry));
  }
  for (const auto& [primal, target, entry] : spec.all<std::tuple<int64_t, int64_t, int64_t>>("exits")) {
    layout.exits.push_back({primal, target, entry});
  }
  layout.shared = spec.get<std::vector<std::vector<size_t>>>("shared");
  layout.targets = spec.get<std::vector<std::vector<size_t>>>("targets");
  using Saved = std::tuple<bool, int64_t, int64_t, bool, std::string, int64_t, bool>;
  for (const auto& [is_primal, position, owner, is_kept, spoilt, entry, is_transposed] : spec.all<Saved>("saved")) {
    layout.saved.push_back({is_primal, position, owner, is_kept, spoilt, entry, is_transposed});
    layout.has_spoilt = layout.has_spoilt || !spoilt.empty();
  }
  using Later = std::tuple<size_t, size_t, uint32_t, int64_t, uint32_t>;
  for (const auto& [position, later, entry, segment_once_gone, entry_once_gone] : spec.all<Later>("later")) {
    layout.later.push_back({position, later, entry, segment_once_gone, entry_once_gone});
  }
  layout.num_tangents = spec.get<size_t>("num_tangents");
  layout.has_hidden_saves = spec.get<bool>("has_hidden_saves");
  layout.may_expand = spec.get<bool>("may_expand");
  layout.offset = spec.get<uint64_t>("offset");
  layout.span = spec.get<uint64_t>("span");
  spec.refuse_others();
  return layout;
}

std::vector<MadeNode> make_live_order(const Spec& spec) {
  using Kind = MadeNode::Kind;
  const Words<Kind> kinds = {{"primal", Kind::primal}, {"segment", Kind::segment}, {"output", Kind::output}};
  std::vector<MadeNode> order;
  for (const auto& [kind, number, depth, offset] : spec.all<std::tuple<std::string, size_t, size_t, uint64_t>>("live_order")) {
    order.push_back({word(kind, kinds, spec.where("live_order")), number, depth, offset});
  }
  return order;
}

} // namespace

std::shared_ptr<RegionLayout> make_region(const py::object& object) {
  const Spec spec("RegionSpec", object);
  auto region = std::make_shared<RegionLayout>();
  region->name = spec.get<std::string>("name");
  region->forward = spec.get<std::shared_ptr<Plan>>("forward");
  for (const py::handle segment : spec["segments"]) {
    region->segments.push_back(make_segment(segment));
  }
  for (const auto& [kind, position, dimension] : spec.all<SymbolSpec>("symbols")) {
    region->symbols.push_back({symbol_kind(kind, spec.where("symbols")), static_cast<Index>(position), dimension});
  }
  for (const auto& [primal, dtype] : spec.all<std::tuple<size_t, std::optional<c10::ScalarType>>>("made")) {
    region->made.push_back({primal, dtype});
  }
  region->live_order = make_live_order(spec);
  region->num_nodes = spec.get<uint64_t>("num_nodes");
  region->num_nodes_elsewhere = spec.get<uint64_t>("num_nodes_elsewhere");
  region->is_nested = spec.get<std::optional<bool>>("is_nested");
  region->is_split_at_leaves = spec.get<bool>("is_split_at_leaves");
  if (const auto forced = spec.get<std::optional<AutocastByName>>("forced_autocast")) {
    region->forced_autocast = autocast_of(*forced);
  }
  region->derive = make_python_derive(spec["backwards"]);
  spec.refuse_others({"shapes"});
  region->backwards = std::vector<BackwardCache>(region->segments.size());
  return region;
}

} // namespace gradc
