#include "executor/cuda/csrc/graph.h"

#include "csrc/keep.h"

#include <ATen/Context.h>
#include <torch/csrc/Exceptions.h>

namespace py = pybind11;

namespace gradc {
namespace {

constexpr int64_t much = int64_t{256} << 20;

class CudaGraph final : public at::GraphImplInterface {
 public:
  CudaGraph() {
    const py::gil_scoped_acquire gil;
    graph_ = keep(py::module_::import("torch.cuda").attr("CUDAGraph")());
    replay_ = keep(graph_->attr("replay"));
  }
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override {
    TORCH_CHECK(pool == at::MempoolId_t(0, 0) && mode == at::GraphCaptureMode::ThreadLocal, "gradc: a graph has a pool of its own");
    call([this] {
      return_unused_memory();
      graph_->attr("capture_begin")(py::arg("capture_error_mode") = "thread_local");
    });
  }
  void capture_end() override {
    call([this] { graph_->attr("capture_end")(); });
  }
  void instantiate() override {
    call([this] { graph_->attr("instantiate")(); });
  }
  void replay() override {
    call([this] { (*replay_)(); });
  }
  void reset() override {
    call([this] { graph_->attr("reset")(); });
  }
  at::MempoolId_t pool() const override {
    const py::gil_scoped_acquire gil;
    return graph_->attr("pool")().cast<at::MempoolId_t>();
  }
  void enable_debug_mode() override {
    call([this] { graph_->attr("enable_debug_mode")(); });
  }
  void debug_dump(const std::string& path) override {
    call([this, &path] { graph_->attr("debug_dump")(path); });
  }

 private:
  // What torch's allocator keeps for later serves no graph, whose memory is its own. It would be held for nothing.
  static void return_unused_memory() {
    const auto cuda = py::module_::import("torch.cuda");
    const auto kept = cuda.attr("memory_reserved")().cast<int64_t>() - cuda.attr("memory_allocated")().cast<int64_t>();
    if (kept > much) {
      cuda.attr("empty_cache")();
    }
  }
  // An error of Python's outlives the GIL as one of C++'s.
  template <class Call>
  static void call(const Call& call) {
    const py::gil_scoped_acquire gil;
    try {
      call();
    } catch (py::error_already_set& error) {
      throw std::runtime_error(error.what());
    }
  }

  std::shared_ptr<py::object> graph_, replay_;
};

} // namespace

bool has_cuda_graphs() {
  return at::hasCUDA();
}

std::unique_ptr<at::GraphImplInterface> make_cuda_graph() {
  return std::make_unique<CudaGraph>();
}

} // namespace gradc
