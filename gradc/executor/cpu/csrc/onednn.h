// Primitives of the oneDNN that lies in torch's own library, made once and called again and again.
//
// ATen makes descriptors, primitives and memory objects anew in each call that it leaves to oneDNN: a convolution of a small model spends
// two fifths of its time so, in some 550 allocations. The primitives here are the very same, of oneDNN's own cache.
//
//     has_onednn:     whether torch's library shows its functions, and they are of the headers' version
//     onednn:         its functions, or null
//     keep:           (descriptor, ends) -> a KeptPrimitive, which runs on addresses
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace gradc {

bool has_onednn();

} // namespace gradc

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version_hash.h>

#include "executor/core/csrc/plan.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace gradc {

// oneDNN's C functions, by the names that they have there behind "dnnl_".
#define GRADC_ONEDNN_FUNCTIONS(each)                                                                                                  \
  each(version) each(engine_create) each(stream_create) each(stream_destroy) each(memory_desc_create_with_strides)                    \
  each(memory_desc_create_with_tag) each(memory_desc_destroy) each(memory_desc_get_size) each(memory_desc_equal)                      \
  each(memory_create) each(memory_destroy) each(memory_set_data_handle) each(primitive_attr_create) each(primitive_attr_destroy)      \
  each(primitive_attr_set_scratchpad_mode) each(primitive_desc_destroy) each(primitive_desc_query_md) each(primitive_create)          \
  each(primitive_destroy) each(primitive_execute) each(reorder_primitive_desc_create) each(convolution_forward_primitive_desc_create) \
  each(convolution_backward_data_primitive_desc_create) each(convolution_backward_weights_primitive_desc_create)                      \
  each(deconvolution_forward_primitive_desc_create) each(deconvolution_backward_data_primitive_desc_create)                           \
  each(deconvolution_backward_weights_primitive_desc_create) each(matmul_primitive_desc_create) each(post_ops_create)                 \
  each(post_ops_append_sum) each(post_ops_destroy) each(primitive_attr_set_post_ops)

struct Onednn {
#define GRADC_FUNCTION(name) decltype(&dnnl_##name) name = nullptr;
  GRADC_ONEDNN_FUNCTIONS(GRADC_FUNCTION)
#undef GRADC_FUNCTION
  int (*max_threads)() = nullptr; // what oneDNN asks OpenMP; a new thread's may not be torch's number until some op has asked torch
  dnnl_engine_t engine = nullptr; // the CPU
  dnnl_primitive_attr_t attributes = nullptr; // ATen's: whoever calls brings the memory to work in
  dnnl_primitive_attr_t adding_attributes = nullptr; // the same, and the result is added to what is there
};

const Onednn* onednn();

// With how many threads ATen's calls of oneDNN run now; 0 where torch is set to make none, or other ones than are kept, and where there
// are no functions. What else torch may be set to is the precision of float32.
int onednn_threads();

using MemoryDescriptor = std::shared_ptr<const dnnl_memory_desc>;
using PrimitiveDescriptor = std::shared_ptr<const dnnl_primitive_desc>;

// Of float or bfloat16 numbers, laid out so; null for a layout that oneDNN does not know.
MemoryDescriptor memory_laid_out(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
// The same as a primitive likes it best.
MemoryDescriptor memory_as_liked(c10::IntArrayRef sizes, c10::ScalarType dtype);

// What `create` makes of a place for it; null where oneDNN has no such primitive.
template <class Create>
PrimitiveDescriptor primitive_descriptor(const Create& create) {
  dnnl_primitive_desc_t made = nullptr;
  return create(&made) == dnnl_success ? PrimitiveDescriptor(made, onednn()->primitive_desc_destroy) : PrimitiveDescriptor();
}

// An argument of a primitive, by oneDNN's number, as the caller lays it out. The primitive may like it otherwise: it is reordered then,
// before the call, or behind it if the primitive writes it. `wanted` is how the primitive's descriptor is asked for that.
struct End {
  int argument = 0;
  dnnl_query_t wanted = dnnl_query_undef;
  int number = 0; // of what is `wanted`, among those of its kind
  bool is_written = false;
  MemoryDescriptor layout;
};

// Any number of threads may run one at the same time.
class KeptPrimitive {
 public:
  KeptPrimitive(PrimitiveDescriptor descriptor, const std::vector<End>& ends);
  ~KeptPrimitive();
  KeptPrimitive(const KeptPrimitive&) = delete;
  KeptPrimitive& operator=(const KeptPrimitive&) = delete;

  // Where each end lies, in their order.
  void run(c10::ArrayRef<void*> addresses) const;

 private:
  struct Part;
  struct Objects; // of memory, which a run gives addresses
  std::unique_ptr<Objects> take_objects() const;

  const PrimitiveDescriptor descriptor_;
  std::shared_ptr<dnnl_primitive> primitive_;
  std::vector<Part> parts_;
  Meta work_{c10::ScalarType::Byte, {0}, {1}}; // the memory that a run works in
  size_t scratch_ = 0; // where in it the primitive's own begins
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Objects>> free_; // of runs that have ended
};

// Null where oneDNN has no such primitive, or none that reorders one of its ends.
std::unique_ptr<const KeptPrimitive> keep(const PrimitiveDescriptor& descriptor, const std::vector<End>& ends);

} // namespace gradc
#endif
