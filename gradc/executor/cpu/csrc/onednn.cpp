#include "executor/cpu/csrc/onednn.h"

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include "csrc/torch_internals.h"
#include "executor/cpu/csrc/memory.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace gradc {
namespace {

constexpr size_t work_alignment = 64; // bytes, of what oneDNN works in

void check(dnnl_status_t status, const char* what) {
  TORCH_CHECK(status == dnnl_success, "gradc: oneDNN did not ", what, ": status ", static_cast<int>(status));
}

bool is_of_the_headers(const dnnl_version_t& version) {
  return version.major == DNNL_VERSION_MAJOR && version.minor == DNNL_VERSION_MINOR && version.patch == DNNL_VERSION_PATCH &&
      version.hash && std::string_view(version.hash) == DNNL_VERSION_HASH;
}

Onednn functions_of_torchs_onednn() {
  const auto hidden = hidden_functions_of_torch("dnnl_");
  const auto find = [&](const char* name) {
    const auto place = hidden.find(std::string("dnnl_") + name);
    return place == hidden.end() ? nullptr : place->second;
  };
  Onednn functions;
#define GRADC_FIND(name) functions.name = reinterpret_cast<decltype(functions.name)>(find(#name));
  GRADC_ONEDNN_FUNCTIONS(GRADC_FIND)
#undef GRADC_FIND
  functions.max_threads = reinterpret_cast<int (*)()>(function_of_torchs_libraries("omp_get_max_threads"));
  return functions;
}

bool has_all(const Onednn& functions) {
#define GRADC_IS_THERE(name) functions.name &&
  return GRADC_ONEDNN_FUNCTIONS(GRADC_IS_THERE) functions.max_threads;
#undef GRADC_IS_THERE
}

dnnl_primitive_attr_t attributes(const Onednn& functions, bool adds) {
  dnnl_primitive_attr_t made = nullptr;
  check(functions.primitive_attr_create(&made), "make attributes");
  check(functions.primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user), "take memory to work in");
  if (adds) {
    dnnl_post_ops_t sum = nullptr;
    check(functions.post_ops_create(&sum), "make post-ops");
    check(functions.post_ops_append_sum(sum, 1, 0, dnnl_data_type_undef), "add to what is there");
    check(functions.primitive_attr_set_post_ops(made, sum), "take post-ops");
    functions.post_ops_destroy(sum);
  }
  return made;
}

Onednn make_onednn() {
  Onednn made = functions_of_torchs_onednn();
  if (!has_all(made) || !is_of_the_headers(*made.version())) {
    return {};
  }
  check(made.engine_create(&made.engine, dnnl_cpu, 0), "find the CPU");
  made.attributes = attributes(made, false);
  made.adding_attributes = attributes(made, true);
  return made;
}

dnnl_stream_t stream() {
  thread_local const std::shared_ptr<dnnl_stream> made = [] {
    dnnl_stream_t stream = nullptr;
    check(onednn()->stream_create(&stream, onednn()->engine, dnnl_stream_default_flags), "make a stream");
    return std::shared_ptr<dnnl_stream>(stream, onednn()->stream_destroy);
  }();
  return made.get();
}

dnnl_data_type_t type_of(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::BFloat16 ? dnnl_bf16 : dnnl_f32;
}

std::shared_ptr<dnnl_primitive> primitive_of(const PrimitiveDescriptor& descriptor) {
  TORCH_CHECK(descriptor, "gradc: oneDNN has no such primitive");
  dnnl_primitive_t made = nullptr;
  check(onednn()->primitive_create(&made, descriptor.get()), "make a primitive");
  return {made, onednn()->primitive_destroy};
}

std::shared_ptr<dnnl_primitive> reorder(const dnnl_memory_desc* from, const dnnl_memory_desc* to) {
  const auto* functions = onednn();
  return primitive_of(primitive_descriptor([&](dnnl_primitive_desc_t* made) {
    return functions->reorder_primitive_desc_create(made, from, functions->engine, to, functions->engine, nullptr);
  }));
}

std::shared_ptr<dnnl_memory> memory_object(const dnnl_memory_desc* descriptor) {
  dnnl_memory_t made = nullptr;
  check(onednn()->memory_create(&made, descriptor, onednn()->engine, DNNL_MEMORY_NONE), "make a memory object");
  return {made, onednn()->memory_destroy};
}

void place(const std::shared_ptr<dnnl_memory>& memory, void* address) {
  check(onednn()->memory_set_data_handle(memory.get(), address), "take an address");
}

void execute(const std::shared_ptr<dnnl_primitive>& primitive, c10::ArrayRef<dnnl_exec_arg_t> arguments) {
  const auto status = onednn()->primitive_execute(primitive.get(), stream(), static_cast<int>(arguments.size()), arguments.data());
  check(status, "run a primitive");
}

void execute_reorder(const std::shared_ptr<dnnl_primitive>& primitive, dnnl_memory_t from, dnnl_memory_t to) {
  execute(primitive, std::array{dnnl_exec_arg_t{DNNL_ARG_FROM, from}, dnnl_exec_arg_t{DNNL_ARG_TO, to}});
}

} // namespace

bool has_onednn() {
  return onednn() != nullptr;
}

const Onednn* onednn() {
  static const Onednn made = make_onednn();
  return made.engine ? &made : nullptr;
}

int onednn_threads() {
  const auto& context = at::globalContext();
  const bool is_as_kept = context.userEnabledMkldnn() && !context.deterministicMkldnn();
  return is_as_kept && onednn() ? onednn()->max_threads() : 0;
}

MemoryDescriptor memory_laid_out(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  dnnl_memory_desc_t made = nullptr;
  const auto status = onednn()->memory_desc_create_with_strides(
      &made, static_cast<int>(sizes.size()), sizes.data(), type_of(dtype), strides.data());
  return status == dnnl_success ? MemoryDescriptor(made, onednn()->memory_desc_destroy) : MemoryDescriptor();
}

MemoryDescriptor memory_as_liked(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  dnnl_memory_desc_t made = nullptr;
  const auto status = onednn()->memory_desc_create_with_tag(
      &made, static_cast<int>(sizes.size()), sizes.data(), type_of(dtype), dnnl_format_tag_any);
  check(status, "describe memory");
  return {made, onednn()->memory_desc_destroy};
}

// An end; with `reordered`, the primitive's own of it begins at `place` in the memory that a run works in.
struct KeptPrimitive::Part {
  int argument = 0;
  bool is_written = false;
  MemoryDescriptor layout;
  const dnnl_memory_desc* liked = nullptr;
  std::shared_ptr<dnnl_primitive> reordered;
  size_t place = 0;
};

struct KeptPrimitive::Objects {
  std::vector<std::shared_ptr<dnnl_memory>> of_caller, of_primitive; // the same one where nothing is reordered
  std::shared_ptr<dnnl_memory> scratch;
  std::vector<dnnl_exec_arg_t> arguments;
};

KeptPrimitive::KeptPrimitive(PrimitiveDescriptor descriptor, const std::vector<End>& ends)
    : descriptor_(std::move(descriptor)), primitive_(primitive_of(descriptor_)) {
  const auto* functions = onednn();
  const auto reserve = [&](const dnnl_memory_desc* memory) {
    int64_t& size = work_.sizes[0];
    const size_t begin = size;
    size += (functions->memory_desc_get_size(memory) + work_alignment - 1) / work_alignment * work_alignment;
    return begin;
  };
  for (const End& end : ends) {
    Part part{end.argument, end.is_written, end.layout, functions->primitive_desc_query_md(descriptor_.get(), end.wanted, end.number), {}, 0};
    if (!functions->memory_desc_equal(part.layout.get(), part.liked)) {
      part.reordered = end.is_written ? reorder(part.liked, part.layout.get()) : reorder(part.layout.get(), part.liked);
      part.place = reserve(part.liked);
    }
    parts_.push_back(std::move(part));
  }
  scratch_ = reserve(functions->primitive_desc_query_md(descriptor_.get(), dnnl_query_scratchpad_md, 0));
}

KeptPrimitive::~KeptPrimitive() = default;

std::unique_ptr<KeptPrimitive::Objects> KeptPrimitive::take_objects() const {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto taken = std::move(free_.back());
      free_.pop_back();
      return taken;
    }
  }
  auto made = std::make_unique<Objects>();
  for (const Part& part : parts_) {
    made->of_caller.push_back(memory_object(part.layout.get()));
    made->of_primitive.push_back(part.reordered ? memory_object(part.liked) : made->of_caller.back());
    made->arguments.push_back({part.argument, made->of_primitive.back().get()});
  }
  made->scratch = memory_object(onednn()->primitive_desc_query_md(descriptor_.get(), dnnl_query_scratchpad_md, 0));
  made->arguments.push_back({DNNL_ARG_SCRATCHPAD, made->scratch.get()});
  return made;
}

void KeptPrimitive::run(c10::ArrayRef<void*> addresses) const {
  at::Tensor work = new_memory(work_);
  auto* begin = static_cast<std::byte*>(work.mutable_data_ptr());
  auto objects = take_objects();
  for (size_t number = 0; number < parts_.size(); ++number) {
    place(objects->of_caller[number], addresses[number]);
    if (parts_[number].reordered) {
      place(objects->of_primitive[number], begin + parts_[number].place);
      if (!parts_[number].is_written) {
        execute_reorder(parts_[number].reordered, objects->of_caller[number].get(), objects->of_primitive[number].get());
      }
    }
  }
  place(objects->scratch, begin + scratch_);
  execute(primitive_, objects->arguments);
  for (size_t number = 0; number < parts_.size(); ++number) {
    if (parts_[number].reordered && parts_[number].is_written) {
      execute_reorder(parts_[number].reordered, objects->of_primitive[number].get(), objects->of_caller[number].get());
    }
  }
  retire(std::move(work));
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(objects));
}

std::unique_ptr<const KeptPrimitive> keep(const PrimitiveDescriptor& descriptor, const std::vector<End>& ends) {
  if (!descriptor || std::any_of(ends.begin(), ends.end(), [](const End& end) { return !end.layout; })) {
    return nullptr;
  }
  try {
    return std::make_unique<const KeptPrimitive>(descriptor, ends);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

} // namespace gradc
#else

bool gradc::has_onednn() {
  return false;
}
#endif
