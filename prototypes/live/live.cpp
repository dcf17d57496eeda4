// The live way: ops are met at a key above autograd and run at once, below it. Autograd's history is made later, if ever.
//
//   a unit      from one sync to the next (the step's begin and end, an optimizer's update)
//   the trie    nodes are calls that were seen, in order; a unit is a way from the root to an END
//   a slot      number of a tensor object in a unit, in the order in which it is first met: from outside, or a result
//   a flat      number of a value in the Program that was recorded along a way: what calls below autograd read and make
//   MATCH       calls equal those of the trie: their kernels run, results say that they require a gradient, and have a stub
//   RECORD      what is new runs eagerly below a recorder, behind the history of all before it, which is made first
//   PASS        the rest of the unit runs as it would without all this
//
// Single-threaded, CPU, with the GIL.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <iostream>
#include <set>

namespace {
using at::Tensor;
using c10::IValue;
using c10::TensorImpl;
using torch::jit::Stack;
namespace impl = torch::autograd::impl;
using Weak = c10::weak_intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>;

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
const c10::DispatchKeySet kPython({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
const c10::DispatchKeySet kOthers({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchDynamicLayerFrontMode});  // a mode or a transform of the user's
enum Mode { OFF, MATCH, RECORD, PASS };
enum Kind { OP, ENGINE, FUNCTION, REQUIRES, END };
enum ArgKind : uint8_t { SLOT, LIST, OPTLIST, NUMBER, CONST };

// ---- what was seen

struct Meta {
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool requires_grad = false;
  c10::DispatchKeySet keys;
  static Meta of(const Tensor& t) {
    return {t.scalar_type(), t.sizes().vec(), t.strides().vec(), t.storage_offset(), t.requires_grad(), t.key_set()};
  }
  bool has_layout_of(const Tensor& t) const {
    auto* i = t.unsafeGetTensorImpl();
    return at::typeMetaToScalarType(i->dtype()) == dtype && i->sizes() == at::IntArrayRef(sizes) && i->strides() == at::IntArrayRef(strides) &&
        i->storage_offset() == offset;
  }
  bool fits(const Tensor& t) const { return t.key_set() == keys && has_layout_of(t) && t.requires_grad() == requires_grad; }
};
struct Arg {  // of a call as it was met: slots; of one below autograd: flats
  ArgKind kind;
  int slot = -1;
  IValue value;
  std::vector<int> slots;
  at::ScalarType dtype = at::kFloat;
  std::vector<bool> requires_grad;  // of each slot, when it was met
};
struct Call {
  c10::OperatorHandle op;
  std::vector<Arg> args;
  std::vector<int> outs;
  std::vector<std::vector<int64_t>> shapes;  // where data decides
  bool has_aliases = false;                  // a view, or a write: of those autograd's books are kept
  std::vector<int> written_lists;            // arguments; only eager's autograd counts the versions of lists
};
struct Stub : torch::autograd::Node {
  std::string of;
  explicit Stub(std::string name) : of(std::move(name)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    TORCH_CHECK(
        false,
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved "
        "intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to "
        "backward through the graph a second time or if you need to access saved tensors after calling backward.");
  }
  std::string name() const override { return of; }
};
c10::intrusive_ptr<Stub> stub_of(const std::string& name, const Tensor& t) {
  auto stub = c10::make_intrusive<Stub>(name);
  c10::impl::ExcludeDispatchKeyGuard guard(kPython);
  stub->add_input_metadata(t);
  return stub;
}

struct Out {
  int slot;
  bool is_new;
  Meta meta;
  int flat = -1;
  c10::intrusive_ptr<Stub> stub;
};
struct Return { int kind; std::vector<int> outs; IValue other; };  // 0 a tensor, 1 a list, 2 anything else
struct External { int slot; Meta meta; int shares; int flat = -1; };  // shares: the first from outside with its memory
bool has_aliases(const c10::FunctionSchema& schema) {
  for (auto* list : {&schema.arguments(), &schema.returns()})
    for (auto& a : *list) if (a.alias_info()) return true;
  return false;
}
std::vector<int> written_lists(const c10::FunctionSchema& schema) {
  std::vector<int> r;
  if (schema.name().rfind("aten::_foreach_", 0) != 0) return r;  // a loop of calls; what is fused is not counted
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& a = schema.arguments()[i];
    if (a.alias_info() && a.alias_info()->isWrite() && a.type()->kind() == c10::TypeKind::ListType) r.push_back(i);
  }
  return r;
}
// Below autograd, where a kernel of eager's runs.
struct Below {
  c10::impl::ExcludeDispatchKeyGuard guard;
  explicit Below(bool has_aliases) : guard(has_aliases ? c10::autograd_dispatch_keyset : c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}
};
struct Node {
  int id;
  Kind kind;
  std::vector<Node*> children;
  std::optional<c10::OperatorHandle> op;
  const void* key = nullptr;
  uint64_t switches = 0;
  std::string flags;
  c10::impl::LocalDispatchKeySet tls{c10::impl::PODLocalDispatchKeySet{}};
  bool grad_mode = true, refused = false, is_factory = false;
  bool is_direct = false;    // its call is the op that was met, with the same arguments
  bool is_dynamic = false;   // the sizes of its results depend on data
  std::vector<Arg> args;
  std::vector<External> externals;
  std::vector<Out> outs;
  std::vector<Return> returns;
  std::vector<Call> calls;
  std::vector<std::pair<int, int>> handles;  // flats that are other handles of others, as saved outputs are
  std::vector<int> turned;   // slots that require a gradient from here on, though no result says so: bases of views
  std::vector<int> freed;    // END: slots that may be alive, since backward() has freed their history
  // ENGINE
  bool is_compiled = false;
  py::object plan;
  std::vector<int> plan_ins, plan_outs, leaves;  // whose hooks would run
  std::vector<bool> is_written;                  // of gradients that were there: whether they are added to
};

// ---- the unit under way

// Which slot a tensor, or its memory, is. Forgets all at once.
class Known {
  struct Entry { const void* object = nullptr; int slot = -1; uint32_t epoch = 0; };
  std::vector<Entry> table = std::vector<Entry>(1 << 12);
  size_t used = 0;
  uint32_t epoch = 1;
  Entry& at(const void* object) {
    size_t mask = table.size() - 1, i = (reinterpret_cast<size_t>(object) >> 4) * 0x9E3779B97F4A7C15ull >> 20 & mask;
    while (table[i].epoch == epoch && table[i].object != object) i = (i + 1) & mask;
    return table[i];
  }
 public:
  int find(const void* object) {
    auto& e = at(object);
    return e.epoch == epoch ? e.slot : -1;
  }
  int find(const Tensor& t) { return find(static_cast<const void*>(t.unsafeGetTensorImpl())); }
  void set(const void* object, int slot) {
    if (2 * used > table.size()) {
      auto before = std::move(table);
      table = std::vector<Entry>(2 * before.size());
      for (auto& e : before) if (e.epoch == epoch) at(e.object) = e;
    }
    auto& e = at(object);
    used += e.epoch != epoch;
    e = {object, slot, epoch};
  }
  void clear() { ++epoch, used = 0; }
};
// The value of a flat: a tensor of our own, or what a tensor is made of that Python may have, and drop when it likes.
struct Flat {
  Tensor tensor;
  c10::Storage storage;
  c10::VariableVersion version;
  const Meta* meta = nullptr;
  bool is_there() const { return tensor.defined() || meta; }
  const Tensor& get() {
    if (!tensor.defined() && meta) {
      tensor = at::detail::make_tensor<TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(meta->dtype));
      auto* i = tensor.unsafeGetTensorImpl();
      i->set_sizes_and_strides(meta->sizes, meta->strides, meta->offset);
      i->set_version_counter(version);
    }
    return tensor;
  }
};
struct Slot {
  Weak object;
  int flat;
  bool is_external;
  uint32_t version;  // when it was first met
  const Meta* meta = nullptr;
};
Mode mode = OFF;
bool is_busy = false;
auto& nodes = *new std::vector<std::unique_ptr<Node>>;
Node* root = nullptr;
Node* cur = nullptr;
auto& slots = *new std::vector<Slot>;
auto& flats = *new std::vector<Flat>;
auto& slot_of_flat = *new std::vector<int>;
auto& stubbed = *new std::vector<int>;
auto& fresh = *new std::vector<int>;          // what factories gave: who asked takes it as it is only if nobody else has a handle
std::vector<Node*> way;
Known& known = *new Known;
Known& memories = *new Known;  // of what comes from outside
auto& freed = *new std::set<torch::autograd::Node*>;
py::object& cb = *new py::object;
std::map<std::string, int64_t> counts, totals;

struct Busy {
  Busy() { is_busy = true; }
  ~Busy() { is_busy = false; }
};
void include(bool on) { c10::impl::tls_set_dispatch_key_included(kKey, on); }
struct Off {  // no key while inside
  bool before = c10::impl::tls_is_dispatch_key_included(kKey);
  Off() { include(false); }
  ~Off() { include(before && (mode == MATCH || mode == RECORD)); }
};
bool is_on() { return (mode == MATCH || mode == RECORD) && !is_busy; }
bool debug() {
  static bool wanted = getenv("LIVE_DEBUG");
  return wanted;
}

Node* make(Kind kind, Node* parent) {
  nodes.push_back(std::make_unique<Node>());
  auto* n = nodes.back().get();
  n->id = nodes.size() - 1, n->kind = kind;
  if (parent) parent->children.insert(parent->children.begin(), n);
  return n;
}
Tensor alive(int slot) {  // undefined where nobody has it any more
  auto p = slots[slot].object.lock();
  return p ? Tensor(std::move(p)) : Tensor();
}
Tensor object(int slot) {
  if (Tensor t = alive(slot); t.defined()) return t;
  int f = slots[slot].flat;
  if (f >= 0 && f < (int)flats.size() && flats[f].is_there()) return flats[f].get();
  return at::empty({0});  // of a factory, and nobody took it
}
Flat& flat_at(int f) {
  if (f >= (int)flats.size()) flats.resize(f + 64), slot_of_flat.resize(f + 64, -1);
  return flats[f];
}
Tensor value_of(int f) {  // the object, where there is one: views must know their base
  int s = slot_of_flat[f];
  Tensor t = s >= 0 ? alive(s) : Tensor();
  return t.defined() ? t : flats[f].get();
}
int new_slot(const Tensor& t, bool is_external, int flat) {
  int s = slots.size();
  auto& counter = t.unsafeGetTensorImpl()->version_counter();  // of any kind of tensor: what is not plain is told by who asks
  slots.push_back({Weak(t.getIntrusivePtr()), flat, is_external, counter.enabled() ? counter.current_version() : 0});
  if (is_external) {
    const void* memory = t.storage().unsafeGetStorageImpl();
    if (int first = memories.find(memory); first < 0 || first >= s) memories.set(memory, s);
  }
  known.set(t.unsafeGetTensorImpl(), s);
  return s;
}
void set_flat(int slot, int flat, const Tensor& t, const Meta& meta) {
  slots[slot].flat = flat;
  if (flat < 0) return;
  auto& f = flat_at(flat);
  f.tensor.reset(), f.storage = t.storage(), f.version = t.unsafeGetTensorImpl()->version_counter(), f.meta = &meta;
  slot_of_flat[flat] = slot;
}
void hold() {
  for (int s : fresh)
    if (Tensor t = alive(s); t.defined()) set_flat(s, slots[s].flat, t, *slots[s].meta);
  fresh.clear();
}
void forget() {
  fresh.clear();
  slots.clear(), flats.clear(), slot_of_flat.clear(), stubbed.clear(), way.clear(), known.clear(), memories.clear(), freed.clear();
  cur = root;
}
void back_to(size_t base) {
  for (size_t k = base; k < slots.size(); ++k) known.set(slots[k].object._unsafe_get_target(), -1);
  slots.resize(base, Slot{Weak(c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>()), -1, false, 0});
}
// What is held by C++ alone is of the history itself: nobody asks for it.
bool is_held_by_python(const Tensor& t) {
  auto* held = t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return held && Py_REFCNT(held) > 1;
}
bool is_mine(const Tensor& t) {
  int s = known.find(t);
  return s >= 0 && !slots[s].is_external;
}

// ---- history that is not there yet

void give_stub(int slot, const Tensor& t, const c10::intrusive_ptr<Stub>& stub) {
  auto* i = t.unsafeGetTensorImpl();
  stubbed.push_back(slot);
  if (i->autograd_meta()) {
    impl::set_gradient_edge(t, {stub, 0});
    return;
  }
  auto meta = std::make_unique<torch::autograd::AutogradMeta>();
  meta->grad_fn_ = stub, meta->output_nr_ = 0;
  i->set_autograd_meta(std::move(meta));
}
// As it stands: to ask a view for its history makes that anew, or raises, where its base was written into.
torch::autograd::Node* history_of(const Tensor& t) {
  auto* meta = impl::get_autograd_meta(t);
  return meta ? meta->grad_fn_.get() : nullptr;
}
bool has_history(const Tensor& t) {
  auto* meta = impl::get_autograd_meta(t);
  return meta && (meta->grad_fn_ || (!meta->requires_grad_ && t.requires_grad()));
}
bool has_stub(const Tensor& t) {
  auto* meta = impl::get_autograd_meta(t);
  return meta && dynamic_cast<Stub*>(meta->grad_fn_.get());
}

// ---- encoding and matching

bool is_number(const Tensor& t) { return t.defined() && t.unsafeGetTensorImpl()->is_wrapped_number(); }
IValue number_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble: return *static_cast<const double*>(t.const_data_ptr());
    case at::kLong: return *static_cast<const int64_t*>(t.const_data_ptr());
    case at::kBool: return *static_cast<const bool*>(t.const_data_ptr());
    default: return *static_cast<const c10::complex<double>*>(t.const_data_ptr());
  }
}
bool is_same(const IValue& a, const IValue& b) {
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble() && b.isDouble()) {
    double x = a.toDouble(), y = b.toDouble();
    return std::memcmp(&x, &y, 8) == 0;
  }
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isIntList() && b.isIntList()) return a.toIntVector() == b.toIntVector();
  if (a.isGenerator() || b.isGenerator() || a.tagKind() != b.tagKind()) return false;
  return a == b;
}
bool is_plain(const Tensor& t) {
  return t.layout() == at::kStrided && t.device().is_cpu() && t.has_storage() && !t.is_conj() && !t.is_neg() && !t.is_quantized() && !t.is_inference() &&
      !t.key_set().has(c10::DispatchKey::Python) && !t._fw_grad(0).defined();
}
bool may_be_external(const Tensor& t) { return !has_history(t) && is_plain(t); }
// Views that were made outside count their writes together: which of them are one is part of what was recorded.
int shares_with(const Tensor& t) {
  int s = memories.find(t.storage().unsafeGetStorageImpl());
  return s < (int)slots.size() ? s : -1;
}
bool match_tensor(Node& n, int slot, const Tensor& t, bool requires_grad) {
  if (!t.defined() || slot < 0) return !t.defined() && slot < 0;
  if (t.requires_grad() != requires_grad) return false;
  if (slot < (int)slots.size()) return slots[slot].object._unsafe_get_target() == t.unsafeGetTensorImpl();
  if (known.find(t) >= 0 || slot != (int)slots.size()) return false;
  for (auto& e : n.externals)
    if (e.slot == slot) {
      if (!e.meta.fits(t) || !may_be_external(t) || shares_with(t) != e.shares) return false;
      new_slot(t, true, e.flat);
      return true;
    }
  return false;
}
bool match_value(Node& n, const Arg& p, const IValue& v) {
  switch (p.kind) {
    case SLOT: return v.isTensor() && !is_number(v.toTensor()) && match_tensor(n, p.slot, v.toTensor(), p.requires_grad[0]);
    case NUMBER: return v.isTensor() && is_number(v.toTensor()) && v.toTensor().scalar_type() == p.dtype && is_same(p.value, number_of(v.toTensor()));
    case LIST: {
      if (!v.isTensorList()) return false;
      auto l = v.toTensorVector();
      bool ok = l.size() == p.slots.size();
      for (size_t i = 0; ok && i < l.size(); ++i) ok = match_tensor(n, p.slots[i], l[i], p.requires_grad[i]);
      return ok;
    }
    case OPTLIST: {
      if (!v.isList()) return false;
      auto l = v.toListRef();
      bool ok = l.size() == p.slots.size();
      for (size_t i = 0; ok && i < l.size(); ++i) ok = l[i].isNone() ? p.slots[i] < 0 : match_tensor(n, p.slots[i], l[i].toTensor(), p.requires_grad[i]);
      return ok;
    }
    case CONST: return v.isTensor() ? !v.toTensor().defined() && p.value.isNone() : is_same(p.value, v);
  }
  return false;
}
template <class Args>
bool match_args(Node& n, const Args& args) {
  const size_t base = slots.size();
  bool ok = args.size() == n.args.size();
  for (size_t i = 0; ok && i < n.args.size(); ++i) ok = match_value(n, n.args[i], args[i]);
  if (!ok) back_to(base);
  return ok;
}
void keep_externals(Node& n) {
  for (auto& e : n.externals) set_flat(e.slot, e.flat, object(e.slot), e.meta);
}
void note_slot(Arg& p, int slot, const Tensor& t) {
  if (p.kind == SLOT) p.slot = slot;
  else p.slots.push_back(slot);
  p.requires_grad.push_back(t.defined() && t.requires_grad());
}
int slot_for(Node& n, const Tensor& t) {
  if (!t.defined()) return -1;
  if (int s = known.find(t); s >= 0) return s;
  int shares = shares_with(t);
  int s = new_slot(t, true, -1);
  n.externals.push_back({s, Meta::of(t), shares});
  return s;
}
bool is_optlist(const IValue& v) {
  if (!v.isList() || v.isTensorList()) return false;
  for (auto& x : v.toListRef())
    if (x.isTensor()) return true;
  return false;
}
void encode(Node& n, c10::ArrayRef<IValue> args) {
  for (auto& v : args) {
    Arg p;
    if (v.isTensor() && is_number(v.toTensor())) {
      p.kind = NUMBER, p.value = number_of(v.toTensor()), p.dtype = v.toTensor().scalar_type();
    } else if (v.isTensor() && v.toTensor().defined()) {
      p.kind = SLOT;
      note_slot(p, slot_for(n, v.toTensor()), v.toTensor());
    } else if (v.isTensor()) {
      p.kind = CONST;
    } else if (v.isTensorList()) {
      p.kind = LIST;
      for (auto& t : v.toTensorVector()) note_slot(p, slot_for(n, t), t);
    } else if (is_optlist(v)) {
      p.kind = OPTLIST;
      for (auto& x : v.toListRef()) {
        Tensor t = x.isNone() ? Tensor() : x.toTensor();
        note_slot(p, slot_for(n, t), t);
      }
    } else {
      p.kind = CONST, p.value = v;
    }
    n.args.push_back(std::move(p));
  }
}
template <class F>
IValue decode(const Arg& p, F value) {
  switch (p.kind) {
    case SLOT: return value(p.slot);
    case NUMBER: {
      auto t = at::detail::scalar_tensor_static(p.value.toScalar(), p.dtype, at::kCPU);
      t.unsafeGetTensorImpl()->set_wrapped_number(true);
      return t;
    }
    case LIST: {
      std::vector<Tensor> l;
      for (int s : p.slots) l.push_back(s < 0 ? Tensor() : value(s));
      return l;
    }
    case OPTLIST: {
      c10::List<std::optional<Tensor>> l;
      for (int s : p.slots) l.push_back(s < 0 ? std::nullopt : std::optional<Tensor>(value(s)));
      return l;
    }
    default: return p.value;
  }
}
// What decides, above a kernel, which calls an op is made of, and a gradient's formula.
uint64_t switches() {
  auto& c = at::globalContext();
  uint64_t r = 0;
  for (bool on : {c.userEnabledFlashSDP(), c.userEnabledMemEfficientSDP(), c.userEnabledMathSDP(), c.userEnabledOverrideableSDP(),
                  c.allowFP16BF16ReductionMathSDP(), c.userEnabledMkldnn(), c.deterministicAlgorithms()})
    r = 2 * r + on;
  return r * 64 + static_cast<uint64_t>(at::get_default_dtype_as_scalartype());
}
bool is_tls_same(const Node& n) {
  auto t = c10::impl::tls_local_dispatch_key_set();
  return n.grad_mode == c10::GradMode::is_enabled() && t.included_ == n.tls.included_ && t.excluded_ == n.tls.excluded_ &&
      (n.is_direct || n.switches == switches());
}
void note_tls(Node& n) {
  n.grad_mode = c10::GradMode::is_enabled();
  n.switches = switches();
  n.tls = c10::impl::tls_local_dispatch_key_set();
  n.tls.included_ = (n.tls.included_ - kPython).add(kKey);  // the recorder's
}
template <class F>
void each_tensor(c10::ArrayRef<IValue> values, F f) {
  for (auto& v : values) {
    if (v.isTensor()) f(v.toTensor());
    else if (v.isTensorList()) for (auto& t : v.toTensorVector()) f(t);
    else if (is_optlist(v)) for (auto& x : v.toListRef()) f(x.isTensor() ? x.toTensor() : Tensor());
  }
}

// ---- a known call

void call_below(const c10::OperatorHandle& op, const Call* call, Stack* stack) {
  std::vector<std::pair<Tensor, uint32_t>> written;
  if (call)
    for (int i : call->written_lists)
      for (auto& t : (*stack)[stack->size() - op.schema().arguments().size() + i].toTensorVector()) written.emplace_back(t, t._version());
  {
    Below below(call && call->has_aliases);
    op.callBoxed(stack);
  }
  for (auto& [t, version] : written)
    if (t._version() == version) t.unsafeGetTensorImpl()->bump_version();
}

bool run_calls(const Node& n) {  // False: something has another size than recorded
  Stack stack;
  bool fits = true;
  for (auto& call : n.calls) {
    stack.clear();
    for (auto& p : call.args) stack.push_back(decode(p, value_of));
    call_below(call.op, &call, &stack);
    size_t k = 0;
    each_tensor(c10::ArrayRef<IValue>(stack), [&](const Tensor& t) {
      int f = k < call.outs.size() ? call.outs[k] : -1;
      if (k < call.shapes.size()) fits = fits && t.sizes() == at::IntArrayRef(call.shapes[k]);
      ++k;
      if (f >= 0 && !(f < (int)slot_of_flat.size() && slot_of_flat[f] >= 0)) flat_at(f).tensor = t;
    });
    if (!fits) return false;
  }
  return true;
}
void give_out(Node& n, size_t i, const Tensor& t) {
  auto& o = n.outs[i];
  if (o.is_new) {
    int s = new_slot(t, false, o.flat);
    TORCH_CHECK(s == o.slot, "live: other slots than recorded");
    if (o.meta.requires_grad) give_stub(s, t, o.stub);
    slots[s].meta = &o.meta;
    if (n.is_factory) slot_of_flat[(flat_at(o.flat), o.flat)] = s, fresh.push_back(s);
    else set_flat(s, o.flat, t, o.meta);
  } else if (o.meta.requires_grad && !(slots[o.slot].is_external && t.requires_grad())) {
    give_stub(o.slot, t, o.stub);  // written into, or as it was; not a leaf from outside
  }
}
// The node has given these results: they are the unit's from here on.
void take(Node* n, const std::vector<Tensor>& results) {
  for (size_t i = 0; i < results.size(); ++i) give_out(*n, i, results[i]);
  for (auto& [flat, of] : n->handles) {
    flat_at(std::max(flat, of));
    flats[flat] = flats[of];
  }
  for (int s : n->turned) {
    Tensor t = object(s);
    if (!has_stub(t)) give_stub(s, t, stub_of("AsStridedBackward0", t));
  }
}
void step_to(Node* n) { way.push_back(n), cur = n; }
bool fit(const Node& n, const std::vector<Tensor>& results) {
  if (results.size() != n.outs.size()) return false;
  for (size_t i = 0; i < results.size(); ++i)
    if (n.outs[i].is_new && !n.outs[i].meta.has_layout_of(results[i])) return false;
  return true;
}
void push_returns(const Node& n, const std::vector<Tensor>& results, Stack* stack) {
  auto at = [&](int s) {
    for (size_t i = 0; i < results.size(); ++i)
      if (n.outs[i].slot == s) return results[i];
    return Tensor();
  };
  for (auto& r : n.returns) {
    if (r.kind == 2) stack->push_back(r.other);
    else if (r.kind == 0) stack->push_back(at(r.outs[0]));
    else {
      std::vector<Tensor> l;
      for (int s : r.outs) l.push_back(at(s));
      stack->push_back(std::move(l));
    }
  }
}
// The results of a node whose calls, or Program, have run.
std::vector<Tensor> results_of(Node& n) {
  std::vector<Tensor> results;
  for (auto& o : n.outs) results.push_back(o.is_new ? flats[o.flat].get() : object(o.slot));
  return results;
}
bool answer(Node* n, Stack* stack, size_t nargs, size_t base) {
  Off off;
  hold();
  keep_externals(*n);
  if (!n->is_direct) {
    if (!run_calls(*n)) return false;
    auto results = results_of(*n);
    if (!fit(*n, results)) return false;
    take(n, results);
    torch::jit::drop(*stack, nargs);
    push_returns(*n, results, stack);
  } else {
    Stack args;
    if (n->is_dynamic) args.assign(stack->end() - nargs, stack->end());
    const size_t begin = stack->size() - nargs;
    call_below(*n->op, n->calls.empty() ? nullptr : &n->calls[0], stack);
    std::vector<Tensor> results;
    each_tensor(c10::ArrayRef<IValue>(stack->data() + begin, stack->size() - begin), [&](const Tensor& t) { if (t.defined()) results.push_back(t); });
    if (!fit(*n, results)) {
      TORCH_CHECK(n->is_dynamic, "live: results of another layout than recorded: ", n->op->operator_name());
      torch::jit::drop(*stack, stack->size() - begin);
      Node* other = nullptr;
      for (Node* c : cur->children) {  // of those that differ in what comes out, the one that does so like this
        if (c == n || c->key != n->key || !is_tls_same(*c) || c->refused || !c->is_direct) continue;
        back_to(base);
        if (match_args(*c, args) && fit(*c, results)) { other = c; break; }
      }
      if (!other) {
        back_to(base);
        for (auto& v : args) stack->push_back(v);
        return false;
      }
      n = other;
      keep_externals(*n);
      push_returns(*n, results, stack);
    }
    take(n, results);
  }
  step_to(n);
  static int64_t& answered = counts["ops answered"];
  ++answered;
  return true;
}

// ---- history, made later

void stop(const char* why) {
  py::error_scope kept;
  counts[std::string("stopped: ") + why]++;
  if (mode == RECORD) cb.attr("abort")(why);
  mode = PASS;
  include(false);
}
py::list externals_of(Node& n) {
  py::list l;
  for (auto& e : n.externals) l.append(object(e.slot));
  return l;
}
void before(Node& n) {
  auto numbers = cb.attr("before")(externals_of(n)).cast<std::vector<int>>();
  for (size_t i = 0; i < numbers.size(); ++i) {
    n.externals[i].flat = numbers[i];
    slots[n.externals[i].slot].flat = numbers[i];
  }
}
Arg arg_of(py::handle value, const c10::Argument& argument) {
  Arg p;
  auto what = value.cast<py::tuple>();
  auto kind = what[0].cast<std::string>();
  if (kind == "default") {
    p.kind = CONST;
    if (argument.default_value()) p.value = *argument.default_value();
  } else if (kind == "slot") {
    p.kind = SLOT, p.slot = what[1].cast<int>();
  } else if (kind == "list" || kind == "optlist") {
    p.kind = kind == "list" ? LIST : OPTLIST, p.slots = what[1].cast<std::vector<int>>();
  } else if (argument.type()->kind() == c10::TypeKind::TensorType) {
    p.kind = NUMBER;
    auto scalar = torch::jit::toIValue(what[1], c10::NumberType::get()).toScalar();
    p.dtype = scalar.type(), p.value = IValue(scalar);
  } else {
    p.kind = CONST, p.value = torch::jit::toIValue(what[1], argument.type());
  }
  return p;
}
void told(Node& n) {
  py::list outs;
  for (auto& o : n.outs) outs.append(py::make_tuple(o.is_new, object(o.slot)));
  py::tuple t = cb.attr("after")(n.id, (int)n.kind, outs);
  auto numbers = t[0].cast<std::vector<int>>();
  for (size_t i = 0; i < numbers.size(); ++i) {
    n.outs[i].flat = numbers[i];
    if (n.outs[i].is_new) slots[n.outs[i].slot].flat = numbers[i];
  }
  if (n.kind != OP && n.kind != FUNCTION && n.kind != ENGINE) return;
  n.calls.clear(), n.handles.clear();
  for (auto call : t[1]) {
    auto part = call.cast<py::tuple>();
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(part[0].cast<std::string>().c_str(), part[1].cast<std::string>().c_str());
    Call made{op, {}, part[3].cast<std::vector<int>>(), part[4].cast<std::vector<std::vector<int64_t>>>()};
    size_t i = 0;
    for (auto value : part[2]) made.args.push_back(arg_of(value, op.schema().arguments()[i++]));
    made.has_aliases = has_aliases(op.schema()), made.written_lists = written_lists(op.schema());
    n.calls.push_back(std::move(made));
  }
  for (size_t i = n.calls.size(); n.kind != ENGINE && i-- > 0;) {
    auto& call = n.calls[i];
    static auto detach = c10::OperatorName("aten::detach", "");
    if (call.op.operator_name() != detach || call.args[0].kind != SLOT) continue;
    bool is_read = false;
    for (size_t k = i + 1; k < n.calls.size(); ++k)
      for (auto& a : n.calls[k].args) is_read |= a.slot == call.outs[0] || std::count(a.slots.begin(), a.slots.end(), call.outs[0]);
    for (auto& o : n.outs) is_read |= o.flat == call.outs[0];
    if (is_read) continue;
    n.handles.insert(n.handles.begin(), {call.outs[0], call.args[0].slot});
    n.calls.erase(n.calls.begin() + i);
  }
  bool is_writing = false;
  for (auto& call : n.calls) is_writing |= call.op.schema().is_mutable();
  for (auto& call : n.calls) {  // a view that nobody sees needs no books, unless it is written through
    bool is_seen = is_writing;
    for (int f : call.outs) for (auto& o : n.outs) is_seen |= o.flat == f;
    call.has_aliases &= is_seen;
  }
  bool is_same_op = n.op && n.calls.size() == 1 && n.calls[0].op.operator_name() == n.op->operator_name();
  n.is_direct = n.op && (is_same_op || (n.calls.empty() && n.outs.empty()));
  n.is_dynamic = n.op && (n.op->hasTag(at::Tag::dynamic_output_shape) || n.op->hasTag(at::Tag::data_dependent_output));
  bool is_known = true;
  for (auto& o : n.outs) is_known &= !o.is_new || o.flat >= 0;
  if (!t[2].cast<bool>() || (!n.is_direct && !is_known)) n.refused = true;
}

// What the node did, once more, with autograd: kernels are answered with what they gave.
std::vector<Tensor> call_again(Node& n, const std::vector<Tensor>& objects) {
  auto now = c10::impl::tls_local_dispatch_key_set();
  c10::impl::ForceDispatchKeyGuard tls((n.tls.included_ | (now.included_ & kPython)).remove(kKey), n.tls.excluded_);
  at::AutoGradMode grad(n.grad_mode);
  auto value = [&](int s) { return objects[s]; };
  std::vector<Tensor> results;
  if (n.kind == OP) {
    Stack stack;
    for (auto& p : n.args) stack.push_back(decode(p, value));
    n.op->callBoxed(&stack);
    each_tensor(c10::ArrayRef<IValue>(stack), [&](const Tensor& t) { if (t.defined()) results.push_back(t); });
  } else if (n.kind == REQUIRES) {
    objects[n.args[0].slot].set_requires_grad(n.flags == "1");
  } else if (n.kind == FUNCTION) {
    py::list ins;
    for (int s : n.args[0].slots) ins.append(objects[s]);
    for (auto x : cb.attr("really_apply")(n.flags, ins)) results.push_back(x.cast<Tensor>());
  } else if (n.kind == ENGINE) {
    auto list = [&](const Arg& p) {
      py::list l;
      for (int s : p.slots) l.append(s < 0 ? py::object(py::none()) : py::cast(objects[s]));
      return l;
    };
    bool accumulates = n.flags[3] == '1';
    std::vector<std::pair<Tensor, Tensor>> grads;  // as they are now
    if (accumulates)
      for (size_t i = 0; i < n.outs.size(); ++i) {
        Tensor leaf = objects[n.args[3].slots[i]];
        grads.emplace_back(leaf, leaf.grad());
        leaf.mutable_grad() = Tensor();
      }
    py::object r = cb.attr("really_run")(list(n.args[0]), list(n.args[1]), list(n.args[2]), n.flags);
    if (accumulates) {
      for (auto& [leaf, grad] : grads) results.push_back(leaf.grad());  // those are empty
      for (size_t i = 0; i < grads.size(); ++i) {
        grads[i].first.mutable_grad() = grads[i].second;
        if (n.is_written[i]) objects[n.outs[i].slot].unsafeGetTensorImpl()->bump_version();
      }
    } else {
      for (auto x : r) if (!x.is_none()) results.push_back(x.cast<Tensor>());
    }
  }
  return results;
}
// The flats of what a node's calls give, for those who ask in their place.
py::dict answers_of(Node& n, const std::vector<Tensor>& objects) {
  py::dict d;
  auto add = [&](int f) {
    if (f < 0 || d.contains(py::int_(f)) || f >= (int)flats.size() || !flats[f].is_there()) return;
    int s = slot_of_flat[f];
    d[py::int_(f)] = s >= 0 && !objects[s].is_view() ? objects[s] : flats[f].get();
  };
  for (auto& call : n.calls) for (int f : call.outs) add(f);
  return d;
}
void set_version(const Tensor& t, int64_t version) {
  c10::VariableVersion counter = t.unsafeGetTensorImpl()->version_counter();
  counter.set_version(version);
}
void strip(std::vector<Tensor>& objects) {
  for (size_t f = 0; f < flats.size(); ++f)
    if (flats[f].tensor.defined() && slot_of_flat[f] < 0 && !flats[f].tensor.is_view()) set_version(flats[f].tensor, 0);
  for (size_t s = slots.size(); s-- > 0;) {  // the first of those that share a counter comes last
    auto& t = objects[s];
    set_version(t, slots[s].version);
    auto* meta = impl::get_autograd_meta(t);
    if (!meta || (slots[s].is_external && !has_stub(t))) continue;
    meta->grad_fn_ = nullptr, meta->output_nr_ = 0;
    if (!slots[s].is_external) meta->requires_grad_ = false;
  }
}
// Slots that a factory's binding made leaves, which dispatches nothing: later calls met them as such, and no call says why.
std::vector<bool> leaves_of_factories() {
  std::vector<bool> is_leaf(slots.size());
  std::vector<bool> is_told(slots.size());
  for (auto* n : way) {
    if (n->kind == REQUIRES) is_told[n->args[0].slot] = true;
    for (int s : n->turned) is_told[s] = true;
    for (auto& o : n->outs) is_told[o.slot] = is_told[o.slot] || o.meta.requires_grad;
    for (auto& p : n->args)
      for (size_t i = 0; i < p.requires_grad.size(); ++i) {
        int s = p.kind == SLOT ? p.slot : p.slots[i];
        if (s >= 0 && p.requires_grad[i] && !slots[s].is_external && !is_told[s]) is_leaf[s] = true;
      }
  }
  for (size_t s = 0; s < slots.size(); ++s) {
    auto* meta = impl::get_autograd_meta(object(s));
    if (!slots[s].is_external && !is_told[s] && meta && meta->requires_grad_ && !meta->grad_fn_) is_leaf[s] = true;
  }
  return is_leaf;
}
void make_history(bool record) {
  Off off;
  hold();
  ++counts[record ? "went another way" : "given up"];
  mode = record ? RECORD : PASS;
  std::vector<Tensor> objects;
  for (size_t s = 0; s < slots.size(); ++s) objects.push_back(object(s));
  std::vector<bool> is_alive;
  for (size_t s = 0; s < slots.size(); ++s) is_alive.push_back(alive(s).defined());
  auto is_leaf = leaves_of_factories();
  strip(objects);
  cb.attr("begin")();
  try {
    for (auto* n : way) {
      cb.attr("answer")(n->id, (int)n->kind, n->kind == ENGINE ? n->flags[1] == '1' : false, answers_of(*n, objects));
      auto results = call_again(*n, objects);
      TORCH_CHECK(results.size() == n->outs.size(), "live: other results than recorded");
      for (size_t i = 0; i < results.size(); ++i) {
        auto& p = objects[n->outs[i].slot];
        auto& r = results[i];
        if (n->outs[i].is_new && is_leaf[n->outs[i].slot]) p.set_requires_grad(true);
        if (p.is_same(r) || (n->kind == ENGINE && n->flags[1] == '0')) continue;  // those are empty
        if (!is_alive[n->outs[i].slot]) { p = r; continue; }
        if (history_of(r)) impl::set_gradient_edge(p, impl::gradient_edge(r));
      }
      cb.attr("answered")();
    }
  } catch (...) {
    if (debug()) try { throw; } catch (std::exception& e) { std::cerr << "live: making history raised: " << e.what() << std::endl; }
    py::error_scope kept;
    cb.attr("begun")(-1, py::dict());
    stop("raised while history was made");
    throw;
  }
  py::dict values;
  for (size_t f = 0; record && f < flats.size(); ++f)
    if (flats[f].is_there()) values[py::int_(f)] = slot_of_flat[f] >= 0 ? objects[slot_of_flat[f]] : flats[f].get();
  cb.attr("begun")(record ? cur->id : -1, values);
  if (!record) stop("history was asked for");
}

// What comes now cannot be told to a recorder, nor answered.
void give_up(const char* why) {
  if (mode == MATCH) make_history(false);
  else stop(why);
}

// ---- recording

void note_results(Node& n, c10::ArrayRef<IValue> results) {
  auto note = [&](const Tensor& t) {
    auto stub = !has_history(t) ? nullptr : stub_of(history_of(t) ? history_of(t)->name() : "AsStridedBackward0", t);
    int found = known.find(t);
    bool is_new = found < 0;
    int s = is_new ? new_slot(t, false, -1) : found;
    for (auto& o : n.outs) if (o.slot == s) return s;
    n.outs.push_back({s, is_new, Meta::of(t), -1, stub});
    return s;
  };
  for (auto& v : results) {
    Return r{2, {}, {}};
    if (v.isTensor()) r.kind = 0, r.outs.push_back(v.toTensor().defined() ? note(v.toTensor()) : -1);
    else if (v.isTensorList()) {
      r.kind = 1;
      for (auto& t : v.toTensorVector()) r.outs.push_back(t.defined() ? note(t) : -1);
    } else r.other = v;
    n.returns.push_back(r);
  }
}
std::vector<bool> require_now() {
  std::vector<bool> r;
  for (size_t s = 0; s < slots.size(); ++s) {
    Tensor t = alive(s);
    r.push_back(t.defined() && t.requires_grad());
  }
  return r;
}
void note_turned(Node& n, const std::vector<bool>& was) {
  auto now = require_now();
  for (size_t s = 0; s < was.size(); ++s) {
    if (was[s] || !now[s]) continue;
    bool is_told = false;
    for (auto& o : n.outs) is_told |= o.slot == (int)s;
    if (!is_told && !object(s).is_view()) n.turned.push_back(s);
  }
}
// An op on tensors alone that the unit knows nothing of, and whose history it could not make: it runs, and is no part of it.
bool passes_by(const c10::OperatorHandle& op, c10::ArrayRef<IValue> args) {
  static auto lift = c10::OperatorName("aten::lift_fresh", "");
  if (op.operator_name() == lift) return true;
  bool outside = false, inside = false;
  each_tensor(args, [&](const Tensor& t) {
    if (!t.defined() || is_number(t)) return;
    int s = known.find(t);
    if (s >= 0) inside |= !slots[s].is_external;
    else outside |= !may_be_external(t);
  });
  if (outside && inside && mode == MATCH) {
    py::gil_scoped_acquire gil;
    make_history(false);
  }
  return outside;
}
void as_ever(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kKey);
  op.callBoxed(stack);
}
void pass_by(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kPython.add(kKey));
  op.callBoxed(stack);
  ++counts["ops passed by"];
}
void meet_recording(const c10::OperatorHandle& op, Stack* stack) {
  const auto nargs = op.schema().arguments().size();
  auto args = c10::ArrayRef<IValue>(stack->data() + stack->size() - nargs, nargs);
  auto in = c10::impl::tls_local_dispatch_key_set().included_;
  static auto make_dual = c10::OperatorName("aten::_make_dual", "");
  if (at::autocast::is_autocast_enabled(at::kCPU) || in.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) || c10::InferenceMode::is_enabled() ||
      op.operator_name() == make_dual) {
    stop("a state of another kind");
    return as_ever(op, stack);
  }
  if (passes_by(op, args)) {
    Off off;
    pass_by(op, stack);
    return;
  }
  if (way.size() > 3000) {  // nobody knows whether it ends
    stop("a long unit");
    return as_ever(op, stack);
  }
  // Under a recorder a factory's result is detached before it is given out. That is the recorder's doing.
  static auto detach = c10::OperatorName("aten::detach", "");
  if (op.operator_name() == detach && way.size() && way.back()->is_factory && args[0].isTensor()) {
    int s = way.back()->outs[0].slot;
    if (slots[s].object._unsafe_get_target() == args[0].toTensor().unsafeGetTensorImpl()) {
      Off off;
      pass_by(op, stack);
      Tensor t = stack->back().toTensor();
      slots[s].object = Weak(t.getIntrusivePtr());
      known.set(t.unsafeGetTensorImpl(), s);
      cb.attr("moved")(slots[s].flat, t);
      return;
    }
  }
  Node* n = make(OP, cur);
  n->op = op, n->key = &op.schema();
  n->refused = true;  // until all is known of it
  note_tls(*n);
  auto was = require_now();
  encode(*n, args);
  was.resize(slots.size(), true);
  Off off;
  before(*n);
  try {
    as_ever(op, stack);
  } catch (...) {
    stop("an op raised");
    throw;
  }
  const auto nreturns = op.schema().returns().size();
  note_results(*n, c10::ArrayRef<IValue>(stack->data() + stack->size() - nreturns, nreturns));
  note_turned(*n, was);
  if (op.operator_name().name == "aten::requires_grad_") stop("requires_grad_ by the dispatcher");
  for (auto& o : n->outs)
    if (mode == RECORD && !is_plain(object(o.slot))) stop("a result of another kind");
  if (mode != RECORD) return;
  n->refused = false;
  bool has_tensors = false;
  for (auto& p : n->args) has_tensors |= p.kind != CONST;
  const auto& name = op.operator_name().name;
  bool is_like = name.size() > 5 && name.compare(name.size() - 5, 5, "_like") == 0;
  n->is_factory = (!has_tensors || is_like) && n->outs.size() == 1 && n->outs[0].is_new && n->returns[0].kind == 0;
  told(*n);
  step_to(n);
}

// ---- what the dispatcher meets

void meet(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python) || is_busy) return as_ever(op, stack);  // torch.tensor, which writes into memory
  if (op.operator_name().name.rfind("profiler::", 0) == 0) return as_ever(op, stack);
  if (mode == RECORD) {
    py::gil_scoped_acquire gil;
    Busy busy;
    return meet_recording(op, stack);
  }
  if (mode != MATCH) return as_ever(op, stack);
  if (c10::impl::tls_local_dispatch_key_set().included_.has_any(kOthers) || at::autocast::is_autocast_enabled(at::kCPU)) {
    {
      py::gil_scoped_acquire gil;
      Busy busy;
      make_history(false);
    }
    return as_ever(op, stack);
  }
  const auto nargs = op.schema().arguments().size();
  const void* key = &op.schema();
  auto args = c10::ArrayRef<IValue>(stack->data() + stack->size() - nargs, nargs);
  const size_t base = slots.size();
  bool is_refused = false;
  for (Node* c : cur->children) {
    if (c->key != key || !is_tls_same(*c) || !match_args(*c, args)) continue;
    is_refused = c->refused;
    if (is_refused) back_to(base);
    else if (answer(c, stack, nargs, base)) return;
    break;
  }
  py::gil_scoped_acquire gil;
  Busy busy;
  if (!is_refused && passes_by(op, args)) {
    Off off;
    return pass_by(op, stack);
  }
  if (mode == MATCH) {
    if (debug()) {
      std::cerr << "live: other way at " << way.size() << ": " << op.operator_name();
      for (auto* c : cur->children) {
        std::cerr << " | " << (c->op ? toString(c->op->operator_name()) : std::to_string(c->kind));
        if (c->key != key) continue;
        std::cerr << " tls " << is_tls_same(*c);
        for (size_t i = 0; i < nargs; ++i) std::cerr << " " << match_value(*c, c->args[i], args[i]);
        back_to(base);
      }
      std::cerr << std::endl;
    }
    make_history(!is_refused);
  }
  if (mode == RECORD) {
    include(true);
    meet_recording(op, stack);
    include(mode == RECORD);
    return;
  }
  as_ever(op, stack);
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&meet>()); }

// ---- what Python meets

Node* make_special(Kind kind, const std::string& flags) {
  Node* n = make(kind, cur);
  n->flags = flags;
  include(true), note_tls(*n), include(false);
  return n;
}
Node* find_special(Kind kind, const std::string& flags, const std::vector<IValue>& args) {
  for (Node* c : cur->children)
    if (c->kind == kind && c->flags == flags && is_tls_same(*c) && match_args(*c, args)) return c;
  return nullptr;
}
bool has_hooks(const Tensor& t) {
  auto* m = impl::get_autograd_meta(t);
  if (!m) return false;
  auto sum = m->grad_accumulator_.lock();
  bool has_sums = sum && (!sum->pre_hooks().empty() || !sum->post_hooks().empty() || !sum->tensor_pre_hooks().empty());
  return has_sums || !m->hooks_.empty() || m->post_acc_grad_hooks_;
}
void run_plan(Node& n) {
  if (!n.is_compiled) {
    ++counts["backward passes compiled"];
    py::tuple t = cb.attr("compile")(n.id);
    n.plan = t[0], n.plan_ins = t[1].cast<std::vector<int>>(), n.plan_outs = t[2].cast<std::vector<int>>(), n.is_compiled = true;
  }
  if (n.plan.is_none()) return;
  py::list ins;
  for (int f : n.plan_ins) ins.append(flats[f].get());
  py::list outs = n.plan(ins);
  for (size_t i = 0; i < n.plan_outs.size(); ++i) flat_at(n.plan_outs[i]).tensor = outs[i].cast<Tensor>();
}
// True, and what autograd.grad returns; or False: Python makes the call.
py::tuple engine(std::vector<Tensor> outs, std::vector<std::optional<Tensor>> grads, std::vector<Tensor> ins, const std::string& flags) {
  auto no = py::make_tuple(false, py::none());
  if (!is_on()) return no;
  Busy busy;
  const bool accumulates = flags[3] == '1';
  auto leave = [&](const char* why) { return give_up(why), no; };
  auto is_met = [](const Tensor& t) { return known.find(t) >= 0; };
  for (auto& t : outs) if (!is_mine(t)) return leave("backward from outside");
  for (auto& t : ins) if (!is_met(t)) return leave("backward to what is outside");
  for (auto& t : grads) if (t && t->defined() && !is_met(*t) && !may_be_external(*t)) return leave("gradients from outside");
  auto returned = [&](Node* n, const std::vector<Tensor>& results) -> py::tuple {
    if (accumulates) return py::make_tuple(true, py::none());
    std::map<int, Tensor> of;
    for (size_t i = 0; i < results.size(); ++i) of[n->outs[i].slot] = results[i];
    py::list l;
    for (auto& r : n->returns) l.append(r.outs[0] < 0 ? py::object(py::none()) : py::cast(of.at(r.outs[0])));
    return py::make_tuple(true, py::tuple(l));
  };
  std::vector<Tensor> plain;
  for (auto& t : grads) plain.push_back(t ? *t : Tensor());
  const std::vector<IValue> values{IValue(outs), IValue(plain), IValue(ins)};
  if (mode == MATCH) {
    const size_t base = slots.size();
    for (Node* c : cur->children) {
      if (c->kind != ENGINE || c->refused || c->flags != flags || !is_tls_same(*c)) continue;
      bool ok = true;
      for (size_t i = 0; ok && i < 3; ++i) ok = match_value(*c, c->args[i], values[i]);
      for (size_t i = 0; ok && i < c->leaves.size(); ++i) ok = !has_hooks(object(c->leaves[i]));
      std::vector<uint32_t> versions;
      if (accumulates)
        for (size_t i = 0; ok && i < c->args[3].slots.size(); ++i) {
          Tensor grad = object(c->args[3].slots[i]).grad();
          ok = match_tensor(*c, c->args[4].slots[i], grad, false);
          versions.push_back(grad.defined() ? grad._version() : 0);
        }
      if (!ok) { back_to(base); continue; }
      Off off;
      hold();
      keep_externals(*c);
      if (c->calls.empty()) run_plan(*c);
      else if (!run_calls(*c)) { back_to(base); continue; }
      auto results = results_of(*c);
      TORCH_CHECK(fit(*c, results), "live: gradients of another layout than recorded");
      take(c, results);
      if (accumulates)
        for (size_t i = 0; i < results.size(); ++i) {
          if (c->args[4].slots[i] < 0) object(c->args[3].slots[i]).mutable_grad() = results[i];
          else if (c->is_written[i] && results[i]._version() == versions[i]) results[i].unsafeGetTensorImpl()->bump_version();
        }
      step_to(c);
      return returned(c, results);
    }
    make_history(true);
  }
  Off off;
  Node* n = make_special(ENGINE, flags);
  encode(*n, values);
  auto& leaves = n->leaves;
  for (size_t s = 0; s < slots.size(); ++s) {
    Tensor t = alive(s);
    if (!t.defined() || !t.requires_grad() || has_history(t)) continue;
    Tensor g = t.grad();
    if (has_hooks(t) || (accumulates && g.defined() && (g.requires_grad() || (known.find(g) < 0 && !may_be_external(g))))) {
      n->refused = true;
      stop("a leaf with hooks, or another kind of gradient");
      return no;
    }
    leaves.push_back(s);
  }
  if (flags[0] == '0') {
    std::vector<torch::autograd::Node*> todo;
    for (auto& t : outs) if (history_of(t)) todo.push_back(history_of(t));
    while (!todo.empty()) {
      auto* x = todo.back();
      todo.pop_back();
      if (!freed.insert(x).second) continue;
      for (auto& e : x->next_edges()) if (e.function) todo.push_back(e.function.get());
    }
  }
  Arg grads_before{LIST};
  std::map<int, uint32_t> versions;
  if (accumulates)
    for (int s : leaves) {
      Tensor g = object(s).grad();
      note_slot(grads_before, slot_for(*n, g), g);
      versions[s] = g.defined() ? g._version() : 0;
    }
  before(*n);
  py::object r;
  py::list pouts, pgrads, pins;
  for (auto& t : outs) pouts.append(t);
  for (auto& t : grads) pgrads.append(t && t->defined() ? py::cast(*t) : py::object(py::none()));
  for (auto& t : ins) pins.append(t);
  try {
    r = cb.attr("really_run")(pouts, pgrads, pins, flags);
  } catch (...) {
    n->refused = true;
    stop("backward raised");
    throw;
  }
  std::vector<IValue> given;
  if (accumulates) {
    Arg of{LIST}, into{LIST};
    for (size_t i = 0; i < grads_before.slots.size(); ++i) {
      int s = leaves[i];
      Tensor g = object(s).grad();
      if (!g.defined()) continue;
      bool is_other = grads_before.slots[i] >= 0 && known.find(g) != grads_before.slots[i];
      if (is_other) n->refused = true;  // the sum is another tensor
      of.slots.push_back(s), into.slots.push_back(grads_before.slots[i]), given.emplace_back(g);
      n->is_written.push_back(grads_before.slots[i] >= 0 && g._version() != versions[s]);
    }
    n->args.push_back(of), n->args.push_back(into);
  } else {
    for (auto x : r) given.emplace_back(x.is_none() ? Tensor() : x.cast<Tensor>());
  }
  note_results(*n, given);
  told(*n);
  if (accumulates && !n->calls.empty())  // it may have to run once more, when it has written already
    for (int s : n->args[4].slots) n->refused |= s >= 0;
  if (n->refused) stop("gradients of another kind");
  else step_to(n);
  return py::make_tuple(true, r);
}
// An autograd.Function, as if it were an op: its Python is not run where it is answered.
py::object function(std::vector<Tensor> ins, const std::string& flags) {
  if (!is_on()) return py::none();
  Busy busy;
  std::vector<IValue> args{IValue(ins)};
  for (auto& t : ins)
    if (known.find(t) < 0 && !may_be_external(t)) {
      give_up("a function of what is outside");
      return py::none();
    }
  if (mode == MATCH) {
    const size_t base = slots.size();
    Node* n = find_special(FUNCTION, flags, args);
    if (n && !n->refused) {
      Off off;
      hold();
      keep_externals(*n);
      auto results = run_calls(*n) ? results_of(*n) : std::vector<Tensor>();
      if (fit(*n, results)) {
        take(n, results);
        step_to(n);
        return py::tuple(py::cast(results));
      }
    }
    back_to(base);
    make_history(true);
  }
  Off off;
  Node* n = make_special(FUNCTION, flags);
  encode(*n, args);
  before(*n);
  py::tuple r;
  try {
    r = cb.attr("really_apply")(flags, ins);
  } catch (...) {
    n->refused = true;
    stop("a function raised");
    throw;
  }
  std::vector<IValue> values;
  for (auto x : r) values.emplace_back(x.cast<Tensor>());
  note_results(*n, values);
  told(*n);
  step_to(n);
  return r;
}
// requires_grad_ does not dispatch. False: it is not about what the unit knows.
bool requires_grad(Tensor t, bool on) {
  if (!is_on()) return false;
  Busy busy;
  int s = known.find(t);
  if (s < 0) return false;
  if (slots[s].is_external || has_history(t)) {
    give_up("requires_grad_ of what is outside");
    return false;
  }
  std::vector<IValue> args{t};
  const std::string flags = on ? "1" : "0";
  if (mode == MATCH) {
    if (Node* n = find_special(REQUIRES, flags, args)) {
      t.set_requires_grad(on);
      step_to(n);
      return true;
    }
    make_history(true);
  }
  Off off;
  Node* n = make_special(REQUIRES, flags);
  encode(*n, args);
  t.set_requires_grad(on);
  told(*n);
  step_to(n);
  return true;
}
// Somebody asks for what only history has.
void ask(Tensor t, bool only_looks) {
  if (!is_on() || known.find(t) < 0) return;
  Busy busy;
  if (mode == RECORD && only_looks) cb.attr("looked_at")();  // it is there; perhaps inside of what switches modes off
  else give_up("autograd's own");
}
void leave(const char* why) {
  if (!is_on()) return;
  Busy busy;
  give_up(why);
}

void start() {
  if (c10::InferenceMode::is_enabled() || at::get_default_dtype_as_scalartype() != at::kFloat || at::globalContext().deterministicAlgorithms() ||
      c10::impl::tls_local_dispatch_key_set().included_.has_any(kOthers) ||
      at::autocast::is_autocast_enabled(at::kCPU) || (mode != OFF && mode != PASS))
    return;
  if (counts["went another way"] + counts["given up"] > 40 + counts["units answered"]) {
    mode = OFF;
    return;
  }
  if (!root) root = make(END, nullptr);
  mode = MATCH;
  forget();
  include(true);
}
// Ends a unit. Where its history lives on, it is made.
void sync_unit() {
  if (mode == MATCH && !way.empty()) {
    Busy busy;
    Node* n = nullptr;
    for (Node* c : cur->children) if (c->kind == END) n = c;
    bool is_whole = n && !n->refused;
    for (int s : stubbed) {
      if (!is_whole) break;
      Tensor t = alive(s);
      if (!t.defined()) continue;
      is_whole = !has_stub(t) || !is_held_by_python(t) || std::count(n->freed.begin(), n->freed.end(), s);
    }
    if (is_whole) ++counts["units answered"];
    else make_history(n == nullptr);
  }
  if (mode == RECORD) {
    Busy busy;
    include(false);
    Node* n = make(END, cur);
    bool is_fine = cb.attr("finish")(n->id).cast<bool>(), lives_on = false;  // the recorder lets go first
    for (size_t s = 0; s < slots.size(); ++s) {
      Tensor t = alive(s);
      if (!t.defined() || !has_history(t) || !is_held_by_python(t)) continue;
      if (freed.count(history_of(t))) n->freed.push_back(s);
      else {
        lives_on = true;
        if (debug()) std::cerr << "live: lives on: " << t.sizes() << std::endl;
      }
    }
    if (lives_on) ++counts["refused: a graph that lives on"];
    static bool keeps_history = getenv("LIVE_HISTORY");  // history of what lives on is made at the end of each unit: to test it
    n->refused = !is_fine || (lives_on && !keeps_history);
    if (n->refused && way.size()) way[0]->refused = way[0]->children.size() <= 1;
    ++counts["units recorded"];
  }
  include(false);
  mode = OFF;
  forget();
}
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("configure", [](py::object o) { cb = o; });
  m.def("start", &start);
  m.def("sync", &sync_unit);
  m.def("leave", &leave);
  m.def("ask", &ask);
  m.def("requires_grad", &requires_grad);
  m.def("engine", &engine);
  m.def("function", &function);
  m.def("mode", [] { return (int)mode; });
  m.def("counts", [] { return counts; });
  m.def("invalidate", [](int id) { nodes[id]->is_compiled = false; });
  m.def("reset", [] {
    include(false);
    mode = OFF;
    forget();
    if (root) root->children.clear();
    for (auto* n : {"units answered", "went another way", "given up"}) totals[n] += counts[n], counts[n] = 0;
  });
  m.def("totals", [] { return totals; });
}
