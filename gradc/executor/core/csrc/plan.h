// A plan: a Program as the native executor runs it.
//
// Layout.     Plan   immutable, made once            Frame   one per run, on the stack of the thread that runs
//             +------------------------------+       +--------------------------------------+
//             | steps: op, operands, outs,   |       | slots: one IValue for each value     |
//             |        deaths, kernel        |  run  | bound: the symbolic operands' values |
//             | constants, symbols, bindings | ----> | stack: arguments of a boxed call     |
//             +------------------------------+       +--------------------------------------+
//
// Ownership.  A Plan owns its constants and nothing of any run, except the values of symbolic operands for the tuples of
//             sizes seen lately (the bindings, behind a lock), and what its choice has measured. A Frame owns what its
//             slots hold; `deaths` say when a slot is cleared, so that memory is freed where eager frees it. Whatever ends
//             a run, an exception too, clears the frame: nothing is leaked, and no lock is held while an op runs.
// Threads.    Any number of threads may run one Plan, and a run may start another: they share only what is immutable.
// The GIL.    Nothing in this file, run.cpp or typed.cpp needs it, and callers should not hold it. Ops that are written in
//             Python take it themselves, and so does computing a binding for sizes not seen before (bind.cpp).
#pragma once

#include "executor/core/csrc/payload.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradc {

// A constant argument. Lists of ints are kept flat too, since an IValue's list is not contiguous.
struct Value {
  explicit Value(c10::IValue value);
  c10::IValue boxed;
  std::vector<int64_t> ints;
};

// Where an argument comes from. `index` counts in the frame's slots, the plan's constants, the frame's bound values, or the
// plan's packs (lists that hold slots).
struct Operand {
  enum class Kind : uint8_t { slot, constant, bound, pack };
  Kind kind = Kind::slot;
  Index index = 0;
};

struct Pack {
  c10::TypePtr element;
  std::vector<Operand> items;
};

struct Frame;
struct Step;
using Kernel = void (*)(const Step&, Frame&);

// A call on addresses: of the result, and of the inputs. In place, the first input is the result.
using Direct = void (*)(const Payload&, void* out, const void* const* inputs);

// A faster call of a step, which may be used while the frame is exact; a null `call` is none. Where it needs no tensors, `direct` is
// what it does, on the addresses of what the slots `inputs` hold (cpu/csrc/direct.h).
struct Exact {
  Kernel call = nullptr;
  Direct direct = nullptr;
  std::vector<Index> inputs;
  Payload payload;
  bool needs_full_precision = false; // of float32 products
};

// What a slot's tensor was when captured.
struct Meta {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  c10::Device device = c10::DeviceType::CPU;
};

// How the tensors of a run lie, by slot; none for what is no tensor.
struct Layout {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool operator==(const Layout&) const = default;
};
using Layouts = std::vector<std::optional<Layout>>;

// A strided view that a step makes, at an offset from its base's. `is_same`: the base's tensor itself will do.
struct View {
  Index slot = 0;
  Index base = 0;
  int64_t offset = 0;
  bool is_same = false;
};

using AutocastState = std::vector<std::pair<c10::DeviceType, c10::ScalarType>>;

// One call. `device` is where all tensors are that it reads and makes, if that is one. `kernel` is its typed call where there is one
// (kernels.h), by the dispatch `keys` of dense tensors there, and `exact` its faster one; both on plain tensors of that device only. An
// out of -1 is a result that nobody reads, a reuse of -1 is none.
struct Step {
  c10::OperatorHandle op;
  std::vector<Operand> operands;
  std::vector<Index> outs;
  std::vector<Index> deaths;
  std::vector<Index> writes;
  std::vector<std::pair<Index, Index>> shares;
  AutocastState autocast;
  std::vector<Index> reads;
  std::vector<View> views;
  std::optional<c10::DeviceType> device;
  c10::DispatchKeySet keys;
  Kernel kernel = nullptr;
  Exact exact;
  std::vector<Index> kept; // dead after this step, but wait for a later one to reuse their memory
  Index reuse = -1;
  std::optional<Operand> known; // a slot with what the op's kernel would compute of its operands once more
  bool is_foreign = false; // not an op of ATen's: its kernel may be Python code, which sees the dispatcher as it is in eager
};

// Where a symbol's value is read when a run starts: of the input at `position`.
struct SymbolSource {
  enum class Kind : uint8_t { integer, size, stride };
  Kind kind = Kind::integer;
  Index position = 0;
  int64_t dimension = 0;
};

using Symbols = std::vector<int64_t>;
Symbols read_symbols(const std::vector<SymbolSource>& sources, const std::vector<c10::IValue>& inputs);

using Binding = std::shared_ptr<const std::vector<Value>>;

// The values of symbolic operands for the tuples of symbol values seen lately, most recent first.
class Bindings {
 public:
  using Compute = std::function<std::vector<Value>(const Symbols&)>;
  explicit Bindings(Compute compute) : compute_(std::move(compute)) {}
  Binding find_or_compute(const Symbols& symbols);

 private:
  static constexpr size_t kept = 64;
  Binding find(const Symbols& symbols);

  const Compute compute_;
  std::mutex mutex_;
  std::list<std::pair<Symbols, Binding>> recent_;
};

class Choice;
class DeviceGraphs;
class SizedPlans;
struct DeviceKernels;
struct Stretch;
using Stretches = std::vector<std::shared_ptr<const Stretch>>;

struct Plan {
  bool is_constant(const Operand& operand, bool (c10::IValue::*is)() const) const {
    return operand.kind == Operand::Kind::constant && (constants[operand.index].boxed.*is)();
  }

  std::string name;
  std::vector<std::optional<Meta>> metas;
  bool is_static = false;
  bool has_foreign_steps = false;
  bool is_dispatched = false; // runs above autograd, in grad mode: versions, views and graphs are torch's to keep
  std::vector<Index> inputs;
  std::vector<Index> unread;
  std::vector<Index> written; // positions of inputs whose memory some step writes to
  std::vector<std::pair<Index, c10::IValue>> owned;
  std::vector<Step> steps;
  const DeviceKernels* device = nullptr; // of the first step that has kernels (devices.h); null where none has
  std::vector<Operand> outputs;
  std::vector<Value> constants;
  std::vector<Pack> packs;
  std::vector<SymbolSource> symbols;
  std::unique_ptr<Bindings> bindings;
  std::shared_ptr<SizedPlans> sized; // for sizes that came back (sized_plans.h); null where none depends on symbols
  std::shared_ptr<Choice> choice; // of another way to run it (choice.h); null where there is none
  std::shared_ptr<DeviceGraphs> graphs; // of its runs (device_graphs.h); null where there can be none
  mutable std::atomic<bool> has_run_as_foreseen = false; // once, to its end, the frame exact
  mutable std::once_flag found;
  mutable Stretches stretches; // by the step that each begins with (devices.h); found in the run after that
};

// `is_exact` says that every tensor so far has the sizes, strides and dtype that it had when captured. Then so have the
// results of the next call, and what depends on them can be known beforehand. It is checked on the inputs, and on the
// results of every call that was left to the dispatcher or to a kernel.
struct Frame {
  explicit Frame(const Plan& plan) : plan(plan), slots(plan.metas.size()) {}
  const c10::IValue& operator[](const Operand& operand) const;

  const Plan& plan;
  std::vector<c10::IValue> slots;
  Binding bound;
  std::vector<c10::IValue> stack;
  bool is_exact = false;
  c10::impl::LocalDispatchKeySet ambient = c10::impl::tls_local_dispatch_key_set();
  bool has_full_precision = true; // of float32 products; false where the user allows less
  Layouts* layouts = nullptr; // where they are noted (sized_plans.h)
};

// Takes the inputs over into the slots of a new frame, and finds out whether it is exact.
void fill(Frame& frame, std::vector<c10::IValue> inputs);

// Runs `plan`, below autograd unless it is dispatched. Takes the inputs (tensors, ints, None) over, so that they die where
// nothing reads them any more. Returns one value for each output. Throws what an op throws; `left` then gets the inputs, without
// those that have been read for the last time.
std::vector<c10::IValue> run(const Plan& plan, std::vector<c10::IValue> inputs, std::vector<c10::IValue>* left = nullptr);

// The same by the plan's steps, whatever its choice is.
std::vector<c10::IValue> run_steps(const Plan& plan, std::vector<c10::IValue> inputs, std::vector<c10::IValue>* left = nullptr);

} // namespace gradc
