#include "walk/csrc/describe.h"

#include <c10/util/StringUtil.h>

#include <functional>
#include <sstream>
#include <string_view>

namespace gradc {

namespace {

using Facts = std::vector<std::pair<std::string, std::string>>;

std::string edges_in_words(const Walk& walk, const edge_list& edges) {
  std::vector<std::string> words;
  for (const auto& edge : edges) {
    const bool is_walked = edge.is_valid() && walk.index_of(edge.function.get()) >= 0;
    words.push_back(is_walked ? c10::str("node ", walk.index_of(edge.function.get()), " input ", edge.input_nr) : "nowhere");
  }
  return words.empty() ? "none" : c10::Join(", ", words);
}

std::string asked_in_words(const Request& request) {
  if (!request.is_partial) {
    return "the gradient of every leaf";
  }
  return request.accumulates ? "the gradients of inputs=, to be accumulated" : "the gradients of inputs=, to be returned";
}

// Of a node's part of the key, with the constants of its formula: equal in one process only, as types are known by address.
std::string fingerprint(const Walk& walk, const LiveNode& live) {
  const auto* bytes = reinterpret_cast<const char*>(walk.key.data());
  std::ostringstream text;
  text << std::hex << std::hash<std::string_view>()({bytes + live.begin, live.end - live.begin});
  return text.str();
}

std::string node_in_words(const Walk& walk, const LiveNode& live) {
  std::ostringstream words;
  words << live.node->name() << (live.is_opaque ? ", runs as it is" : "") << (live.is_needed ? "" : ", not needed");
  words << ", leads to " << edges_in_words(walk, live.node->next_edges()) << "; key " << fingerprint(walk, live);
  if (live.num_sizes > 0) {
    words << ", sizes " << c10::IntArrayRef(walk.numbers.data() + live.sizes, live.num_sizes);
  }
  return words.str();
}

std::string tensor_in_words(const Walk& walk, size_t number) {
  const auto& tensor = walk.tensors[number];
  std::ostringstream words;
  words << tensor.scalar_type() << tensor.sizes() << ", strides " << tensor.strides();
  words << (tensor.requires_grad() ? ", requires a gradient" : "") << (tensor.is_conj() ? ", conjugate" : "");
  words << (tensor.is_neg() ? ", negative" : "") << (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? ", a number" : "");
  for (size_t first = 0; first < number; ++first) {
    if (walk.tensors[first].storage().is_alias_of(tensor.storage())) {
      words << ", on the memory of tensor " << first;
      break;
    }
  }
  return words.str();
}

} // namespace

Facts in_words(const Walk& walk) {
  Facts words = in_words(walk.ambient);
  words.emplace_back("asked for", asked_in_words(walk.request));
  words.emplace_back("create_graph", walk.request.create_graph ? "True" : "False");
  words.emplace_back("roots", edges_in_words(walk, walk.request.roots));
  words.emplace_back("inputs=", edges_in_words(walk, walk.request.outputs));
  for (size_t i = 0; i < walk.nodes.size(); ++i) {
    words.emplace_back(c10::str("node ", i), node_in_words(walk, walk.nodes[i]));
  }
  for (size_t i = 0; i < walk.tensors.size(); ++i) {
    words.emplace_back(c10::str("tensor ", i), tensor_in_words(walk, i));
  }
  return words;
}

} // namespace gradc
