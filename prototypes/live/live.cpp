// The live way: ops are met at a key above autograd, answered with tensors that have no values yet, and run later.
//
//   a unit      from one sync to the next (the step's begin and end, an optimizer's update)
//   the trie    nodes are calls that were seen, in order; a unit is a way from the root to an END
//   a slot      number of a tensor in a unit, in the order in which it is first met: an argument from outside, or a result
//   MATCH       calls equal those of the trie: results are placeholders, nothing runs but at boundaries (observers)
//   RECORD      what is new runs eagerly below a recorder; what had been put off runs first, in order, with autograd
//   PASS        the rest of the unit runs as it would without all this
//
// Single-threaded, CPU, with the GIL.
#include <ATen/ATen.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>
#include <ATen/ScalarOps.h>
#include <torch/library.h>
#include <torch/csrc/autograd/python_variable.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <c10/core/InferenceMode.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <set>
#include <chrono>
#include <iostream>

namespace {
using at::Tensor; using c10::IValue; using torch::jit::Stack; using c10::TensorImpl;
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
enum Mode { OFF, MATCH, RECORD, PASS };
enum Kind { OP, BACKWARD, GRAD, OBSERVE, END, FUNCTION, REQUIRES };
enum PatKind : uint8_t { SLOT, LIST, OPTLIST, NUMBER, CONST };

struct Meta {
  at::ScalarType dtype; std::vector<int64_t> sizes, strides; int64_t offset = 0; bool rg = false, leaf = true; c10::DispatchKeySet keys;
  static Meta of(const Tensor& t) {
    return {t.scalar_type(), t.sizes().vec(), t.strides().vec(), t.storage_offset(), t.requires_grad(), !t.grad_fn(), t.key_set()};
  }
  bool fits(const Tensor& t) const {
    auto* i = t.unsafeGetTensorImpl();
    return i->key_set() == keys && at::typeMetaToScalarType(i->dtype()) == dtype && i->sizes() == at::IntArrayRef(sizes) &&
        i->strides() == at::IntArrayRef(strides) && i->storage_offset() == offset && i->requires_grad() == rg;
  }
};
struct Pat { PatKind kind; int slot = -1; IValue value; std::vector<int> slots; at::ScalarType dtype = at::kFloat; };
struct Out { int slot; bool is_new; Meta meta; bool turns_rg = false; int flat = -1; Tensor pool; };
struct Ret { int kind; std::vector<int> outs; IValue other; };  // 0 tensor, 1 list, 2 other
struct Ext { int slot; Meta meta; };
struct Node {
  int id; Kind kind; std::optional<c10::OperatorHandle> op; const void* key = nullptr; std::string flags;
  std::vector<Pat> args; std::vector<Ext> exts; std::vector<Out> outs; std::vector<Ret> rets;
  c10::impl::LocalDispatchKeySet tls{c10::impl::PODLocalDispatchKeySet{}}; bool grad_mode = true;
  std::vector<Node*> children; Node* parent = nullptr; bool boundary = false, factory = false, refused = false, compiled = false, sets_rg = false;
  py::object plan; std::vector<std::pair<bool, int>> ins; std::vector<int> piece_outs; std::vector<int> alive;
};

struct Stub : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    TORCH_CHECK(false, "live prototype: the graph of this tensor was not made, or was freed by backward()");
  }
  std::string name() const override { return "LiveStub"; }
};

Mode mode = OFF; bool busy = false;
auto& nodes = *new std::vector<std::unique_ptr<Node>>; Node* root = nullptr; Node* cur = nullptr;
auto& vals = *new std::vector<Tensor>; std::vector<bool> is_ext; std::vector<int> flat_of; auto& flat = *new std::vector<Tensor>; std::vector<Node*> way;
using Weak = c10::weak_intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>;
auto& factories = *new std::vector<std::pair<int, Weak>>;  // what factories gave: who asked takes it as it is only if nobody else has it
ska::flat_hash_map<TensorImpl*, int> known;
py::object& cb = *new py::object; std::map<std::string, int64_t> counts, total; c10::intrusive_ptr<Stub> stub; bool ran_piece = false; auto& freed = *new std::set<torch::autograd::Node*>;
auto& swapped = *new std::unordered_map<TensorImpl*, std::pair<Tensor, int>>;  // what calls under way still hold: the placeholders of before
Tensor now(const Tensor& t) { if (!t.defined() || swapped.empty()) return t; auto it = swapped.find(t.unsafeGetTensorImpl()); return it == swapped.end() ? t : vals[it->second.second]; }

bool debug() { static bool d = getenv("LIVE_DEBUG"); return d; }
void include(bool on) { c10::impl::tls_set_dispatch_key_included(kKey, on); }
struct Off {  // no key while inside
  bool before; Off() : before(c10::impl::tls_is_dispatch_key_included(kKey)) { include(false); }
  ~Off() { include(before && (mode == MATCH || mode == RECORD)); }
};

struct Timer { const char* name; std::chrono::steady_clock::time_point t = std::chrono::steady_clock::now(); bool on;
  static bool wanted() { static bool w = getenv("LIVE_TIMES"); return w; }
  explicit Timer(const char* n) : name(n), on(wanted()) {}
  ~Timer() { if (on) counts[name] += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - t).count(); } };
Node* make(Kind kind, Node* parent) {
  nodes.push_back(std::make_unique<Node>()); auto* n = nodes.back().get();
  n->id = nodes.size() - 1; n->kind = kind; n->parent = parent; if (parent) parent->children.insert(parent->children.begin(), n); return n;
}

// ---- placeholders
c10::Storage nothing() {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, at::DataPtr(nullptr, at::kCPU), nullptr, false));
}
const c10::Storage& shared_nothing() { static c10::Storage s = nothing(); return s; }
void give_stub(TensorImpl* i) {
  if (!stub) stub = c10::make_intrusive<Stub>();
  auto meta = std::make_unique<torch::autograd::AutogradMeta>(); meta->grad_fn_ = stub; meta->output_nr_ = 0;
  i->set_autograd_meta(std::move(meta));
}
bool held_by_python(const Tensor& t) {
  auto* obj = t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj(); return obj && Py_REFCNT(obj) > 1;
}
Tensor placeholder(Out& out) {
  auto& m = out.meta;
  if (out.pool.defined()) {  // of a unit before: nobody has it any more
    auto* i = out.pool.unsafeGetTensorImpl();
    if (!m.rg) { if (i->autograd_meta()) i->set_autograd_meta(nullptr); }
    else if (!i->autograd_meta() || static_cast<torch::autograd::AutogradMeta*>(i->autograd_meta())->grad_fn_.get() != stub.get()) give_stub(i);
    return out.pool;
  }
  Tensor t = at::detail::make_tensor<TensorImpl>(c10::Storage(shared_nothing()), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(m.dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(m.sizes, m.strides, m.offset);
  if (m.rg) give_stub(t.unsafeGetTensorImpl());
  out.pool = t; ++counts["placeholders made"]; return t;
}
void fill_in(const Tensor& p, const Tensor& value) {
  auto* i = p.unsafeGetTensorImpl(); if (i == value.unsafeGetTensorImpl()) return;
  i->set_storage_keep_dtype(value.storage());
  if (i->storage_offset() != value.storage_offset()) i->set_storage_offset(value.storage_offset());
  TORCH_CHECK(i->sizes() == value.sizes() && i->strides() == value.strides(), "live: a value of another layout than recorded");
}

void hold() {  // whoever asked has taken it
  for (auto& [slot, weak] : factories) if (!vals[slot].defined()) if (auto p = weak.lock()) vals[slot] = Tensor(std::move(p));
}
// ---- unit state
void forget() {
  for (auto* n : way) for (auto& o : n->outs) if (o.is_new && o.pool.defined() && o.slot < (int)vals.size()) {
    auto* i = o.pool.unsafeGetTensorImpl();
    bool dead = !held_by_python(o.pool) && o.pool.use_count() <= (i->pyobj_slot()->load_pyobj() ? 3 : 2);  // pool, vals (and the object)
    if (dead && o.pool.is_same(vals[o.slot])) { if (i->storage().data()) i->set_storage_keep_dtype(shared_nothing()); i->set_sizes_and_strides(o.meta.sizes, o.meta.strides, o.meta.offset); }
    else o.pool = Tensor();
  }
  vals.clear(); is_ext.clear(); flat_of.clear(); flat.clear(); way.clear(); known.clear(); swapped.clear(); factories.clear(); freed.clear(); cur = root; ran_piece = false;
}
int new_slot(const Tensor& t, bool ext) {
  vals.push_back(t); is_ext.push_back(ext); flat_of.push_back(-1); if (t.defined()) known[t.unsafeGetTensorImpl()] = vals.size() - 1; return vals.size() - 1;
}
Tensor real(int slot) {
  if (is_ext[slot]) return vals[slot];
  int f = flat_of[slot]; TORCH_CHECK(f >= 0, "live: value without a flat slot");
  if (f < (int)flat.size() && flat[f].defined()) return flat[f];
  TORCH_CHECK(vals[slot].storage().data() || vals[slot].numel() == 0, "live: value not there");
  return vals[slot];
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
bool same_const(const IValue& a, const IValue& b) {
  if (a.tag != b.tag) return false;
  if (a.isNone()) return true;
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble()) { double x = a.toDouble(), y = b.toDouble(); return std::memcmp(&x, &y, 8) == 0; }
  if (a.isBool()) return a.toBool() == b.toBool();
  if (a.isIntList()) { auto x = a.toIntList(), y = b.toIntList(); if (x.size() != y.size()) return false; for (size_t i = 0; i < x.size(); ++i) if (x.get(i) != y.get(i)) return false; return true; }
  if (a.isGenerator()) return false;
  return a == b;
}
bool may_be_ext(const Tensor& t) {
  return t.layout() == at::kStrided && t.device().is_cpu() && !(t.requires_grad() && t.grad_fn()) && !t.is_inference() &&
      !t.key_set().has(c10::DispatchKey::Python) && t.has_storage() && !t.is_conj() && !t.is_neg();
}
bool match_tensor(Node& n, int slot, const Tensor& t, size_t base) {
  if (!t.defined()) return slot == -1;
  if (slot < 0) return false;
  auto* i = t.unsafeGetTensorImpl();
  if (slot < (int)vals.size()) {
    if (vals[slot].defined()) return vals[slot].unsafeGetTensorImpl() == i;
    auto it = known.find(i); if (it == known.end() || it->second != slot) return false;
    vals[slot] = t; return true;
  }
  for (auto& e : n.exts) if (e.slot == slot) {
    if (!e.meta.fits(t) || (e.meta.rg && t.grad_fn()) || known.count(i)) return false;
    for (size_t k = base; k < vals.size(); ++k) if (vals[k].unsafeGetTensorImpl() == i) return false;
    vals.push_back(t); is_ext.push_back(true); flat_of.push_back(-1); return true;
  }
  return false;
}
bool match_value(Node& n, const Pat& p, const IValue& v, size_t base) {
  switch (p.kind) {
    case SLOT: return v.isTensor() && !is_number(v.toTensor()) && match_tensor(n, p.slot, v.toTensor(), base);
    case NUMBER: return v.isTensor() && is_number(v.toTensor()) && v.toTensor().scalar_type() == p.dtype && same_const(p.value, number_of(v.toTensor()));
    case LIST: {
      if (!v.isTensorList()) return false; auto l = v.toTensorVector(); if (l.size() != p.slots.size()) return false;
      for (size_t i = 0; i < l.size(); ++i) if (!match_tensor(n, p.slots[i], l[i], base)) return false; return true;
    }
    case OPTLIST: {
      if (!v.isList()) return false; auto l = v.toListRef(); if (l.size() != p.slots.size()) return false;
      for (size_t i = 0; i < l.size(); ++i) if (!(l[i].isNone() ? p.slots[i] == -1 : match_tensor(n, p.slots[i], l[i].toTensor(), base))) return false; return true;
    }
    case CONST: return (v.isTensor() && !v.toTensor().defined()) ? p.value.isNone() : same_const(p.value, v);
  }
  return false;
}
void back_to(size_t base) {
  for (size_t k = base; k < vals.size(); ++k) if (vals[k].defined()) known.erase(vals[k].unsafeGetTensorImpl());
  vals.resize(base); is_ext.resize(base); flat_of.resize(base);
}
template <class Args> bool match_args(Node& n, const Args& args) {
  const size_t base = vals.size(); bool ok = args.size() == n.args.size();
  for (size_t i = 0; ok && i < n.args.size(); ++i) ok = match_value(n, n.args[i], args[i], base);
  if (!ok) { vals.resize(base); is_ext.resize(base); flat_of.resize(base); return false; }
  for (size_t k = base; k < vals.size(); ++k) known[vals[k].unsafeGetTensorImpl()] = k;
  return true;
}
int slot_for(Node& n, const Tensor& t) {
  if (!t.defined()) return -1;
  auto it = known.find(t.unsafeGetTensorImpl()); if (it != known.end()) return it->second;
  int s = new_slot(t, true); n.exts.push_back({s, Meta::of(t)}); return s;
}
bool is_optlist(const IValue& v) { return v.isList() && !v.isTensorList() && v.toListRef().size() && [&] { for (auto& x : v.toListRef()) if (x.isTensor()) return true; return false; }(); }
void encode(Node& n, c10::ArrayRef<IValue> args) {
  for (auto& v : args) {
    Pat p;
    if (v.isTensor() && is_number(v.toTensor())) { p.kind = NUMBER; p.value = number_of(v.toTensor()); p.dtype = v.toTensor().scalar_type(); }
    else if (v.isTensor() && v.toTensor().defined()) { p.kind = SLOT; p.slot = slot_for(n, v.toTensor()); }
    else if (v.isTensor()) { p.kind = CONST; p.value = IValue(); }
    else if (v.isTensorList()) { p.kind = LIST; for (auto& t : v.toTensorVector()) p.slots.push_back(slot_for(n, t)); }
    else if (is_optlist(v)) { p.kind = OPTLIST; for (auto& x : v.toListRef()) p.slots.push_back(x.isNone() ? -1 : slot_for(n, x.toTensor())); }
    else { p.kind = CONST; p.value = v; }
    n.args.push_back(std::move(p));
  }
}
template <class F> IValue decode(const Pat& p, F value) {
  switch (p.kind) {
    case SLOT: return value(p.slot);
    case NUMBER: { auto t = at::detail::scalar_tensor_static(p.value.toScalar(), p.dtype, at::kCPU); t.unsafeGetTensorImpl()->set_wrapped_number(true); return t; }
    case LIST: { std::vector<Tensor> l; for (int s : p.slots) l.push_back(s < 0 ? Tensor() : value(s)); return l; }
    case OPTLIST: { c10::List<std::optional<Tensor>> l; for (int s : p.slots) l.push_back(s < 0 ? std::nullopt : std::optional<Tensor>(value(s))); return l; }
    default: return p.value;
  }
}
bool tls_same(const Node& n) {
  auto t = c10::impl::tls_local_dispatch_key_set();
  return n.grad_mode == c10::GradMode::is_enabled() && t.included_ == n.tls.included_ && t.excluded_ == n.tls.excluded_;
}
void tls_note(Node& n) {
  n.grad_mode = c10::GradMode::is_enabled(); n.tls = c10::impl::tls_local_dispatch_key_set();
  n.tls.included_ = n.tls.included_ - c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});  // the recorder's
}

// ---- answering
void set_rg(const Tensor& t) { give_stub(t.unsafeGetTensorImpl()); }
void answer(Node& n) {
  for (auto& o : n.outs) {
    if (o.is_new) { int s = new_slot(placeholder(o), false); flat_of[s] = o.flat; }
    else if (o.turns_rg) set_rg(vals[o.slot]);
  }
}
void push_results(Node& n, Stack* stack) {
  for (auto& r : n.rets) {
    if (r.kind == 0) stack->push_back(r.outs[0] < 0 ? Tensor() : vals[r.outs[0]]);
    else if (r.kind == 1) { std::vector<Tensor> l; for (int s : r.outs) l.push_back(vals[s]); stack->push_back(std::move(l)); }
    else stack->push_back(r.other);
  }
}

// ---- pieces
bool run_piece(Node& n) {  // False: it raised, and eager has to say what
  if (!n.compiled) {
    py::gil_scoped_acquire g; ++counts["pieces compiled"];
    py::tuple t = cb.attr("compile")(n.id);
    if (t[0].cast<py::object>().ptr() == Py_False) return false;  // no way past here was learnt
    n.plan = t[0]; n.ins = t[1].cast<std::vector<std::pair<bool, int>>>(); n.piece_outs = t[2].cast<std::vector<int>>(); n.compiled = true;
  }
  if (n.plan.is_none()) return true;
  Timer timer("ns: pieces");
  py::gil_scoped_acquire g;
  PyObject* list = PyList_New(n.ins.size());
  for (size_t i = 0; i < n.ins.size(); ++i) PyList_SET_ITEM(list, i, THPVariable_Wrap(n.ins[i].first ? vals[n.ins[i].second] : flat[n.ins[i].second]));
  PyObject* r = PyObject_CallOneArg(n.plan.ptr(), list); Py_DECREF(list);
  if (!r) { PyErr_Clear(); return false; }
  ran_piece = true; ++counts["pieces run"];
  for (size_t i = 0; i < n.piece_outs.size(); ++i) {
    int f = n.piece_outs[i]; if (f >= (int)flat.size()) flat.resize(f + 64);
    flat[f] = THPVariable_Unpack(PyList_GetItem(r, i));
  }
  Py_DECREF(r); return true;
}

// ---- going another way
void become(int slot, const Tensor& r) {
  Tensor p = vals[slot];
  if (!p.defined()) { vals[slot] = r; known[r.unsafeGetTensorImpl()] = slot; return; }
  if (p.is_same(r)) return;
  known.erase(p.unsafeGetTensorImpl()); swapped[p.unsafeGetTensorImpl()] = {p, slot};
  vals[slot] = r; known[r.unsafeGetTensorImpl()] = slot;
}
void hand_over(bool record) {  // what Python holds as a placeholder is the real tensor from here on
  static py::object& swap = *new py::object; if (!swap) swap = py::module_::import("torch").attr("_C").attr("_swap_tensor_impl");
  for (auto& [impl, held] : swapped) {
    auto& [p, slot] = held;
    if (!held_by_python(p)) continue;
    py::object a = py::reinterpret_steal<py::object>(THPVariable_Wrap(p)), b = py::reinterpret_steal<py::object>(THPVariable_Wrap(vals[slot]));
    swap(a, b);
    if (record) cb.attr("moved")(slot, a);
  }
}
void call_for_real(Node& n) {
  auto now = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet python({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  c10::impl::ForceDispatchKeyGuard tls((n.tls.included_ | (now.included_ & python)).remove(kKey), n.tls.excluded_);
  c10::AutoGradMode grad(n.grad_mode);
  auto value = [](int s) { return vals[s]; };
  std::vector<Tensor> results;
  if (n.kind == OP) {
    Stack stack; for (auto& p : n.args) stack.push_back(decode(p, value));
    n.op->callBoxed(&stack);
    for (auto& v : stack) if (v.isTensor()) results.push_back(v.toTensor()); else if (v.isTensorList()) for (auto& t : v.toTensorVector()) results.push_back(t);
  } else if (n.kind == BACKWARD) {
    for (auto& o : n.outs) if (o.is_new) { Tensor& leaf = vals[n.args[0].slots[&o - n.outs.data()]]; leaf.mutable_grad() = Tensor(); }
    cb.attr("really_backward")(vals[n.args[1].slot]);
    for (auto& o : n.outs) results.push_back(vals[n.args[0].slots[&o - n.outs.data()]].grad());
  } else if (n.kind == GRAD) {
    py::list outs, ins; for (int s : n.args[0].slots) outs.append(vals[s]); for (int s : n.args[1].slots) ins.append(vals[s]);
    py::object gs = py::none(); if (n.args.size() > 2) { py::list l; for (int s : n.args[2].slots) l.append(vals[s]); gs = l; }
    py::tuple r = cb.attr("really_grad")(outs, ins, gs, n.flags);
    for (auto x : r) if (!x.is_none()) results.push_back(x.cast<Tensor>());
  }
  else if (n.kind == FUNCTION) {
    py::list ins; for (int s : n.args[0].slots) ins.append(vals[s]);
    py::tuple r = cb.attr("really_apply")(n.flags, ins);
    for (auto x : r) results.push_back(x.cast<Tensor>());
  }
  else if (n.kind == REQUIRES) vals[n.args[0].slot].set_requires_grad(n.flags == "1");
  TORCH_CHECK(results.size() == n.outs.size(), "live: other results than recorded");
  for (size_t i = 0; i < results.size(); ++i) if (n.outs[i].slot >= 0) become(n.outs[i].slot, results[i]);
}
py::list exts_of(Node& n) { py::list l; for (auto& e : n.exts) l.append(py::make_tuple(e.slot, vals[e.slot])); return l; }
py::list outs_of(Node& n) { py::list l; for (auto& o : n.outs) l.append(py::make_tuple(o.slot, o.is_new, vals[o.slot])); return l; }
std::vector<int> arg_slots(Node& n) { std::vector<int> r; for (auto& p : n.args) { if (p.kind == SLOT) r.push_back(p.slot); for (int s : p.slots) if (s >= 0) r.push_back(s); } return r; }
void told(Node& n) {
  py::tuple t = cb.attr("after")(n.id, (int)n.kind, n.op ? toString(n.op->operator_name()) : std::string(), outs_of(n), n.rets.size() && n.rets[0].kind == 2 && n.outs.empty(), arg_slots(n));
  auto flats = t[0].cast<std::vector<int>>();
  for (size_t i = 0; i < flats.size(); ++i) { n.outs[i].flat = flats[i]; flat_of[n.outs[i].slot] = flats[i]; }
  n.boundary = t[1].cast<bool>();
}
void stop(const char* why) { py::error_scope kept; counts[std::string("stopped: ") + why]++; if (mode == RECORD) cb.attr("abort")(why); mode = PASS; include(false); }
// Everything that was put off runs now, in order, with autograd. Under a recorder where the way is to be learnt.
void make_up(bool record) {
  Off off; hold(); factories.clear(); ++counts[record ? "went another way" : "given up"];
  auto before = mode; mode = record ? RECORD : PASS; (void)before;
  if (record) cb.attr("begin")();
  try {
    for (auto* n : way) {
      if (record) cb.attr("before")(exts_of(*n));
      call_for_real(*n);
      if (record) told(*n);
    }
  } catch (...) { hand_over(false); stop("raised while made up for"); throw; }
  hand_over(record);
}

void refresh(Stack* stack, size_t nargs);
void stop(const char* why);
struct Busy { Busy() { busy = true; } ~Busy() { busy = false; } };

void note_results(Node& n, c10::ArrayRef<IValue> results, const std::vector<bool>& rg_before) {
  auto note = [&](const Tensor& t) {
    auto it = known.find(t.unsafeGetTensorImpl());
    if (it != known.end()) { bool turns = t.requires_grad() && t.grad_fn() && !is_ext[it->second] && !(it->second < (int)rg_before.size() ? rg_before[it->second] : true);
      n.outs.push_back({it->second, false, Meta::of(t), turns}); return it->second; }
    int s = new_slot(t, false); n.outs.push_back({s, true, Meta::of(t)}); return s;
  };
  for (auto& v : results) {
    Ret r;
    if (v.isTensor() && v.toTensor().defined()) { r.kind = 0; r.outs.push_back(note(v.toTensor())); }
    else if (v.isTensor()) { r.kind = 0; r.outs.push_back(-1); }
    else if (v.isTensorList()) { r.kind = 1; for (auto& t : v.toTensorVector()) r.outs.push_back(note(t)); }
    else { r.kind = 2; r.other = v; }
    n.rets.push_back(r);
  }
}
bool plain(const Tensor& t) { return !t.defined() || (t.layout() == at::kStrided && t.device().is_cpu() && t.has_storage() && !t.is_conj() && !t.is_neg() && !t.is_quantized() && !t.is_inference() && !t.key_set().has(c10::DispatchKey::Python) && !t.is_sparse() && !t.is_mkldnn()); }
bool is_lift(const c10::OperatorHandle& op) { static auto name = c10::OperatorName("aten::lift_fresh", ""); return op.operator_name() == name; }
template <class F> void each_tensor(c10::ArrayRef<IValue> args, F f) {
  for (auto& v : args) {
    if (v.isTensor()) { if (v.toTensor().defined()) f(v.toTensor()); }
    else if (v.isTensorList()) { for (auto& t : v.toTensorVector()) if (t.defined()) f(t); }
    else if (is_optlist(v)) { for (auto& x : v.toListRef()) if (x.isTensor() && x.toTensor().defined()) f(x.toTensor()); }
  }
}
// An op on tensors alone that the unit knows nothing of, and whose history it could not make: it runs, and is no part of it.
bool passes_by(const c10::OperatorHandle& op, c10::ArrayRef<IValue> args) {
  if (is_lift(op)) return true;
  bool outside = false, inside = false;
  each_tensor(args, [&](const Tensor& t) { if (is_number(t)) return; auto it = known.find(t.unsafeGetTensorImpl()); if (it != known.end()) inside |= !is_ext[it->second]; else outside |= !may_be_ext(t); });
  if (outside && inside && mode == MATCH) { py::gil_scoped_acquire g; make_up(false); include(false); }
  return outside;
}
void pass_by(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard python(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, kKey}));
  op.callBoxed(stack); ++counts["ops passed by"];
}
void meet_recording(const c10::OperatorHandle& op, Stack* stack) {
  const auto nargs = op.schema().arguments().size();
  auto args = c10::ArrayRef<IValue>(stack->data() + stack->size() - nargs, nargs);
  auto in = c10::impl::tls_local_dispatch_key_set().included_;
  if (at::autocast::is_autocast_enabled(at::kCPU) || in.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) || c10::InferenceMode::is_enabled()) {
    stop("a state of another kind"); c10::impl::ExcludeDispatchKeyGuard guard(kKey); op.callBoxed(stack); return;
  }
  if (passes_by(op, args)) { Off off; pass_by(op, stack); return; }
  // Under a recorder a factory's result is detached before it is given out. That is the recorder's doing.
  static auto detach = c10::OperatorName("aten::detach", "");
  if (op.operator_name() == detach && way.size() && way.back()->factory && args[0].isTensor() && args[0].toTensor().is_same(vals[way.back()->outs[0].slot])) {
    Off off; pass_by(op, stack); int s = way.back()->outs[0].slot; vals[s] = stack->back().toTensor(); known[vals[s].unsafeGetTensorImpl()] = s;
    cb.attr("moved")(s, vals[s]); return;
  }
  Node* n = make(OP, cur); n->op = op; n->key = &op.schema(); tls_note(*n);
  n->sets_rg = op.operator_name().name == "aten::requires_grad_";
  encode(*n, args);
  if (n->sets_rg && is_ext[n->args[0].slot]) n->refused = true;
  std::vector<bool> rg; for (auto& t : vals) rg.push_back(t.defined() && t.requires_grad());
  Off off;
  cb.attr("before")(exts_of(*n));
  try { c10::impl::ExcludeDispatchKeyGuard guard(kKey); op.callBoxed(stack); }
  catch (...) { stop("an op raised"); n->refused = true; throw; }
  note_results(*n, c10::ArrayRef<IValue>(stack->data() + stack->size() - op.schema().returns().size(), op.schema().returns().size()), rg);
  if (n->refused) stop("requires_grad_ of what is outside");
  for (auto& o : n->outs) if (mode == RECORD && !plain(vals[o.slot])) { n->refused = true; stop("result of another kind"); }
  if (mode != RECORD) return;
  bool tensors = false; for (auto& p : n->args) tensors |= p.kind != CONST;
  const auto& name = op.operator_name().name; n->factory = (!tensors || (name.size() > 5 && name.compare(name.size() - 5, 5, "_like") == 0)) && n->outs.size() == 1 && n->outs[0].is_new && n->rets[0].kind == 0;
  told(*n); way.push_back(n); cur = n;
}
void refresh(Stack* stack, size_t nargs) {
  if (swapped.empty()) return;
  for (size_t i = stack->size() - nargs; i < stack->size(); ++i) {
    auto& v = (*stack)[i];
    if (v.isTensor()) v = now(v.toTensor());
    else if (v.isTensorList()) { std::vector<Tensor> l; for (auto& t : v.toTensorVector()) l.push_back(now(t)); v = l; }
    else if (is_optlist(v)) { c10::List<std::optional<Tensor>> l; for (auto& x : v.toListRef()) l.push_back(x.isNone() ? std::nullopt : std::optional<Tensor>(now(x.toTensor()))); v = l; }
  }
}
// Met at a place that reads: what was put off runs, then the op itself, below autograd.
bool at_boundary(Node* n, Stack* stack, size_t nargs, size_t base) {
  { Off off; if (!run_piece(*n)) { back_to(base); return false; } }
  Stack own; for (auto& p : n->args) own.push_back(decode(p, [](int s) { return real(s); }));
  { Off off; at::AutoDispatchBelowADInplaceOrView below; n->op->callBoxed(&own); }
  std::vector<Tensor> results;
  for (auto& v : own) if (v.isTensor()) results.push_back(v.toTensor()); else if (v.isTensorList()) for (auto& t : v.toTensorVector()) results.push_back(t);
  for (Node* c : cur->children) {  // of those that differ in what comes out, the one that does so like this
    if (c->kind != OP || c->key != n->key) continue;
    back_to(base);
    if (!(c->boundary && tls_same(*c) && match_args(*c, c10::ArrayRef<IValue>(stack->data() + stack->size() - nargs, nargs)))) continue;
    if (0 && !(c->kind == OP && c->key == n->key && c->boundary && tls_same(*c) && match_args(*c, c10::ArrayRef<IValue>(stack->data() + stack->size() - nargs, nargs)))) continue;
    if (c->outs.size() != results.size()) continue;
    bool ok = true;
    for (size_t i = 0; ok && i < results.size(); ++i) { auto& m = c->outs[i].meta; ok = c->outs[i].is_new && m.sizes == results[i].sizes() && m.strides == results[i].strides() && m.dtype == results[i].scalar_type(); }
    if (!ok) continue;
    for (size_t i = 0; i < results.size(); ++i) {
      auto& o = c->outs[i]; if (o.meta.rg) give_stub(results[i].unsafeGetTensorImpl());
      int s = new_slot(results[i], false); flat_of[s] = o.flat;
      if (o.flat >= 0) { if (o.flat >= (int)flat.size()) flat.resize(o.flat + 64); flat[o.flat] = o.meta.rg ? results[i].detach() : results[i]; }
    }
    torch::jit::drop(*stack, nargs);
    if (c->outs.empty()) for (auto& v : own) stack->push_back(v); else push_results(*c, stack);
    way.push_back(c); cur = c; return true;
  }
  back_to(base); return false;
}
void meet(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python)) {  // torch.tensor at work, which writes into memory
    c10::impl::ExcludeDispatchKeyGuard guard(kKey); op.callBoxed(stack); return;
  }
  if (mode != MATCH) {
    if (mode == RECORD && !busy) { py::gil_scoped_acquire g; Busy b; meet_recording(op, stack); return; }
    c10::impl::ExcludeDispatchKeyGuard guard(kKey); op.callBoxed(stack); return;
  }
  static const c10::DispatchKeySet others({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchDynamicLayerFrontMode});
  if (c10::impl::tls_local_dispatch_key_set().included_.has_any(others)) {  // a mode or a transform of the user's
    { py::gil_scoped_acquire g; Busy b; make_up(false); include(false); }
    refresh(stack, op.schema().arguments().size()); c10::impl::ExcludeDispatchKeyGuard guard(kKey); op.callBoxed(stack); return;
  }
  Timer timer("ns: meet");
  const auto nargs = op.schema().arguments().size(); const void* key = &op.schema();
  auto args = c10::ArrayRef<IValue>(stack->data() + stack->size() - nargs, nargs);
  const size_t base = vals.size();
  for (Node* c : cur->children) {
    if (c->key != key || !tls_same(*c) || !match_args(*c, args)) continue;
    if (c->refused) { back_to(base); py::gil_scoped_acquire g; Busy b; make_up(false); include(false); break; }
    if (c->boundary) { if (at_boundary(c, stack, nargs, base)) return; break; }
    if (c->factory) {
      auto& o = c->outs[0]; Tensor t = placeholder(o); o.pool = Tensor();
      int s = new_slot(Tensor(), false); known[t.unsafeGetTensorImpl()] = s; flat_of[s] = o.flat;
      factories.emplace_back(s, Weak(t.getIntrusivePtr()));
      torch::jit::drop(*stack, nargs); stack->push_back(std::move(t));
      way.push_back(c); cur = c; ++counts["ops answered"]; return;
    }
    answer(*c);
    if (c->sets_rg && c->args[1].value.toBool() && !is_ext[c->args[0].slot]) vals[c->args[0].slot].unsafeGetTensorImpl()->set_requires_grad(true);
    torch::jit::drop(*stack, nargs); push_results(*c, stack);
    way.push_back(c); cur = c; ++counts["ops answered"]; return;
  }
  if (mode == MATCH) {
    if (passes_by(op, args)) { Off off; refresh(stack, nargs); pass_by(op, stack); return; }
    py::gil_scoped_acquire g; Busy b;
    if (debug()) {
      std::cerr << "live: other way at " << way.size() << ": " << op.operator_name();
      for (auto* c : cur->children) { std::cerr << " | " << (c->op ? toString(c->op->operator_name()) : std::to_string(c->kind)); if (c->key == key) { std::cerr << " tls " << tls_same(*c); for (size_t i = 0; i < nargs; ++i) std::cerr << " " << match_value(*c, c->args[i], args[i], vals.size()); back_to(base); } }
      std::cerr << std::endl;
    }
    make_up(true);
  }
  refresh(stack, nargs);
  if (mode == RECORD) { py::gil_scoped_acquire g; Busy b; meet_recording(op, stack); include(mode == RECORD); return; }
  c10::impl::ExcludeDispatchKeyGuard guard(kKey); op.callBoxed(stack);
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&meet>()); }

// ---- what Python meets
std::vector<IValue> lists(const std::vector<std::vector<Tensor>>& groups) { std::vector<IValue> r; for (auto& g : groups) r.emplace_back(g); return r; }
Node* find_special(Kind kind, const std::string& flags, const std::vector<IValue>& args) {
  for (Node* c : cur->children) if (c->kind == kind && c->flags == flags && tls_same(*c) && match_args(*c, args)) return c;
  return nullptr;
}
bool is_mine(const Tensor& t) { auto it = known.find(t.unsafeGetTensorImpl()); return it != known.end() && !is_ext[it->second]; }
bool is_plain_leaf(const Tensor& t) { auto* m = torch::autograd::impl::get_autograd_meta(t); return m && m->hooks_.empty() && !m->post_acc_grad_hooks_ && !m->grad_.defined(); }

void observe(Tensor t) {
  if (!(mode == MATCH || mode == RECORD) || busy || !is_mine(t)) return;
  Busy b; std::vector<IValue> args{t};
  if (mode == MATCH) {
    if (t.storage().data()) return;
    if (Node* n = find_special(OBSERVE, "", args)) { Off off; if (run_piece(*n)) { fill_in(t, real(n->args[0].slot)); way.push_back(n); cur = n; return; } }
    make_up(true); t = now(t); args = {t};
  }
  Node* n = make(OBSERVE, cur); tls_note(*n); encode(*n, args); Off off; told(*n); way.push_back(n); cur = n;
}
// True: done. False: Python makes the call (mode is OFF or PASS).
bool backward(Tensor loss) {
  if (!(mode == MATCH || mode == RECORD) || busy) return false;
  Busy b;
  if (!is_mine(loss)) { if (mode == MATCH) make_up(false); stop("backward from outside"); return false; }
  if (mode == MATCH) {
    for (Node* c : cur->children) {
      if (c->kind != BACKWARD || !tls_same(*c) || vals[c->args[1].slot].unsafeGetTensorImpl() != loss.unsafeGetTensorImpl()) continue;
      bool ok = !c->refused; for (size_t i = 0; ok && i < c->outs.size(); ++i) ok = is_plain_leaf(vals[c->args[0].slots[i]]);
      if (!ok) continue;
      answer(*c);
      for (size_t i = 0; i < c->outs.size(); ++i) vals[c->args[0].slots[i]].mutable_grad() = vals[c->outs[i].slot];
      way.push_back(c); cur = c; return true;
    }
    make_up(true); loss = now(loss);
  }
  Off off;
  std::vector<std::pair<int, Tensor>> leaves;
  for (size_t s = 0; s < vals.size(); ++s) if (vals[s].defined() && vals[s].requires_grad() && !vals[s].grad_fn()) { leaves.push_back({(int)s, vals[s].grad()}); if (!is_plain_leaf(vals[s])) { stop("leaf with hooks or a gradient"); return false; } }
  Node* n = make(BACKWARD, cur); include(true); tls_note(*n); include(false); int at = known.at(loss.unsafeGetTensorImpl());
  std::vector<torch::autograd::Node*> todo; if (loss.grad_fn()) todo.push_back(loss.grad_fn().get());
  while (!todo.empty()) { auto* x = todo.back(); todo.pop_back(); if (!freed.insert(x).second) continue; for (auto& e : x->next_edges()) if (e.function) todo.push_back(e.function.get()); }
  try { cb.attr("really_backward")(loss); } catch (...) { n->refused = true; stop("backward raised"); throw; }
  Pat of{LIST}, from{SLOT, at};
  for (auto& [s, g] : leaves) if (vals[s].grad().defined()) {
    of.slots.push_back(s); auto g2 = vals[s].grad(); n->outs.push_back({new_slot(g2, false), true, Meta::of(g2)});
  }
  n->args = {of, from}; told(*n); way.push_back(n); cur = n; return true;
}
py::object gradient(std::vector<Tensor> outs, std::vector<Tensor> ins, std::optional<std::vector<Tensor>> gs, const std::string& flags) {
  if (!(mode == MATCH || mode == RECORD) || busy) return py::none();
  Busy b; std::vector<IValue> args{IValue(outs), IValue(ins)}; if (gs) args.emplace_back(*gs);
  for (auto& t : outs) if (!is_mine(t)) { if (mode == MATCH) make_up(false); stop("gradient from outside"); return py::none(); }
  auto results = [&](Node* n) { py::list l; for (auto& r : n->rets) if (r.outs[0] < 0) l.append(py::none()); else l.append(vals[r.outs[0]]); return py::tuple(l); };
  if (mode == MATCH) {
    if (Node* n = find_special(GRAD, flags, args)) { answer(*n); way.push_back(n); cur = n; return results(n); }
    make_up(true);
    for (auto& t : outs) t = now(t); for (auto& t : ins) t = now(t); if (gs) for (auto& t : *gs) t = now(t);
    args = {IValue(outs), IValue(ins)}; if (gs) args.emplace_back(*gs);
  }
  Off off; Node* n = make(GRAD, cur); n->flags = flags; include(true); tls_note(*n); include(false); encode(*n, args); cb.attr("before")(exts_of(*n));
  py::tuple r;
  py::object g = py::none(); if (gs) g = py::cast(*gs);
  try { r = cb.attr("really_grad")(outs, ins, g, flags); } catch (...) { n->refused = true; stop("grad raised"); throw; }
  std::vector<IValue> values; for (auto x : r) values.emplace_back(x.is_none() ? Tensor() : x.cast<Tensor>());
  note_results(*n, values, {}); told(*n); way.push_back(n); cur = n; return results(n);
}
// An autograd.Function, as if it were an op: its Python is not run where it is answered.
py::object function(std::vector<Tensor> ins, const std::string& flags) {
  if (!(mode == MATCH || mode == RECORD) || busy) return py::none();
  Busy b; std::vector<IValue> args{IValue(ins)};
  for (auto& t : ins) if (!known.count(t.unsafeGetTensorImpl()) && !may_be_ext(t)) { if (mode == MATCH) make_up(false); stop("function of what is outside"); return py::none(); }
  auto results = [&](Node* n) { py::list l; for (auto& r : n->rets) l.append(vals[r.outs[0]]); return py::tuple(l); };
  if (mode == MATCH) {
    if (Node* n = find_special(FUNCTION, flags, args)) { if (!n->refused) { answer(*n); way.push_back(n); cur = n; return results(n); } }
    make_up(true); for (auto& t : ins) t = now(t); args = {IValue(ins)};
  }
  Off off; Node* n = make(FUNCTION, cur); n->flags = flags; include(true); tls_note(*n); include(false); encode(*n, args); cb.attr("before")(exts_of(*n));
  std::vector<bool> rg; for (auto& t : vals) rg.push_back(t.defined() && t.requires_grad());
  py::tuple r;
  try { r = cb.attr("really_apply")(flags, ins); } catch (...) { n->refused = true; stop("function raised"); throw; }
  std::vector<IValue> values; for (auto x : r) values.emplace_back(x.cast<Tensor>());
  note_results(*n, values, rg); told(*n); way.push_back(n); cur = n; return results(n);
}
bool is_alive(int slot) { return vals[slot].defined() && held_by_python(vals[slot]); }
std::vector<int> alive_now() {
  hold();
  std::vector<int> r; std::set<int> grads;
  for (auto* n : way) if (n->kind == BACKWARD) for (size_t i = 0; i < n->outs.size(); ++i) {
    auto& leaf = vals[n->args[0].slots[i]]; if ((is_ext[n->args[0].slots[i]] || is_alive(n->args[0].slots[i])) && leaf.grad().is_same(vals[n->outs[i].slot])) grads.insert(n->outs[i].slot); }
  for (size_t s = 0; s < vals.size(); ++s) if (!is_ext[s] && (is_alive(s) || grads.count(s))) r.push_back(s);
  return r;
}
void start() { if (c10::InferenceMode::is_enabled() || at::get_default_dtype_as_scalartype() != at::kFloat || at::globalContext().deterministicAlgorithms() || c10::impl::tls_local_dispatch_key_set().included_.has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchDynamicLayerFrontMode})) || at::autocast::is_autocast_enabled(at::kCPU)) return;
  if (mode == OFF || mode == PASS) { if (counts["went another way"] + counts["given up"] > 40 + counts["units answered"]) { mode = OFF; return; } if (!root) { root = make(END, nullptr); } mode = MATCH; forget(); include(true); } }
// Ends a unit: all that was put off has happened.
void sync_unit() {
  Timer timer("ns: sync");
  if (mode == MATCH && !way.empty()) {
    Busy b; Node* n = nullptr;
    for (Node* c : cur->children) if (c->kind == END) n = c;
    if (n && !n->refused) {
      auto alive = alive_now(); bool ok = std::includes(n->alive.begin(), n->alive.end(), alive.begin(), alive.end());
      if (!ok) { std::vector<int> all; std::set_union(n->alive.begin(), n->alive.end(), alive.begin(), alive.end(), std::back_inserter(all)); n->alive = all;
        { Off off; cb.attr("widen")(n->id, all); } make_up(false); ++counts["more alive than before"]; }
      else { Off off; if (run_piece(*n)) { for (int s : alive) fill_in(vals[s], real(s)); ++counts["units answered"]; } else make_up(false); }
    } else make_up(n == nullptr);
  }
  if (mode == RECORD) {
    Busy b; include(false); Node* n = make(END, cur); bool ok = cb.attr("done")(n->id).cast<bool>();
    n->alive = alive_now(); for (int s : n->alive) if (vals[s].requires_grad() && vals[s].grad_fn() && !freed.count(vals[s].grad_fn().get())) { ok = false; ++counts["refused: a graph that lives on"]; }
    n->refused = !cb.attr("finish")(n->id, n->alive).cast<bool>() || !ok;
    if (n->refused && way.size()) way[0]->refused = way[0]->children.size() <= 1;
    ++counts["units recorded"]; way.push_back(n); for (auto* w : way) for (auto& o : w->outs) o.pool = Tensor();
  }
  include(false); mode = OFF; forget();
}
// requires_grad_ does not dispatch. False: it is not about what the unit knows.
bool requires_grad(Tensor t, bool on) {
  if (!(mode == MATCH || mode == RECORD) || busy) return false;
  Busy b; auto it = known.find(t.unsafeGetTensorImpl());
  if (it == known.end()) return false;
  if (is_ext[it->second] || t.grad_fn()) { if (mode == MATCH) make_up(false); stop("requires_grad_ of what is outside"); include(false); return false; }
  std::vector<IValue> args{t}; const std::string flags = on ? "1" : "0";
  if (mode == MATCH) {
    if (Node* n = find_special(REQUIRES, flags, args)) { vals[n->args[0].slot].unsafeGetTensorImpl()->set_requires_grad(on); way.push_back(n); cur = n; return true; }
    make_up(true); t = now(t); args = {t};
  }
  Off off; Node* n = make(REQUIRES, cur); n->flags = flags; include(true); tls_note(*n); include(false); encode(*n, args);
  t.set_requires_grad(on); told(*n); way.push_back(n); cur = n; return true;
}
// Somebody asks for what a placeholder cannot have.
void ask(Tensor t) { if (!(mode == MATCH || mode == RECORD) || busy || !is_mine(t)) return; Busy b; if (mode == MATCH) make_up(false); stop("autograd's own"); include(false); }
void leave(const char* why) { if (!(mode == MATCH || mode == RECORD) || busy) return; Busy b; if (mode == MATCH) make_up(false); stop(why); include(false); }
void drop_unit(const char* why) { if (mode == MATCH || mode == RECORD) { if (mode == RECORD) cb.attr("abort")(why); } include(false); mode = OFF; forget(); }
} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("configure", [](py::object o) { cb = o; });
  m.def("start", &start); m.def("sync", &sync_unit); m.def("leave", &leave); m.def("drop", &drop_unit);
  m.def("observe", &observe); m.def("ask", &ask); m.def("requires_grad", &requires_grad); m.def("backward", &backward); m.def("grad", &gradient); m.def("function", &function);
  m.def("mode", [] { return (int)mode; });
  m.def("counts", [] { return counts; });
  m.def("invalidate", [](int id) { nodes[id]->compiled = false; });
  m.def("include", &include);
  m.def("reset", [] { include(false); mode = OFF; forget(); if (root) root->children.clear(); for (auto* n : {"units answered", "went another way", "given up"}) { total[n] += counts[n]; counts[n] = 0; } });
  m.def("totals", [] { return total; });
  m.def("dump", [] { std::vector<std::string> r; for (auto* n : way) r.push_back(n->op ? toString(n->op->operator_name()) : std::to_string(n->kind)); return r; });
}
