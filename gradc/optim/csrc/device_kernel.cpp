#include "optim/csrc/device_kernel.h"

#include "csrc/streams.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <dlfcn.h>

#include <array>

namespace gradc {
namespace {

// The functions of libcuda.so.1 that are called here. Its objects are addresses, and 0 is success.
struct Driver {
  int (*get_context)(void** context);
  int (*set_context)(void* context);
  int (*get_device)(int* device, int index);
  int (*retain_context)(void** context, int device);
  int (*load)(void** module, const void* image);
  int (*find)(void** function, void* module, const char* name);
  int (*launch)(
      void* function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x, unsigned threads_y, unsigned threads_z,
      unsigned shared_bytes, void* stream, void** arguments, void** more);
  int (*name_error)(int error, const char** name);
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_CHECK(function, "gradc: libcuda.so.1 has no ", name);
}

const Driver& driver() {
  static const Driver found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library, "gradc: there is no libcuda.so.1");
    Driver driver{};
    find(library, "cuCtxGetCurrent", driver.get_context);
    find(library, "cuCtxSetCurrent", driver.set_context);
    find(library, "cuDeviceGet", driver.get_device);
    find(library, "cuDevicePrimaryCtxRetain", driver.retain_context);
    find(library, "cuModuleLoadData", driver.load);
    find(library, "cuModuleGetFunction", driver.find);
    find(library, "cuLaunchKernel", driver.launch);
    find(library, "cuGetErrorName", driver.name_error);
    return driver;
  }();
  return found;
}

const char* name_of(int error) {
  const char* name = nullptr;
  return driver().name_error(error, &name) == 0 && name ? name : "unknown error";
}

void check(int error, const char* what) {
  TORCH_CHECK(error == 0, "gradc: ", what, ": ", name_of(error));
}

// A thread that has not called CUDA yet has no context: it gets torch's, the device's primary one.
void enter(c10::DeviceIndex index) {
  void* context = nullptr;
  check(driver().get_context(&context), "cuCtxGetCurrent");
  if (!context) {
    int device = 0;
    check(driver().get_device(&device, index), "cuDeviceGet");
    check(driver().retain_context(&context, device), "cuDevicePrimaryCtxRetain");
    check(driver().set_context(context), "cuCtxSetCurrent");
  }
}

const char* launch_by_driver(void* function, uint32_t num_blocks, uint32_t num_threads, void* arguments, const c10::Stream& stream) {
  enter(stream.device_index());
  std::array<void*, 1> places{arguments};
  const int error = driver().launch(function, num_blocks, 1, 1, num_threads, 1, 1, 0, stream.native_handle(), places.data(), nullptr);
  return error == 0 ? nullptr : name_of(error);
}

} // namespace

void DeviceKernel::launch(uint32_t num_blocks, uint32_t num_threads, void* arguments) const {
  const c10::DeviceGuard guard(device_);
  const char* error = launch_(function_, num_blocks, num_threads, arguments, current_stream(device_));
  TORCH_CHECK(!error, "gradc: a kernel was not launched on ", device_, ": ", error);
}

std::shared_ptr<DeviceKernel> load_cuda_kernel(c10::DeviceIndex device, const std::string& cubin, const std::string& name) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, device));
  enter(device);
  void *module = nullptr, *function = nullptr;
  check(driver().load(&module, cubin.data()), "cuModuleLoadData");
  check(driver().find(&function, module, name.c_str()), "cuModuleGetFunction");
  return std::make_shared<DeviceKernel>(c10::Device(c10::kCUDA, device), &launch_by_driver, function);
}

bool is_current_stream_captured() {
  const auto type = at::accelerator::getAccelerator();
  if (!type || (*type != c10::kCUDA && *type != c10::kXPU) || at::accelerator::deviceCount() == 0) {
    return false;
  }
  return is_captured(c10::impl::VirtualGuardImpl(*type).getDevice());
}

} // namespace gradc
