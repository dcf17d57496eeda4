#include "nodes/csrc/python_derive.h"

#include "csrc/convert.h"
#include "csrc/keep.h"

#include <map>
#include <tuple>

namespace py = pybind11;

namespace gradc {
namespace {

using torch::autograd::variable_list;

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
      using Versions = std::vector<std::tuple<int64_t, int64_t, int64_t>>;
      using Fields = std::tuple<std::shared_ptr<Plan>, Numbers, Numbers, bool, Numbers, Numbers, Versions, Numbers>;
      const auto make = [](auto&&... fields) { return std::make_shared<CompiledBackward>(CompiledBackward{std::move(fields)...}); };
      return std::apply(make, found.cast<Fields>());
    });
  }

  std::shared_ptr<Plan> join(
      size_t segment, const variable_list& tangents, const std::vector<bool>& needed, bool adds_up) override {
    const py::gil_scoped_acquire gil;
    return guarded([&] {
      const py::object plan = backwards_->attr("join_native")(segment, to_python(tangents), needed, adds_up);
      return plan.cast<std::shared_ptr<Plan>>();
    });
  }

  variable_list grads(
      size_t segment,
      const std::vector<int64_t>& symbols,
      const variable_list& saved,
      const variable_list& tangents,
      const std::vector<bool>& needed,
      bool is_repacked,
      const std::vector<int64_t>& owned,
      std::vector<int64_t>& let_go) override {
    const py::gil_scoped_acquire gil;
    const py::list positions;
    try {
      return guarded([&] {
        return to_tensors(backwards_->attr("grads_native")(
            segment, symbols, to_python(saved), to_python(tangents), needed, is_repacked, owned, positions));
      });
    } catch (const python_error&) {
      let_go = positions.cast<std::vector<int64_t>>();
      throw;
    }
  }

  std::pair<std::vector<int64_t>, bool> released(
      size_t segment, const variable_list& tangents, const std::vector<bool>& needed) override {
    const py::gil_scoped_acquire gil;
    return guarded([&] {
      const py::object found = backwards_->attr("released_native")(segment, to_python(tangents), needed);
      return found.cast<std::pair<std::vector<int64_t>, bool>>();
    });
  }

  variable_list grads_in_turn(
      size_t segment,
      const std::vector<int64_t>& symbols,
      const std::function<at::Tensor(size_t)>& unpack,
      const variable_list& tangents,
      const std::vector<bool>& needed,
      const std::vector<int64_t>& owned) override {
    const py::gil_scoped_acquire gil;
    return guarded([&] {
      const py::cpp_function give([&unpack](size_t position) {
        try {
          return to_python(unpack(position));
        } catch (python_error& error) { // of the hook's
          error.restore();
          throw py::error_already_set();
        }
      });
      return to_tensors(backwards_->attr("grads_in_turn")(segment, symbols, give, to_python(tangents), needed, owned));
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
      const py::object grads = region(*arguments_of(tangents, saved, symbols));
      return grads.is_none() ? std::nullopt : std::optional(to_tensors(grads));
    });
  }

  std::optional<Expansion> expand(size_t segment, const std::vector<int64_t>& symbols) override {
    const py::gil_scoped_acquire gil;
    return guarded([&]() -> std::optional<Expansion> {
      const py::object found = backwards_->attr("expand_native")(segment, symbols);
      if (found.is_none()) {
        return std::nullopt;
      }
      using Part = std::tuple<size_t, uint64_t, std::vector<int64_t>, std::vector<size_t>>;
      using Fields = std::tuple<std::shared_ptr<RegionLayout>, std::vector<int64_t>, std::vector<Part>, std::vector<std::pair<size_t, size_t>>>;
      auto [region, shapes, parts, entries] = found.cast<Fields>();
      Expansion expansion{std::move(region), std::move(shapes), {}, std::move(entries)};
      for (auto& [number, before_last, exits, saved] : parts) {
        expansion.parts.push_back({number, before_last, std::move(exits), std::move(saved)});
      }
      return expansion;
    });
  }

  void* backwards() const override {
    return backwards_->ptr();
  }

 private:
  static py::list arguments_of(
      const variable_list& tangents, const variable_list& saved, const std::vector<int64_t>& symbols) {
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
    return arguments;
  }

  using Place = std::pair<size_t, Key>;
  static constexpr size_t max_derivatives = 512;

  std::shared_ptr<py::object> backwards_;
  std::map<Place, std::shared_ptr<py::object>> derivatives_; // the GIL guards it
};

} // namespace

std::unique_ptr<Derive> make_python_derive(py::object backwards) {
  return std::make_unique<PythonDerive>(std::move(backwards));
}

} // namespace gradc
