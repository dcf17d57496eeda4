#include "executor/core/csrc/plan.h"

namespace gradc {

Value::Value(c10::IValue value) : boxed(std::move(value)) {
  if (boxed.isIntList()) {
    ints = boxed.toIntVector();
  }
}

Symbols read_symbols(const std::vector<SymbolSource>& sources, const std::vector<c10::IValue>& inputs) {
  Symbols values;
  values.reserve(sources.size());
  for (const auto& [kind, position, dimension] : sources) {
    const c10::IValue& source = inputs[position];
    switch (kind) {
      case SymbolSource::Kind::integer:
        values.push_back(source.toInt());
        break;
      case SymbolSource::Kind::size:
        values.push_back(source.toTensor().size(dimension));
        break;
      case SymbolSource::Kind::stride:
        values.push_back(source.toTensor().stride(dimension));
        break;
    }
  }
  return values;
}

Binding Bindings::find(const Symbols& symbols) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = recent_.begin(); it != recent_.end(); ++it) {
    if (it->first == symbols) {
      recent_.splice(recent_.begin(), recent_, it);
      return it->second;
    }
  }
  return nullptr;
}

// Computes without the lock, because computing takes the GIL. Two threads may compute the same: both results are right.
Binding Bindings::find_or_compute(const Symbols& symbols) {
  if (Binding known = find(symbols)) {
    return known;
  }
  auto computed = std::make_shared<const std::vector<Value>>(compute_(symbols));
  const std::lock_guard<std::mutex> lock(mutex_);
  recent_.emplace_front(symbols, computed);
  if (recent_.size() > kept) {
    recent_.pop_back();
  }
  return computed;
}

const c10::IValue& Frame::operator[](const Operand& operand) const {
  switch (operand.kind) {
    case Operand::Kind::slot:
      return slots[operand.index];
    case Operand::Kind::constant:
      return plan.constants[operand.index].boxed;
    case Operand::Kind::bound:
      return (*bound)[operand.index].boxed;
    case Operand::Kind::pack:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a pack is not one value");
}

} // namespace gradc
