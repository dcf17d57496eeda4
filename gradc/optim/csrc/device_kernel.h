// A compiled kernel of gradc's own, and how it is started: by the driver of NVIDIA's GPUs, which is found when the first is loaded.
//
//     load_cuda_kernel(device, cubin, name) -> DeviceKernel          DeviceKernel::launch(num_blocks, num_threads, arguments)
//
// A function of the host's serves as well: so a device that does not exist runs kernels, for tests.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>

namespace gradc {

class DeviceKernel {
 public:
  // Starts `function` on a stream; `arguments` is what it takes by value, and is read before this returns. Gives what is wrong, or null.
  using Launch = const char* (*)(void* function, uint32_t num_blocks, uint32_t num_threads, void* arguments, const c10::Stream& stream);

  DeviceKernel(c10::Device device, Launch launch, void* function) : device_(device), launch_(launch), function_(function) {}

  // On the current stream of its device. Throws c10::Error where the device refuses.
  void launch(uint32_t num_blocks, uint32_t num_threads, void* arguments) const;

  c10::Device device() const {
    return device_;
  }

 private:
  c10::Device device_;
  Launch launch_;
  void* function_;
};

// Throws c10::Error where there is no driver, or it does not take the kernel. What is loaded stays until the process ends.
std::shared_ptr<DeviceKernel> load_cuda_kernel(c10::DeviceIndex device, const std::string& cubin, const std::string& name);

// True while a graph is captured from the current stream of the current device, where torch's optimizers ask.
bool is_current_stream_captured();

} // namespace gradc
