#include "nodes/csrc/call_region.h"

#include "csrc/ambient.h"
#include "csrc/plain.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <utility>

namespace gradc {

using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace {

// A view made under no_grad of what requires a gradient: it requires one, too, but gradients go nowhere from it.
bool is_cut_off(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta && !meta->requires_grad_ && !meta->grad_fn_ && tensor.requires_grad() && tensor.is_leaf();
}

void add_edges(SegmentNode& node, const Nodes& nodes, const std::vector<c10::IValue>& primals) {
  torch::autograd::edge_list edges;
  edges.reserve(node.layout().exits.size());
  for (const auto& exit : node.layout().exits) {
    if (exit.primal >= 0) {
      edges.push_back(torch::autograd::impl::gradient_edge(primals[exit.primal].toTensor()));
    } else {
      edges.emplace_back(nodes[exit.segment], static_cast<uint32_t>(exit.entry));
    }
  }
  node.set_next_edges(std::move(edges));
}

// Which of what a node saves nobody else can come to, nor to its memory: all that hold that are saved here, too, such as the parts
// of a split. Hooks are to see all.
std::vector<bool> find_own(const std::vector<SavedLayout>& sources, const std::vector<c10::IValue>& values, bool has_hooks) {
  std::vector<bool> is_own(sources.size());
  using Holder = std::pair<const c10::StorageImpl*, const at::Tensor*>;
  std::vector<std::pair<size_t, Holder>> sharing; // with the number of the source
  std::vector<Holder> holders; // each once, whatever number of sources it has
  for (size_t i = 0; i < sources.size() && !has_hooks; ++i) {
    if (sources[i].entry >= 0 && !sources[i].is_transposed) {
      const at::Tensor& tensor = values[sources[i].position].toTensor();
      is_own[i] = tensor.use_count() == 1 && tensor.storage().use_count() == 1;
      if (tensor.use_count() == 1 && !is_own[i]) {
        holders.emplace_back(tensor.storage().unsafeGetStorageImpl(), &tensor);
        sharing.emplace_back(i, holders.back());
      }
    }
  }
  std::sort(holders.begin(), holders.end());
  holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
  const auto has_lower_storage = [](const Holder& one, const Holder& other) { return one.first < other.first; };
  for (const auto& [i, holder] : sharing) {
    const auto [first, last] = std::equal_range(holders.begin(), holders.end(), holder, has_lower_storage);
    is_own[i] = static_cast<size_t>(last - first) == holder.second->storage().use_count();
  }
  return is_own;
}

// The node becomes the history of its values; not of its own, which are to hold nothing.
void set_edges_of_values(
    const c10::intrusive_ptr<SegmentNode>& node, const std::vector<bool>& is_own, const std::vector<c10::IValue>& values) {
  const auto& [entries, sources] = std::tie(node->layout().entries, node->layout().saved);
  std::vector<bool> is_left_out(entries.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    if (is_own[i]) {
      is_left_out[sources[i].entry] = true;
    }
  }
  for (size_t number = 0; number < entries.size(); ++number) {
    if (entries[number].value >= 0 && !is_left_out[number]) {
      torch::autograd::impl::set_gradient_edge(values[entries[number].value].toTensor(), Edge(node, number));
    }
  }
}

SavedVariable transpose_to_save(SegmentNode& node, int64_t entry, const at::Tensor& matrix) {
  const at::Tensor transposed = transpose_below_autograd(matrix);
  if (entry >= 0) {
    torch::autograd::impl::set_gradient_edge(transposed, Edge(node.getptr(), static_cast<uint32_t>(entry)));
  }
  return SavedVariable(transposed, /*is_output=*/entry >= 0);
}

// A view, for a segment that its own node leads to, with the history that it has once that is gone.
at::Tensor later_view(SegmentNode& node, const Nodes& earlier, const LaterViewLayout& view, const at::Tensor& tensor) {
  if (view.segment_once_gone < 0) {
    return with_history(tensor, {});
  }
  const auto number = static_cast<size_t>(view.segment_once_gone);
  return with_history(tensor, Edge(number == node.number() ? node.getptr() : earlier[number], view.entry_once_gone));
}

void save_tensors(
    SegmentNode& node,
    const Nodes& earlier,
    const std::vector<bool>& is_own,
    const std::vector<c10::IValue>& primals,
    const std::vector<c10::IValue>& values,
    PackedBy packed_by) {
  const auto& sources = node.layout().saved;
  const bool has_hooks = packed_by != PackedBy::nobody;
  SegmentNode::SavedTensors saved;
  saved.variables.resize(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto& source = sources[i];
    if (!source.spoilt.empty()) {
      continue;
    }
    const auto& tensor = (source.is_primal ? primals : values)[source.position].toTensor();
    if (is_own[i] || source.is_kept) {
      auto& plain = is_own[i] ? saved.own : saved.kept;
      plain.resize(sources.size());
      plain[i] = tensor;
    } else if (const auto* view = node.layout().later_at(i)) {
      saved.variables[i] = SavedVariable(later_view(node, earlier, *view, tensor), node.layout().is_output(i, node.number()));
    } else if (source.is_transposed && !has_hooks && has_plain_keys(tensor) && !tensor.is_inference()) {
      saved.transposes.resize(sources.size());
      saved.transposes[i] = SavedTranspose(tensor, source.entry >= 0);
    } else if (source.is_transposed) {
      saved.variables[i] = transpose_to_save(node, source.entry, tensor);
    } else {
      saved.variables[i] = SavedVariable(tensor, node.layout().is_output(i, node.number()));
    }
    if (packed_by == PackedBy::checkpoint) {
      saved.packed.resize(sources.size());
      saved.packed[i] = PackedLayout(source.is_transposed ? transpose_below_autograd(tensor) : tensor);
    }
  }
  node.save(std::move(saved), packed_by);
}

} // namespace

// Forward-mode AD is one of the modes: outside of it no tensor has a forward gradient.
bool is_watched(const std::vector<c10::IValue>& primals, bool may_be_dropped) {
  const auto packed_by = gradc::packed_by();
  return !unsupported_mode().empty() || packed_by == PackedBy::user || (packed_by == PackedBy::checkpoint && !may_be_dropped) ||
      std::any_of(primals.begin(), primals.end(), [](const c10::IValue& primal) {
           return primal.isTensor() && (!has_plain_keys(primal.toTensor()) || is_cut_off(primal.toTensor()));
         });
}

std::vector<c10::IValue> run_forward(const RegionLayout& region, std::vector<c10::IValue> primals) {
  const pybind11::gil_scoped_release no_gil;
  return run(*region.forward, std::move(primals));
}

Nodes hang_on_nodes(
    const std::shared_ptr<const RegionLayout>& region,
    const std::vector<c10::IValue>& primals,
    const std::vector<c10::IValue>& values,
    const std::vector<int64_t>& shapes,
    uint64_t start) {
  Nodes nodes;
  nodes.reserve(region->segments.size());
  const auto symbols = read_symbols(region->symbols, primals);
  const auto packed_by = gradc::packed_by();
  for (size_t number = 0; number < region->segments.size(); ++number) {
    auto node = region->num_nodes > 0
        ? c10::make_intrusive<SegmentNode>(region, number, symbols, shapes, start + region->segments[number].offset)
        : c10::make_intrusive<SegmentNode>(region, number, symbols, shapes);
    add_edges(*node, nodes, primals);
    node->show_entries(node->layout().num_tangents);
    const auto is_own = find_own(node->layout().saved, values, packed_by != PackedBy::nobody);
    set_edges_of_values(node, is_own, values);
    save_tensors(*node, nodes, is_own, primals, values, packed_by);
    nodes.push_back(std::move(node));
  }
  for (const auto& node : nodes) {
    static_cast<SegmentNode&>(*node).know_later_views(nodes);
  }
  return nodes;
}

Called call_region(
    const std::shared_ptr<const RegionLayout>& region,
    const std::vector<c10::IValue>& primals,
    const std::vector<int64_t>& shapes,
    uint64_t start) {
  RECORD_USER_SCOPE("gradc: forward of " + region->name);
  auto values = run_forward(*region, primals);
  auto nodes = hang_on_nodes(region, primals, values, shapes, start);
  return {std::move(values), std::move(nodes)};
}

Nodes made_nodes(const RegionLayout& region, const std::vector<c10::IValue>& primals) {
  Nodes nodes;
  nodes.reserve(region.live_order.size());
  for (const auto& [kind, number, depth, offset] : region.live_order) {
    nodes.push_back(kind == MadeNode::Kind::primal ? primals[number].toTensor().grad_fn() : nullptr);
  }
  return nodes;
}

void put_in_order(
    const RegionLayout& region, const Nodes& made, const Nodes& segments, const variable_list& outputs, uint64_t start) {
  Nodes nodes;
  std::vector<uint64_t> numbers;
  for (size_t i = 0; i < made.size(); ++i) {
    const auto [kind, number, depth, offset] = region.live_order[i];
    auto node = kind == MadeNode::Kind::primal ? made[i]
        : kind == MadeNode::Kind::segment      ? segments[number]
                                               : outputs[number].grad_fn();
    for (size_t up = 0; kind == MadeNode::Kind::output && node && up < depth; ++up) {
      node = node->next_edge(0).function;
    }
    if (node && node->sequence_nr() >= start) { // autocast's cache gives out older ones
      numbers.push_back(region.num_nodes > 0 ? start + offset : node->sequence_nr());
      nodes.push_back(std::move(node));
    }
  }
  std::sort(numbers.begin(), numbers.end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i]->set_sequence_nr(numbers[i]);
  }
}

} // namespace gradc
