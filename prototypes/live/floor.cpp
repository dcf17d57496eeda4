// What Python alone takes: every op is met at a key above autograd and answered with what it returned before.
#include <torch/extension.h>
#include <torch/library.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
namespace {
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
enum Mode { OFF, RECORD, ANSWER };
thread_local Mode mode = OFF;
std::vector<std::vector<c10::IValue>> answers; size_t cur = 0, bad = 0;
std::vector<const void*> ops; std::vector<std::string> names;
void meet(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto nargs = op.schema().arguments().size();
  if (mode == ANSWER && cur < answers.size()) {
    if (ops[cur] != (const void*)&op.schema()) ++bad;
    torch::jit::drop(*stack, nargs);
    for (auto& v : answers[cur]) stack->push_back(v);
    ++cur; return;
  }
  c10::impl::ExcludeDispatchKeyGuard guard(kKey);
  op.callBoxed(stack);
  if (mode == RECORD) {
    auto n = op.schema().returns().size();
    answers.emplace_back(stack->end() - n, stack->end());
    ops.push_back((const void*)&op.schema()); names.push_back(toString(op.operator_name()));
  }
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&meet>()); }
void set(int m) {
  mode = (Mode)m; cur = 0; bad = 0;
  if (m == RECORD) { answers.clear(); ops.clear(); names.clear(); }
  c10::impl::tls_set_dispatch_key_included(kKey, m != OFF);
}
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("set", &set); m.def("at", [] { return cur; }); m.def("bad", [] { return bad; });
  m.def("size", [] { return answers.size(); }); m.def("names", [] { return names; });
}
